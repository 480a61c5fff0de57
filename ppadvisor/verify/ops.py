"""`verify --ops`: our order of work against the one that torch executes, rank by rank."""

from __future__ import annotations

from itertools import zip_longest

from ppadvisor.frameworks.torchtitan.operations import TORCH_NAMES
from ppadvisor.verify.results import OpsDifference, OpsReport, OpsRow
from ppadvisor.verify.torch_engine import installed_version, require_torch
from ppadvisor.verify.torch_orders import SINGLE, torch_words
from ppadvisor.verify.work import Work

SHOWN = 8
"""Places of a rank that are shown side by side: after the first difference the rest usually differs too."""


def verify_ops(work: Work) -> OpsReport:
    """Compare the orders. UnverifiableError where torch has none for this."""
    require_torch()
    name, p, m, v = work.schedule.id, work.pipeline_parallel, work.num_microbatches, work.virtual_stages
    theirs = torch_words(name, p, m, v)
    return compared(work, theirs)


def compared(work: Work, theirs: list[list[str]]) -> OpsReport:
    """The report on our order beside torch's."""
    rows, differences = [], list[OpsDifference]()
    for rank, (ours, torchs) in enumerate(zip(work.words, theirs, strict=True)):
        places = [
            OpsDifference(rank=rank, position=position, predicted=one, torch=other)
            for position, (one, other) in enumerate(zip_longest(ours, torchs))
            if one != other
        ]
        row = OpsRow(
            rank=rank,
            agrees=not places,
            num_operations=len(ours),
            torch_num_operations=len(torchs),
            num_differences=len(places),
        )
        rows.append(row)
        differences.extend(places[:SHOWN])
    differing = [row for row in rows if not row.agrees]
    return OpsReport(
        agrees=all(row.agrees for row in rows),
        tolerance_fraction=0.0,
        torch_version=installed_version() or "",
        engine=TORCH_NAMES[work.schedule.id],
        plan=work.plan,
        schedule=work.schedule.id,
        pipeline_parallel=work.pipeline_parallel,
        virtual_stages=work.virtual_stages,
        num_microbatches=work.num_microbatches,
        rows=tuple(rows),
        disagreements=tuple(f"rank {row.rank}: order, {row.num_differences} places" for row in differing),
        notes=_notes(work),
        differences=tuple(differences),
    )


def _notes(work: Work) -> tuple[str, ...]:
    """What torch declares and does not do."""
    if work.schedule.id not in SINGLE:
        return ("compared with the list that torch executes, messages left out",)
    declared = ", which on the last rank has every forward one too late" if work.schedule.id == "1f1b" else ""
    return (f"compared with what torch's loop does; it does not run its declared pipeline_order{declared}",)
