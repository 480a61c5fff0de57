"""From the options of `sweep` to its points: which of them are axes, what every point shares, what each one asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

from ppadvisor import frameworks, schedules
from ppadvisor.cli.request import INPUTS, SWITCHES, Input, flag_of
from ppadvisor.cli.specs import choose_framework, read_request, resolved_names
from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError, unknown_name
from ppadvisor.search.api import make_problem
from ppadvisor.search.pins import Pins
from ppadvisor.search.sweep import AxisValue, Point, SweepQuestion, digest_of
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.base import Struct
from ppadvisor.specs.load import load_cluster, load_gpu, load_model
from ppadvisor.specs.recomputation import parse_recomputation
from ppadvisor.specs.training import OPTIMIZERS

Values = dict[str, Any]

MOST_POINTS = 50_000
"""More is a slip of the keyboard, or asks for a sweep in parts."""

TOKENS = "tokens_per_step"
"""What the answers call a batch in tokens."""

LOADERS: dict[str, Callable[[str], Struct]] = {"model": load_model, "gpu": load_gpu, "cluster": load_cluster}
NAMES: dict[str, Collection[str]] = {
    "framework": frameworks.FRAMEWORKS,
    "optimizer": OPTIMIZERS,
    "schedule": schedules.SCHEDULES,
}


@dataclass(frozen=True)
class Asked:
    """A sweep before it is answered."""

    question: SweepQuestion
    points: tuple[Point, ...]


def read_points(given: Values, margin: float, assumed: dict[str, float], *, quick: bool) -> Asked:
    """The question and its points. InputError for what is wrong with all of them."""
    assumptions = Assumptions().changed(assumed)
    named = _check_names(given)
    # one trainer for all points, so that schedules are compared and not trainers
    given.setdefault("framework", (choose_framework(given),))
    lists = {entry: tuple(dict.fromkeys(given[entry.name])) for entry in INPUTS if entry.name in given}
    axes = {entry: values for entry, values in lists.items() if len(values) > 1}
    fixed = {entry: values[0] for entry, values in lists.items() if len(values) == 1}
    switches = {switch.name: given[switch.name] for switch in SWITCHES if switch.name in given}
    _check_number(axes)
    parts = {
        "margin_fraction": margin,
        "quick": quick,
        "assumptions": assumed,
        "fixed": _answer_values(fixed) | switches,
        "axes": dict(_axis(entry, values) for entry, values in axes.items()),
    }
    question = SweepQuestion.model_validate({"question": digest_of(parts, named), **parts})
    return Asked(question, tuple(_points(axes, _options(fixed) | switches, assumptions)))


def axis_flags(axes: Collection[str]) -> dict[str, str]:
    """How the options of the axes are called, and what the answers call them."""
    in_tokens = {"global_batch": TOKENS} if TOKENS in axes else {}
    return {entry.name: entry.quantity for entry in INPUTS} | in_tokens


def _check_names(given: Values) -> Values:
    """What the names of files and presets stand for. InputError for a name that nobody knows, whatever the point.

    Also where two are the same GPU or cluster.
    """
    for option in ("gpu", "cluster"):
        resolved_names(option, tuple(dict.fromkeys(given.get(option, ()))))
    loaded = [{name: load(name).as_dict() for name in given.get(option, ())} for option, load in LOADERS.items()]
    for choice in given.get("recompute", ()):
        parse_recomputation(choice, flag_of("recompute"))
    for option, names in NAMES.items():
        for name in given.get(option, ()):
            if name not in names:
                raise unknown_name(option, name, names, where=flag_of(option))
    return dict(zip(LOADERS, loaded, strict=True))


def _check_number(axes: Mapping[Input, Sequence[Any]]) -> None:
    number = prod(map(len, axes.values()))
    if number > MOST_POINTS:
        sizes = " x ".join(f"{len(values):,} {entry.flag}" for entry, values in axes.items())
        raise InputError(f"a sweep of {number:,} points ({sizes}); allowed: {MOST_POINTS:,}")


def _points(axes: Mapping[Input, Sequence[Any]], shared: Values, assumptions: Assumptions) -> Iterator[Point]:
    """The product of the axes in the order of the option table, the last one running fastest."""
    for combination in product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        yield Point(_answer_values(chosen), partial(_ask, shared | _options(chosen), assumptions))


def _ask(values: Values, assumptions: Assumptions) -> tuple[Problem, Pins]:
    request = read_request(values)
    return make_problem(request.model, request.cluster, request.training, assumptions), request.pins


def _options(chosen: Mapping[Input, Any]) -> Values:
    """One value of each input as the options of `plan` hold it: a pin is a list."""
    return {entry.name: (value,) if entry.pin else value for entry, value in chosen.items()}


def _answer_values(chosen: Mapping[Input, Any]) -> dict[str, AxisValue]:
    """The same under the names of the answers."""
    return dict(_named(entry, value) for entry, value in chosen.items())


def _named(entry: Input, value: Any) -> tuple[str, Any]:
    if entry.name != "global_batch":
        return entry.quantity, value
    unit, amount = value
    return entry.quantity if unit == "sequences" else TOKENS, amount


def _axis(entry: Input, values: Sequence[Any]) -> tuple[str, tuple[AxisValue, ...]]:
    names, amounts = zip(*(_named(entry, value) for value in values), strict=True)
    if len(set(names)) > 1:
        raise InputError(f"{entry.flag}: give either all values in sequences or all in tokens")
    return names[0], amounts
