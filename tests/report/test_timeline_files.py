"""The files of a timeline: trace, order for torch, picture, page."""

from __future__ import annotations

import gzip
import json
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ppadvisor.engine.timeline import PassTimes, Timeline, timeline_of_times
from ppadvisor.errors import InputError
from ppadvisor.report import timeline_html, timeline_ops, timeline_picture, timeline_svg, timeline_trace
from ppadvisor.schedules import SCHEDULES

PUBLISHED = Path(__file__).parent.parent / "published"
SVG = "{http://www.w3.org/2000/svg}"
DRAWN = [name for name in SCHEDULES if name not in ("none", "naive")]
TIMES = PassTimes(1.0, 1.2, 0.9, 0.3)

INTEGER, NUMBER, NAME = {"type": "integer"}, {"type": "number", "minimum": 0}, {"type": "string", "minLength": 1}
METADATA = ["process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"]


def _event(phase: str, required: list[str], **properties: Any) -> dict[str, Any]:
    shared = {"ph": {"const": phase}, "name": NAME, "cat": NAME, "pid": INTEGER, "tid": INTEGER, "ts": NUMBER}
    return {"required": ["ph", "name", "pid", "tid", *required], "properties": shared | properties}


TRACE_FORMAT = {
    # after "Trace Event Format" of the Chromium project, the JSON object format and the three phases in use
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    _event("X", ["ts", "dur"], dur=NUMBER, args={"type": "object"}),
                    _event(
                        "C", ["ts", "args"], args={"type": "object", "minProperties": 1, "additionalProperties": NUMBER}
                    ),
                    _event("M", ["args"], name={"enum": METADATA}, args={"type": "object", "minProperties": 1}),
                ]
            },
        },
    },
}


def made(name: str, p: int = 4, m: int = 8, v: int | None = None, times: PassTimes = TIMES) -> Timeline:
    """A timeline of bare numbers."""
    return timeline_of_times(name, p, m, v, times)


# --- trace ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_the_trace_follows_the_documented_format(name: str) -> None:
    """Every event has what its phase requires; on one thread nothing overlaps; each action is there with its times."""
    timeline = made(name)
    document = json.loads(timeline_trace.render(timeline))
    Draft202012Validator(TRACE_FORMAT).validate(document)
    threads = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for events in threads.values():
        for before, after in pairwise(events):
            assert after["ts"] >= before["ts"] + before["dur"] - 0.002
    for rank in timeline.ranks:
        work = threads[rank.rank, timeline_trace.WORK]
        assert [event["ts"] for event in work] == pytest.approx((rank.start_s * 1e6).tolist(), abs=0.001)
        assert sum(event["dur"] for event in work) == pytest.approx(rank.busy_s * 1e6, abs=0.01)


def test_a_trace_by_hand() -> None:
    """1F1B, p = m = 2: threads named, F0 of rank 0 from 0 to 1 s in microseconds, one and then two in flight."""
    events = json.loads(timeline_trace.render(made("1f1b", 2, 2, times=PassTimes())))["traceEvents"]
    assert {"ph": "M", "name": "thread_name", "pid": 1, "tid": 0, "args": {"name": "rank 1 work"}} in events
    first = {"ph": "X", "pid": 0, "tid": 0, "ts": 0.0, "dur": 1e6, "name": "F0", "cat": "forward"}
    assert first | {"args": {"chunk": 0, "stage": 0, "microbatch": 0}} in events
    idle = {"ph": "X", "pid": 0, "tid": 1, "ts": 2e6, "dur": 2e6, "name": "downstream", "cat": "idle", "args": {}}
    assert idle in events
    counted = [(e["ts"], e["args"]["micro-batches"]) for e in events if e["ph"] == "C" and e["pid"] == 0]
    assert counted == [(0.0, 0.0), (0.0, 1.0), (1e6, 2.0), (6e6, 1.0), (9e6, 0.0)]


# --- order for torch --------------------------------------------------------------------------------------------------

RECORDS = [
    record
    for file in ("torch_looped_schedules.json.gz", "torch_dualpipev.json.gz")
    for record in json.loads(gzip.decompress((PUBLISHED / file).read_bytes()))["records"]
    if (record["pipeline_parallel"], record["num_microbatches"]) == (4, 8) and record.get("virtual_stages", 2) == 2
]


@pytest.mark.parametrize("record", RECORDS, ids=[record.get("schedule", "dualpipev") for record in RECORDS])
def test_the_order_is_what_torch_has(record: dict[str, Any]) -> None:
    """The file equals the operations recorded from torch 2.13, pairs included, a line a rank (p = 4, m = 8, v = 2)."""
    text = timeline_ops.render(made(record.get("schedule", "dualpipev"), v=2))
    assert text.replace(",", " ").splitlines() == record["order"]


def test_the_words_of_torch() -> None:
    """Nothing but `<stage><F|B|I|W><micro-batch>` stands between commas, as torch's `_Action.from_str` reads it."""
    for line in timeline_ops.render(made("zb-v")).splitlines():
        assert all(re.fullmatch(r"[0-7][FIW][0-7]", word) for word in line.split(","))


@pytest.mark.parametrize(
    ("name", "message"),
    [("dualpipe", "keeps 2 copies"), ("chimera", "keeps 2 copies"), ("1f1b-vocab-1", "no operations S, T")],
)
def test_what_torch_cannot_be_told(name: str, message: str) -> None:
    """A stage on two ranks, and a head spread over all of them, are refused by name."""
    with pytest.raises(InputError, match=f"--csv: torch.distributed.pipelining .*{message}"):
        timeline_ops.render(made(name))


# --- picture and page -------------------------------------------------------------------------------------------------


def svg_of_page(text: str) -> ET.Element:
    """The plot of a page, as XML."""
    plot = re.search(r'<div class="zoomed">(<svg.*</svg>)</div></div></div>', text, re.DOTALL)
    assert plot
    return ET.fromstring(plot[1])


@pytest.mark.parametrize("name", DRAWN)
def test_the_picture_shows_every_action(name: str) -> None:
    """The SVG is well-formed; each action that takes time and each idle interval is a rectangle within the picture."""
    timeline = made(name)
    root = ET.fromstring(timeline_svg.render(timeline))
    told = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    work = sum(int((rank.end_s > rank.start_s).sum()) for rank in timeline.ranks)
    assert len(told) == work + sum(len(rank.idle.cause) for rank in timeline.ranks)
    width = float(root.attrib["width"])
    assert max(float(rect.attrib["x"]) + float(rect.attrib["width"]) for rect in told) <= width
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert sum("idle\nfill" in title for title in titles) == 3 if name not in ("dualpipe", "chimera") else True


def test_a_picture_by_hand() -> None:
    """1F1B, p = m = 2, 9 s: the gradient that rank 0 waits for from 2 to 4 s is two ninths of the plot wide."""
    root = ET.fromstring(timeline_svg.render(made("1f1b", 2, 2, times=PassTimes())))
    boxes = {rect.findtext(f"{SVG}title"): rect.attrib for rect in root.iter(f"{SVG}rect")}
    waits = boxes["rank 0 idle\ndownstream: waits for a gradient\n2 to 4 s (2 s)"]
    plot = timeline_svg.NARROWEST
    assert float(waits["x"]) == pytest.approx(plot * 2 / 9, rel=1e-4)
    assert float(waits["width"]) == pytest.approx(plot * 2 / 9, rel=1e-4)
    assert waits["class"] == "downstream"
    action = "rank 1: backward (B) of micro-batch 1, stage 1\n5 to 7 s (2 s)\nmicro-batches in flight: 1"
    assert boxes[action]["class"] == "B0"


def test_memory_under_the_work() -> None:
    """Each rank has a curve, to the scale of the fullest: rank 1 of 1F1B at p = m = 2 goes half as high as rank 0."""
    root = svg_of_page(timeline_html.render(made("1f1b", 2, 2, times=PassTimes())))
    paths = [path.attrib["d"] for path in root.iter("path")]
    tops = [min(float(y) for y in re.findall(r"V([\d.]+)", path)) for path in paths]
    assert tops == [0.0, 50.0]
    assert paths[0].startswith("M0,100H0V50H1111.1V0H6666.7V50")


@pytest.mark.parametrize("name", DRAWN)
def test_the_page_needs_nothing_else(name: str) -> None:
    """The page refers to nothing outside of itself, and its plot has no place in pixels: it fits any screen."""
    text = timeline_html.render(made(name), ["Model     <b>mine</b>"])
    assert not re.search(r"(?:src|href)\s*=|@import|url\((?!#)|https?://", text)
    assert "&lt;b&gt;mine&lt;/b&gt;" in text
    boxes = [rect.attrib for rect in svg_of_page(text).iter("rect") if "class" in rect.attrib]
    assert boxes
    assert all(box["x"].endswith("%") and box["width"].endswith("%") for box in boxes)


def test_the_legend_has_what_occurs() -> None:
    """Kinds of work and idle causes that do not occur are not in the legend."""
    texts = [entry.text for entry in timeline_picture.legend_of(made("1f1b", times=PassTimes()))]
    assert [text.split(",")[0] for text in texts] == [
        "F forward",
        "B backward",
        "idle",
        "idle",
        "idle",
        texts[-1].split(",")[0],
    ]
    assert not any("upstream" in text or "link" in text for text in texts)


@pytest.mark.parametrize("module", [timeline_svg, timeline_html])
def test_too_many_to_draw(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More actions than a browser draws are refused, and the trace is named, which takes them."""
    monkeypatch.setattr(timeline_picture, "MAX_ACTIONS", 63)
    with pytest.raises(InputError, match="64 actions are too many to draw, allowed: 63; --trace takes more"):
        module.render(made("1f1b"))
