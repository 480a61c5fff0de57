"""Bars in a page: the memory of each stage against what the GPU has, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ppadvisor.engine.results import PlanMemory, PlanTime, StageMemory
from ppadvisor.report.explain_columns import words
from ppadvisor.units import format_bytes_gib, format_fraction, format_gib, format_seconds

COLORS = ("#3f7fd0", "#3fa35b", "#d98a1f", "#8a66c2", "#2fa3a8", "#c2557f", "#8c7a4a")
"""Of the largest terms; what is left is one piece."""
OTHERS = "#98a1ab"

STYLE = f"""
.bars{{display:grid;grid-template-columns:max-content 1fr max-content;gap:3px 10px;align-items:center;margin:0 0 10px;
padding:0;list-style:none;font-size:12px;font-variant-numeric:tabular-nums}}
.bars li{{display:contents}}
.bars .worst{{font-weight:600}}
.bar{{position:relative;display:flex;height:16px;background:var(--tint);border:1px solid var(--rule)}}
.bar b{{height:100%;flex:none}}
.bar i{{position:absolute;top:-3px;bottom:-3px;width:0;border-left:2px solid var(--text)}}
.bar i.limit{{border-left-style:dashed}}
.swatch{{display:inline-block;width:12px;height:12px;margin-right:5px;vertical-align:-1px}}
{"".join(f".t{index}{{background:{color}}}" for index, color in enumerate((*COLORS, OTHERS)))}
"""


def memory_bars(memory: PlanMemory) -> str:
    """A bar a stage at its highest moment, made of its largest terms; lines at the limit and at the capacity."""
    largest = _largest(memory)
    scale = 1.02 * max(memory.capacity_bytes, memory.peak_bytes)
    lines = "".join(
        f'<i class="{name}" style="left:{_percent(size / scale)}"></i>'
        for name, size in (("limit", memory.limit_bytes), ("capacity", memory.capacity_bytes))
    )
    rows = "".join(_memory_row(stage, memory, largest, scale, lines) for stage in memory.stages)
    return f'{_legend([words(name) for name in largest])}<ul class="bars">{rows}</ul>'


def memory_caption(memory: PlanMemory) -> str:
    """What the lines of the bars are."""
    return (
        f"Dashed: the limit, {format_bytes_gib(memory.limit_bytes)}; solid: what the GPU has, "
        f"{format_bytes_gib(memory.capacity_bytes)}. Each bar is the highest moment of its stage; stage "
        f"{memory.binding_stage} binds with {format_bytes_gib(memory.peak_bytes)}, at the heavy end of the assumptions "
        f"{format_bytes_gib(memory.conservative_bytes)}."
    )


def _largest(memory: PlanMemory) -> list[str]:
    """The terms that have a colour, those of most bytes over all stages first."""
    total: dict[str, int] = {}
    for stage in memory.stages:
        for name, size in stage.terms.items():
            total[name] = total.get(name, 0) + size
    return sorted((name for name in total if total[name]), key=lambda name: -total[name])[: len(COLORS)]


def _memory_row(stage: StageMemory, memory: PlanMemory, largest: Sequence[str], scale: float, lines: str) -> str:
    others = sum(size for name, size in stage.terms.items() if name not in largest)
    parts = {words(name): stage.terms.get(name, 0) for name in largest} | {"other": others}
    worst = ' class="worst"' if stage.stage == memory.binding_stage else ""
    bar = _pieces(
        {name: size / scale for name, size in parts.items()}, {n: format_bytes_gib(s) for n, s in parts.items()}
    )
    return (
        f"<li><span{worst}>stage {stage.stage}</span>"
        f'<span class="bar">{bar}{lines}</span><span{worst}>{format_gib(stage.total_bytes)} GiB</span></li>'
    )


def _pieces(shares: Mapping[str, float], told: Mapping[str, str]) -> str:
    return "".join(
        f'<b class="t{index}" style="width:{_percent(share)}" title="{escape(f"{name}: {told[name]}")}"></b>'
        for index, (name, share) in enumerate(shares.items())
        if share > 0
    )


def _legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<li><span class="swatch t{index}"></span>{escape(name)}</li>' for index, name in enumerate((*names, "other"))
    )
    return f'<ul class="legend">{items}</ul>'


def time_bars(time: PlanTime) -> str:
    """A bar for each part of a step that takes time, the longest first."""
    parts = sorted(((name, s) for name, s in time.terms.items() if s > 0), key=lambda part: -part[1])
    rows = "".join(
        f"<li><span>{escape(words(name.removesuffix('_s')))}</span>"
        f'<span class="bar"><b class="t0" style="width:{_percent(s / time.step_time_s)}"></b></span>'
        f"<span>{format_seconds(s)}, {format_fraction(s / time.step_time_s)}</span></li>"
        for name, s in parts
    )
    return f'<ul class="bars">{rows}</ul>'


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"
