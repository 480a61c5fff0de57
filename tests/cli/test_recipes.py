"""`ppadvisor validate --kind recipes`: published recipes beside what `plan` recommends."""

from __future__ import annotations

import csv
import io
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.evidence.recipes import PUBLISHED
from ppadvisor.evidence.records import Record, shipped_records
from tests.cli.conftest import Cli
from tests.cli.test_schema import check
from tests.evidence.samples import lines, sample

ASKED = (
    ("Llama 3 8B", "h100-sxm-80gb"),
    ("Llama 3 8B", "gb200-186gb"),
    ("Llama 3 70B", "h100-sxm-80gb"),
    ("GPT-OSS 120B", "gb300-288gb"),
    ("GPT-OSS 120B", "h100-sxm-80gb"),
    ("Qwen3 30B-A3B", "gb300-288gb"),
)
"""Configurations that are searched quickly: dense and with experts, recipes that we say fit and that we say do not."""


@cache
def published() -> tuple[Record, ...]:
    """The published runs of ASKED."""
    records = shipped_records()
    return tuple(r for r in records if r.source.key in PUBLISHED and (r.model.name, r.cluster.gpu) in ASKED)


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A file with one run on 4 GPUs."""
    path = tmp_path / "own.jsonl"
    path.write_text(lines(sample(measured={"step_time_s": 1.0}, usable_for=["time"])))
    return str(path)


def told_parts(row: dict[str, Any]) -> list[str]:
    """The named parts of a sentence: `1.1 s less bubble, 40 ms more data parallel`."""
    return [part.split(" ", 3)[3] for part in row["difference"].split(", ")] if row["difference"] else []


def test_no_slower_than_published_recipes(cli: Cli, tmp_path: Path) -> None:
    """Our plan fits and is no slower by our prediction, whether we say that the recipe fits or not.

    Each sentence names parts of a step where the two plans differ in time.
    """
    path = tmp_path / "recipes.jsonl"
    path.write_text("".join(record.model_dump_json() + "\n" for record in published()))
    document = cli("validate", str(path), "--kind", "recipes", "--format", "json").document
    rows = document["rows"]
    assert {(row["model"], row["gpu"]) for row in rows} == set(ASKED)
    assert {row["recipe"]["verdict"] for row in rows} == {"fits", "does_not_fit"}
    for row in rows:
        fraction = row["step_time_fraction"]
        assert row["ours"]["verdict"] == "fits"
        assert fraction == row["ours"]["step_time_s"] / row["recipe"]["step_time_s"]
        assert fraction <= 1, row["id"]
        assert bool(told_parts(row)) == (fraction != 1)


def test_the_forms(cli: Cli, own: str) -> None:
    """JSON follows its schema; table and markdown hold the row within 80 columns; csv has the plans in words."""
    document = cli("validate", own, "--kind", "recipes", "--format", "json").document
    check(document, "validate")
    (row,) = document["rows"]
    assert (row["id"], row["measured_step_time_s"], document["kind"]) == ("own-1", 1.0, "recipes")
    table = cli("validate", own, "--kind", "recipes")
    assert (table.exit_code, table.stderr) == (0, "")
    assert max(map(len, table.stdout.splitlines())) <= 80
    markdown = cli("validate", own, "--kind", "recipes", "--format", "markdown").stdout
    for text in (table.stdout, markdown):
        assert f"{row['step_time_fraction']:.3f}" in text
    (line,) = csv.DictReader(io.StringIO(cli("validate", own, "--kind", "recipes", "--format", "csv").stdout))
    assert (line["recipe.text"], line["difference"]) == ("p=4 b=1 m=8 1f1b", row["difference"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kind", "recipes", "--label", "all"), "--label, --partial and --rows have no effect"),
        (("--kind", "recipes", "--source", "mbridge_card"), "did you mean 'mbridge_cards'"),
        (("--kind", "recipes", "--source", "meg_formula"), "unknown source"),
        (("--source", "vocabpp_csv", "--frameworks"), "has no effect"),
    ],
)
def test_bad_input(cli: Cli, words: tuple[str, ...], said: str) -> None:
    """What has no effect, and a source that does not exist, with the nearest one that does."""
    result = cli("validate", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_one_source_alone(cli: Cli) -> None:
    """--source leaves the records of one source, for every kind."""
    document = cli("validate", "--source", "vocabpp_csv", "--format", "json").document
    assert set(document["sources"]) == {"vocabpp_csv"}


def test_records_without_times_are_no_recipes(cli: Cli, tmp_path: Path) -> None:
    """A file of memory alone is refused, with the reason."""
    path = tmp_path / "memory.jsonl"
    path.write_text(lines(sample()))
    result = cli("validate", str(path), "--kind", "recipes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "step time" in result.stderr
