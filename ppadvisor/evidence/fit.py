"""Which constants some step times identify, and their values: bounded least squares on the logarithms of times.

Beyond HUBER times the usual size of errors one counts by its size and not its square (Huber 1964, Robust estimation of
a location parameter): runs that the model does not understand shall not decide what the others say.

Constants are moved on [0, 1], the ends of the range that is assumed of each, so that columns compare. The errors of two
runs are taken as independent, of `MODEL_SCATTER` beside the uncertainty of each measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ppadvisor.engine.inputs import FloatArray

MODEL_SCATTER = 0.05
"""What predictions of runs of one source still differ by among themselves: the standard deviation of their log errors
is 0.03-0.06 in the sources with little noise, 0.12-0.18 in others (records that calibrate, model version 2026.11-7)."""
RUNS_PER_CONSTANT = 2
"""Runs of different plans for each constant behind the first: more constants do not transfer to other runs."""
NARROWER = 1.0
"""Two standard deviations to either side must be within this share of the assumed range: else nothing was learnt."""
NO_EFFECT = 0.01
"""A constant whose whole range moves every time by less than this has no part in the runs."""

HUBER = 1.345
"""Where errors are normal after all, 95 % as good as least squares (Holland and Welsch 1977)."""
BENDS = 4
"""Times that the usual size is taken: of all errors first, then of what is left."""
STEP = 1e-3
"""Of a difference that stands for a derivative."""
MOST_ITERATIONS = 30
MOST_HALVINGS = 8
CONVERGED = 1e-5
"""A step that moves no constant by more of its range is the last."""

Predict = Callable[[FloatArray], FloatArray]
"""Positions of the constants in their ranges, (constants,), to log step times, (runs,)."""


@dataclass(frozen=True)
class Fit:
    """Positions on [0, 1] of the constants that were chosen, in the order of choice."""

    chosen: tuple[int, ...]
    position: FloatArray
    """Of every constant; those that were not chosen stand where they began."""
    deviation: FloatArray
    """One standard deviation, (constants,); infinite where not chosen."""
    refused: dict[int, str]
    """Why the others are not fitted: `no_effect`, `alike`, `few_runs`, `wide`."""


def identify(predict: Predict, measured: FloatArray, noise: FloatArray, start: FloatArray, distinct: int) -> Fit:
    """Choose one constant after another, the best identified first, and fit all that are chosen together.

    `noise`: standard deviations of the logarithms, (runs,); `distinct`: runs of different plans.
    """
    position, noise, predict = start.copy(), np.hypot(noise, MODEL_SCATTER), _remembered(predict)
    most = 1 + (distinct - 1) // RUNS_PER_CONSTANT
    refused = {i: "no_effect" for i in range(len(start)) if _reach(predict, start, i) < NO_EFFECT}
    rest = [index for index in range(len(start)) if index not in refused]
    chosen: tuple[int, ...] = ()
    deviation = np.full(len(start), np.inf)
    while rest:
        columns = _jacobian(predict, position) / noise[:, None]
        best = _best(columns, chosen, rest)
        rest.remove(best)
        if len(chosen) >= most:
            refused[best] = "few_runs"
            continue
        if not _narrow(columns, (*chosen, best)):
            refused[best] = "alike" if _narrow(columns, (best,)) else "wide"
            continue
        trial = _fitted(predict, measured, noise, position, (*chosen, best))
        columns = _jacobian(predict, trial) / noise[:, None]
        excess = _excess((predict(trial) - measured) / noise, len(chosen) + 1)
        if chosen and not _narrow(columns / excess, (*chosen, best)):  # the first is the best guess, however wide
            refused[best] = "wide"
            continue
        position, chosen = trial, (*chosen, best)
        deviation[list(chosen)] = excess * _deviations(columns[:, list(chosen)])
    return Fit(chosen, position, deviation, refused)


def _remembered(predict: Predict) -> Predict:
    """The same, each position asked once."""
    known: dict[bytes, FloatArray] = {}

    def asked(position: FloatArray) -> FloatArray:
        key = position.tobytes()
        if key not in known:
            known[key] = predict(position)
        return known[key]

    return asked


def _best(columns: FloatArray, chosen: tuple[int, ...], rest: Sequence[int]) -> int:
    """The constant that the runs would tell best beside those that are chosen."""
    return min(rest, key=lambda index: float(_deviations(columns[:, [*chosen, index]])[-1]))


def _narrow(columns: FloatArray, chosen: Sequence[int]) -> bool:
    """Whether the last of these constants, the others free, is left narrower than it is assumed to be."""
    return bool(4 * _deviations(columns[:, list(chosen)])[-1] <= NARROWER)


def _excess(residual: FloatArray, constants: int) -> float:
    """How much larger errors are than was taken for noise; smaller ones make nothing surer."""
    freedom = len(residual) - constants
    return max(1.0, float(np.sqrt(residual @ residual / freedom))) if freedom > 0 else 1.0


def _deviations(columns: FloatArray) -> FloatArray:
    """Standard deviations of the constants of these columns: the root of the diagonal of (J^T J)^-1."""
    gram = columns.T @ columns
    if np.linalg.matrix_rank(gram) < len(gram):
        return np.full(len(gram), np.inf)
    return np.asarray(np.sqrt(np.maximum(np.diag(np.linalg.inv(gram)), 0.0)))


def _reach(predict: Predict, position: FloatArray, index: int) -> float:
    """The largest change of a log time while the constant goes through its range."""
    ends = [np.where(np.arange(len(position)) == index, end, position) for end in (0.0, 1.0)]
    return float(np.abs(predict(ends[1]) - predict(ends[0])).max())


def _jacobian(predict: Predict, position: FloatArray, indices: Sequence[int] | None = None) -> FloatArray:
    """Central differences, one-sided at the ends of the range, of all constants or of some: (runs, constants)."""
    columns = []
    for index in range(len(position)) if indices is None else indices:
        up, down = position.copy(), position.copy()
        up[index], down[index] = min(position[index] + STEP, 1.0), max(position[index] - STEP, 0.0)
        columns.append((predict(up) - predict(down)) / (up[index] - down[index]))
    return np.stack(columns, axis=1)


def _fitted(
    predict: Predict, measured: FloatArray, noise: FloatArray, position: FloatArray, chosen: Sequence[int]
) -> FloatArray:
    """Least squares, and from there what errors beyond the usual size leave of it."""
    bend = np.inf
    for _ in range(BENDS):
        position = _descended(predict, measured, noise, position, chosen, bend)
        size = np.abs((predict(position) - measured) / noise)
        bend = HUBER * max(1.0, 1.4826 * float(np.median(size)))
    return position


def _descended(
    predict: Predict,
    measured: FloatArray,
    noise: FloatArray,
    position: FloatArray,
    chosen: Sequence[int],
    bend: float,
) -> FloatArray:
    """Gauss-Newton steps within [0, 1], halved until they help (Nocedal and Wright 2006, 10.3 and 16.7).

    Errors of more than `bend` deviations count by their size.
    """

    def cost(at: FloatArray) -> float:
        size = np.abs((predict(at) - measured) / noise)
        near = np.minimum(size, bend)
        return float((near * (2 * size - near)).sum())

    lowest = cost(position)
    for _ in range(MOST_ITERATIONS):
        move = _step(predict, measured, noise, position, chosen, bend) - position
        if np.abs(move).max() < CONVERGED:
            return position + move
        for _ in range(MOST_HALVINGS):
            if (now := cost(position + move)) < lowest:
                break
            move = move / 2
        else:
            return position
        position, lowest = position + move, now
    return position


def _step(
    predict: Predict,
    measured: FloatArray,
    noise: FloatArray,
    position: FloatArray,
    chosen: Sequence[int],
    bend: float,
) -> FloatArray:
    """One Gauss-Newton step; a constant that it would push out of its range stays at the end, the rest is solved."""
    residual = (measured - predict(position)) / noise
    weight = np.sqrt(np.minimum(1.0, bend / np.maximum(np.abs(residual), 1e-300)))
    residual = residual * weight
    columns = _jacobian(predict, position, chosen) * (weight / noise)[:, None]
    free, trial = list(range(len(chosen))), position.copy()
    while free:
        places = [chosen[place] for place in free]
        wanted = position[places] + np.linalg.lstsq(columns[:, free], residual, rcond=None)[0]
        bounded = np.clip(wanted, 0.0, 1.0)
        trial[places] = bounded
        out = [place for place, a, b in zip(free, wanted, bounded, strict=True) if a != b]
        if not out:
            break
        for place in out:
            residual = residual - columns[:, place] * (trial[chosen[place]] - position[chosen[place]])
        free = [place for place in free if place not in out]
    return trial
