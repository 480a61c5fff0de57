"""A stage whose work is sleep: as long as it is told, for forward, input gradient and weight gradient apart."""

from __future__ import annotations

import statistics
import time
from typing import Any

from ppadvisor.verify.job import ActionDone, StageSeconds
from ppadvisor.verify.torch_engine import torch_module

WIDTH = 8
"""Numbers that a micro-batch is: what is sent between stages takes no time to speak of."""
PROBES, PROBE_S, MOST_LATE_S = 21, 2e-3, 1e-3


def usual_lateness_s() -> float:
    """By how much a sleep of this process usually ends late; limited, as what is left is waited for awake."""
    late = []
    for _ in range(PROBES):
        end_s = time.monotonic() + PROBE_S
        time.sleep(PROBE_S)
        late.append(time.monotonic() - end_s)
    return min(statistics.median(late), MOST_LATE_S)


class Sleeper:
    """Sleeps, never too short, and counts how long."""

    def __init__(self) -> None:
        self.late_s = usual_lateness_s()
        self.worked_s = 0.0
        self.works = False
        """Without it each piece of work is skipped, and what is left is the engine."""

    def work(self, seconds: float) -> None:
        """Sleep until shortly before the end, as sleeps end late, and wait for the end awake."""
        if not self.works or seconds <= 0.0:
            return
        start_s = time.monotonic()
        end_s = start_s + seconds
        if seconds > self.late_s:
            time.sleep(seconds - self.late_s)
        while time.monotonic() < end_s:
            pass
        self.worked_s += time.monotonic() - start_s


def sleeping_layer(times: StageSeconds, sleeper: Sleeper) -> Any:
    """A module that adds a weight to its input and takes these times for it.

    The weight's gradient comes by a branch of its own, so that torch can do the input's first and the weight's later.
    The offset is what makes the first stage's input take its time too, though nobody asks for its gradient.
    """
    torch = torch_module()

    class Pass(torch.autograd.Function):  # type: ignore[misc, name-defined] # torch may be missing, so it has no types here
        @staticmethod
        def forward(_ctx: Any, x: Any) -> Any:
            sleeper.work(times.forward_s)
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, gradient: Any) -> Any:
            sleeper.work(times.input_grad_s)
            return gradient

    class Weight(torch.autograd.Function):  # type: ignore[misc, name-defined] # likewise
        @staticmethod
        def forward(_ctx: Any, weight: Any) -> Any:
            return weight.clone()

        @staticmethod
        def backward(_ctx: Any, gradient: Any) -> Any:
            sleeper.work(times.weight_grad_s)
            return gradient

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined] # likewise
        def __init__(self) -> None:
            super().__init__()
            self.offset = torch.nn.Parameter(torch.zeros(1, WIDTH))
            self.weight = torch.nn.Parameter(torch.zeros(1, WIDTH))

        def forward(self, x: Any) -> Any:
            return Pass.apply(x + self.offset) + Weight.apply(self.weight)

    return Layer()


def timed_stage(index: int, num_stages: int, layer: Any, sleeper: Sleeper, done: list[ActionDone]) -> Any:
    """Torch's own stage, which also writes down what it did and when."""
    torch = torch_module()

    class TimedStage(torch_module("torch.distributed.pipelining").PipelineStage):  # type: ignore[misc] # likewise
        def timed(self, kind: str, microbatch: int, work: Any, *given: Any, **options: Any) -> Any:
            start_s, worked_s = time.monotonic(), sleeper.worked_s
            result = work(microbatch, *given, **options)
            worked_s = sleeper.worked_s - worked_s
            done.append(ActionDone(f"{index}{kind}{microbatch}", start_s, time.monotonic(), worked_s))
            return result

        def forward_one_chunk(self, microbatch: int, *given: Any, **options: Any) -> Any:
            return self.timed("F", microbatch, super().forward_one_chunk, *given, **options)

        def backward_one_chunk(self, microbatch: int, *given: Any, full_backward: bool = True, **options: Any) -> Any:
            kind, work = "B" if full_backward else "I", super().backward_one_chunk
            return self.timed(kind, microbatch, work, *given, full_backward=full_backward, **options)

        def backward_weight_one_chunk(self, microbatch: int, *given: Any, **options: Any) -> Any:
            return self.timed("W", microbatch, super().backward_weight_one_chunk, *given, **options)

    return TimedStage(layer, index, num_stages, torch.device("cpu"))
