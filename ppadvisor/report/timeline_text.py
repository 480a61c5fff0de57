"""The timeline in characters: one row a rank, one column a span of time; readable without colour."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from ppadvisor.engine.timeline import RankTimeline, Timeline
from ppadvisor.report.rows import View
from ppadvisor.report.timeline_words import KIND_NAMES, ticks, unit_of
from ppadvisor.schedules.base import KIND_LETTERS, Kind

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

IDLE, GOES_ON = ".", "="
NO_ACTION = -1
NO_WORK = len(Kind)
"""Beside the kinds of work: a column that is idle."""
NEGLIGIBLE = 1e-6
"""Of a column: what rounding leaves there."""
LEAST_COLUMNS = 10

# colours of the sixteen that every terminal has; the second is that of odd chunks
STYLES = {
    Kind.FORWARD: ("bright_white on blue", "bright_white on bright_blue"),
    Kind.BACKWARD: ("black on green", "black on bright_green"),
    Kind.INPUT_GRAD: ("black on cyan", "black on bright_cyan"),
    Kind.WEIGHT_GRAD: ("black on yellow", "black on bright_yellow"),
    Kind.VOCABULARY_FORWARD: ("black on magenta", "black on bright_magenta"),
    Kind.VOCABULARY_BACKWARD: ("black on magenta", "black on bright_magenta"),
    Kind.VOCABULARY_WEIGHT_GRAD: ("black on magenta", "black on bright_magenta"),
}


class Piece(NamedTuple):
    """Some characters of one style."""

    text: str
    style: str = ""


class Grid(NamedTuple):
    """How time is cut into columns."""

    columns: int
    column_s: float
    coarse: bool
    """Some actions are shorter than a column."""

    @property
    def edges_s(self) -> FloatArray:
        return np.arange(self.columns + 1, dtype=np.float64) * self.column_s


def draw(timeline: Timeline, view: View) -> str:
    """The rows, the axis and the legend."""
    label = max(len("rank"), len(str(timeline.pipeline_parallel - 1)))
    grid = _grid(timeline, max(view.width - label - 1, LEAST_COLUMNS))
    rows = [[Piece(f"{rank.rank:>{label}} "), *_row(rank, grid)] for rank in timeline.ranks]
    axis = " " * (label + 1) + _axis(timeline, grid)
    below = [[Piece(line)] for line in (axis, *_legend(timeline, grid, view.width))]
    return _printed([[Piece("rank")], *rows, *below], view)


def _grid(timeline: Timeline, columns: int) -> Grid:
    """The whole width; where all starts are multiples of the shortest action, as many columns for it as fit."""
    durations = np.concatenate([rank.end_s - rank.start_s for rank in timeline.ranks])
    shortest = float(durations[durations > 0].min())
    starts = np.concatenate([rank.start_s for rank in timeline.ranks])
    units = np.append(starts, timeline.makespan_s) / shortest
    whole, per_unit = round(float(units[-1])), columns // max(round(float(units[-1])), 1)
    if per_unit and np.allclose(units, np.round(units), rtol=0, atol=1e-6):
        return Grid(whole * per_unit, shortest / per_unit, coarse=False)
    return Grid(columns, timeline.makespan_s / columns, coarse=timeline.makespan_s / columns > shortest)


def _row(rank: RankTimeline, grid: Grid) -> list[Piece]:
    """An action is its letter, its micro-batch where that fits, then `=` as long as it goes on."""
    shares = _shares(rank, grid)
    if grid.coarse:
        kinds = _in_proportion(shares)
        actions = np.full(grid.columns, NO_ACTION)
    else:
        # rounding must not decide between halves: what works wins over what is idle
        kinds = np.argmax(shares - NEGLIGIBLE * (np.arange(len(Kind) + 1) == NO_WORK), axis=1)
        actions = _actions(rank, grid)
        # in the middle of a column may stand something shorter than what else happens in it
        actions[rank.order.kind[actions] != kinds] = NO_ACTION
    begins = np.flatnonzero(np.diff(actions, prepend=NO_ACTION - 1) | np.diff(kinds, prepend=-1))
    pieces = []
    for first, last in zip(begins.tolist(), [*begins[1:].tolist(), grid.columns], strict=True):
        kind, width = int(kinds[first]), last - first
        if kind == NO_WORK:
            pieces.append(Piece(IDLE * width, "dim"))
        elif actions[first] == NO_ACTION:
            pieces.append(Piece(KIND_LETTERS[kind] * width, STYLES[Kind(kind)][0]))
        else:
            pieces.append(_action(rank, int(actions[first]), width))
    return pieces


def _action(rank: RankTimeline, index: int, width: int) -> Piece:
    action = rank.order[index]
    odd = action.chunk % 2
    letter = action.kind.letter.lower() if odd else action.kind.letter
    label = f"{letter}{action.microbatch}"
    return Piece((label if len(label) <= width else letter).ljust(width, GOES_ON), STYLES[action.kind][odd])


def _shares(rank: RankTimeline, grid: Grid) -> FloatArray:
    """The share of each kind of work in each column, and last that of none, (columns, kinds + 1)."""
    edges = np.stack([rank.start_s, rank.end_s], axis=1).ravel()
    took = []
    for kind in Kind:
        spent = np.where(rank.order.kind == kind, rank.end_s - rank.start_s, 0.0).cumsum()
        at_edges = np.stack([np.concatenate([[0.0], spent[:-1]]), spent], axis=1).ravel()
        took.append(np.diff(np.interp(grid.edges_s, edges, at_edges)) / grid.column_s)
    return np.stack([*took, 1.0 - np.sum(took, axis=0)], axis=1)


def _in_proportion(shares: FloatArray) -> IntArray:
    """One kind a column, of those that occur in it, so that a run of columns has each as often as its share."""
    owed, chosen = np.zeros(shares.shape[1]), []
    for share in shares:
        owed += share
        chosen.append(int(np.argmax(np.where(share > NEGLIGIBLE, owed, -np.inf))))
        owed[chosen[-1]] -= 1.0
    return np.array(chosen, dtype=np.int64)


def _actions(rank: RankTimeline, grid: Grid) -> IntArray:
    """The action in the middle of each column."""
    middle = grid.edges_s[:-1] + grid.column_s / 2
    index = np.searchsorted(rank.start_s, middle, side="right") - 1
    return np.where((index >= 0) & (rank.end_s[index] > middle), index, NO_ACTION)


def _axis(timeline: Timeline, grid: Grid) -> str:
    """`|0 s      |5       |10`: each mark is where its time begins."""
    text = ""
    for time_s, label in ticks(timeline.makespan_s, grid.columns // 7):
        column = round(time_s / grid.column_s)
        if column + len(label) < grid.columns:
            text = f"{text:<{column}}|{label}"
    return text


def _legend(timeline: Timeline, grid: Grid, width: int) -> list[str]:
    items = [f"{kind.letter} {KIND_NAMES[kind]}" for kind in timeline.kinds]
    column = f"a column: {unit_of(timeline.makespan_s).text(grid.column_s, digits=3)}"
    if grid.coarse:
        items += [f"{IDLE} idle", f"{column}, more than an action", "letters in proportion to time"]
    else:
        items += [f"{GOES_ON} goes on", "number: micro-batch"]
        items += ["lower case: odd chunks"] if timeline.chunks > 1 else []
        items += [f"{IDLE} idle", column]
    lines = [items[0]]
    for item in items[1:]:
        if len(lines[-1]) + len(item) + 2 > width:
            lines.append(item)
        else:
            lines[-1] += f"; {item}"
    return lines


def _printed(lines: list[list[Piece]], view: View) -> str:
    if not view.color:
        return "".join("".join(piece.text for piece in line).rstrip() + "\n" for line in lines)
    text = io.StringIO()
    console = Console(file=text, width=view.width, force_terminal=True, color_system="standard")
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)
    return text.getvalue()
