"""What the user fixed, and the pins that are wrong whatever the rest of the space looks like."""

from __future__ import annotations

from dataclasses import fields, replace

from ppadvisor import frameworks, schedules
from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError, unknown_name
from ppadvisor.search.recomputations import refusal
from ppadvisor.specs.base import Struct
from ppadvisor.specs.recomputation import parse_recomputation


class Pins(Struct):
    """What the user fixed: allowed values of each quantity, or None where it is searched."""

    pipeline_parallel: tuple[int, ...] | None = None
    tensor_parallel: tuple[int, ...] | None = None
    data_parallel: tuple[int, ...] | None = None
    context_parallel: tuple[int, ...] | None = None
    expert_parallel: tuple[int, ...] | None = None
    expert_tensor_parallel: tuple[int, ...] | None = None
    virtual_stages: tuple[int, ...] | None = None
    micro_batch_size: tuple[int, ...] | None = None
    num_microbatches: tuple[int, ...] | None = None
    schedule: tuple[str, ...] | None = None
    recompute: tuple[str, ...] | None = None
    optimizer_sharding: tuple[int, ...] | None = None

    def without(self, *names: str) -> Pins:
        """The same with some pins lifted."""
        return replace(self, **dict.fromkeys(names))

    def with_values(self, **values: tuple[int, ...] | tuple[str, ...]) -> Pins:
        """The same with some pins set."""
        return replace(self, **values)  # type: ignore[arg-type]  # the names decide which of the two tuples it is

    def given(self) -> dict[str, tuple[int, ...] | tuple[str, ...]]:
        """The pins that are set, in the order of the fields."""
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in pairs if value is not None}

    def listed(self) -> dict[str, list[int] | list[str]]:
        """The same as answers show them."""
        return {name: [*values] for name, values in self.given().items()}

    def describe(self) -> str:
        """The pins as a reader knows them, for messages."""
        return ", ".join(f"{name} = {'|'.join(map(str, values))}" for name, values in self.given().items()) or "none"


def check_pins(problem: Problem, pins: Pins) -> None:
    """InputError for the first pin that no plan of this problem can satisfy."""
    checks = (
        _check_sizes,
        _check_stages,
        _check_schedules,
        _check_names,
        _check_experts,
        _check_virtual_stages,
        _check_naive,
    )
    for check in checks:
        check(problem, pins)


def _check_sizes(_: Problem, pins: Pins) -> None:
    """What the command line's own types refuse, for those who call from Python."""
    for name, values in pins.given().items():
        if not values:
            raise InputError(f"{name}: pinned to nothing; needs at least one value, or None to search it")
        least = 0 if name == "optimizer_sharding" else 1
        for value in values:
            if isinstance(value, int) and value < least:
                raise InputError(f"{name}: got {value}; must be at least {least}")


def _check_stages(problem: Problem, pins: Pins) -> None:
    model = problem.model
    for p in pins.pipeline_parallel or ():
        if p > model.num_layers:
            raise InputError(
                f"pipeline_parallel: got {p}, but {model.name} has {model.num_layers} layers: at most one stage a layer"
            )


def _check_schedules(problem: Problem, pins: Pins) -> None:
    framework = problem.framework
    for name in pins.schedule or ():
        if name not in schedules.SCHEDULES:
            raise unknown_name("schedule", name, schedules.SCHEDULES)
        if name not in framework.schedules:
            others = (*frameworks.who_runs(name), "generic")
            raise InputError(
                f"schedule {name!r} is not run by {framework.id} (it runs {', '.join(framework.schedules)}); "
                f"frameworks that do: {', '.join(others)}"
            )


def _check_names(problem: Problem, pins: Pins) -> None:
    framework = problem.framework
    for name in pins.recompute or ():
        refused = refusal(problem, parse_recomputation(name))
        if refused:
            raise InputError(f"recompute: {refused}")
    for zero in pins.optimizer_sharding or ():
        if zero not in framework.optimizer_sharding:
            allowed = ", ".join(map(str, framework.optimizer_sharding))
            raise InputError(f"optimizer_sharding: got {zero}; {framework.id} offers ZeRO {allowed}")


def _check_experts(problem: Problem, pins: Pins) -> None:
    if problem.model.moe is not None:
        return
    for name in ("expert_parallel", "expert_tensor_parallel"):
        values: tuple[int, ...] | None = getattr(pins, name)
        if values and max(values) > 1:
            raise InputError(
                f"{name}: got {max(values)}, but {problem.model.name} has no experts: the pin has no effect"
            )


def _check_virtual_stages(problem: Problem, pins: Pins) -> None:
    names = pins.schedule or problem.framework.schedules
    for v in pins.virtual_stages or ():
        if not any(schedules.get(name).virtual_stages.allows(v) for name in names):
            needs = ", ".join(f"{name}: {schedules.get(name).virtual_stages}" for name in names)
            raise InputError(f"virtual_stages: got {v}; allowed by schedule: {needs}")


def _check_naive(_: Problem, pins: Pins) -> None:
    if pins.schedule == ("naive",) and pins.num_microbatches and 1 not in pins.num_microbatches:
        raise InputError(
            f"num_microbatches: got {pins.num_microbatches[0]}, but schedule naive runs the whole local batch as one "
            "micro-batch: m = 1"
        )
