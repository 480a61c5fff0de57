"""Which constants step times identify, on times made of plain formulas."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from ppadvisor.engine.inputs import FloatArray
from ppadvisor.evidence.fit import MODEL_SCATTER, identify

HALF = np.array([0.5, 0.5])


def times(weights: FloatArray, position: FloatArray) -> FloatArray:
    """log of a sum of parts, each doubled while its constant goes through its range: (runs, 2) weights."""
    return np.asarray(np.log(weights @ np.append(1.0 + position, 1.0)))


SEVERAL = np.array([[5.0, 0.1, 1.0], [5.0, 5.0, 1.0], [0.1, 5.0, 1.0], [2.0, 1.0, 1.0], [1.0, 4.0, 0.5]])
"""Runs in which two constants weigh differently, beside what neither moves."""


def test_both_are_found() -> None:
    """Five unlike runs give back both planted constants, without noise exactly."""
    planted = np.array([0.2, 0.9])
    fit = identify(lambda at: times(SEVERAL, at), times(SEVERAL, planted), np.zeros(5), HALF, 5)
    assert sorted(fit.chosen) == [0, 1]
    assert fit.position == pytest.approx(planted, abs=1e-5)


def test_the_range_holds_the_truth() -> None:
    """With noise of the size that is assumed, two deviations hold the planted constant in about 19 of 20 draws."""
    planted, rng = np.array([0.4, 0.6]), np.random.default_rng(5)
    inside = []
    for _ in range(200):
        noisy = times(SEVERAL, planted) + rng.normal(0, MODEL_SCATTER, 5)
        fit = identify(lambda at: times(SEVERAL, at), noisy, np.zeros(5), HALF, 5)
        inside += [abs(fit.position[i] - planted[i]) <= 2 * fit.deviation[i] for i in fit.chosen]
    assert len(inside) == 400
    assert 0.92 <= np.mean(inside) <= 1.0


def test_two_alike_are_not_told_apart() -> None:
    """Constants that stand in the runs in one proportion: the second is refused for that."""
    alike = np.array([[1.0, 2.0, 0.1]] * 3 + [[2.0, 4.0, 0.1]] * 3)
    fit = identify(lambda at: times(alike, at), times(alike, HALF), np.zeros(6), HALF, 6)
    assert fit.chosen == (1,)
    assert fit.refused == {0: "alike"}


def test_one_run_identifies_one() -> None:
    """Of one run, and of two, the stronger constant is fitted, and the other refused for their number."""
    for number in (1, 2):
        of = SEVERAL[1 : 1 + number] * [1.2, 1.0, 1.0]
        fit = identify(partial(times, of), times(of, HALF), np.zeros(number), HALF, number)
        assert len(fit.chosen) == 1
        assert list(fit.refused.values()) == ["few_runs"]


def test_no_part_and_too_small_a_part() -> None:
    """A constant without effect, and one whose effect drowns in the scatter, are told apart."""
    small = np.array([[0.02, 1.0, 0.0, 1.0], [0.05, 0.4, 0.0, 1.0], [0.01, 2.0, 0.0, 1.0]])
    start = np.full(3, 0.5)
    fit = identify(lambda at: times(small, at), times(small, start), np.zeros(3), start, 9)
    assert fit.chosen == (1,)
    assert fit.refused == {0: "wide", 2: "no_effect"}


def test_what_lies_beyond_ends_at_the_end() -> None:
    """A planted constant outside of its range is not followed there; the other one is still fitted."""
    planted = np.array([1.4, 0.3])
    fit = identify(lambda at: times(SEVERAL, at), times(SEVERAL, planted), np.zeros(5), HALF, 5)
    assert fit.position[0] == 1.0
    assert 0.0 < fit.position[1] < 1.0


def test_one_strange_run_does_not_decide() -> None:
    """Of twelve runs that agree and one three times as slow, the agreement is found: least squares would be far off."""
    of = np.tile([[1.0, 0.0, 0.2]], (13, 1))
    measured = times(of, np.array([0.3, 0.5]))
    measured[7] += np.log(3)
    fit = identify(partial(times, of), measured, np.zeros(13), HALF, 13)
    assert fit.position[0] == pytest.approx(0.3, abs=0.02)


def test_residuals_widen_the_range() -> None:
    """Runs that fit worse than the scatter that is taken for granted leave a wider range."""
    off = np.array([0.3, -0.3, 0.3, -0.3, 0.0])
    calm = identify(lambda at: times(SEVERAL, at), times(SEVERAL, HALF), np.zeros(5), HALF, 5)
    wild = identify(lambda at: times(SEVERAL, at), times(SEVERAL, HALF) + off, np.zeros(5), HALF, 5)
    assert wild.deviation[wild.chosen[0]] > 2 * calm.deviation[wild.chosen[0]]
