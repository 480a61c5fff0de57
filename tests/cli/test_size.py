"""`ppadvisor size`: numbers that agree with `plan` and with paper and pencil, forms of the answer, bad questions."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import Cli

MODEL = "--model llama-3.1-8b --seq-len 4k --global-batch 64 --micro-batch 1 --tp 1 --cp 1 --recompute none"
MACHINES = "--gpu h100-sxm-80gb --gpus 8,16"
SMALL = f"size {MODEL} {MACHINES} --tokens 100B --schedule none,1f1b"
PRICE = "--price h100-sxm-80gb=2.50/h"

Point = dict[str, Any]


def points(cli: Cli, line: str) -> list[Point]:
    """The points of the JSON answer."""
    found: list[Point] = cli(*line.split(), "--format", "json").document["points"]
    return found


def test_days_by_hand(cli: Cli) -> None:
    """tokens / (B s / step time) / 86400: for 100e9 tokens and a batch of 64 x 4096, worked out from the step time."""
    for point in points(cli, f"{SMALL} --days 30 {PRICE}"):
        steps = 100e9 / (64 * 4096)  # 381,469.7
        seconds = steps * point["step_time_s"]
        assert point["days"] == pytest.approx(seconds / 86_400)
        assert point["gpu_hours"] == pytest.approx(point["num_gpus"] * seconds / 3600)
        assert point["cost"] == pytest.approx(2.5 * point["num_gpus"] * seconds / 3600)
        assert point["goodput_fraction"] == 1.0


def test_every_point_is_what_plan_answers(cli: Cli) -> None:
    """With the same options `plan` has the same first plan, step time, tokens/s, peak and band, to the last digit."""
    for point in points(cli, f"{SMALL} --days 30"):
        gpus = str(point["num_gpus"])
        words = f"plan {MODEL} --schedule none,1f1b --gpu h100-sxm-80gb --format json --gpus".split()
        best = cli(*words, gpus).document["plans"][0]
        assert point["plan"] == best["plan"]
        assert point["step_time_s"] == best["time"]["step_time_s"]
        assert point["tokens_per_s"] == best["time"]["tokens_per_s"]
        assert point["peak_bytes"] == best["memory"]["peak_bytes"]
        for end in ("low", "high"):
            ratio = best["time"][f"step_time_{end}_s"] / best["time"]["step_time_s"]
            assert point[f"days_{end}"] == pytest.approx(point["days"] * ratio)


def test_scaling_is_measured_by_the_fewest_that_fit(cli: Cli) -> None:
    """The first point has 100 %, another its tokens per second and GPU over those of the first."""
    first, second = points(cli, f"{SMALL} --days 30")
    assert first["scaling_efficiency"] == 1.0
    ratio = (second["tokens_per_s"] / 16) / (first["tokens_per_s"] / 8)
    assert second["scaling_efficiency"] == pytest.approx(ratio)


def test_answers_and_exit_codes(cli: Cli) -> None:
    """A date that 16 GPUs meet and 8 do not is answered by 16; one that none meets is exit code 3 with the nearest."""
    eight, sixteen = (point["days"] for point in points(cli, f"{SMALL} --days 1000"))
    between = f"{(eight + sixteen) / 2:.3f}"
    result = cli(*f"{SMALL} --days {between} {PRICE} --format json".split())
    assert result.exit_code == 0
    answers, found = result.document["answers"], result.document["points"]
    assert found[answers["fewest_that_meet"]]["num_gpus"] == 16
    assert found[answers["fewest_that_fit"]]["num_gpus"] == 8
    assert found[answers["cheapest"]]["num_gpus"] == 16
    assert result.document["nearest"] is None
    result = cli(*f"{SMALL} --days {sixteen / 2:.3f}".split())
    assert result.exit_code == 3
    assert "Nothing meets the targets; nearest: 16 x h100-sxm-80gb takes" in " ".join(result.stdout.split())
    assert "50.00 B tokens would be done in time" in " ".join(result.stdout.split())


def test_a_budget_is_kept(cli: Cli) -> None:
    """A budget below the dearer point leaves the cheaper one; with a price for one network, that network pays it."""
    costs = {point["num_gpus"]: point["cost"] for point in points(cli, f"{SMALL} --budget 1M {PRICE}")}
    least, most = sorted(costs.values())
    report = cli(*f"{SMALL} --budget {(least + most) / 2:.2f} {PRICE} --format json".split()).document
    assert [point["meets_targets"] for point in report["points"]].count(True) == 1
    networks = "--inter-node-bandwidth 400Gb/s,800Gb/s --price h100-sxm-80gb@800Gb/s=3/h"
    report = cli(*f"{SMALL} --budget 1M {PRICE} {networks} --format json".split()).document
    assert [candidate["price_per_gpu_hour"] for candidate in report["candidates"]] == [2.5, 3.0]
    (even,) = report["break_even"]
    assert (even["differs_in"], even["given_ratio"]) == ("network", 1.2)


def test_forms_of_the_answer(cli: Cli, tmp_path: Path) -> None:
    """JSON follows its schema and repeats byte for byte; CSV has a line a point; tables and text stay in 80 columns."""
    line = f"{SMALL} --days 30 {PRICE} --mtbf-hours 50000 --checkpoint-time 30s --restart-time 10min"
    result = cli(*line.split(), "--format", "json")
    jsonschema.validate(result.document, json.loads(cli("schema", "size").stdout))
    assert cli(*line.split(), "--format", "json").stdout == result.stdout
    rows = list(csv.DictReader(io.StringIO(cli(*line.split(), "--format", "csv").stdout)))
    assert [int(row["num_gpus"]) for row in rows] == [8, 16]
    assert all(0 < float(row["goodput_fraction"]) < 1 for row in rows)
    text = cli(*line.split()).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "Failures  2e-05 for one GPU and hour; 30.0 s a checkpoint, 10.0 min a restart" in text
    assert "| GPUs |" in cli(*line.split(), "--format", "markdown").stdout
    job = tmp_path / "job.toml"
    job.write_text(
        'model = "llama-3.1-8b"\nseq_len = "4k"\nglobal_batch = 64\nmicro_batch = 1\ntp = 1\ncp = 1\n'
        'recompute = "none"\ngpu = "h100-sxm-80gb"\ngpus = [8, 16]\ntokens = "100B"\nschedule = ["none", "1f1b"]\n'
        'days = 30\nmtbf_hours = 50000\ncheckpoint_time = "30s"\nrestart_time = "10min"\n'
        '[price]\nh100-sxm-80gb = "2.50/h"\n'
    )
    assert cli("size", "--job", str(job)).stdout == text


BAD: list[tuple[str, tuple[str, ...]]] = [
    ("", ("no target", "--days", "--budget")),
    ("--days -3", ("--days", "-3", "above zero")),
    ("--days 0", ("--days", "above zero")),
    ("--days soon", ("--days", "soon")),
    ("--days 3 --tokens 15X", ("--tokens", "15X", "15T")),
    ("--budget 1M", ("--budget", "h100-sxm-80gb", "--price")),
    ("--budget -1 --price h100-sxm-80gb=2/h", ("--budget", "-1")),
    ("--days 3 --price h200=2/h", ("--price", "h200")),
    ("--days 3 --price b200-sxm-180gb=2/h", ("b200-sxm-180gb is no candidate", "h100-sxm-80gb")),
    ("--days 3 --price h100-sxm-80gb=2", ("--price h100-sxm-80gb", "no unit", "2.50/h")),
    ("--days 3 --price h100-sxm-80gb=-2/h", ("above zero",)),
    ("--days 3 --price h100-sxm-80gb", ("--price", "NAME=PRICE/h")),
    ("--days 3 --price h100-sxm-80gb=2/h --price h100-sxm-80gb=3/h", ("given twice",)),
    ("--days 3 --price h100-sxm-80gb@800Gb/s=2/h", ("for no candidate", "network")),
    ("--days 3 --price h100-sxm-80gb@fast=2/h", ("--price", "fast")),
    ("--days 3 --gpu h100-sxm-80gb,h100-sxm-80", ("given twice",)),
    ("--days 3 --gpu nope", ("unknown gpu 'nope'",)),
    ("--days 3 --checkpoint-time 3s", ("--checkpoint-time", "no effect")),
    ("--days 3 --restart-time 3s --failures-per-gpu-hour 0", ("--restart-time", "no effect")),
    ("--days 3 --mtbf-hours 3 --failures-per-gpu-hour 3", ("--mtbf-hours", "one or the other")),
    ("--days 3 --mtbf-hours 3", ("--mtbf-hours", "no effect", "--checkpoint-time")),
    ("--days 3 --failures-per-gpu-hour 1e9", ("--failures-per-gpu-hour", "no effect")),
    ("--days 3 --mtbf-hours -1", ("--mtbf-hours", "above zero")),
    ("--days 3 --failures-per-gpu-hour -1", ("--failures-per-gpu-hour", "negative")),
    ("--days 3 --gpus 12", ("12", "whole number of nodes")),
    ("--days 3 --gpus 0", ("--gpus", "above zero")),
    ("--days 3 --dp 3", ("data_parallel = 3",)),
]


@pytest.mark.parametrize(("options", "told"), BAD, ids=[options or "no target" for options, _ in BAD])
def test_bad_questions(cli: Cli, options: str, told: tuple[str, ...]) -> None:
    """What cannot be meant is one line on stderr that names option and value, with exit code 2 and no answer."""
    result = cli(*SMALL.split(), *options.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    for words in told:
        assert words in result.stderr


def test_tokens_are_asked_for(cli: Cli) -> None:
    """Without --tokens there is no run to size."""
    result = cli(*f"size {MODEL} {MACHINES} --days 3".split())
    assert result.exit_code == 2
    assert "--tokens is missing" in result.stderr
