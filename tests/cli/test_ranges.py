"""Ranges of quantities, as they stand in lists."""

from __future__ import annotations

import re

import pytest

from ppadvisor.cli.ranges import parse_range
from ppadvisor.cli.request import parse_from_zero
from ppadvisor.errors import InputError
from ppadvisor.units import parse_bandwidth, parse_batch, parse_count, parse_memory, parse_sequence_length
from tests.cli.conftest import Cli


def test_a_factor_multiplies() -> None:
    """`x2` doubles from the first value to the last, both included, as the issue writes its GPUs."""
    assert parse_range("64:4096:x2", parse_count, "--gpus") == (64, 128, 256, 512, 1024, 2048, 4096)
    assert parse_range("1:100:x10", parse_count, "--gpus") == (1, 10, 100)


def test_a_step_adds() -> None:
    """`+8` counts up; an end that is not met is not passed."""
    assert parse_range("8:64:+8", parse_count, "--pp") == (8, 16, 24, 32, 40, 48, 56, 64)
    assert parse_range("8:20:+8", parse_count, "--pp") == (8, 16)
    assert parse_range("0:3:+1", parse_from_zero, "--zero") == (0, 1, 2, 3)


def test_quantities_keep_their_units() -> None:
    """Ends and steps are read as single values are: 100 Gb/s = 12.5 GB/s, 8k tokens binary, a batch in sequences."""
    assert parse_range("100Gb/s:400Gb/s:x2", parse_bandwidth, "-") == (12.5e9, 25e9, 50e9)
    assert parse_range("8k:32k:+8k", parse_sequence_length, "-") == (8192, 16384, 24576, 32768)
    assert parse_range("40GiB:80GiB:+40GiB", parse_memory, "-") == (40 * 2**30, 80 * 2**30)
    assert parse_range("1Mtok:4Mtok:x2", parse_batch, "-") == tuple(("tokens", n * 2**20) for n in (1, 2, 4))


def test_the_end_is_met_in_spite_of_rounding() -> None:
    """0.1 + 2 x 0.1 is above 0.3 in doubles; the third value belongs to the range all the same."""
    assert len(parse_range("0.1GB/s:0.3GB/s:+0.1GB/s", parse_bandwidth, "-")) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("64:4096", "is no range"),
        ("64:4096:x2:x2", "is no range"),
        (":64:x2", "is no range"),
        ("4096:64:x2", "begins above its end"),
        ("8:64:x1", "has the step 'x1'"),
        ("8:64:x1.5", "has the step 'x1.5'"),
        ("8:64:8", "has the step '8'"),
        ("8:64:-8", "has the step '-8'"),
        ("1:100000:+1", "has more than 10,000 values"),
        ("0:3:x2", "stands still"),
        ("0:3:+0", "stands still"),
    ],
)
def test_what_is_no_range(text: str, problem: str) -> None:
    """One line says what was given, what is wrong with it, and shows both forms."""
    with pytest.raises(InputError, match=re.escape(f"--gpus: {text!r} {problem}")) as caught:
        parse_range(text, parse_from_zero, "--gpus")
    assert "allowed: 64:4096:x2 (64, 128, ..., 4096) or 8:64:+8" in str(caught.value)


def test_the_units_of_a_range_go_together() -> None:
    """A batch in sequences and one in tokens are no two ends of anything."""
    with pytest.raises(InputError, match="begins and ends in different units"):
        parse_range("64:1Mtok:x2", parse_batch, "--global-batch")
    with pytest.raises(InputError, match="has a step in another unit"):
        parse_range("64:128:+1Mtok", parse_batch, "--global-batch")


def test_ranges_and_values_stand_in_one_list(cli: Cli) -> None:
    """A list may hold both, in every command that takes lists of numbers."""
    result = cli("bubble", "--pp", "2,4:8:x2", "--microbatches", "8,16:48:+16", "--format", "json")
    rows = result.document["rows"]
    assert [row["pipeline_parallel"] for row in rows[::4]] == [2, 4, 8]
    assert [row["num_microbatches"] for row in rows[:4]] == [8, 16, 32, 48]


def test_a_colon_in_a_word_is_no_range(cli: Cli) -> None:
    """`full:block:4` is a recomputation."""
    asked = "--model gpt2-124m --gpu a100-sxm-80gb --gpus 4 --seq-len 1k --global-batch 32 --pp 2"
    result = cli("sweep", *asked.split(), "--recompute", "none,full:block:4", "--format", "json")
    assert [row["recompute"] for row in result.document["rows"]] == ["none", "full:block:4"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--gpus 64:8:x2", "error: --gpus: '64:8:x2' begins above its end"),
        ("--gpus 4:8", "error: --gpus: '4:8' is no range"),
        (
            "--gpus 1:9000:+1 --seq-len 1:9000:+1",
            "error: a sweep of 81,000,000 points (9,000 --gpus x 9,000",
        ),
    ],
)
def test_absurd_ranges_are_one_line(cli: Cli, options: str, message: str) -> None:
    """Exit 2, before anything is searched."""
    base = "--model gpt2-124m --gpu a100-sxm-80gb --gpus 4 --seq-len 1k --global-batch 32"
    result = cli("sweep", *base.split(), *options.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr
