"""The lines about the stages of the first plan."""

from __future__ import annotations

from ppadvisor.report.prose import join_blocks, layers_text
from ppadvisor.report.split_view import split_lines
from ppadvisor.search.pins import Pins
from ppadvisor.search.results import PlanReport
from tests.problems import model, problem
from tests.search.asked import ask


def answer(settings: dict[str, str]) -> PlanReport:
    """An answer whose first plan has these settings, of a plan with p > 1."""
    of = problem(model(num_layers=11, vocab_size=60_000), num_gpus=4, framework="megatron")
    found = ask(of, Pins(pipeline_parallel=(4,), schedule=("1f1b",)))
    return found.changed(split_settings=(settings, *found.split_settings[1:]))


def test_flags_are_quoted_for_a_shell() -> None:
    """A layout has letters that a shell would act on."""
    lines = split_lines(answer({"--size": "4", "--layout": "Et*2|t*2|t*2|tL", "--flag": ""}))
    assert lines[0] == "Stages of the first:"
    assert lines[1] == "  --size 4 --layout 'Et*2|t*2|t*2|tL' --flag"


def test_a_layout_longer_than_a_line_is_folded() -> None:
    """What is wider than a terminal is folded between stages, and says so."""
    layout = "|".join(["Et", *["t*2", "t*3"] * 20, "tL"])
    lines = split_lines(answer({"--layout": layout}))
    assert "(without the spaces)" in lines[1]
    assert lines[1].replace(" ", "").count(layout) == 1
    shown = join_blocks([lines], "table", 80)
    assert max(map(len, shown.splitlines())) <= 80


def test_gain_and_loss_have_their_words() -> None:
    """Slower, or more memory, is said as plainly as faster and less."""
    found = answer({})
    even = found.even_split
    assert even is not None
    better = split_lines(found)[-1]
    assert " faster" in better
    same = even.changed(peak_saved_bytes=-1000, step_time_saved_fraction=0.02)
    assert "2.0 % faster than the even split" in split_lines(found.changed(even_split=same))[-1]
    worse = {"step_time_saved_fraction": -0.01, "peak_saved_bytes": -(2**30), "fits": False}
    told = split_lines(found.changed(even_split=even.changed(**worse)))[-1]
    assert "1.0 % slower, 1.0 GiB more at the peak, than the even split" in told
    assert told.endswith(", which does not fit)")


def test_without_a_pipeline_there_is_nothing_to_say() -> None:
    """One stage holds everything; runs of equal stages are one word."""
    found = answer({})
    alone = found.plans[0].changed(plan=found.plans[0].plan.changed(pipeline_parallel=1))
    assert split_lines(found.changed(plans=(alone,))) == []
    assert split_lines(found.changed(plans=())) == []
    assert layers_text((9, 10, 10, 11)) == "9 2x10 11"
