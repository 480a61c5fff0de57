"""Which plans there are: every combination that multiplies to the GPUs and the batch, narrowed by the pins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppadvisor import schedules
from ppadvisor.engine.flops import head_in_layers
from ppadvisor.engine.partition import Split, candidate_splits
from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError
from ppadvisor.search.pins import Pins, check_pins
from ppadvisor.search.recomputations import searched
from ppadvisor.specs.plan import IntArray, PlanTable, values_in
from ppadvisor.specs.recomputation import parse_recomputation

MIN_TOKENS_PER_CONTEXT_RANK = 1024
"""Context parallelism is not searched beyond this many tokens of a sequence on a rank; a pin may."""
MAX_MICRO_BATCH_SIZE = 128
"""Micro-batch sizes searched: powers of two up to this; a pin may take any."""

VIRTUAL_STAGES = (2, 3, 4, 5, 6, 8, 10, 12)
"""Virtual stages searched where a schedule takes several, beside the fewest it needs; a pin may take any."""

BASE_COLUMNS = (
    "pipeline_parallel",
    "tensor_parallel",
    "data_parallel",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "micro_batch_size",
    "num_microbatches",
)
INNER_COLUMNS = ("schedule", "virtual_stages", "recompute", "optimizer_sharding")


@dataclass(frozen=True)
class Space:
    """The plans to evaluate, and how many combinations never became one, by reason."""

    plans: PlanTable
    size: IntArray
    """Of each plan a number that those of equal sizes share."""
    rejected: Counter[str]
    searched: dict[str, list[int] | list[str]]
    """Values of each quantity that occur in `plans`."""
    more: int = 0
    """Plans that the search added to them."""

    @property
    def num_combinations(self) -> int:
        """All that was looked at."""
        return len(self.plans) + self.rejected.total() + self.more

    def extended(self, number: int, name: str, value: str) -> Space:
        """The same with so many plans that the search added, which have a value of their own of a quantity."""
        return replace(self, more=self.more + number, searched=self.searched | {name: [*self.searched[name], value]})


class _Division(NamedTuple):
    """One way to divide the GPUs."""

    p: int
    t: int
    d: int
    c: int
    e: int
    etp: int


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})


def _powers_of_two(limit: int) -> list[int]:
    return [2**i for i in range(max(limit, 1).bit_length())]


def build_space(problem: Problem, pins: Pins) -> Space:
    """Every combination the pins allow. InputError where the pins contradict each other, the GPUs or the batch."""
    check_pins(problem, pins)
    divisions = list(_divisions(problem, pins))
    if not divisions:
        raise InputError(_no_division_message(problem, pins))
    rejected: Counter[str] = Counter()
    base = _with_batches(problem, pins, divisions, rejected)
    if not len(base["micro_batch_size"]):
        raise InputError(_no_batch_message(problem, pins, divisions))
    plans, size = _cross(problem, pins, base)
    if not len(plans):
        raise InputError(
            f"no combination is left: the pins contradict each other ({pins.describe()}); schedule none goes with "
            "p = 1 and the others with p > 1, naive with m = 1"
        )
    for _ in unused_pin_values(pins, plans):
        rejected["pinned_value_without_plan"] += 1
    return Space(plans, size, rejected, _searched(plans))


def unused_pin_values(pins: Pins, plans: PlanTable) -> list[tuple[str, int | str]]:
    """(quantity, value) of every pinned value with which there is no plan at all."""
    given = pins.given()
    found = _searched(plans) if given else {}
    return [(name, value) for name, values in given.items() for value in values if value not in found[name]]


def _divisions(problem: Problem, pins: Pins) -> Iterator[_Division]:
    """Every (p, t, c, d, e, etp) with p t c d = GPUs and e etp dividing t c d."""
    gpus, node = problem.cluster.num_gpus, problem.cluster.gpus_per_node
    reach = problem.training.sequence_length // MIN_TOKENS_PER_CONTEXT_RANK
    for t in pins.tensor_parallel or divisors(min(node, gpus)):
        for c in pins.context_parallel or _powers_of_two(reach):
            if gpus % (t * c):
                continue
            for p in pins.pipeline_parallel or divisors(gpus // (t * c)):
                d = gpus // (t * c * p)
                if gpus % (t * c * p) or p > problem.model.num_layers:
                    continue
                if pins.data_parallel is None or d in pins.data_parallel:
                    yield from _expert_divisions(problem, pins, p, t, c, d)


def _expert_divisions(problem: Problem, pins: Pins, p: int, t: int, c: int, d: int) -> Iterator[_Division]:
    moe = problem.model.moe
    if moe is None:
        yield _Division(p, t, d, c, 1, 1)
        return
    for etp in pins.expert_tensor_parallel or sorted({1, t}):
        for e in pins.expert_parallel or divisors(moe.num_experts):
            if (t * c * d) % (e * etp) == 0:
                yield _Division(p, t, d, c, e, etp)


def _with_batches(
    problem: Problem, pins: Pins, divisions: list[_Division], rejected: Counter[str]
) -> dict[str, IntArray]:
    """Every division with every micro-batch, by the names of BASE_COLUMNS."""
    batch = problem.training.global_batch_size
    possible = [division for division in divisions if batch % division.d == 0]
    if len(possible) < len(divisions):
        rejected["global_batch_not_divisible"] = len(divisions) - len(possible)
    pipelined = [(division.p > 1, batch // division.d) for division in possible]
    sizes = {one: _micro_batches(pins, *one) for one in dict.fromkeys(pipelined)}
    b = np.array([size for one in pipelined for size in sizes[one]], dtype=np.int64)
    of_division = np.array(possible, dtype=np.int64).reshape(-1, len(_Division._fields))
    columns = np.repeat(of_division.T, [len(sizes[one]) for one in pipelined], axis=1)
    base = dict(zip(BASE_COLUMNS, [*columns, b], strict=False))
    return base | {"num_microbatches": batch // (base["data_parallel"] * b)}


def _micro_batches(pins: Pins, pipelined: bool, local_batch: int) -> list[int]:
    """Micro-batch sizes that divide the local batch and give a pinned m; the whole local batch for `naive`."""
    if pins.micro_batch_size:
        sizes = [b for b in pins.micro_batch_size if local_batch % b == 0]
    elif pins.num_microbatches:
        sizes = [local_batch // m for m in pins.num_microbatches if local_batch % m == 0]
    else:
        sizes = [b for b in _powers_of_two(min(local_batch, MAX_MICRO_BATCH_SIZE)) if local_batch % b == 0]
        if pipelined and local_batch not in sizes:
            sizes.append(local_batch)
    if pins.num_microbatches:
        sizes = [b for b in sizes if local_batch // b in pins.num_microbatches]
    return sorted(set(sizes))


def _cross(problem: Problem, pins: Pins, base: dict[str, IntArray]) -> tuple[PlanTable, IntArray]:
    """The base rows times schedule and v, the splits of p v stages, recomputation and sharding; a number a size."""
    names = pins.schedule or synchronous(problem.framework.schedules)
    splits: dict[Split, int] = {}
    choices = tuple(dict.fromkeys(map(parse_recomputation, pins.recompute))) if pins.recompute else searched(problem)
    zero = list(pins.optimizer_sharding or (problem.framework.default_optimizer_sharding,))
    p = base["pipeline_parallel"]
    head = head_in_layers(problem.model, problem.training.sequence_length)
    rows_of_p = {one: np.flatnonzero(p == one) for one in sorted(set(p.tolist()))}
    inner = [np.zeros((0, len(INNER_COLUMNS)), dtype=np.int64)]
    found = [np.zeros((3, 0), dtype=np.int64)]
    for v, with_v in _schedules_by_v(problem, pins, names).items():
        row, split = _with_splits(problem, rows_of_p, v, head, splits)
        of_v = np.array([(s, v, r, z) for s in with_v for r in range(len(choices)) for z in zero], dtype=np.int64)
        outer, index = np.nonzero(_sensible(base, of_v[:, 0], names, pins)[row])
        found.append(np.stack([row[outer], split[outer], index + sum(map(len, inner))]))
        inner.append(of_v)
    row, split, index = np.concatenate(found, axis=1)
    columns: dict[str, Any] = {name: values[row] for name, values in base.items()}
    columns |= {name: values[index] for name, values in zip(INNER_COLUMNS, np.concatenate(inner).T, strict=True)}
    table = PlanTable(**columns, split=split, schedule_names=tuple(names), splits=tuple(splits), recomputations=choices)
    return table, row * len(zero) + index % len(zero)


def synchronous(names: tuple[str, ...]) -> tuple[str, ...]:
    """The schedules that leave training as it is; asynchronous ones (stale weights) are tried where they are pinned."""
    return tuple(name for name in names if not schedules.get(name).asynchronous)


def _schedules_by_v(problem: Problem, pins: Pins, names: tuple[str, ...]) -> dict[int, list[int]]:
    """v, in order whatever else is tried -> the schedules (indices into `names`) that are tried with it."""
    most = problem.model.num_layers // 2
    by_v: dict[int, list[int]] = {}
    for index, name in enumerate(names):
        allowed = schedules.get(name).virtual_stages
        tried = pins.virtual_stages or [allowed.default, *(v for v in VIRTUAL_STAGES if v > allowed.default)]
        for v in tried:
            if allowed.allows(v) and (v <= most or v == allowed.default):
                by_v.setdefault(v, []).append(index)
    return dict(sorted(by_v.items()))


def _with_splits(
    problem: Problem, rows_of_p: dict[int, IntArray], v: int, head: float, splits: dict[Split, int]
) -> tuple[IntArray, IntArray]:
    """(base row, split) for each split of its p v stages; rows with more stages than layers go.

    `head`: in layers.
    """
    model, own = problem.model, problem.framework.splits
    parts = [(np.zeros(0, dtype=np.int64),) * 2]
    for p, rows in rows_of_p.items():
        tried = own(model, p, v) if own else candidate_splits(model.num_layers, p * v, head)
        ids = np.array([splits.setdefault(s, len(splits)) for s in tried], dtype=np.int64)
        parts.append((np.repeat(rows, len(ids)), np.tile(ids, len(rows))))
    row, split = zip(*parts, strict=True)
    return np.concatenate(row), np.concatenate(split)


def _sensible(base: dict[str, IntArray], schedule: IntArray, names: tuple[str, ...], pins: Pins) -> NDArray[np.bool_]:
    """Where schedule, p and m belong together, (base rows, schedules); `schedule` indexes `names`.

    `none` and p = 1 go together; `naive` is m = 1, and where the schedule is open nothing else is: with one
    micro-batch every schedule is the naive one.
    """
    p, m, b = (base[name][:, None] for name in ("pipeline_parallel", "num_microbatches", "micro_batch_size"))
    none, naive = (np.array([name == one for name in names])[schedule] for one in ("none", "naive"))
    keep = none == (p == 1)
    keep &= ~naive | (m == 1)
    if pins.schedule is None and "naive" in names:
        keep &= (m > 1) | naive | (p == 1)
    if pins.micro_batch_size is None and pins.num_microbatches is None:
        # whole local batches that are not searched sizes were added for `naive` alone
        searched = (b & (b - 1) == 0) & (b <= MAX_MICRO_BATCH_SIZE)
        keep &= searched | naive
    return np.asarray(keep)


def _searched(plans: PlanTable) -> dict[str, list[int] | list[str]]:
    values: dict[str, list[int] | list[str]] = {}
    for name in PlanTable.column_names():
        if name == "split":
            continue
        found = values_in(getattr(plans, name)).tolist()
        if name == "schedule":
            values[name] = [plans.schedule_names[i] for i in found]
        elif name == "recompute":
            values[name] = [plans.recomputations[i].text for i in found]
        else:
            values[name] = found
    return values


def _no_division_message(problem: Problem, pins: Pins) -> str:
    sizes = pins.without(
        "micro_batch_size", "num_microbatches", "schedule", "recompute", "optimizer_sharding", "virtual_stages"
    )
    experts = "; expert x expert tensor parallel must divide tensor x context x data parallel"
    return (
        f"the pins cannot multiply to {problem.cluster.num_gpus} GPUs ({sizes.describe()}): "
        "pipeline x tensor x context x data parallel must be the number of GPUs"
        f"{experts if pins.expert_parallel or pins.expert_tensor_parallel else ''}"
    )


def _no_batch_message(problem: Problem, pins: Pins, divisions: list[_Division]) -> str:
    batch = problem.training.global_batch_size
    data = sorted({division.d for division in divisions})
    shown = ", ".join(map(str, data[:8])) + (", ..." if len(data) > 8 else "")
    fitting = [d for d in data if batch % d == 0]
    if not fitting:
        return f"global_batch_size {batch} is not divisible by data parallel {shown}: m = B / (d b) must be whole"
    if pins.num_microbatches and pins.micro_batch_size:
        possible = sorted({batch // (d * b) for d in fitting for b in pins.micro_batch_size if batch % (d * b) == 0})
        can = ", ".join(map(str, possible[:8])) or "no whole number"
        pinned = "|".join(map(str, pins.num_microbatches))
        return f"num_microbatches: pinned {pinned} contradicts m = B / (d b) with B = {batch}, d = {shown}: m is {can}"
    what = "micro_batch_size" if pins.micro_batch_size else "num_microbatches"
    values = "|".join(map(str, getattr(pins, what) or ()))
    local = ", ".join(str(batch // d) for d in fitting[:8])
    return f"{what}: pinned {values} divides none of the local batches B / d = {local} (B = {batch}, d = {shown})"
