"""What `sweep` makes of its rows: tables of two axes, lines of bars, files for data frames, pictures."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.report.rows import View
from ppadvisor.report.sparkline import sparkline
from ppadvisor.report.sweep_pivot import Pivot
from ppadvisor.report.sweep_view import Shape, render_sweep
from ppadvisor.search.sweep import SweepReport, SweepRow
from tests.cli.conftest import Cli, Result

Ask = Callable[[str], Result]

POINTS = "sweep --model llama-3.1-8b --gpu h100-sxm-80gb --seq-len 4k,64k --global-batch 64 --recompute none"
ASKED = f"{POINTS} --gpus 4,12,16 --tp 4 --cp 1 --micro-batch 1 --jobs 1"
"""At 12 GPUs 32 heads and layers leave p = 3, which is legal; 64k tokens do not fit."""


def row(number: int, length: int, **values: object) -> dict[str, object]:
    """A row of made-up numbers."""
    return {"num_gpus": number, "sequence_length": length, **values}


def fitting(number: int, length: int, step: float, peak: int, schedule: str = "1f1b") -> dict[str, object]:
    """A row with a plan."""
    return row(
        number, length, fits=True, verdict="fits", step_time_s=step, peak_bytes=peak * 2**30, schedule=schedule,
        headroom_bytes=(72 - peak) * 2**30, bubble_fraction=0.25, model_flops_utilization=0.5, tokens_per_s=1e5,
        layers_per_stage=(16, 16), pipeline_parallel=2,
    )  # fmt: skip


MADE_UP = SweepReport.model_validate(
    {
        "question": "0123456789ab",
        "margin_fraction": 0.9,
        "assumptions": {},
        "fixed": {"model": "gpt", "gpu": "b<1>"},
        "axes": {"num_gpus": (64, 128), "sequence_length": (4096, 131072)},
        "rows": (
            fitting(64, 4096, 2.0, 40),
            row(64, 131072, fits=False, verdict="does_not_fit", step_time_s=9.0, peak_bytes=90 * 2**30,
                headroom_bytes=-18 * 2**30, schedule="1f1b", reason_code="memory", reason="does not fit by 18.0 GiB"),
            fitting(128, 4096, 1.0, 30, "interleaved-1f1b"),
            row(128, 131072, fits=False, reason_code="contradiction", reason="128 & 131072 do not go together"),
        ),
    }
)  # fmt: skip
PIVOT = Pivot("num_gpus", "sequence_length")


@pytest.fixture
def ask(cli: Cli) -> Ask:
    """Run the command line of this text."""
    return lambda line: cli(*line.split())


def text_of(shape: Shape, *, color: bool = False, width: int = 80) -> str:
    """The made-up answer as a terminal shows it."""
    text = render_sweep(MADE_UP, "table", View(width=width, color=color), shape)
    assert isinstance(text, str)
    return text


def test_a_pivot_has_a_cell_for_each_pair() -> None:
    """The value where a plan fits, the reason in a word where none does, what the words mean below."""
    lines = text_of(Shape(PIVOT, ("step_time_s",))).splitlines()
    start = lines.index("step [s]: GPUs down, seq len across")
    assert [line.split() for line in lines[start + 1 : start + 5 : 1] if "─" not in line] == [
        ["GPUs", "4k", "128k"],
        ["64", "2.000", "memory"],
        ["128", "1.000", "contradicts"],
    ]
    assert lines[-3:] == [
        "2 of 4 points have a plan that fits.",
        "memory (1 point): does not fit by 18.0 GiB",
        "contradicts (1 point): 128 & 131072 do not go together",
    ]


def test_a_pivot_of_memory_shows_by_how_much_it_misses() -> None:
    """The peak of the plan nearest to fitting is worth seeing, its step time is not."""
    assert "90.0 memory" in text_of(Shape(PIVOT, ("peak_bytes",)))
    assert "9.000" not in text_of(Shape(PIVOT, ("step_time_s",)))


def test_a_pivot_in_colours_is_a_map_of_heat() -> None:
    """The lowest value dark, the highest bright; without colours not one escape."""
    shape = Shape(PIVOT, ("step_time_s", "schedule"))
    colored = text_of(shape, color=True)
    background = dict(re.findall(r"48;5;(\d+)m *(1\.000|2\.000)", colored))
    assert set(background.values()) == {"1.000", "2.000"}
    assert len(background) == 2
    assert "\x1b" not in text_of(shape)
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == text_of(shape)


def test_a_pivot_turns(ask: Ask) -> None:
    """The axes are named as the options or as the answers name them, and the second one goes across."""
    one = ask(f"{ASKED} --pivot gpus,seq-len --quick").stdout
    other = ask(f"{ASKED} --pivot num_gpus,sequence_length --quick").stdout
    turned = ask(f"{ASKED} --pivot --seq-len,--gpus --quick --format markdown").stdout
    assert one == other
    assert "\n   4 " in one
    assert "| seq len | 4 | 12 | 16 |" in turned


def test_a_batch_in_tokens_is_named_by_its_option(ask: Ask) -> None:
    """`--pivot global-batch` means the axis of tokens too."""
    line = f"{POINTS} --gpus 4,8 --tp 4 --seq-len 4k --micro-batch 1 --global-batch 256ktok,512ktok --quick"
    assert "tokens per step down, GPUs across" in ask(f"{line} --pivot global-batch,gpus").stdout


def test_other_axes_make_other_tables(ask: Ask) -> None:
    """With a third axis each of its values has a table of its own, and each value of --value too."""
    line = f"{ASKED} --pp 1,2 --pivot gpus,seq-len --value bubble_fraction,schedule --quick"
    titles = [line for line in ask(line).stdout.splitlines() if line.endswith("across")]
    assert titles == [
        f"{value}, p {p}: GPUs down, seq len across" for value in ("bubble", "schedule") for p in (1, 2)
    ]  # fmt: skip


def test_a_single_axis_has_a_line_of_bars(ask: Ask) -> None:
    """One bar a point, a cross where nothing fits, the least and the most beside them."""
    lines = ask(f"{ASKED.replace('4k,64k', '4k:64k:x2')} --gpus 4 --quick").stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("step [s]  "))
    assert re.search(r" ▁▃█××  \d\.\d+ \.\. \d\d\.\d+$", line)
    assert any(line.startswith("over        seq len 4k .. 64k; × where") for line in lines)


def test_bars_of_few_values() -> None:
    """Equal values are equal bars, and nothing is divided by nothing."""
    assert (sparkline([]), sparkline([None]), sparkline([3, 3])) == ("", "×", "▁▁")


def test_json_lines_are_the_rows_of_json(ask: Ask) -> None:
    """Each line is a row of the document with its versions and its question, and a digest of its own."""
    document = ask(f"{ASKED} --quick --format json").document
    lines = [json.loads(line) for line in ask(f"{ASKED} --quick --format jsonl").stdout.splitlines()]
    told = {"model_version": document["model_version"], "question": document["question"]}
    digests = [line.pop("row_digest") for line in lines]
    assert lines == [row | told for row in document["rows"]]
    assert len(set(digests)) == len(lines)
    assert document["quick"] is True


def test_another_question_has_another_digest(ask: Ask) -> None:
    """What changes a row changes the digest; how it is shown and how many work on it does not."""
    base = f"{ASKED} --gpus 4 --seq-len 4k --format json"
    digests = {ask(f"{base}{more}").document["question"] for more in ("", " --quick", " --margin 0.8", " --no-dropout")}
    assert len(digests) == 4
    assert ask(f"{base} --jobs 1").document["question"] in digests


def test_several_processes_give_the_same_bytes(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes or one: order and bytes are the same."""
    monkeypatch.setattr("ppadvisor.search.sweep.ALONE_S", 0.0)
    monkeypatch.setattr("ppadvisor.search.sweep.WORTH_S", 0.0)
    one, two = (ask(f"{ASKED} --quick --format csv --jobs {jobs}").stdout for jobs in (1, 2))
    assert one == two


def test_parquet_holds_the_rows_with_their_types(ask: Ask, tmp_path: Path) -> None:
    """Read by pyarrow, the rows are those of JSON lines; a column that is empty has a type all the same."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    assert ask(f"{ASKED} --quick --format parquet --output {path}").exit_code == 0
    table = parquet.read_table(path)
    assert table.to_pylist() == [
        json.loads(line) for line in ask(f"{ASKED} --quick --format jsonl").stdout.splitlines()
    ]
    kinds = {field.name: str(field.type) for field in table.schema}
    assert (kinds["num_gpus"], kinds["step_time_s"], kinds["fits"], kinds["reason"]) == (
        "int64",
        "double",
        "bool",
        "string",
    )
    assert kinds["layers_per_stage"].startswith("list<")


class Structure(HTMLParser):
    """What stands open, and the text of the cells."""

    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


SHAPES: Mapping[str, Shape] = {
    "lines": Shape(None, ("step_time_s", "peak_bytes")),
    "heat": Shape(PIVOT, ("bubble_fraction", "schedule", "peak_bytes")),
}


def drawn(shape: Shape, kind: str) -> Any:
    """The picture of the made-up answer."""
    pytest.importorskip("matplotlib")
    from ppadvisor.report.sweep_plot import draw

    return draw(MADE_UP, shape, kind)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_pictures_are_the_same_bytes(shape: str, kind: str) -> None:
    """The same answer draws the same bytes, whatever settings of matplotlib the user has."""
    first = drawn(SHAPES[shape], kind)
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert drawn(SHAPES[shape], kind) == first
        assert mpl.rcParams["font.size"] == 30


@pytest.mark.parametrize("shape", SHAPES)
def test_an_svg_is_one_and_has_no_date(shape: str) -> None:
    """It parses, and says neither when nor by what it was made."""
    text = drawn(SHAPES[shape], "svg")
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(r"dc:date|Matplotlib v", text)


def test_a_png_is_one() -> None:
    """Signature and size: 6 inches a panel at 150 dots, two panels beside each other."""
    content = drawn(SHAPES["lines"], "png")
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[16:20], "big") == 1800


@pytest.mark.parametrize("shape", SHAPES)
def test_a_page_is_one_and_needs_no_other(shape: str) -> None:
    """All elements close, nothing is loaded from elsewhere, names are escaped, the numbers stand below the picture."""
    text = drawn(SHAPES[shape], "html")
    structure = Structure()
    structure.feed(text)
    assert structure.open == []
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in structure.links)
    assert "<?xml" not in text
    assert "b&lt;1&gt;" in text
    assert "<td>128 &amp; 131072 do not go together</td>" in text


def labels_of(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of the picture, which the svg holds as such only with this setting."""
    pytest.importorskip("matplotlib")
    from ppadvisor.report import sweep_plot

    monkeypatch.setitem(sweep_plot.SETTINGS, "svg.fonttype", "none")
    root = ET.fromstring(drawn(shape, "svg"))
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_lines_have_axes_units_a_limit_and_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticks are the points asked; the limit is the peak and what is left of it, 72 GiB here."""
    labels = labels_of(SHAPES["lines"], monkeypatch)
    assert {"64", "128", "GPUs", "step time [s]", "peak memory [GiB]", "seq len 4k", "seq len 128k"} <= set(labels)
    assert {"90 % of GPU memory: 72.0 GiB", "nothing fits"} <= set(labels)
    assert "gpt, b<1>: the best plan over GPUs and sequence length" in labels


def test_a_map_says_what_its_cells_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and words in the cells, the unit at the bar, the axes at the sides."""
    labels = labels_of(SHAPES["heat"], monkeypatch)
    assert {"25.0 %", "memory", "contradicts", "1f1b", "interleaved-1f1b", "bubble [%]", "4k", "128k"} <= set(labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--pivot gpus", "--pivot: got 'gpus'; needs two axes, as in --pivot gpus,seq-len"),
        ("--pivot gpus,num_gpus", "--pivot: got 'gpus,num_gpus'; needs two axes"),
        ("--pivot gpus,pp", "--pivot: unknown axis 'pp'; known: num_gpus, sequence_length"),
        ("--pivot gpus,seq-len --value step", "--value: unknown value 'step'; did you mean 'step_time_s'?"),
        ("--value step_time_s", "--value has no effect without --pivot or --plot"),
        ("--pivot gpus,seq-len --format csv", "--pivot has no effect on --format csv"),
        ("--format parquet", "--format parquet is no text; give --output FILE"),
        ("--plot picture.pdf", "--plot: got 'picture.pdf'; needs a name that ends in .svg, .png or .html"),
        ("--plot missing/x.svg", "--plot: cannot write 'missing/x.svg': there is no folder 'missing'"),
        ("--plot x.svg --value schedule", "--plot: schedule is no number; a map of it needs --pivot"),
        ("--plot x.svg --output x.svg", "--output and --plot both name 'x.svg'"),
        ("--plot x.svg --pp 1:8:+1 --tp 1,2,4", "--plot: would have 18 lines; at most 12"),
        ("--plot x.svg --gpus 4 --seq-len 4k", "--plot has no effect on a sweep without axes"),
        ("--jobs 0", "--jobs: '0' must be above zero"),
    ],
)
def test_what_cannot_be_shown_is_told_before_any_point(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, options: str, message: str
) -> None:
    """One line on stderr, exit 2, and nothing was searched."""
    pytest.importorskip("matplotlib")

    def searched(*_: object, **__: object) -> None:
        raise AssertionError("a point was asked")

    monkeypatch.setattr("ppadvisor.search.shared.rank", searched)
    result = ask(f"{ASKED} {options}")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr


@pytest.mark.parametrize(
    ("options", "module", "message"),
    [
        (
            "--plot x.svg",
            "matplotlib",
            "--plot needs matplotlib, which is not installed: pip install matplotlib (or",
        ),
        ("--format parquet --output x", "pyarrow", "--format parquet needs pyarrow, which is not installed"),
    ],
)
def test_a_missing_library_is_named(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, options: str, module: str, message: str
) -> None:
    """The extra that brings it stands in the one line, before any point is asked."""
    found = importlib.util.find_spec
    monkeypatch.setattr("ppadvisor.cli.sweep.find_spec", lambda name: None if name == module else found(name))
    result = ask(f"{ASKED} {options}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_picture_is_written_beside_the_answer(ask: Ask, tmp_path: Path) -> None:
    """The table goes where it always goes, and the picture into its file, replaced whole."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "steps.svg"
    path.write_text("earlier")
    result = ask(f"{ASKED} --quick --plot {path}")
    assert result.stdout == ask(f"{ASKED} --quick").stdout
    assert path.read_text().startswith("<?xml")
    assert [entry.name for entry in tmp_path.iterdir()] == ["steps.svg"]


def test_pictures_and_data_frames_cost_nothing_where_they_are_not_asked_for(ask: Ask) -> None:
    """A sweep imports neither matplotlib nor pyarrow."""
    import subprocess

    line = f"{ASKED} --quick --gpus 4 --seq-len 4k".split()
    code = f"import sys; from ppadvisor.cli.main import main; main({line}); print(*sys.modules, file=sys.stderr)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert not {"matplotlib", "pyarrow"} & set(modules)


def test_a_partial_answer_says_so() -> None:
    """Of an interrupted sweep the header says how many points there are of how many; cells of the others are empty."""
    part = MADE_UP.model_copy(update={"rows": MADE_UP.rows[:1]})
    text = render_sweep(part, "table", View(), Shape(PIVOT))
    assert isinstance(text, str)
    assert text.startswith("Sweep     1 of 4 points: ")
    assert text.count("memory") == 1  # "of memory", in the header


def test_quick_takes_the_first_plan_as_it_is(ask: Ask) -> None:
    """It is a plan that fits, of the same point, no faster than the best one, and here within 10 % of it."""
    line = f"{ASKED} --gpus 16 --seq-len 4k --pp 4 --schedule 1f1b --format json"
    (quick,), (best,) = (ask(f"{line}{more}").document["rows"] for more in (" --quick", ""))
    assert quick["fits"]
    assert best["step_time_s"] <= quick["step_time_s"] < 1.1 * best["step_time_s"]
    assert SweepRow.model_validate(quick).pipeline_parallel == 4
