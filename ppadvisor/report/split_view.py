"""How the first plan's stages are told to its trainer, and what its split gains over the even one."""

from __future__ import annotations

import shlex

from ppadvisor.report.prose import layers_text
from ppadvisor.search.results import EvenSplit, PlanReport
from ppadvisor.units import GIB, format_bytes_gib, format_fraction, format_seconds

LONGEST_WORD = 74
"""Letters of a value that stand in one line of a terminal."""

NOTICED_BYTES = GIB // 20
"""A difference that would read as 0.0 GiB is none."""


def split_lines(report: PlanReport) -> list[str]:
    """The settings of the first plan's stages and the comparison with the even split."""
    if not report.plans or report.plans[0].plan.pipeline_parallel == 1:
        return []
    settings = report.split_settings[0]
    lines = [_setting(settings)] if settings else []
    if report.even_split is not None:
        lines.append(_gain(report.even_split))
    return ["Stages of the first:", *(f"  {line}" for line in lines)] if lines else []


def _setting(settings: dict[str, str]) -> str:
    """Flags as a shell takes them; options of a configuration file as `name = value`."""
    if all(name.startswith("-") for name in settings):
        return " ".join(f"{flag} {_argument(value)}".rstrip() for flag, value in settings.items())
    return "; ".join(f"{name} = {value}" for name, value in settings.items())


def _argument(value: str) -> str:
    if len(value) <= LONGEST_WORD:
        return shlex.quote(value) if value else ""
    return f"{shlex.quote(value.replace('|', '| '))} (without the spaces)"


def _gain(even: EvenSplit) -> str:
    saved, peak = even.step_time_saved_fraction, even.peak_saved_bytes
    time = f"{format_fraction(abs(saved))} {'faster' if saved >= 0 else 'slower'}"
    more = f", {format_bytes_gib(abs(peak))} {'less' if peak > 0 else 'more'} at the peak,"
    memory = more if abs(peak) >= NOTICED_BYTES else ""
    fits = "" if even.fits else ", which does not fit"
    return (
        f"{time}{memory} than the even split, {layers_text(even.layers_per_stage)} "
        f"({format_seconds(even.step_time_s)}, {format_bytes_gib(even.peak_bytes)}{fits})"
    )
