"""How fast and how large: run on demand, `pytest tests/benchmarks/bench_speed.py`; nothing here asserts a time.

Seconds are those of the CPU (user and system), the least of several runs: a machine that is busy with other work makes
wall clocks useless. What is printed beside a figure is what other programs took for the same kind of work, measured on
29 November 2026 on the two cores of a Xeon VM under Python 3.11: Calculon (commit caa4b11) evaluated 109 to 221
configurations of GPT-3 175B a CPU second in its own search, one process, 64 to 4,096 GPUs; llm-analysis (commit
d841e40) took 0.283 ms for one configuration, without a pipeline, and has no search.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from ppadvisor.cli.main import COMMANDS
from ppadvisor.search.api import make_problem
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import rank
from ppadvisor.specs.load import load_cluster, load_model
from ppadvisor.specs.training import TrainingSpec
from tests.benchmarks.conftest import FIGURES

ROUNDS = 5
CALCULON = (109, 221)
"""Configurations a CPU second, in a grid of 64 GPUs and in one of 4,096."""
LLM_ANALYSIS = 3_532
"""Evaluations a second, one after the other."""

ON_H100 = ("--gpu", "h100-sxm-80gb", "--seq-len", "8192")
COMMAND_LINES: dict[str, tuple[str, ...]] = {
    "--help": ("--help",),
    "--version": ("--version",),
    "plan, 8B on 8 GPUs": ("plan", "--model", "llama-3.1-8b", *ON_H100, "--gpus", "8", "--global-batch", "128"),
    "plan, 70B on 64 GPUs": ("plan", "--model", "llama-3.1-70b", *ON_H100, "--gpus", "64", "--global-batch", "1024"),
    "plan, 405B on 16,384 GPUs": (
        *("plan", "--model", "llama-3.1-405b", *ON_H100),
        *("--gpus", "16384", "--global-batch", "2048"),
    ),
    "plan, DeepSeek-V3 on 2,048 GPUs": (
        *("plan", "--model", "deepseek-v3", *ON_H100),
        *("--gpus", "2048", "--global-batch", "15360"),
    ),
    "plan, 70B on 64 GPUs, every schedule": (
        *("plan", "--model", "llama-3.1-70b", *ON_H100, "--gpus", "64", "--global-batch", "1024"),
        *("--framework", "generic"),
    ),
}
PINNED = (
    *("sweep", "--model", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--framework", "generic", "--jobs", "1"),
    *("--global-batch", "512,1024", "--pp", "2,4,8,16", "--tp", "4,8", "--micro-batch", "1,2"),
    *("--recompute", "none,full", "--schedule", "1f1b,gpipe", "--format", "csv"),
)
"""Context parallelism and the split of the layers stay open; 128 points for each number of GPUs and sequence length."""
SWEEPS: dict[str, tuple[int, tuple[str, ...]]] = {
    "sweep, 70B, open plans": (
        12,
        (
            *("sweep", "--model", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--gpus", "64,128,256"),
            *("--seq-len", "4k,8k", "--global-batch", "512,1024"),
        ),
    ),
    "sweep, 70B, pinned plans": (256, (*PINNED, "--gpus", "64,256", "--seq-len", "4k")),
    "sweep, 70B, pinned plans, --quick": (1024, (*PINNED, "--gpus", "64,128,256,512", "--seq-len", "4k,8k", "--quick")),
}
SEARCHES = {
    "70B on 64 GPUs": ("llama-3.1-70b", 64, 1024),
    "405B on 16,384 GPUs": ("llama-3.1-405b", 16_384, 2048),
    "DeepSeek-V3 on 2,048 GPUs": ("deepseek-v3", 2048, 15_360),
}
Report = Callable[[str, str, str], None]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Adds a line to the table that is printed at the end."""
    figures = request.config.stash.setdefault(FIGURES, [])

    def add(what: str, figure: str, beside: str = "") -> None:
        figures.append((what, figure, beside))

    return add


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    def pedantic(self, target: Callable[[], Any], *, rounds: int, warmup_rounds: int) -> Any:
        """Run the target so many times, and keep its wall clock."""


SETTINGS_OF_MACHINES = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
"""With these each run compiles the package anew, and writes each piece of a table by itself."""

# a small process in between: of one that forks, the child's largest memory would begin with the parent's
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def child(arguments: tuple[str, ...]) -> tuple[float, float]:
    """(CPU seconds, largest memory in MB) of one run of the command line in a process of its own."""
    command = [sys.executable, "-c", MEASURED, sys.executable, "-m", "ppadvisor", *arguments]
    # compiled once, by the first run, as an installed package is
    usual = {name: value for name, value in os.environ.items() if name not in SETTINGS_OF_MACHINES}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=usual)
    code, seconds, memory = done.stdout.split()
    assert code == "0"
    return float(seconds), float(memory)


def least_of_children(benchmark: Benchmark, arguments: tuple[str, ...]) -> tuple[float, float]:
    """The least CPU seconds and the largest memory of several runs; the benchmark keeps their wall clock."""
    measured: list[tuple[float, float]] = []
    benchmark.pedantic(lambda: measured.append(child(arguments)), rounds=ROUNDS, warmup_rounds=1)
    return min(seconds for seconds, _ in measured), max(memory for _, memory in measured)


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_a_whole_process(name: str, benchmark: Benchmark, report: Report) -> None:
    """Start-up and answers, and the memory that they take."""
    seconds, memory = least_of_children(benchmark, COMMAND_LINES[name])
    report(name, f"{seconds:.2f} s", f"{memory:.0f} MB at most")


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search(name: str, benchmark: Benchmark, report: Report) -> None:
    """Plans decided a second: rejected by a rule or a bound, or with step time, the peak that binds, and a verdict."""
    model, gpus, batch = SEARCHES[name]
    of = make_problem(
        load_model(model),
        load_cluster("dgx-h100-superpod", num_gpus=gpus),
        TrainingSpec(sequence_length=4096, global_batch_size=batch),
    )
    seconds: list[float] = []
    sizes: list[int] = []

    def search() -> None:
        start = time.process_time()
        sizes.append(rank(of, Pins(), margin=0.9).space.num_combinations)
        seconds.append(time.process_time() - start)

    benchmark.pedantic(search, rounds=ROUNDS, warmup_rounds=1)
    rate = sizes[0] / min(seconds)
    beside = " to ".join(f"{rate / peer:,.0f}" for peer in reversed(CALCULON))
    report(
        f"search, {name}: {sizes[0]:,} plans",
        f"{rate:,.0f} plans/s",
        f"{beside} times Calculon's search, {rate / LLM_ANALYSIS:,.0f} times llm-analysis one by one",
    )


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep(name: str, benchmark: Benchmark, report: Report) -> None:
    """Points of a sweep a second, each the best of all plans, or of those that are pinned, with start and output."""
    points, arguments = SWEEPS[name]
    seconds, memory = least_of_children(benchmark, arguments)
    long_s = 10_000 * seconds / points
    beside = f"10,000 points in {long_s:,.0f} s of a core; {memory:.0f} MB at most"
    report(f"{name}: {points:,} points", f"{points / seconds:,.1f} points/s", beside)


@pytest.mark.skipif("size" not in {command.name for command in COMMANDS}, reason="no command `size`")
def test_size(benchmark: Benchmark, report: Report) -> None:
    """A cluster for 15 T tokens in 60 days."""
    model = ("--model", "llama-3-70b", "--gpu", "h100-sxm-80gb", "--seq-len", "8192", "--global-batch", "1024")
    seconds, memory = least_of_children(benchmark, ("size", *model, "--tokens", "15T", "--days", "60"))
    report("size, 70B, 15 T tokens in 60 days", f"{seconds:.2f} s", f"{memory:.0f} MB at most")


def test_where_it_ran(report: Report) -> None:
    """The machine, without which seconds say nothing."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "CPU unknown",
    )
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    report("on", f"Python {sys.version.split()[0]}", f"{os.cpu_count()} cores of {cpu}, load {load}")
