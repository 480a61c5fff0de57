"""Rows in every format: nothing is lost in the formats for programs, nothing is cut in those for people."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppadvisor.report.formats import FORMATS
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.rows import Column, render_rows
from ppadvisor.specs.version import MODEL_VERSION


def one_decimal(value: float) -> str:
    """How the test's numbers read."""
    return f"{value:.1f}"


COLUMNS = (
    Column("name", "name", justify="left"),
    Column("time.step_time_s", "step time [s]", one_decimal),
    Column("double", "twice", one_decimal, derive=lambda row: 2 * row["time"]["step_time_s"]),
    Column("fits", "fits", lambda fits: "yes" if fits else "no"),
    Column("why", "why", justify="left", priority=1, min_width=30),
)
ROWS: list[dict[str, Any]] = [
    {"name": "a|b", "time": {"step_time_s": 1.25}, "fits": True, "why": "x, \"y\"", "layers_per_stage": [10, 10]},
    {"name": "[s]", "time": {"step_time_s": 10.0}, "fits": False, "why": None},
]  # fmt: skip


def test_table() -> None:
    """Numbers line up on the right, brackets survive, a missing value is a dash; written out by hand."""
    assert render_rows(COLUMNS, ROWS, "table", title="two plans") == (
        "two plans\n"
        "name  step time [s]  twice  fits  why\n"
        "────────────────────────────────────────\n"
        'a|b             1.2    2.5   yes  x, "y"\n'
        "[s]            10.0   20.0    no  -\n"
    )


def test_json_keeps_rows_as_they_are() -> None:
    """JSON holds the raw rows, also what no column shows, behind what is said beside them."""
    text = render_rows(COLUMNS, ROWS, "json", title="two plans", extra={"kind": "plans"})
    versions = [("format_version", "1.1"), ("model_version", MODEL_VERSION)]
    assert list(json.loads(text).items()) == [*versions, ("kind", "plans"), ("rows", ROWS)]


def test_csv_has_raw_values_under_their_keys() -> None:
    """CSV holds values, not their texts; true and false as in JSON, nothing for None; derived columns are left out."""
    text = render_rows(COLUMNS, ROWS, "csv")
    assert text == 'name,time.step_time_s,fits,why\na|b,1.25,true,"x, ""y"""\n[s],10.0,false,\n'


def test_csv_writes_a_list_as_json() -> None:
    """A nested value in a cell is JSON, so that it can be read back."""
    text = render_rows((Column("layers_per_stage", "layers"),), ROWS[:1], "csv")
    assert text == 'layers_per_stage\n"[10, 10]"\n'


def test_markdown() -> None:
    """A pipe in a cell does not become a column."""
    assert render_rows(COLUMNS, ROWS, "markdown", title="two plans").splitlines() == [
        "**two plans**",
        "",
        "| name | step time [s] | twice | fits | why |",
        "| --- | ---: | ---: | ---: | --- |",
        '| a\\|b | 1.2 | 2.5 | yes | x, "y" |',
        "| [s] | 10.0 | 20.0 | no | - |",
    ]


def test_a_narrow_table_continues_below() -> None:
    """What does not fit goes, by priority, to a second table behind the first column, and long text wraps there."""
    rows = [{"name": "alpha", "time": {"step_time_s": 1.0}, "fits": True, "why": "one two three four five six seven"}]
    assert render_rows(COLUMNS, rows, "table", width=42) == (
        "name   step time [s]  twice  fits\n"
        "─────────────────────────────────\n"
        "alpha            1.0    2.0   yes\n"
        "\n"
        "name   why\n"
        "────────────────────────────────────────\n"
        "alpha  one two three four five six seven\n"
    )
    assert render_rows(COLUMNS, rows, "table", width=38).splitlines()[-2:] == [
        "alpha  one two three four five six",
        "       seven",
    ]


def test_what_names_a_row_is_repeated() -> None:
    """A second column without which rows read alike stands in the second table too."""
    columns = [
        Column("a", "a", justify="left"),
        Column("b", "b", justify="left", names_row=True),
        Column("c", "cccccc"),
        Column("d", "dddddd"),
    ]
    text = render_rows(columns, [{"a": "x", "b": name, "c": 1, "d": 2} for name in "yz"], "table", width=14)
    assert [line.split() for line in text.splitlines() if line.startswith("x")] == [
        ["x", "y", "1"],
        ["x", "z", "1"],
        ["x", "y", "2"],
        ["x", "z", "2"],
    ]


@given(
    st.lists(st.tuples(st.text("abc [s]", max_size=12), st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(min_value=10, max_value=60),
)
def test_no_cell_is_ever_cut(cells: list[tuple[str, int]], width: int) -> None:
    """Whatever the width, each cell stands whole, and a line is only longer where two columns need it."""
    columns = [Column(f"c{i}", f"h{i}", justify="left", priority=priority) for i, (_, priority) in enumerate(cells)]
    row = {f"c{i}": text for i, (text, _) in enumerate(cells)}
    text = render_rows(columns, [row], "table", width=width)
    for cell, _ in cells:
        assert cell.rstrip() in text
    assert max(map(len, text.splitlines())) <= max(width, 12 + 2 + 12)


def test_colour_only_where_asked() -> None:
    """Without colour there is no escape sequence, and colour changes nothing else."""
    plain = render_rows(COLUMNS, ROWS, "table", title="t")
    colored = render_rows(COLUMNS, ROWS, "table", title="t", color=True)
    assert "\x1b" not in plain
    assert "\x1b[1m" in colored


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_takes_no_rows(format: str) -> None:
    """An empty answer is an answer in every format, with its last line ended."""
    text = render_rows(COLUMNS, [], format)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_csv_is_read_back(cells: list[str]) -> None:
    """Any text in a cell comes back from a reader of CSV as it was."""
    columns = [Column(str(i), str(i)) for i in range(len(cells))]
    row = {str(i): cell for i, cell in enumerate(cells)}
    text = render_rows(columns, [row], "csv")
    assert list(csv.reader(io.StringIO(text, newline="")))[1] == cells


def test_dump_json_is_json() -> None:
    """Keys stay in order, text stays text, and what JSON does not know is refused instead of written."""
    assert dump_json({"b": "−", "a": 1.0}) == '{\n  "b": "−",\n  "a": 1.0\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_json({"a": float("nan")})
