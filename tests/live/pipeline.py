"""`python -m tests.live.pipeline RANK FOLDER`: one rank of torch's own pipeline on a CPU, counting what it holds.

A small GPT in fp32, real numbers, real messages over gloo, torch's own schedules. The rank writes its counts, in bytes,
to FOLDER, where the ranks also find each other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.verify.layers import Layer, Norm, Shard, linear
from ppadvisor.verify.memory_ledger import storage_key
from tests.engine.pipelined import LAYERS_A_RANK, MICROBATCHES, RANKS, small_gpt
from tests.live.saved import Kept

torch: Any = pytest.importorskip("torch", reason="compares with torch, which is not installed")

SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}


class Stage(torch.nn.Module):  # type: ignore[misc] # torch may be missing, so it has no types here
    """A rank's layers, on the first rank with the embedding before them, on the last with norm and head behind."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        of = small_gpt()
        spec, run = of.model, of.training
        h, kind = spec.hidden_size, spec.layer_kinds()[0][0]
        self.layers = torch.nn.Sequential(*(Layer(spec, run, kind, Shard()) for _ in range(LAYERS_A_RANK)))
        self.table = torch.nn.Embedding(spec.vocab_size, h) if rank == 0 else None
        self.positions = torch.nn.Parameter(torch.zeros(run.sequence_length, h)) if rank == 0 else None
        last = (Norm("layernorm", h), linear(h, spec.vocab_size))
        self.head = torch.nn.Sequential(*last) if rank == RANKS - 1 else torch.nn.Identity()
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Any) -> Any:
        if self.table is not None:
            x = self.table(x) + self.positions
        return self.head(self.layers(x))


def storages(tensors: Iterable[Any]) -> dict[Any, int]:
    """The memory of some tensors: a name for each storage and its bytes."""
    return {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None}


class Watch:
    """Looks at a stage after each of its forwards and keeps the highest counts."""

    def __init__(self, stage: Any) -> None:
        self.stage, self.forward = stage, stage.forward_one_chunk
        module = stage.submod
        self.kept = Kept({storage_key(tensor) for tensor in (*module.parameters(), *module.buffers())})
        self.peaks: dict[str, int] = {}
        stage.forward_one_chunk = self.watched

    def watched(self, *inputs: Any, **options: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(self.kept.pack, lambda tensor: tensor):
            output = self.forward(*inputs, **options)
        for name, size in self.held().items():
            self.peaks[name] = max(size, self.peaks.get(name, 0))
        return output

    def held(self) -> dict[str, int]:
        """Bytes of each kind, and of all together with nothing counted twice."""
        infos = [*self.stage.args_recv_info.values(), *self.stage.grad_recv_info.values()]
        buffers = storages(getattr(info, "buffer", None) for of_one in infos for info in of_one)
        saved = storages(self.kept.alive)
        outputs = storages(output for of_one, _ in self.stage.fwd_cache.values() for output in of_one)
        kinds = {"saved": saved, "buffers": buffers, "outputs": outputs, "all": {**saved, **buffers, **outputs}}
        in_flight = {"in_flight": len(self.stage.fwd_cache)}
        return {**{name: sum(sizes.values()) for name, sizes in kinds.items()}, **in_flight}


def run_step(schedule: str, rank: int) -> dict[str, Any]:
    """One step of torch's schedule; the peaks of this rank, and what is left of the saved tensors afterwards."""
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    stage = pipelining.PipelineStage(Stage(rank), rank, RANKS, torch.device("cpu"))
    watch, of = Watch(stage), small_gpt()
    tokens = torch.randint(of.model.vocab_size, (MICROBATCHES, of.training.sequence_length))

    def loss(logits: Any, target: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    steps = getattr(pipelining, SCHEDULES[schedule])(stage, MICROBATCHES, loss_fn=loss)
    steps.step(*([tokens] if rank == 0 else []), **({"target": tokens} if rank == RANKS - 1 else {}))
    return {**watch.peaks, "left": sum(storages(watch.kept.alive).values())}


def main(rank: str, folder: str) -> None:
    """Run the rank through both schedules and write what it counted."""
    torch.manual_seed(int(rank))
    torch.set_num_threads(1)
    meet = f"file://{Path(folder) / 'meet'}"
    torch.distributed.init_process_group("gloo", init_method=meet, rank=int(rank), world_size=RANKS)
    counts = {schedule: run_step(schedule, int(rank)) for schedule in SCHEDULES}
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(counts), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
