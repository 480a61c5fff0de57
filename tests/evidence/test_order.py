"""Scores of an order, each worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ppadvisor.evidence.order import first_of, offered_by, outcome_of, pairs_of

NAN = float("nan")


def arrays(keys: list[float], measured: list[float], offered: list[bool] | None = None) -> tuple[np.ndarray, ...]:
    """The three arguments of `outcome_of`; every plan is offered unless said."""
    return np.array(keys), np.array(measured), np.array([True] * len(keys) if offered is None else offered)


def test_an_order_is_counted_by_hand() -> None:
    """Measured 10, 10.05, 10.4, 12: of the six pairs one differs by 0.5 % and is left out, and two by less than 5 %.

    The keys 2, 1, 4, 3 put 12 before 10.4 and all else right: 4 of 5 pairs, of the three clear ones 2. The first
    choice is 10.05 s, which the resolution does not tell from the fastest.
    """
    outcome = outcome_of(*arrays([2, 1, 4, 3], [10, 10.05, 10.4, 12]))
    assert (outcome.pairs_right, outcome.clear_pairs_right) == (4, 2)
    assert (outcome.best, outcome.ran_out) == (1, 0)
    assert outcome.regret_fraction == pytest.approx(0.005)


@pytest.mark.parametrize(("gap", "expected"), [(0.01, 5), (0.05, 3), (0.2, 1), (0.201, 0)])
def test_a_gap_is_over_the_faster_time(gap: float, expected: int) -> None:
    """10 and 12 are 20 % apart; a plan that ran out of memory is in no pair."""
    assert pairs_of(np.array([10, 10.05, 10.4, 12, NAN]), gap).sum() == expected


def test_what_an_order_leaves_open_counts_half() -> None:
    """Equal keys for 10 and 12 s: half a pair, half a first choice, the mean of the regrets 0 and 20 %."""
    outcome = outcome_of(*arrays([0, 0], [10, 12]))
    assert (outcome.pairs_right, outcome.clear_pairs_right, outcome.best) == (0.5, 0.5, 0.5)
    assert outcome.regret_fraction == pytest.approx(0.1)


def test_choosing_what_ran_out_is_a_failure() -> None:
    """It is not the best and has no regret; the order among those that ran is told apart from it: 11 for 10 s."""
    outcome = outcome_of(*arrays([0, 1, 2], [NAN, 11, 10]))
    assert (outcome.ran_out, outcome.best, outcome.regret_fraction) == (1, 0, None)
    assert outcome.order_regret_fraction == pytest.approx(0.1)
    assert outcome.pairs_right == 0


def test_only_what_is_offered_can_be_chosen() -> None:
    """The fastest, first by its key, was said not to fit: the regret of the next is 50 %, that of the order nothing."""
    outcome = outcome_of(*arrays([1, 2], [10, 15], [False, True]))
    assert outcome.regret_fraction == pytest.approx(0.5)
    assert (outcome.best, outcome.order_regret_fraction, outcome.pairs_right) == (0, 0, 1)


def test_half_of_a_choice_may_have_run_out() -> None:
    """Of two plans that share the first place one ran out: half a failure, the regret is that of the other."""
    outcome = outcome_of(*arrays([0, 0, 1], [NAN, 12, 10]))
    assert (outcome.ran_out, outcome.best) == (0.5, 0)
    assert outcome.regret_fraction == pytest.approx(0.2)


def test_rounding_does_not_decide() -> None:
    """0.1 + 0.2 and 0.3 differ in the last bit alone, and both come first."""
    assert first_of(np.array([0.1 + 0.2, 0.3, 0.4]), np.array([True] * 3)) == [0, 1]


def test_the_most_hopeful_are_offered() -> None:
    """What fits; where nothing does, what is borderline."""
    assert offered_by([0, 1, 0, 2]).tolist() == [True, False, True, False]
    assert offered_by([2, 1]).tolist() == [False, True]
