"""Bytes that torch's autograd keeps of one layer, as counted in tests/published, and our lists beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.layer_work import activations_by_half
from ppadvisor.engine.problem import Problem
from ppadvisor.frameworks.profile import Tensor
from ppadvisor.specs.model import LayerKind, ModelSpec
from tests.problems import plan, problem, table_of

FILE = Path(__file__).parent.parent / "published" / "torch_saved_tensors.json"
DOCUMENT = json.loads(FILE.read_text(encoding="utf-8"))
COMMON = {"num_layers": 1, "vocab_size": 128, "tied_embeddings": False, "max_position_embeddings": None}
"""Fields of a model that one layer has no use for."""


@dataclass(frozen=True)
class LayerCase:
    """One layer of a model under a run, and one rank's part of it."""

    name: str
    model: ModelSpec
    run: dict[str, Any]
    micro_batch_size: int
    tensor_parallel: int
    counted: dict[str, Any]
    """saved_bytes, waiting_bytes, work_bytes and the saved tensors, as torch had them."""

    @property
    def kind(self) -> LayerKind:
        return self.model.layer_kinds()[0][0]

    def problem(self, framework: str = "generic") -> Problem:
        return problem(self.model, framework=framework, sequence_parallel=False, **self.run)

    def inputs(self, recompute: str = "none", framework: str = "generic") -> PlanInputs:
        t, experts = self.tensor_parallel, self.model.moe
        cut = {"tensor_parallel": t, "expert_tensor_parallel": t if experts else 1}
        one = plan([1], micro_batch_size=self.micro_batch_size, recompute=recompute, **cut)
        return PlanInputs.of(self.problem(framework), table_of([one]), every_stage=True)

    def tensors(self, which: str = "saved_tensors", framework: str = "generic") -> tuple[Tensor, ...]:
        """One of the lists of a framework's profile."""
        of = self.problem(framework)
        listed: Callable[..., tuple[Tensor, ...]] = getattr(of.framework, which)
        return listed(of.model, of.training, self.kind)

    def bytes_of(self, tensors: tuple[Tensor, ...]) -> float:
        """What the engine makes of a list."""
        return float(self.inputs().tensor_bytes(tensors)[0])

    def work_bytes(self, framework: str) -> float:
        """What the engine says that one layer's backward works with."""
        return float(np.maximum(*activations_by_half(self.inputs(framework=framework), self.kind))[0])


def case_of(record: dict[str, Any]) -> LayerCase:
    """A record of the file, its model checked like a user's."""
    spec = ModelSpec(name=record["name"], **{**COMMON, **record["model"]})
    counted = {key: record.get(key) for key in ("saved_bytes", "waiting_bytes", "work_bytes", "tensors")}
    return LayerCase(
        record["name"], spec, record["run"], record["micro_batch_size"], record["tensor_parallel"], counted
    )


CASES = tuple(case_of(record) for record in DOCUMENT["records"])
every_layer = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
