"""One rank of a run of real layers: built on its device, driven through the steps by torch's own engine, measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ppadvisor.engine.pipeline import Pipeline
from ppadvisor.engine.problem import Problem
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.verify.launched import Met
from ppadvisor.verify.layers import Experts, element_type, torch
from ppadvisor.verify.layers_stage import StageModule, StageSizes
from ppadvisor.verify.memory_rank import pipelining, stage_sizes, torch_schedule
from ppadvisor.verify.run_measured import RankRan, StepRan

WARM_UP = 2
"""Steps that count for nothing: shapes are told, connections made, kernels chosen, the allocator's blocks cut."""
LEARNING_RATE = 1e-6
DEVIATION = 0.02


class Stamp(NamedTuple):
    """An action and the clock before and after it."""

    word: str
    before: Any
    after: Any


class Clock:
    """Of a GPU events on its stream, so that nothing waits for them; of a CPU the time."""

    def __init__(self, device: Any) -> None:
        self.on_gpu = device.type == "cuda"

    def now(self) -> Any:
        """A moment."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(self, before: Any, after: Any) -> float:
        """Seconds between two moments that have passed."""
        return float(before.elapsed_time(after)) / 1e3 if self.on_gpu else after - before

    def finish(self) -> None:
        """Until the device has done all that it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()


@contextmanager
def made_in(dtype: Any, device: Any) -> Iterator[None]:
    """New tensors have this type and stand on this device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def real_module(sizes: StageSizes, microbatch: int, device: Any) -> Any:
    """A stage with numbers in it: what a model begins with, no rotation, as many tokens for each expert."""
    with made_in(element_type(sizes.training), device), torch.no_grad():
        module = StageModule(sizes)
        for parameter in module.parameters():
            parameter.normal_(0.0, DEVIATION) if parameter.dim() > 1 else parameter.fill_(1.0)
        for part in module.modules():
            if hasattr(part, "angles"):
                part.angles.fill_(1.0)
            if isinstance(part, Experts):
                rows = microbatch * sizes.training.sequence_length * part.k // part.row_ways
                count = len(part.ends)
                part.ends.copy_(torch.arange(1, count + 1) * rows // count)
    share_constants(module)
    return module


def share_constants(module: Any) -> None:
    """Constants that are alike in all layers are held once, as a trainer holds them."""
    seen: dict[tuple[Any, ...], Any] = {}
    for part in module.modules():
        for name, constant in part.named_buffers(recurse=False):
            setattr(part, name, seen.setdefault((name, constant.shape), constant))


def watched(stage: Any, clock: Clock, stamps: list[Stamp]) -> Any:
    """The stage, which also notes what it does and when."""

    def around(name: str, kind: Callable[[dict[str, Any]], str]) -> None:
        inner = getattr(stage, name)

        def noted(microbatch: int, *given: Any, **options: Any) -> Any:
            before = clock.now()
            result = inner(microbatch, *given, **options)
            stamps.append(Stamp(f"{stage.stage_index}{kind(options)}{microbatch}", before, clock.now()))
            return result

        setattr(stage, name, noted)

    around("forward_one_chunk", lambda _: "F")
    around("backward_one_chunk", lambda options: "B" if options.get("full_backward", True) else "I")
    around("backward_weight_one_chunk", lambda _: "W")
    return stage


class Rank:
    """One rank at work."""

    def __init__(self, pipeline: Pipeline, own: str | None, here: Met) -> None:
        problem, plan, rank = pipeline.inputs.problem, pipeline.plan, here.launcher.rank
        self.here, self.clock, self.stamps = here, Clock(here.device), list[Stamp]()
        self.stages = [
            watched(_stage(problem, plan, stage, here.device), self.clock, self.stamps)
            for stage in pipeline.placement.tolist()[rank]
        ]
        self.schedule = torch_schedule(pipeline, self.stages, own)
        parameters = [one for stage in self.stages for one in stage.submod.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
        sizes = stage_sizes(problem, plan, 0)
        shape = (plan.num_microbatches * plan.micro_batch_size, problem.training.sequence_length)
        tokens = torch.randint(sizes.vocab_size // plan.tensor_parallel, shape, device=here.device)
        self.given = [tokens] if any(stage.is_first for stage in self.stages) else []
        self.wanted = {"target": tokens} if any(stage.is_last for stage in self.stages) else {}

    def step(self) -> StepRan:
        """One step, which all ranks begin together."""
        self.stamps.clear()
        self.clock.finish()
        self.here.wait()
        begin_s = time.perf_counter()
        self.schedule.step(*self.given, return_outputs=False, **self.wanted)
        self.clock.finish()
        passed_s = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.clock.finish()
        end_s = time.perf_counter()
        actions = tuple((one.word, self.clock.between_s(one.before, one.after)) for one in self.stamps)
        return StepRan(passed_s - begin_s, end_s - passed_s, actions)


def _stage(problem: Problem, plan: PlanSpec, stage: int, device: Any) -> Any:
    module = real_module(stage_sizes(problem, plan, stage), plan.micro_batch_size, device)
    return pipelining.PipelineStage(module, stage, len(plan.layers_per_chunk), device)


def run_rank(pipeline: Pipeline, own: str | None, here: Met, counted: Iterable[int]) -> RankRan:
    """The steps of this rank: WARM_UP, then those that count."""
    rank, device = Rank(pipeline, own, here), here.device
    on_gpu, steps = device.type == "cuda", []
    for number in counted:
        if number == WARM_UP and on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        step = rank.step()
        steps += [step] if number >= WARM_UP else []
    return RankRan(
        machine=here.machine,
        steps=tuple(steps),
        allocated_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
        reserved_bytes=torch.cuda.max_memory_reserved(device) if on_gpu else None,
    )
