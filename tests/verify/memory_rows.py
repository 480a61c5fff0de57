"""Plans whose memory torch's own engine was counted to hold: the rows of tests/published/torch_memory_rows.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppadvisor.engine.pipeline import Pipeline, pipeline_of
from ppadvisor.engine.tables import layers_of_ranks
from ppadvisor.specs.load import load_model
from ppadvisor.units import GIB
from ppadvisor.verify.memory import compared
from ppadvisor.verify.memory_parts import Peak, RankMeasured
from ppadvisor.verify.memory_predicted import predict_ranks
from ppadvisor.verify.results import MemoryReport
from tests.problems import plan, problem

FILE = Path(__file__).parent.parent / "published" / "torch_memory_rows.json"
HEAD = {
    "source": "torch 2.13.0 (CPU), torch.distributed.pipelining's own schedules on its meta device, each rank alone on "
    "a fake process group, by `python -m tests.live.recount_memory`: what `verify --memory` runs",
    "words": "one entry a rank: bytes at the peak of all that comes and goes with the micro-batches, by part; during: "
    "torch's action and operation; saved: the most that autograd held for a backward",
    "tolerance": "2 % a rank, of all and of what is saved",
}


@dataclass(frozen=True)
class MemoryCase:
    """A plan, in the words of its row."""

    model: str
    schedule: str
    p: int
    v: int
    m: int
    s: int
    recompute: str = "none"
    t: int = 1
    e: int = 1

    @property
    def name(self) -> str:
        ways = "".join(
            f" {letter}={size}" for letter, size in (("v", self.v), ("t", self.t), ("e", self.e)) if size > 1
        )
        return f"{self.model} {self.schedule} p={self.p}{ways} m={self.m} s={self.s} {self.recompute}"

    @property
    def split(self) -> tuple[int, ...]:
        """Layers of each stage, divided evenly, the first stages taking the rest."""
        base, more = divmod(load_model(self.model).num_layers, self.p * self.v)
        return tuple(base + (stage < more) for stage in range(self.p * self.v))

    def pipeline(self, split: tuple[int, ...] | None = None) -> Pipeline:
        """The plan as torchtitan is predicted to run it."""
        model, chunks = load_model(self.model), split or self.split
        of = problem(
            model,
            framework="torchtitan",
            sequence_length=self.s,
            global_batch_size=self.m * self.e,
            num_gpus=self.p * self.t * self.e,
        )
        one = plan(
            layers_of_ranks(self.schedule, chunks, self.v),
            schedule=self.schedule,
            num_microbatches=self.m,
            virtual_stages=self.v,
            layers_per_chunk=chunks,
            tensor_parallel=self.t,
            data_parallel=self.e,
            expert_parallel=self.e,
            recompute=self.recompute,
            optimizer_sharding=2,
        )
        return pipeline_of(of, one)


CASES = (
    MemoryCase("gpt3-175b", "1f1b", 8, 1, 16, 2048, t=8),
    MemoryCase("gpt3-175b", "zb-v", 8, 2, 16, 2048, t=8),
    MemoryCase("llama-3-8b", "gpipe", 4, 1, 8, 8192),
    MemoryCase("llama-3-8b", "interleaved-1f1b", 4, 2, 8, 8192),
    MemoryCase("llama-3-8b", "interleaved-zero-bubble", 4, 2, 8, 8192),
    MemoryCase("llama-3-8b", "interleaved-zero-bubble", 4, 2, 4, 8192, recompute="full"),
    MemoryCase("llama-3-8b", "dualpipev", 4, 2, 8, 4096, recompute="full"),
    MemoryCase("llama-3-70b", "1f1b", 8, 1, 16, 8192, t=8),
    MemoryCase("llama-3-70b", "1f1b", 8, 1, 16, 8192, recompute="full"),
    MemoryCase("llama-3-70b", "zb-v", 8, 2, 2, 8192, t=8),
    MemoryCase("mixtral-8x7b", "1f1b", 4, 1, 8, 4096, recompute="full", e=4),
    MemoryCase("mixtral-8x7b", "zb-v", 4, 2, 8, 4096),
    MemoryCase("mixtral-8x7b", "interleaved-1f1b", 4, 2, 8, 4096),
    MemoryCase("deepseek-v2-lite", "dualpipev", 4, 2, 8, 4096),
    MemoryCase("deepseek-v2-lite", "gpipe", 4, 1, 8, 4096, recompute="full"),
)


def record_of(case: MemoryCase, ranks: list[RankMeasured]) -> dict[str, Any]:
    """The row of a run."""
    held = [
        {
            "bytes": one.peak.total,
            "saved": one.saved_peak_bytes,
            "during": one.peak.during,
            "parts": {part: size for part, size in one.peak.parts.items() if size},
        }
        for one in ranks
    ]
    return {"name": case.name, "ranks": held}


def recorded(record: dict[str, Any]) -> list[RankMeasured]:
    """The run of a row."""
    return [
        RankMeasured(rank, Peak(one["bytes"], one["parts"], one["during"]), one["saved"])
        for rank, one in enumerate(record["ranks"])
    ]


def records() -> dict[str, dict[str, Any]]:
    """The rows of the file by their names."""
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["records"]
    return {row["name"]: row for row in rows}


def report_of(case: MemoryCase) -> MemoryReport:
    """Today's prediction beside the row."""
    pipeline = case.pipeline()
    return compared(pipeline, predict_ranks(pipeline), recorded(records()[case.name]))


def readme_table() -> str:
    """The table of the README: each row by the rank that is furthest off."""
    lines = [
        "| model, tokens | schedule | p v t e, m | recompute | predicted, measured [GiB] | off | largest difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        row = max(report_of(case).rows, key=lambda one: abs(one.difference_fraction))
        sizes = f"{row.predicted_bytes / GIB:.2f}, {row.measured_bytes / GIB:.2f} (rank {row.rank})"
        most = f"{row.largest_term} {row.largest_term_bytes / GIB:+.2f}"
        lines.append(
            f"| {case.model}, {case.s} | {case.schedule} | {case.p} {case.v} {case.t} {case.e}, {case.m} | "
            f"{case.recompute} | {sizes} | {100 * row.difference_fraction:+.1f} % | {most} |"
        )
    return "\n".join(lines)
