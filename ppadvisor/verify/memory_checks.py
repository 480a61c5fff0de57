"""What of a plan can be built in plain torch and driven by its engine; of what cannot, why."""

from __future__ import annotations

from collections.abc import Iterator

from ppadvisor.engine.pipeline import Pipeline
from ppadvisor.engine.problem import Problem
from ppadvisor.frameworks.torchtitan.operations import untold
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import CORE_ATTENTION
from ppadvisor.verify.torch_engine import UnverifiableError

PLAIN = ("torchtitan", "generic")
"""Frameworks whose layers are plain torch's and whose pipeline may be torch's engine."""
UNCOUNTED = "generic is no trainer: torch's engine keeps receive buffers and gradients that it does not count"


def check_buildable(problem: Problem, plan: PlanSpec, *, alone: bool = False) -> None:
    """UnverifiableError, with every reason, for what is not built here; `alone`: one stage will do."""
    reasons = [*_of_framework(problem, plan), *_of_model(problem.model, plan), *_of_run(problem, plan)]
    if plan.pipeline_parallel == 1 and not alone:
        reasons.append("there is no pipeline, p is 1")
    if reasons:
        raise UnverifiableError(f"cannot be built in plain torch: {'; '.join(reasons)}")


def check_driven(pipeline: Pipeline) -> None:
    """UnverifiableError for an order of work that torch's engine cannot be told."""
    schedule, orders = pipeline.schedule, pipeline.orders
    if orders is None:
        raise UnverifiableError("more actions than are followed one by one; plan with fewer micro-batches")
    problem = untold(schedule, {kind for order in orders for kind in set(order.kind.tolist())})
    if schedule.asynchronous:
        problem = f"schedule {schedule.id} works with several versions of the weights, which torch's engine has not"
    if problem:
        raise UnverifiableError(problem)


def _of_framework(problem: Problem, plan: PlanSpec) -> Iterator[str]:
    if problem.framework.id not in PLAIN:
        yield f"{problem.framework.id} has layers and a pipeline of its own (plan for {' or '.join(PLAIN)})"
    elif plan.tensor_parallel > 1 and problem.training.sequence_parallel and problem.framework.id == "generic":
        yield (
            "under sequence parallelism torch's DTensor keeps what it gathers, and generic gathers again (plan for "
            "torchtitan)"
        )


def _of_model(model: ModelSpec, plan: PlanSpec) -> Iterator[str]:
    if model.mtp_num_layers:
        yield f"{model.mtp_num_layers} layers of multi-token prediction"
    if not model.mla and model.num_query_groups % plan.tensor_parallel:
        yield f"{model.num_query_groups} key/value heads on {plan.tensor_parallel} ranks"
    if not model.norm_weight:
        yield "norms without weights"


def _of_run(problem: Problem, plan: PlanSpec) -> Iterator[str]:
    training, loss = problem.training, problem.training.loss or problem.framework.default_loss
    if plan.context_parallel > 1:
        yield f"attention over {plan.context_parallel} context-parallel ranks"
    if training.precision == "fp8":
        yield "fp8"
    if not training.fused_norm:
        yield "norms that are not fused"
    if loss != "torch":
        yield f"loss {loss} (plain torch's is --loss torch)"
    choice = plan.recomputation
    if choice.kind == "selective" and choice.modules != CORE_ATTENTION:
        yield f"recomputation of {', '.join(choice.modules)}"
