"""What failures take of a long run: the share of its time that trains, by the formulas of Young and Daly."""

from __future__ import annotations

import math
from dataclasses import dataclass

LARGEST_EXPONENT = 700.0
"""e to this is near the largest double: a run that waits so long for a whole interval never ends."""

HOUR_S = 3600.0


@dataclass(frozen=True)
class Losses:
    """How often a GPU stops the run, and what that costs. Without failures nothing is lost."""

    failures_per_gpu_hour: float = 0.0
    """Failures that stop the whole run, for one GPU and hour; 1 over its mean time between failures in hours."""
    checkpoint_time_s: float = 0.0
    """Seconds that training stands still for one checkpoint."""
    restart_time_s: float = 0.0
    """Seconds from a failure until training goes on from the last checkpoint."""

    def mtbf_s(self, num_gpus: int) -> float:
        """Seconds between two failures of a run on so many GPUs, each of which can stop it."""
        rate = self.failures_per_gpu_hour * num_gpus / HOUR_S
        return 1 / rate if rate else math.inf


@dataclass(frozen=True)
class Goodput:
    """What a run makes of its time."""

    fraction: float
    checkpoint_interval_s: float | None
    """Seconds of training between two checkpoints; None where nothing fails and none is needed."""


def goodput(losses: Losses, num_gpus: int) -> Goodput:
    """The share of the time that trains, with checkpoints at Daly's interval."""
    mtbf = losses.mtbf_s(num_gpus)
    if math.isinf(mtbf):
        return Goodput(1.0, None)
    interval = checkpoint_interval_s(checkpoint_time_s=losses.checkpoint_time_s, mtbf_s=mtbf)
    share = useful_fraction(
        interval_s=interval,
        checkpoint_time_s=losses.checkpoint_time_s,
        restart_time_s=losses.restart_time_s,
        mtbf_s=mtbf,
    )
    return Goodput(share, interval)


def checkpoint_interval_s(*, checkpoint_time_s: float, mtbf_s: float) -> float:
    """Seconds of training between checkpoints that waste least: near Young's sqrt(2 δ M).

    τ = sqrt(2 δ M) [1 + sqrt(δ / 2M) / 3 + (δ / 2M) / 9] - δ for δ < 2M, else M; δ is `checkpoint_time_s`, M `mtbf_s`.
    Source: Daly 2006, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation
    Computer Systems 22, 303-312; its first term is Young 1974, Communications of the ACM 17, 530-531.

    >>> round(checkpoint_interval_s(checkpoint_time_s=50, mtbf_s=10_000))  # Young: 1000
    967
    """
    ratio = checkpoint_time_s / (2 * mtbf_s)
    if ratio >= 1:
        return mtbf_s
    return math.sqrt(2 * checkpoint_time_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_time_s


def useful_fraction(*, interval_s: float, checkpoint_time_s: float, restart_time_s: float, mtbf_s: float) -> float:
    """Useful share of the time of a run with a checkpoint every `interval_s` of training, failures being exponential.

    τ / (M e^(R/M) (e^((τ+δ)/M) - 1)): a restart, or an interval with its checkpoint, that fails is done again. Without
    time for checkpoints there is always one, and e^(-R/M) is left. Valid for failures that do not depend on each other.
    Source: Daly 2006, as above, the total wall-clock time of the complete model, solved for T_s / T_w.
    """
    restart = restart_time_s / mtbf_s
    if interval_s == 0:
        return math.exp(-restart)
    lost = restart + (interval_s + checkpoint_time_s) / mtbf_s
    if lost > LARGEST_EXPONENT:
        return 0.0
    return interval_s / (mtbf_s * math.exp(restart) * math.expm1((interval_s + checkpoint_time_s) / mtbf_s))
