"""Megatron's reading of the flags that place layers, written anew from its rules: what a split's flags build."""

from __future__ import annotations

Flags = dict[str, str]
Ranks = list[list[int]]
"""Layers of each chunk of each rank."""

FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
EMBEDDING, LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
VIRTUAL, LAYOUT = "--num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-layout"


def built(flags: Flags, num_layers: int, p: int, mtp_num_layers: int = 0) -> Ranks | None:
    """Layers of each chunk of each rank, or None where Megatron refuses the flags."""
    v = int(flags.get(VIRTUAL, 1))
    ends, counted, layout = flags.keys() & {FIRST, LAST}, flags.keys() & {EMBEDDING, LOSS}, flags.get(LAYOUT)
    if layout is not None:
        return None if ends or counted or VIRTUAL in flags else _laid_out(layout, num_layers, p, mtp_num_layers)
    if ends:
        return None if counted else _uneven_ends(flags, num_layers, p, v)
    whole = num_layers + len(counted)
    if whole % (p * v):
        return None
    ranks = [[whole // (p * v)] * v for _ in range(p)]
    ranks[0][0] -= EMBEDDING in flags
    ranks[-1][-1] -= LOSS in flags
    return ranks


def _uneven_ends(flags: Flags, num_layers: int, p: int, v: int) -> Ranks | None:
    given = {0: int(flags.get(FIRST, 0)), p - 1: int(flags.get(LAST, 0))}
    given = {rank: layers for rank, layers in given.items() if layers}
    left, ranks_left = num_layers - sum(given.values()), p - len(given)
    if left < 0 or (left % ranks_left if ranks_left else left):
        return None
    totals = [given.get(rank, left // max(ranks_left, 1)) for rank in range(p)]
    return None if any(total % v for total in totals) else [[total // v] * v for total in totals]


def _laid_out(layout: str, num_layers: int, p: int, mtp_num_layers: int) -> Ranks | None:
    stages = _spelled_out(layout).split("|")
    letters = "".join(stages)
    in_order = "E" + "t" * num_layers + "m" * mtp_num_layers + "L"
    together = sum("m" in stage for stage in stages) <= 1
    late = all("m" not in stage for stage in stages[:-p])
    if letters != in_order or len(stages) % p or not together or not late:
        return None
    return [[stage.count("t") for stage in stages[rank::p]] for rank in range(p)]


def _spelled_out(layout: str) -> str:
    """The layout without repeats, letter by letter."""
    text, at = "", 0
    while at < len(layout):
        end = layout.index(")", at) + 1 if layout[at] == "(" else at + 1
        part = layout[at:end]
        body = _spelled_out(part[1:-1]) if part[0] == "(" else part
        digits = end + 1
        while end < len(layout) and layout[end] == "*" and digits < len(layout) and layout[digits].isdigit():
            digits += 1
        repeated = end < len(layout) and layout[end] == "*"
        text += body * (int(layout[end + 1 : digits]) if repeated else 1)
        at = digits if repeated else end
    return text.replace(",", "")
