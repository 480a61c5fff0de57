"""`ppadvisor report`: one page that needs nothing else, the same bytes each time, valid, and no wider than a phone."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path

import pytest

from ppadvisor.search.drawable import MOST_ACTIONS, drawable_timeline
from ppadvisor.specs.version import MODEL_VERSION
from tests.cli.conftest import Cli
from tests.pages import CHROMIUM, PHONE, check_alone, check_valid, widths
from tests.problems import plan, problem

QUESTION = (
    "--model llama-3.1-8b --gpu h100-sxm-80gb --gpus 8 --seq-len 4k --global-batch 64 --pp 2,4 --tp 1 --cp 1 "
    "--micro-batch 1 --recompute none --inter-node-bandwidth 400Gb/s --assume gemm_efficiency=0.55"
)
JOB = """
model = "llama-3.1-8b"
gpu = "h100-sxm-80gb"
gpus = 8
seq-len = "4k"
global_batch = 64
pp = [2, 4]
tp = 1
cp = 1
micro_batch = 1
recompute = "none"
inter-node-bandwidth = "400Gb/s"
[assumptions]
gemm_efficiency = 0.55
"""


@pytest.fixture
def page(cli: Cli, tmp_path: Path) -> str:
    """The page of QUESTION."""
    file = tmp_path / "page.html"
    result = cli("report", *QUESTION.split(), "--html", str(file))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    return file.read_text(encoding="utf-8")


def command_of(page: str) -> list[str]:
    """The words of the command that the page says makes it again, without the program's own name."""
    shown = re.search(r"<pre>(.*?)</pre>", page, re.DOTALL)
    assert shown
    return shlex.split(html.unescape(shown[1]), comments=True)[1:]


def test_the_page_is_valid_and_alone(page: str) -> None:
    """The standard's parser has no complaint, nothing is loaded from elsewhere, and all sections are there."""
    check_valid(page)
    check_alone(page)
    heads = re.findall(r"<h2>(.*?)</h2>", page)
    assert heads == [
        "Ranked plans",
        "Memory of each stage",
        "Where a step goes",
        "Timeline",
        "What if",
        "Assumptions",
        "How to make this page again",
    ]
    assert MODEL_VERSION in page


def test_its_command_makes_the_same_bytes(cli: Cli, page: str, tmp_path: Path) -> None:
    """The command on the page, with another name for the file, writes the same page; so does the job file."""
    again, of_job = tmp_path / "again.html", tmp_path / "of_job.html"
    words = command_of(page)
    assert cli(*words[:-1], str(again)).exit_code == 0
    assert again.read_text(encoding="utf-8") == page
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    assert cli("report", str(job), "--html", str(of_job)).exit_code == 0
    assert of_job.read_text(encoding="utf-8") == page


def test_its_numbers_are_those_of_plan(cli: Cli, page: str) -> None:
    """Each row of the ranked table is the row that `plan` prints, and each memory bar the peak of its stage."""
    rows = re.findall(r"<tr[^>]*>(<td.*?)</tr>", page.partition("<h2>Ranked plans</h2>")[2].partition("</table>")[0])
    shown = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    table = cli("plan", *QUESTION.split(), "--format", "markdown").stdout
    expected = [line for line in table.splitlines() if re.match(r"\| \d", line)]
    assert [[html.unescape(cell) for cell in row] for row in shown] == [
        [cell.strip() for cell in line.strip("|").split("|")] for line in expected
    ]
    stages = cli("plan", *QUESTION.split(), "--format", "json").document["plans"][0]["memory"]["stages"]
    bars = re.findall(r">stage (\d+)</span>.*?([\d.]+) GiB</span></li>", page)
    assert bars == [(str(s["stage"]), f"{s['total_bytes'] / 2**30:.1f}") for s in stages]


def test_a_plan_file(cli: Cli, tmp_path: Path) -> None:
    """Of a saved answer the page has the same table, the plan of the rank in full, and the file's digest."""
    saved, file = tmp_path / "plan.json", tmp_path / "page.html"
    cli("plan", *QUESTION.split(), "--format", "json", "--output", str(saved))
    assert cli("report", f"{saved}#2", "--html", str(file)).exit_code == 0
    page = file.read_text(encoding="utf-8")
    check_valid(page)
    assert "Plan 2 of" in page
    assert "SHA-256" in page
    assert command_of(page)[:2] == ["report", f"{saved}#2"]


def test_where_nothing_fits(cli: Cli, tmp_path: Path) -> None:
    """The nearest miss is on the page, valid as ever, with exit code 3."""
    file = tmp_path / "page.html"
    question = "--model llama-3.1-405b --gpu h100-sxm-80gb --gpus 8 --seq-len 4k --global-batch 8 --pp 8"
    assert cli("report", *question.split(), "--html", str(file)).exit_code == 3
    page = file.read_text(encoding="utf-8")
    check_valid(page)
    assert "No plan fits; the nearest miss" in page
    assert "does not fit" in page


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to measure with")
def test_no_overflow_on_a_phone(page: str, tmp_path: Path) -> None:
    """At 380 pixels the page is no wider than the screen, while its tables scroll inside their own boxes."""
    width, scrolling = widths(page, tmp_path)
    assert width <= PHONE
    assert scrolling > 0


def test_long_steps_are_drawn_in_part() -> None:
    """A step of few micro-batches is drawn whole; one of many with as many as the picture takes, in whole groups."""
    of = problem(num_gpus=4)
    few = drawable_timeline(of, plan((3, 3, 3, 3), num_microbatches=64))
    assert few is not None
    assert (few.num_microbatches, few.timeline.num_microbatches) == (64, 64)
    many = drawable_timeline(of, plan((3, 3, 3, 3), num_microbatches=10_000))
    assert many is not None
    assert many.num_microbatches == many.timeline.num_microbatches == 16
    assert many.timeline.num_actions <= MOST_ACTIONS
    assert drawable_timeline(of, plan((12,))) is None


def test_bad_questions(cli: Cli, tmp_path: Path) -> None:
    """What cannot be meant is one line on stderr with exit code 2, and no page is written."""
    saved, job, file = tmp_path / "plan.json", tmp_path / "job.toml", tmp_path / "page.html"
    cli("plan", *QUESTION.split(), "--format", "json", "--output", str(saved))
    job.write_text(JOB)
    old = tmp_path / "old.json"
    document = json.loads(saved.read_text()) | {"model_version": "1999.1"}
    old.write_text(json.dumps(document))
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document | {"model_version": MODEL_VERSION, "why": 5}))
    cases = [
        ([*QUESTION.split()], "--html"),
        ([*QUESTION.split(), "--html", str(tmp_path / "no" / "page.html")], "no folder"),
        (["--html", str(file)], "--model is missing"),
        ([str(saved), "--gpus", "8", "--html", str(file)], "--gpus has no effect beside a file"),
        ([f"{saved}#99", "--html", str(file)], "rank 99 is not there"),
        ([str(old), "--html", str(file)], "model version 1999.1"),
        ([str(broken), "--html", str(file)], "why"),
        ([str(job), "--job", str(job), "--html", str(file)], "given twice"),
        ([str(tmp_path / "none.toml"), "--html", str(file)], "none.toml"),
        ([str(job), "--rank", "3", "--top", "2", "--html", str(file)], "--rank: got 3, but the table has 2"),
    ]
    for words, told in cases:
        result = cli("report", *words)
        assert result.exit_code == 2, words
        assert told in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert not file.exists()
