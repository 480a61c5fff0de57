"""What a written configuration says, held against what it should say: values that the trainer has no option for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import Loss, TrainingSpec

NOT_OPTIONS = ("framework", "stack")
"""Of a training run, what is no option of the trainer."""


def differences(wanted: Mapping[str, Any], read: Mapping[str, Any], trainer: str) -> Iterator[str]:
    """Each value that the configuration does not say, and what it says instead."""
    for name, value in wanted.items():
        if read.get(name) != value:
            yield f"{name} = {value}; {trainer} takes {read.get(name)}"


def training_values(training: TrainingSpec, plan: PlanSpec, *, loss: Loss) -> dict[str, Any]:
    """What a run costs by; where it is silent, the trainer's own loss, fp32 gradients. adam costs what adamw does."""
    values = training.as_dict(NOT_OPTIONS)
    values["gradient_precision"] = training.gradient_precision or "fp32"
    values["sequence_parallel"] = training.sequence_parallel and plan.tensor_parallel > 1
    values["optimizer"] = "adam" if training.optimizer == "adamw" else training.optimizer
    values["loss"] = training.loss or loss
    return values


def plan_values(plan: PlanSpec) -> dict[str, Any]:
    """All of a plan; naive is 1F1B with one micro-batch."""
    values = {**vars(plan)}
    values["schedule"] = "1f1b" if plan.schedule == "naive" else plan.schedule
    return values
