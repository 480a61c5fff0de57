"""Our orders against those that the installed torch makes and runs, without processes; skipped where it is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppadvisor.cli.main import main
from ppadvisor.frameworks.torchtitan.operations import TORCH_NAMES, operations
from ppadvisor.frameworks.torchtitan.rules import RULES
from ppadvisor.schedules import SCHEDULES, get
from ppadvisor.schedules.base import Schedule
from ppadvisor.schedules.interleaved_1f1b import order_with_group
from ppadvisor.specs.plan import PlanTable
from ppadvisor.specs.recomputation import NONE
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.verify.torch_engine import TORCH_VERSION
from ppadvisor.verify.torch_orders import NotedStage, compute_words, executed_words, noted_schedule
from tests.problems import model

pytestmark = pytest.mark.torch

CHUNKS = {"interleaved-1f1b": (2, 3), "looped-bfs": (1, 2, 3), "interleaved-zero-bubble": (1, 2, 3)}
"""Every v that is compared, where it is not the only one."""
RANKS = (2, 3, 4, 8)
CASES = [
    (name, p, v) for name in TORCH_NAMES for v in CHUNKS.get(name, (get(name).virtual_stages.default,)) for p in RANKS
]
DRAWN = {"naive": (4, 1), "none": (1, 2)}
"""p and m of a timeline where p = 4 and m = 8 are not possible."""
RULE_CODES = ("torch_1f1b_microbatches", "torch_interleaved_microbatches")


@pytest.fixture(scope="module")
def torch_schedules() -> Any:
    """torch.distributed.pipelining.schedules of torch 2.13; else the test is skipped and says why."""
    why = f"compares with torch {TORCH_VERSION}, which is not installed"
    torch = pytest.importorskip("torch", reason=why)
    if not torch.__version__.startswith(f"{TORCH_VERSION}."):
        pytest.skip(f"{why}: found {torch.__version__}")
    return pytest.importorskip("torch.distributed.pipelining.schedules", reason=why)


def ours(schedule: Schedule, p: int, m: int, v: int) -> list[list[str]]:
    """Our order in torch's words: stage, kind and micro-batch, pairs in brackets."""
    orders, stages = schedule.rank_orders(p, m, v), schedule.placement(p, v)
    return [operations(order, of_rank) for order, of_rank in zip(orders, stages, strict=True)]


def refused_by_rules(name: str, p: int, m: int, v: int) -> bool:
    """Whether torchtitan's rules on micro-batches, as `plan` applies them, refuse this."""
    columns = {column: np.ones(1, dtype=np.int64) for column in PlanTable.column_names()}
    sizes = {"pipeline_parallel": p, "num_microbatches": m, "virtual_stages": v, "schedule": 0}
    columns |= {column: np.array([size]) for column, size in sizes.items()}
    table = PlanTable(**columns, schedule_names=(name,), splits=((1,),), recomputations=(NONE,))
    training = TrainingSpec(sequence_length=1024, global_batch_size=m)
    return any(bool(rule.violated(model(), training, table)[0]) for rule in RULES if rule.code in RULE_CODES)


@pytest.mark.parametrize(("name", "p", "v"), CASES)
def test_orders_are_what_torch_runs(torch_schedules: Any, name: str, p: int, v: int) -> None:
    """Op for op on every rank, pairs included, for every m from p to 8p that both run."""
    schedule = get(name)
    both = [m for m in range(p, 8 * p + 1) if not (schedule.problem(p, m, v) or refused_by_rules(name, p, m, v))]
    assert set(both) >= set(range(2 * p, 8 * p + 1, p))  # so that it is never an empty comparison
    for m in both:
        assert ours(schedule, p, m, v) == executed_words(name, p, m, v), m


@pytest.mark.parametrize(("name", "p", "v"), CASES)
def test_refusals_are_torchs(torch_schedules: Any, name: str, p: int, v: int) -> None:
    """m from 1 to 8p: torch's constructor refuses what our schedule or torchtitan's rules refuse, with one difference.

    Interleaved 1F1B with m < p, which torch runs: Megatron does not, and neither do we.
    """
    for m in range(1, 8 * p + 1):
        refused = bool(get(name).problem(p, m, v)) or refused_by_rules(name, p, m, v)
        if refused and not (name == "interleaved-1f1b" and m < p):
            with pytest.raises(ValueError, match=r"[Mm]icro-?batches"):
                noted_schedule(name, p, m, v)
        else:
            noted_schedule(name, p, m, v)


@pytest.mark.parametrize("v", [1, 3])
@pytest.mark.parametrize("name", ["zb-v", "dualpipev"])
def test_two_chunks_and_no_other_number(torch_schedules: Any, name: str, v: int) -> None:
    """Where torch wants exactly two stages a rank, so do we."""
    assert get(name).problem(4, 16, v) == f"virtual_stages must be 2: got {v}"
    with pytest.raises(ValueError, match="requires exactly 2 stages per rank"):
        noted_schedule(name, 4, 16, v)


@pytest.mark.parametrize("p", RANKS)
def test_interleaved_1f1b_where_only_torch_runs_it(torch_schedules: Any, p: int) -> None:
    """m < p, and one chunk a rank: what torch runs there is our order with all m in a group, or torch's group."""
    for m, v in [*((m, 2) for m in range(1, p)), *((m, 1) for m in range(p, 8 * p + 1, p))]:
        order = order_with_group(p, m, v, m // max(1, m // p))
        words = [[f"{a.chunk * p + rank}{a.kind.letter}{a.microbatch}" for a in order[rank]] for rank in range(p)]
        assert words == executed_words("interleaved-1f1b", p, m, v)


@pytest.mark.parametrize("p", RANKS)
def test_the_order_that_torchs_1f1b_declares_is_off_by_one(torch_schedules: Any, p: int) -> None:
    """Why its loop is run above: on the last rank `pipeline_order` has every forward one too late, on others not."""
    for m in (p, 2 * p + 1, 8 * p):
        declared = noted_schedule("1f1b", p, m, 1).pipeline_order
        runs = ours(get("1f1b"), p, m, 1)
        assert [compute_words(declared[rank]) for rank in range(p - 1)] == runs[:-1]
        late = [re.sub(r"F(\d+)", lambda match: f"F{int(match[1]) + 1}", word) for word in runs[-1]]
        assert compute_words(declared[p - 1]) == late


@pytest.mark.parametrize("name", [name for name in SCHEDULES if not re.search("vocab|dualpipe$|chimera", name)])
def test_torch_loads_our_csv(torch_schedules: Any, name: str, tmp_path: Path) -> None:
    """Every schedule of one copy, torch's own or not: `timeline --csv` is read, given its messages and written again.

    The same operations stand in the file, in what torch holds, in what it would execute and in what it writes; torch
    finds each stage on the rank where we put it.
    """
    p, m = DRAWN.get(name, (4, 8))
    schedule, file, again = get(name), tmp_path / "ours.csv", tmp_path / "torchs.csv"
    v = schedule.virtual_stages.default
    assert main(["timeline", *f"--schedule {name} --pp {p} --microbatches {m} --csv {file}".split()]) == 0
    runtime = torch_schedules._PipelineScheduleRuntime([NotedStage(p, v)] * v, m)
    runtime._load_csv(file, format="compute_only")
    runtime._dump_csv(again, format="compute_only")
    words = ours(schedule, p, m, v)
    assert [compute_words(runtime.pipeline_order[rank]) for rank in range(p)] == words
    assert [compute_words(runtime.pipeline_order_with_comms[rank]) for rank in range(p)] == words
    assert again.read_text().splitlines() == file.read_text().splitlines() == [",".join(rank) for rank in words]
    places = {int(stage): rank for rank, stages in enumerate(schedule.placement(p, v)) for stage in stages}
    assert runtime.stage_index_to_group_rank == places
