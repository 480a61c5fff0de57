"""What is worked out once: for a table of plans, for each of their sizes, for each kind of layer that they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ppadvisor.engine.inputs import PlanInputs

NumberT = TypeVar("NumberT", bound=np.generic)
P = ParamSpec("P")
T = TypeVar("T")


def of_rows(values: NDArray[NumberT], rows: NDArray[np.int64]) -> NDArray[NumberT]:
    """Some rows of a table whose plans lie next to each other, laid out the same."""
    return np.take(values.T, rows, axis=-1).T


def remembered(function: Callable[Concatenate[PlanInputs, P], T]) -> Callable[Concatenate[PlanInputs, P], T]:
    """A function of the inputs that several terms share: worked out once for each table and arguments."""

    @wraps(function)
    def answer(inputs: PlanInputs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function, *args, *kwargs.items())
        if key not in inputs.known:
            inputs.known[key] = function(inputs, *args, **kwargs)
        return cast(T, inputs.known[key])

    return answer


def once_per_size(function: Callable[Concatenate[PlanInputs, P], T]) -> Callable[Concatenate[PlanInputs, P], T]:
    """A function of the plans' sizes alone, not of their stages, schedule or recomputation: worked out for each size.

    Once, however many tables share the sizes. It returns arrays that begin with the axis of the plans, alone or in
    tuples, mappings and records.
    """
    return _once(function, _sizes)


def once_per_layer(function: Callable[Concatenate[PlanInputs, P], T]) -> Callable[Concatenate[PlanInputs, P], T]:
    """A function of what a layer, embedding or head is for one micro-batch: as `once_per_size`, for fewer sizes.

    For each (t, c, e, etp, b, ZeRO) and whether parameters have copies, not for each p, d and m.
    """
    return _once(function, lambda inputs: inputs.layers)


def _sizes(inputs: PlanInputs) -> tuple[PlanInputs, NDArray[np.int64]] | None:
    """The distinct sizes of the plans, and which of them each has; None: not told apart."""
    return None if inputs.distinct is None else (inputs.distinct.sizes, inputs.distinct.size)


def _once(
    function: Callable[Concatenate[PlanInputs, P], T],
    shared: Callable[[PlanInputs], tuple[PlanInputs, NDArray[np.int64]] | None],
) -> Callable[Concatenate[PlanInputs, P], T]:
    """Worked out for the rows of a shorter table, and looked up there."""
    of_rows_there = remembered(function)

    @wraps(function)
    def for_every_plan(inputs: PlanInputs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        shorter = shared(inputs)
        if shorter is None:
            return of_rows_there(inputs, *args, **kwargs)
        table, row = shorter
        return cast(T, _spread(of_rows_there(table, *args, **kwargs), row))

    return for_every_plan


def _spread(value: Any, row: NDArray[np.int64]) -> Any:
    if isinstance(value, np.ndarray):
        return of_rows(value, row)
    if isinstance(value, tuple):
        return tuple(_spread(one, row) for one in value)
    if isinstance(value, dict):
        return {name: _spread(one, row) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _spread(getattr(value, f.name), row) for f in fields(value)})
    return value
