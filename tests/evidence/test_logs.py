"""Logs of every trainer are read as its own format strings write them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ppadvisor import frameworks
from ppadvisor.errors import InputError
from ppadvisor.evidence.logs import RunLog, read_log, steady_step_time
from tests.evidence import written_logs as written
from tests.evidence.written_logs import GIB, WITH_TIMES, text

TIMES = [9.0, *[2.5] * 5, *[2.0] * 20]
"""A slow first step, some slow ones, then 2 s."""


def read(tmp_path: Path, lines: list[str], framework: str | None = None) -> RunLog:
    """The lines as a log."""
    path = tmp_path / "run.log"
    path.write_text(text(lines))
    return read_log(path, framework)


def median(run: RunLog, batch: int = 64) -> float:
    """The step time of sequences of 1024 tokens on 8 GPUs."""
    return steady_step_time(run, sequence_length=1024, global_batch_size=batch, num_gpus=8).step_time_s


@pytest.mark.parametrize("title", WITH_TIMES)
def test_step_times_are_read(tmp_path: Path, title: str) -> None:
    """Each kind of line gives the steady 2 s, the slow beginning left out, in the format that it belongs to."""
    run = read(tmp_path, ["a line of something else", *WITH_TIMES[title](TIMES)])
    assert run.line is not None
    assert run.line.title == title
    assert median(run) == pytest.approx(2.0, rel=1e-3)


def test_bridge_prints_both(tmp_path: Path) -> None:
    """Of Bridge's two lines the finer is read; where rank 0 alone is logged, the coarse one."""
    run = read(tmp_path, written.bridge([9.0, *[2.0064] * 20]))
    assert run.line is not None
    assert run.line.title == "Megatron iteration line"
    assert median(run) == pytest.approx(2.0064, rel=1e-4)
    short = read(tmp_path, [line for line in written.bridge(TIMES) if line.startswith("Step Time")])
    assert median(short) == pytest.approx(2.0)


def test_torchtitan_tells_tokens(tmp_path: Path) -> None:
    """64 sequences of 1024 tokens on 8 GPUs at 4,096 tokens/s of each take 2 s; colours and prefixes do not disturb."""
    run = read(tmp_path, written.torchtitan([100.0, *[4096.0] * 10], every=10))
    assert median(run) == 64 * 1024 / (4096 * 8)
    assert [peak.reserved_bytes for peak in run.peaks] == [40 * GIB]
    assert run.day == "2026-11-28"


def test_validation_lines_are_no_steps(tmp_path: Path) -> None:
    """torchtitan's validation line has tokens/s too, of no training step."""
    line = "validate step: 40  loss:  7.1234  memory: 40.00GiB(50.00%)  tps: 9,999"
    run = read(tmp_path, [*written.torchtitan([4096.0] * 6, every=10), line])
    assert len(run.steps) == 6


def test_nemo_1_draws_bars(tmp_path: Path) -> None:
    """NeMo 1's progress bar is drawn over itself with carriage returns; each step counts once."""
    bar = "Epoch 0: :   4%|4   | {n}/100 [00:10<04:00, loss=7.12, global_step={n}.00, consumed_samples=64.0, {t}]"
    drawn = [bar.format(n=n, t=f"train_step_timing in s={2.0:.3f}") for n in range(30) for _ in range(3)]
    path = tmp_path / "bar.log"
    path.write_bytes("\r".join(drawn).encode() + b"\n")
    run = read_log(path)
    assert len(run.steps) == 30
    assert median(run) == 2.0


@pytest.mark.parametrize(("writer", "rel"), [(written.megatron_memory, 1e-5), (written.bridge_memory, 1e-4)])
def test_memory_of_each_rank(tmp_path: Path, writer: object, rel: float) -> None:
    """The last report of a rank, which holds the optimizer too, is the one that counts."""
    assert callable(writer)
    lines = [writer(3, 20 * GIB, 22 * GIB), writer(3, 30 * GIB, 33 * GIB), writer(0, 40 * GIB, 44 * GIB)]
    run = read(tmp_path, [*written.megatron(TIMES), *lines])
    peaks = {peak.rank: (peak.allocated_bytes, peak.reserved_bytes) for peak in run.peaks}
    assert peaks[3] == pytest.approx((30 * GIB, 33 * GIB), rel=rel)
    assert peaks[0] == pytest.approx((40 * GIB, 44 * GIB), rel=rel)


def test_older_memory_lines(tmp_path: Path) -> None:
    """Older Megatron prints every digit of its peaks."""
    line = "[Rank 1] (after 1 iterations) memory (MB) | allocated: 1.5 | max allocated: 1024.0009765625 | "
    run = read(tmp_path, [*written.megatron(TIMES), line + "reserved: 2048.0 | max reserved: 2048.0"])
    assert run.peaks[0].reserved_bytes == 2 * GIB


def test_a_ramp_of_the_batch_is_left_out(tmp_path: Path) -> None:
    """Lines with a smaller batch than the plan's are left out and counted; where none is left, both are named."""
    run = read(tmp_path, [*written.megatron([1.0] * 30, batch=32), *written.megatron([2.0] * 20, first=31)])
    steady = steady_step_time(run, sequence_length=1024, global_batch_size=64, num_gpus=8)
    assert (steady.step_time_s, steady.num_lines, steady.first_iteration) == (2.0, 10, 41)
    assert steady.left_out == ("10 lines of warm-up (iterations to 40)", "30 lines of another global batch")
    with pytest.raises(InputError, match=r"run\.log: its global batch is 32, 64, the plan's is 128"):
        median(run, batch=128)


def test_few_lines_lose_the_first_alone(tmp_path: Path) -> None:
    """Where the first ten iterations are all there is, only the first line is left out; one line is too few."""
    run = read(tmp_path, written.megatron([9.0, 2.0, 2.0, 2.2]))
    steady = steady_step_time(run, sequence_length=1024, global_batch_size=64, num_gpus=8)
    assert (steady.step_time_s, steady.left_out) == (2.0, ("1 line of warm-up (iterations to 1)",))
    with pytest.raises(InputError, match="one step line, which is its warm-up"):
        median(read(tmp_path, written.megatron([2.0])))


def test_spread_and_rounding_are_uncertainty(tmp_path: Path) -> None:
    """Of 1.9, 2.0, 2.1 s in turn the spread is 1.4826 x 0.1 / 2; equal times still have their rounding."""
    run = read(tmp_path, written.megatron([9.0] * 10 + [1.9, 2.0, 2.1] * 12))
    steady = steady_step_time(run, sequence_length=1024, global_batch_size=64, num_gpus=8)
    assert steady.spread_fraction == pytest.approx(1.4826 * 0.1 / 2)
    assert steady.uncertainty_fraction == pytest.approx(1.2533 * steady.spread_fraction / 6, rel=1e-3)
    coarse = read(tmp_path, written.megatron_deepspeed([2.0] * 40))
    equal = steady_step_time(coarse, sequence_length=1024, global_batch_size=64, num_gpus=8)
    assert equal.spread_fraction == 0
    assert equal.uncertainty_fraction == pytest.approx(0.005 / 2.0 / 3**0.5)


def test_a_cut_line_is_not_read(tmp_path: Path) -> None:
    """A log that ends in the middle of a number does not give that number, whichever trainer wrote it."""
    for lines in (*(write(TIMES) for write in WITH_TIMES.values()), written.torchtitan([4096.0] * 20)):
        whole = text(lines)
        path = tmp_path / "cut.log"
        path.write_text(whole[:-1])
        last = read_log(path)
        path.write_text(whole)
        assert len(read_log(path).steps) - len(last.steps) == 1
    full = text(written.torchtitan([4096.0] * 20))
    path.write_text(full[: full.rindex("tps: ") + 7])
    assert {step.value for step in read_log(path).steps} == {4096.0}


@pytest.mark.parametrize(
    ("content", "framework", "says"),
    [
        ("", None, "is empty"),
        ("no line end", None, "is empty, or holds no whole line"),
        (
            "hello\nworld\n",
            None,
            "holds no step line of Megatron-LM, Megatron-Bridge or NeMo or torchtitan or DeepSpeed",
        ),
        (text(written.deepspeed_pipeline(TIMES)), "torchtitan", r"it has lines of DeepSpeed \(--framework deepspeed\)"),
        (text(written.megatron(TIMES)), "megatorn", "did you mean 'megatron'"),
        ("a\0b\n", None, "not a text file"),
    ],
)
def test_what_is_no_log(tmp_path: Path, content: str, framework: str | None, says: str) -> None:
    """Empty, foreign, binary, or another trainer's than was said: one line that names the file or the option."""
    path = tmp_path / "run.log"
    path.write_text(content)
    with pytest.raises(InputError, match=says):
        read_log(path, framework)


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    """Neither is a log, and both are said by name."""
    with pytest.raises(InputError, match=r"none\.log: no such file"):
        read_log(tmp_path / "none.log")
    with pytest.raises(InputError, match="is a directory"):
        read_log(tmp_path)


def test_a_long_log_is_fast(tmp_path: Path) -> None:
    """100,000 lines, one in ten a step line, are read in a few seconds."""
    steps = written.megatron([2.0] * 10_000)
    lines = [line for step in steps for line in (step, *["a line of a library, of no interest here: 0.123"] * 9)]
    began = time.perf_counter()
    assert len(read(tmp_path, lines).steps) == 10_000
    assert time.perf_counter() - began < 5


def test_every_format_names_its_lines() -> None:
    """Each line of each format says where it was read, and captures what its kind must."""
    for format in frameworks.log_formats():
        for line in format.steps:
            assert line.source
            assert "value" in line.pattern.groupindex
        for memory in format.memory:
            assert memory.source
            assert {"allocated", "reserved"} & set(memory.pattern.groupindex)
