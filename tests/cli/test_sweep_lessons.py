"""What the sweeps of the README teach: each holds what physics, not this program, says of it.

Pinned where that leaves the lesson as it is, and quick, so that they take seconds; the lesson of m is in test_sweep.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.cli.conftest import Cli

Rows = list[dict[str, Any]]
Sweep = Callable[[str], Rows]


@pytest.fixture
def sweep(cli: Cli) -> Sweep:
    """The rows of a quick sweep on H100."""

    def run(line: str) -> Rows:
        result = cli("sweep", "--gpu", "h100-sxm-80gb", *line.split(), *["--quick", "--jobs", "1", "--format", "json"])
        rows: Rows = result.document["rows"]
        return rows

    return run


def test_more_gpus_for_405b(sweep: Sweep) -> None:
    """405B parameters with 18 bytes each for Adam in mixed precision do not fit into 64 x 80 GB, and fit from 128 on.

    405e9 x (2 + 4) bytes of weights and gradients, and 12 of the optimizer over d, are 7.3e12 bytes at d = 1: more than
    64 x 80e9 = 5.1e12, less than 128 x 80e9 = 10.2e12. With the batch fixed more GPUs take less time, but not in
    proportion: m = B / (d b) falls, and the bubble grows.
    """
    line = "--model llama-3.1-405b --gpus 64,128,2048,16384 --seq-len 8k --global-batch 2048 --tp 8 --micro-batch 1"
    rows = sweep(f"{line} --schedule 1f1b --cp 1 --zero 1")
    assert [row["fits"] for row in rows] == [False, True, True, True]
    assert rows[0]["reason_code"] == "memory"
    small, middle, large = rows[1:]
    assert small["recompute"].startswith("full")
    assert small["step_time_s"] > middle["step_time_s"] > large["step_time_s"] > middle["step_time_s"] / 8
    assert small["num_microbatches"] > middle["num_microbatches"] > large["num_microbatches"]
    assert middle["bubble_fraction"] < large["bubble_fraction"]


def test_longer_sequences_for_70b(sweep: Sweep) -> None:
    """At 8k tokens t = 8 divides a sequence far enough, from 128k on context parallelism has to, the more the longer:
    activations grow with the sequence, and t is bound to the node. With the tokens of a step fixed its time grows, as
    attention takes s^2 of each sequence.
    """
    rows = sweep("--model llama-3.1-70b --gpus 256 --seq-len 8k,128k,1M --global-batch 4Mtok --tp 8 --micro-batch 1")
    contexts = [row["context_parallel"] for row in rows]
    assert all(row["fits"] for row in rows)
    assert contexts[0] == 1
    assert contexts == sorted(set(contexts))
    steps = [row["step_time_s"] for row in rows]
    assert steps == sorted(steps)
    assert [row["global_batch_size"] * row["sequence_length"] for row in rows] == [4 * 2**20] * 3


def test_larger_memory_for_175b(sweep: Sweep) -> None:
    """More memory never makes the best plan slower, and saves recomputation first: at 40 GB layers are recomputed, at
    80 GB none are. Peaks stay within nine tenths of each memory.
    """
    memory = "--gpu-memory 40GB,80GB,141GB,192GB"
    asked = "--model gpt3-175b --gpus 128 --seq-len 2k --global-batch 1536 --micro-batch 1 --tp 4 --cp 1"
    rows = sweep(f"{asked} --schedule 1f1b {memory}")
    assert all(row["fits"] for row in rows)
    steps = [row["step_time_s"] for row in rows]
    assert steps == sorted(steps, reverse=True)
    assert [row["recompute"] != "none" for row in rows][:2] == [True, False]
    assert all(row["peak_bytes"] <= 0.9 * row["gpu_memory_bytes"] for row in rows)


def test_a_table_of_where_gpipe_runs_out(cli: Cli) -> None:
    """p = 8, m from 8 to 256: GPipe's column ends where m micro-batches no longer fit, 1F1B's goes on to the last m."""
    line = (
        "sweep --model llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 4k --pp 8 --tp 8 --micro-batch 1 --quick "
        "--recompute none --microbatches 8:256:x2 --schedule gpipe,1f1b --pivot microbatches,schedule"
    )
    cells = re.findall(
        r"^ *(\d+) +([\d.]+)( memory)? +([\d.]+)( memory)?$",
        cli(*line.split(), "--value", "peak_bytes").stdout,
        re.MULTILINE,
    )
    assert [int(m) for m, *_ in cells] == [8, 16, 32, 64, 128, 256]
    assert [bool(misses) for _, _, misses, _, _ in cells] == [False, False, True, True, True, True]
    assert not any(misses for *_, misses in cells)
    gpipe = [float(peak) for _, peak, *_ in cells]
    steps = [more - less for less, more in pairwise(gpipe)]
    # twice the micro-batches hold twice the activations
    assert steps[1:] == pytest.approx([2 * step for step in steps[:-1]], rel=0.02)
