"""What of a record must agree with what else, or no such run can have been. ValueError that names field and value."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppadvisor.evidence.records import Record


def check_consistent(record: Record) -> None:
    """The sizes multiply up, the lists have a number a stage, the experts divide."""
    plan, batch = record.plan, record.training.global_batch_size
    ranks = (plan.pipeline_parallel, plan.tensor_parallel, plan.context_parallel, plan.data_parallel)
    sizes = (plan.num_microbatches, plan.micro_batch_size, plan.data_parallel)
    _check_product("p t c d", ranks, "cluster.num_gpus", record.cluster.num_gpus)
    _check_product("m b d", sizes, "training.global_batch_size", batch)
    if plan.schedule == "none" and plan.pipeline_parallel > 1:
        raise ValueError(f"plan.schedule: got 'none' with p = {plan.pipeline_parallel}; needs p = 1")
    _check_layers(record)
    _check_experts(record)
    peaks = record.measured.peak_by_stage_gib
    if peaks is not None and len(peaks) != plan.pipeline_parallel:
        raise ValueError(
            f"measured.peak_by_stage_gib: got {len(peaks)} numbers; needs one a stage, p = {plan.pipeline_parallel}"
        )


def _check_product(what: str, factors: tuple[int | None, ...], field: str, value: int | None) -> None:
    known = [factor for factor in factors if factor is not None]
    if value is not None and len(known) == len(factors) and prod(known) != value:
        raise ValueError(f"{field}: got {value}, but {what} = {prod(known)}")


def _check_layers(record: Record) -> None:
    """Without layers stands a first or last stage alone, for its embedding or head (so measured: vocabpp_csv-0002)."""
    layers, p = record.plan.layers_per_stage, record.plan.pipeline_parallel
    if layers is None:
        return
    if (len(layers), sum(layers)) != (p, record.model.num_layers):
        raise ValueError(
            f"plan.layers_per_stage: got {len(layers)} numbers with sum {sum(layers)}; needs "
            f"p = {p} with sum {record.model.num_layers}"
        )
    if 0 in layers[1:-1]:
        place = layers.index(0, 1)
        raise ValueError(f"plan.layers_per_stage.{place}: got 0; only the first and the last stage may have no layers")


def _check_experts(record: Record) -> None:
    """Experts are divided evenly; without experts there is nothing to divide."""
    e, moe = record.plan.expert_parallel, record.model.moe
    if moe is None and e > 1:
        raise ValueError(f"plan.expert_parallel: got {e}; a model without experts needs 1")
    if moe is not None and moe.num_experts % e:
        raise ValueError(f"plan.expert_parallel: got {e}; does not divide {moe.num_experts} experts")
