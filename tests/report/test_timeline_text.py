"""The timeline in characters."""

from __future__ import annotations

import re

import pytest

from ppadvisor.engine.timeline import PassTimes, timeline_of_times
from ppadvisor.report.rows import View
from ppadvisor.report.timeline_text import draw
from ppadvisor.report.timeline_words import unit_of
from ppadvisor.schedules import SCHEDULES


def rows(name: str, p: int, m: int, width: int = 80, times: PassTimes | None = None) -> list[str]:
    """The rows of the ranks, without their labels."""
    text = draw(timeline_of_times(name, p, m, None, times or PassTimes()), View(width))
    return [line[5:] for line in text.splitlines()[1 : p + 1]]


def test_a_drawing_by_hand() -> None:
    """1F1B, p = m = 2, F = 1, B = 2, two columns a second: every character as drawn by hand."""
    assert draw(timeline_of_times("1f1b", 2, 2, None, PassTimes()), View(width=23)) == (
        "rank\n"
        "   0 F0F1....B0==..B1==\n"
        "   1 ..F0B0==F1B1==....\n"
        "     |0 s      |5\n"
        "F forward; B backward\n"
        "= goes on\n"
        "number: micro-batch\n"
        ". idle; a column: 0.5 s\n"
    )


def test_odd_chunks_are_lower_case() -> None:
    """ZB-V, p = 2, m = 1, a column a second: down the V in chunk 0, up in chunk 1, and back."""
    assert rows("zb-v", 2, 1, width=15) == ["F..fiw..IW", ".Ff..iwIW."]


def test_numbers_only_where_they_fit() -> None:
    """A micro-batch above 9 needs three columns with its letter; where it has two, `=` follows the letter."""
    row = rows("1f1b", 1, 12, width=80, times=PassTimes(1.0, 0.5, 0.5))[0]
    assert row.startswith("F0=B0=F1=B1=")
    assert row.endswith("F11B11")
    narrow = rows("1f1b", 1, 12, width=53, times=PassTimes(1.0, 0.5, 0.5))[0]
    assert narrow.startswith("F0B0F1B1")
    assert narrow.endswith("F=B=F=B=")


def test_times_without_a_common_unit_take_the_whole_width() -> None:
    """Where starts are no multiples of one time, rows are as wide as they may be and each action keeps its share."""
    drawn = rows("1f1b", 4, 8, times=PassTimes(1.0, 1.1, 1.1, 0.1))
    assert {len(row) for row in drawn} == {75}
    assert drawn[0].startswith("F0F1F2F3....")
    assert all(len(re.findall(r"B\d", row)) == 8 for row in drawn)


def test_many_actions_in_a_column() -> None:
    """Letters stand in proportion to their time: of m = 1024 a third F, two thirds B, idle time at both ends."""
    drawn = rows("1f1b", 4, 1024)
    for row in drawn:
        assert len(row) == 75
        assert row.count("F") == pytest.approx(25, abs=1)
        assert row.count("B") == pytest.approx(50, abs=1)
        assert "=" not in row
    # 1F1B at p = 32, m = 64: 93 of 285 seconds idle
    idle = "".join(rows("1f1b", 32, 64)).count(".")
    assert idle / (32 * 75) == pytest.approx(31 / 95, abs=0.02)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in ("none", "naive")])
def test_nothing_is_wider_than_the_terminal(name: str) -> None:
    """At 80 and at 40 columns no line is wider, and there is no colour, whatever the schedule."""
    for width in (80, 40):
        text = draw(timeline_of_times(name, 4, 8, None, PassTimes(1.0, 1.2, 0.9, 0.3)), View(width))
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text


def test_colour_says_the_same() -> None:
    """With colour the characters are the same, and kinds of work have different ones."""
    timeline = timeline_of_times("zb-v", 4, 8, None, PassTimes())
    colored = draw(timeline, View(80, color=True))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in plain.splitlines()] == draw(timeline, View(80)).splitlines()
    codes = {letter: set(re.findall(rf"\x1b\[([0-9;]+)m{letter}", colored)) for letter in "FIWfiw"}
    assert all(len(code) == 1 for code in codes.values())
    assert len(set.union(*codes.values())) == 6


@pytest.mark.parametrize(
    ("makespan_s", "time_s", "text"),
    [
        (9.0, 9.0, "9 s"),
        (237.0, 237.0, "237 s"),
        (0.05, 0.0125, "12.5 ms"),
        (2e-4, 1e-6, "1 us"),
        (1e5, 123456.7, "123457 s"),
    ],
)
def test_one_unit(makespan_s: float, time_s: float, text: str) -> None:
    """Seconds, or a smaller unit for less than one; all digits before the point, never minutes or exponents."""
    assert unit_of(makespan_s).text(time_s) == text
