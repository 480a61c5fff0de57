"""One rank of a plan's pipeline on torch's own engine: sizes are true, numbers and messages are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ppadvisor.engine.pipeline import Pipeline
from ppadvisor.engine.problem import Problem
from ppadvisor.frameworks.torchtitan.operations import TORCH_NAMES, operations
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.verify.layers import Shard, element_type, on_meta, torch
from ppadvisor.verify.layers_stage import LOSSES, StageModule, StageSizes
from ppadvisor.verify.memory_ledger import Ledger
from ppadvisor.verify.memory_parts import OUTPUTS, RECEIVE, SAVED, SENT, WAITING, RankMeasured
from ppadvisor.verify.torch_engine import torch_module
from ppadvisor.verify.torch_orders import schedule_on

pipelining: Any = torch_module("torch.distributed.pipelining")
torch_schedules: Any = torch_module("torch.distributed.pipelining.schedules")
torch_backward: Any = torch_module("torch.distributed.pipelining._backward")
distributed: Any = torch_module("torch.distributed")
STATIC: Any = torch_module("torch.distributed.pipelining._utils").InferenceMode.STATIC

META = torch.device("meta")


@contextmanager
def rank_of(rank: int, ranks: int) -> Iterator[None]:
    """This process as one rank of a process group without the others."""
    store = torch_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    distributed.init_process_group("fake", rank=rank, world_size=ranks, store=store)
    group = distributed.group.WORLD
    # messages of tensors without data go nowhere either
    group._register_backend(META, distributed.ProcessGroup.BackendType.CUSTOM, group._get_backend(torch.device("cpu")))
    try:
        yield
    finally:
        distributed.destroy_process_group()


def stored_vocab(problem: Problem, plan: PlanSpec) -> int:
    """The vocabulary as the trainer stores it."""
    ways = np.array([plan.tensor_parallel], dtype=np.int64)
    return int(problem.framework.padded_vocab_size(problem.model.vocab_size, ways)[0])


def stage_sizes(problem: Problem, plan: PlanSpec, stage: int) -> StageSizes:
    """What a stage holds, by its place in the model."""
    kinds, of_layer = problem.model.layer_kinds()
    first = sum(plan.layers_per_chunk[:stage])
    held = of_layer[first : first + plan.layers_per_chunk[stage]]
    shard = Shard(
        plan.tensor_parallel, problem.training.sequence_parallel, plan.expert_parallel, plan.expert_tensor_parallel
    )
    return StageSizes(
        model=problem.model,
        training=problem.training,
        layers=tuple(kinds[kind] for kind in held),
        recomputation=plan.recomputation,
        shard=shard,
        vocab_size=stored_vocab(problem, plan),
        first=stage == 0,
        last=stage == len(plan.layers_per_chunk) - 1,
    )


def boundary(sizes: StageSizes, plan: PlanSpec) -> Any:
    """A tensor between two stages."""
    training = sizes.training
    shape = (
        plan.micro_batch_size,
        training.sequence_length // sizes.shard.sequence_ways,
        sizes.model.hidden_size,
    )
    return torch.empty(shape, dtype=element_type(training), device="meta", requires_grad=True)


def pipeline_stage(problem: Problem, plan: PlanSpec, stage: int) -> Any:
    """The stage for torch's engine, with the shapes of what it receives and sends."""
    sizes = stage_sizes(problem, plan, stage)
    module = on_meta(lambda: StageModule(sizes), problem.training)
    inputs = outputs = boundary(sizes, plan)
    shape = (plan.micro_batch_size, problem.training.sequence_length)
    if sizes.first:
        inputs = torch.empty(shape, dtype=torch.int64, device="meta")
    if sizes.last:
        vocab = sizes.vocab_size // plan.tensor_parallel
        outputs = torch.empty((*shape, vocab), dtype=element_type(problem.training), device="meta", requires_grad=True)
    stages = len(plan.layers_per_chunk)
    return pipelining.PipelineStage(
        module, stage, stages, torch.device("meta"), input_args=(inputs,), output_args=(outputs,)
    )


def torch_schedule(pipeline: Pipeline, stages: list[Any], own: str | None) -> Any:
    """Torch's own class for the schedule of this id, or its list-driven runtime with our order."""
    plan, problem = pipeline.plan, pipeline.inputs.problem
    loss = LOSSES[problem.training.loss or problem.framework.default_loss]
    options = {"loss_fn": loss, "scale_grads": False}
    if own is not None:
        return schedule_on(stages, own, plan.num_microbatches, **options)
    schedule = torch_schedules._PipelineScheduleRuntime(stages, plan.num_microbatches, **options)
    placement = pipeline.schedule.placement(plan.pipeline_parallel, plan.virtual_stages)
    words = map(operations, pipeline.orders or (), placement)
    read = torch_schedules._Action.from_str
    schedule._prepare_schedule_with_comms({rank: [read(word) for word in row] for rank, row in enumerate(words)})
    return schedule


def _shapes_are_known(stages: list[Any], *_: Any) -> None:
    """In place of the ranks' vote on it, for which the others would have to be there."""
    for stage in stages:
        stage._inference_mode = STATIC


class Watch:
    """Tells the ledger what a stage does and what it keeps its tensors for."""

    def __init__(self, stage: Any, ledger: Ledger) -> None:
        self.stage, self.ledger, self.started = stage, ledger, False
        if stage.submod.head is not None:
            stage.submod.head.register_forward_pre_hook(self._loss_begins)
        self._around("forward_one_chunk", self.forward)
        self._around("backward_one_chunk", self.backward)
        self._around("backward_weight_one_chunk", self.weight)
        self._around("set_local_fwd_input", self.local)
        self._around("set_local_bwd_input", self.local)

    def _around(self, name: str, watched: Callable[..., Any]) -> None:
        inner = getattr(self.stage, name)
        setattr(self.stage, name, lambda *args, **options: watched(inner, *args, **options))

    def forward(self, inner: Any, microbatch: int, *inputs: Any, **options: Any) -> Any:
        if not self.started:
            self.started = True
            self._name_buffers()
        self._begin("F", microbatch)
        with torch.autograd.graph.saved_tensors_hooks(self.ledger.pack, lambda tensor: tensor):
            output = inner(microbatch, *inputs, **options)
        self.ledger.name(self.stage.fwd_cache[microbatch][0], OUTPUTS)
        return output

    def backward(self, inner: Any, microbatch: int, **options: Any) -> None:
        full = options.get("full_backward", True)
        self._begin("B" if full else "I", microbatch)
        with groups_put_aside(self.ledger, self.stage, microbatch):
            inner(microbatch, **options)
        self.ledger.name(put_aside(self.stage.backward_state), WAITING)
        self._end()
        infos = () if self.stage.is_first else self.stage.args_recv_info[microbatch]
        self.ledger.name((info.buffer.grad for info in infos if info.buffer.grad is not None), SENT)

    def weight(self, inner: Any, microbatch: int, **options: Any) -> None:
        self._begin("W", microbatch)
        inner(microbatch, **options)
        self._end()

    def local(self, inner: Any, *args: Any) -> None:
        inner(*args)
        self._name_buffers()

    def _begin(self, kind: str, microbatch: int) -> None:
        self.ledger.action = f"{self.stage.stage_index}{kind}{microbatch}"
        self.ledger.backward = kind != "F"
        self.ledger.in_loss = self.stage.is_last and kind in ("B", "I")

    def _loss_begins(self, *_: Any) -> None:
        self.ledger.in_loss = True

    def _end(self) -> None:
        self.ledger.backward = False

    def _name_buffers(self) -> None:
        infos = (*self.stage.args_recv_info.values(), *self.stage.grad_recv_info.values())
        buffers = (getattr(info, "buffer", None) for of_one in infos for info in of_one)
        held = (buffer for buffer in buffers if buffer is not None)
        self.ledger.name(held, RECEIVE, over=(None, OUTPUTS, SENT, WAITING))


def put_aside(states: dict[int, Any]) -> Iterator[Any]:
    """The gradients that wait for the weights' step of some micro-batches."""
    for _, groups, _, _ in states.values():
        yield from gradients_of(groups or ())


def gradients_of(groups: Iterable[dict[str, Any]]) -> Iterator[Any]:
    """The gradients of parameter groups, as far as they are there."""
    for group in groups:
        for gradients in group.get("grads") or ():
            yield from (gradient for gradient in gradients or () if gradient is not None)


@contextmanager
def groups_put_aside(ledger: Ledger, stage: Any, microbatch: int) -> Iterator[None]:
    """While the input gradient is computed: what it puts aside is told to the ledger as it comes."""
    original = torch_backward.get_param_groups

    def get_param_groups(*args: Any) -> Any:
        groups = original(*args)
        ledger.waiting = lambda: gradients_of(groups)
        return groups

    torch_backward.get_param_groups = get_param_groups
    try:
        yield
    finally:
        torch_backward.get_param_groups = original
        ledger.waiting = tuple


def measure_rank(pipeline: Pipeline, rank: int) -> RankMeasured:
    """One step of this rank."""
    problem, plan = pipeline.inputs.problem, pipeline.plan
    held = pipeline.schedule.placement(plan.pipeline_parallel, plan.virtual_stages).tolist()[rank]
    with rank_of(rank, plan.pipeline_parallel):
        stages = [pipeline_stage(problem, plan, stage) for stage in held]
        ledger = ledger_of(problem, plan, [stage.submod for stage in stages])
        for stage in stages:
            Watch(stage, ledger)
        schedule = torch_schedule(pipeline, stages, plan.schedule if plan.schedule in TORCH_NAMES else None)
        schedule._warmup_p2p = _shapes_are_known
        shape = (plan.num_microbatches * plan.micro_batch_size, problem.training.sequence_length)
        tokens = torch.empty(shape, dtype=torch.int64, device=META)
        given = [tokens] if any(stage.is_first for stage in stages) else []
        wanted = {"target": tokens} if any(stage.is_last for stage in stages) else {}
        with ledger:
            schedule.step(*given, return_outputs=False, **wanted)
        return RankMeasured(rank, ledger.peak, ledger.saved_peak, ledger.bytes[SAVED])


def ledger_of(problem: Problem, plan: PlanSpec, modules: list[Any]) -> Ledger:
    """A ledger that leaves out what modules have, and knows logits by their size and moment."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    constants = [constant for module in modules for constant in module.buffers()]
    tokens = plan.micro_batch_size * problem.training.sequence_length
    logits = tokens * stored_vocab(problem, plan) // plan.tensor_parallel
    return Ledger([*parameters, *constants], parameters, lambda tensor: tensor.numel() == logits)
