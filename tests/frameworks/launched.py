"""Plans to be written as launch files, for tests that read them again."""

from __future__ import annotations

from typing import Any

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.frameworks.configuration import Configuration
from ppadvisor.search.api import make_problem
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

CHANGED: tuple[dict[str, Any], ...] = (
    {"precision": "fp8"},
    {"precision": "fp8", "fp8_weights": True},
    {"precision": "fp16", "gradient_precision": "fp16"},
    {"precision": "fp16"},
    {"precision": "fp32"},
    {"gradient_precision": "bf16"},
    {"optimizer": "adamw"},
    {"optimizer": "adam-bf16-moments"},
    {"optimizer": "sgd"},
    {"optimizer": "sgd-momentum"},
    {"attention": "eager", "dropout": True},
    {"sequence_parallel": False},
)
"""Ways to train, each another than the default."""


def costs_the_same(
    model: ModelSpec, training: TrainingSpec, plan: PlanSpec, read: Configuration, machines: ClusterSpec
) -> bool:
    """Whether what was read takes the same time and memory, to the last bit."""
    assert read.model is not None
    assert read.training is not None
    assert read.plan is not None
    before = estimate_plan(make_problem(model, machines, training), plan, margin=0.9)
    after = estimate_plan(make_problem(read.model, machines, read.training), read.plan, margin=0.9)
    same_time = before.time.step_time_s == after.time.step_time_s
    return same_time and before.memory.peak_bytes == after.memory.peak_bytes
