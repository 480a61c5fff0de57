"""What failures take of a run: Daly's formulas against limits worked out by hand and against a simulated run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ppadvisor.search.goodput import Losses, checkpoint_interval_s, goodput, useful_fraction

MTBF, CHECKPOINT, RESTART = 4 * 3600.0, 60.0, 600.0


def simulated(interval_s: float, segments: int = 20_000) -> float:
    """Useful share of a run that fails at random: each piece of work is done again until it succeeds."""
    draw = np.random.default_rng(7)
    total = 0.0
    for _ in range(segments):
        failure = draw.exponential(MTBF)
        while failure < interval_s + CHECKPOINT:
            total += failure
            failure = draw.exponential(MTBF)
            while failure < RESTART:  # the restart fails too
                total += failure
                failure = draw.exponential(MTBF)
            total += RESTART
            failure = draw.exponential(MTBF)
        total += interval_s + CHECKPOINT
    return segments * interval_s / total


@pytest.mark.parametrize("interval_s", [600.0, 3600.0])
def test_the_formula_is_what_a_simulated_run_keeps(interval_s: float) -> None:
    """A run of 20,000 pieces with failures drawn one by one keeps the share of Daly's complete model, to 0.5 %."""
    share = useful_fraction(interval_s=interval_s, checkpoint_time_s=CHECKPOINT, restart_time_s=RESTART, mtbf_s=MTBF)
    assert share == pytest.approx(simulated(interval_s), rel=0.005)


def test_the_interval_wastes_least() -> None:
    """No interval of a fine grid keeps more than Daly's does by a ten thousandth; it lies below Young's."""
    chosen = checkpoint_interval_s(checkpoint_time_s=CHECKPOINT, mtbf_s=MTBF)

    def share(interval_s: float) -> float:
        return useful_fraction(interval_s=interval_s, checkpoint_time_s=CHECKPOINT, restart_time_s=RESTART, mtbf_s=MTBF)

    assert chosen < math.sqrt(2 * CHECKPOINT * MTBF)
    assert share(chosen) >= max(share(float(interval)) for interval in np.linspace(60, 10_000, 2000)) - 1e-4


def test_limits() -> None:
    """No failures: all is kept. Free checkpoints: e^(-R/M) is left. Many GPUs keep less."""
    assert goodput(Losses(), 100_000).fraction == 1.0
    free = goodput(Losses(1e-5, 0.0, 600.0), 10_000)  # M = 10 h
    assert free.fraction == pytest.approx(math.exp(-600 / 36_000))
    losses = Losses(1e-5, 60.0, 600.0)
    kept = [goodput(losses, gpus).fraction for gpus in (1, 100, 10_000, 1_000_000)]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 0.999
    assert goodput(Losses(1.0, 600.0, 6000.0), 10_000).fraction == 0.0


def test_llama_3_405b() -> None:
    """Meta counted 419 unexpected interruptions on 16,384 GPUs in 54 days: one in 3.1 hours.

    They report more than 90 % of the time as effective and no time of a restart: the formula needs those of minutes for
    it, as restarts from a checkpoint in memory are, and not of half an hour. Source: The Llama 3 Herd of Models, arXiv
    2407.21783, section 3.3.4.
    """
    rate = 419 / (54 * 24 * 16_384)
    assert Losses(rate).mtbf_s(16_384) == pytest.approx(54 * 86_400 / 419)
    assert goodput(Losses(rate, 10.0, 300.0), 16_384).fraction > 0.9
    assert goodput(Losses(rate, 10.0, 1800.0), 16_384).fraction < 0.9
