"""Our orders against those that the installed torch makes and runs, without processes; skipped where it is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppadvisor.cli.main import main
from ppadvisor.frameworks.torchtitan.rules import RULES
from ppadvisor.schedules import SCHEDULES, get
from ppadvisor.schedules.base import Schedule
from ppadvisor.schedules.interleaved_1f1b import order_with_group
from ppadvisor.specs.plan import PlanTable
from ppadvisor.specs.recomputation import NONE
from ppadvisor.specs.training import TrainingSpec
from tests.problems import model

pytestmark = pytest.mark.torch

TORCH_VERSION = "2.13."
"""Private names are used, and rules differ between versions."""
NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zero-bubble": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""Our schedule id -> torch's name."""
CHUNKS = {"interleaved-1f1b": (2, 3), "looped-bfs": (1, 2, 3), "interleaved-zero-bubble": (1, 2, 3)}
"""Every v that is compared, where it is not the only one."""
RANKS = (2, 3, 4, 8)
CASES = [(name, p, v) for name in NAMES for v in CHUNKS.get(name, (get(name).virtual_stages.default,)) for p in RANKS]
DRAWN = {"naive": (4, 1), "none": (1, 2)}
"""p and m of a timeline where p = 4 and m = 8 are not possible."""
RULE_CODES = ("torch_1f1b_microbatches", "torch_interleaved_microbatches")


class Stage:
    """What torch asks of a stage: its place, its compute, which it writes down in torch's words, and no messages."""

    def __init__(self, p: int, v: int, index: int = 0) -> None:
        self.stage_index, self.num_stages = index, p * v
        self.group_rank, self.group_size = index % p, p
        self.is_first, self.is_last = index == 0, index == p * v - 1
        self.submod = None
        self.done: list[str] = []

    def forward_one_chunk(self, microbatch: int, *_inputs: object, **_options: object) -> None:
        self.done.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch: int, **_options: object) -> None:
        self.done.append(f"{self.stage_index}B{microbatch}")

    def no_messages(self, _microbatch: int) -> list[object]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages

    def perform_reduce_grad(self, _divisor: int) -> None:
        pass


@pytest.fixture(scope="module")
def torch_schedules() -> Any:
    """torch.distributed.pipelining.schedules of torch 2.13; else the test is skipped and says why."""
    why = f"compares with torch {TORCH_VERSION}*, which is not installed"
    torch = pytest.importorskip("torch", reason=why)
    if not torch.__version__.startswith(TORCH_VERSION):
        pytest.skip(f"{why}: found {torch.__version__}")
    return pytest.importorskip("torch.distributed.pipelining.schedules", reason=why)


def built(torch_schedules: Any, name: str, p: int, m: int, v: int, rank: int = 0) -> Any:
    """Torch's schedule as this rank makes it; torch refuses with ValueError."""
    stages = [Stage(p, v, rank) for _ in range(v)]
    single = name in ("gpipe", "1f1b")
    return torch_schedules.get_schedule_class(NAMES[name])(stages[0] if single else stages, m)


def computed(operations: list[Any]) -> list[str]:
    """The compute operations as torch prints them, messages, sharding and idle slots left out."""
    return [str(operation) for operation in operations if operation is not None and operation.is_compute_op]


def executed(torch_schedules: Any, name: str, p: int, m: int, v: int) -> list[list[str]]:
    """What each rank executes: GPipe's and 1F1B's own loops are run, the others run the list with messages."""
    if name not in ("gpipe", "1f1b"):
        schedule = built(torch_schedules, name, p, m, v)
        return [computed(schedule.pipeline_order_with_comms[rank]) for rank in range(p)]
    ranks = []
    for rank in range(p):
        schedule = built(torch_schedules, name, p, m, v, rank)
        schedule._initialize_stage = lambda *_shapes: None
        schedule._step_microbatches()
        ranks.append(schedule._stage.done)
    return ranks


def ours(schedule: Schedule, p: int, m: int, v: int) -> list[list[str]]:
    """Our order in torch's words: stage, kind and micro-batch, pairs in brackets."""
    stages, ranks = schedule.placement(p, v), []
    for rank, order in enumerate(schedule.rank_orders(p, m, v)):
        words = [f"{stages[rank, action.chunk]}{action.kind.letter}{action.microbatch}" for action in order]
        paired = [] if order.paired is None else np.flatnonzero(order.paired).tolist()
        for first in reversed(paired):
            words[first : first + 2] = [f"({words[first]};{words[first + 1]})OVERLAP_F_B"]
        ranks.append(words)
    return ranks


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
        assert ours(schedule, p, m, v) == executed(torch_schedules, name, p, m, v), m


@pytest.mark.parametrize(("name", "p", "v"), CASES)
def test_refusals_are_torchs(torch_schedules: Any, name: str, p: int, v: int) -> None:
    """m from 1 to 8p: torch's constructor refuses what our schedule or torchtitan's rules refuse, with one difference.

    Interleaved 1F1B with m < p, which torch runs: Megatron does not, and neither do we.
    """
    for m in range(1, 8 * p + 1):
        refused = bool(get(name).problem(p, m, v)) or refused_by_rules(name, p, m, v)
        if refused and not (name == "interleaved-1f1b" and m < p):
            with pytest.raises(ValueError, match=r"[Mm]icro-?batches"):
                built(torch_schedules, name, p, m, v)
        else:
            built(torch_schedules, name, p, m, v)


@pytest.mark.parametrize("v", [1, 3])
@pytest.mark.parametrize("name", ["zb-v", "dualpipev"])
def test_two_chunks_and_no_other_number(torch_schedules: Any, name: str, v: int) -> None:
    """Where torch wants exactly two stages a rank, so do we."""
    assert get(name).problem(4, 16, v) == f"virtual_stages must be 2: got {v}"
    with pytest.raises(ValueError, match="requires exactly 2 stages per rank"):
        built(torch_schedules, name, 4, 16, v)


@pytest.mark.parametrize("p", RANKS)
def test_interleaved_1f1b_where_only_torch_runs_it(torch_schedules: Any, p: int) -> None:
    """m < p, and one chunk a rank: what torch runs there is our order with all m in a group, or torch's group."""
    for m, v in [*((m, 2) for m in range(1, p)), *((m, 1) for m in range(p, 8 * p + 1, p))]:
        order = order_with_group(p, m, v, m // max(1, m // p))
        words = [[f"{a.chunk * p + rank}{a.kind.letter}{a.microbatch}" for a in order[rank]] for rank in range(p)]
        assert words == executed(torch_schedules, "interleaved-1f1b", p, m, v)


@pytest.mark.parametrize("p", RANKS)
def test_the_order_that_torchs_1f1b_declares_is_off_by_one(torch_schedules: Any, p: int) -> None:
    """Why its loop is run above: on the last rank `pipeline_order` has every forward one too late, on others not."""
    for m in (p, 2 * p + 1, 8 * p):
        declared = built(torch_schedules, "1f1b", p, m, 1).pipeline_order
        runs = ours(get("1f1b"), p, m, 1)
        assert [computed(declared[rank]) for rank in range(p - 1)] == runs[:-1]
        late = [re.sub(r"F(\d+)", lambda match: f"F{int(match[1]) + 1}", word) for word in runs[-1]]
        assert computed(declared[p - 1]) == late


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
    runtime = torch_schedules._PipelineScheduleRuntime([Stage(p, v)] * v, m)
    runtime._load_csv(file, format="compute_only")
    runtime._dump_csv(again, format="compute_only")
    words = ours(schedule, p, m, v)
    assert [computed(runtime.pipeline_order[rank]) for rank in range(p)] == words
    assert [computed(runtime.pipeline_order_with_comms[rank]) for rank in range(p)] == words
    assert again.read_text().splitlines() == file.read_text().splitlines() == [",".join(rank) for rank in words]
    places = {int(stage): rank for rank, stages in enumerate(schedule.placement(p, v)) for stage in stages}
    assert runtime.stage_index_to_group_rank == places
