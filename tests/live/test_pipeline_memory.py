"""What each rank of torch's own pipeline holds, really run by four processes, against our prediction for it.

What torch was measured to hold at other sizes and under other schedules is tested without it,
tests/engine/test_torch_pipeline.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.pipelined import DOCUMENT, LAYERS_A_RANK, RANKS, held_in_the_small_gpt
from tests.live.pipeline import SCHEDULES, torch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="compares with torch 2.13"),
]
LIMIT_S = 120
"""Long for two busy cores: it takes ten seconds."""


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, int]]]:
    """Counts of each rank under each schedule, from one run of four processes."""
    folder = tmp_path_factory.mktemp("pipeline")
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": paths}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.live.pipeline", str(rank), str(folder)],
            cwd=root,
            env={**os.environ, **alone},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(said)
    ranks = [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]
    return {schedule: [rank[schedule] for rank in ranks] for schedule in SCHEDULES}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_rank_holds_what_we_predict(counted: Any, schedule: str) -> None:
    """GPipe and 1F1B, p = 4, m = 8: saved tensors, receive buffers and outputs of every rank, to the byte."""
    for rank, found in enumerate(counted[schedule]):
        ours = held_in_the_small_gpt(schedule, rank)
        assert {name: found[name] for name in ours} == ours, rank
        assert found["left"] == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_published_counts_are_those_of_this_torch(counted: Any, schedule: str) -> None:
    """The file in tests/published says what was just counted."""
    assert counted[schedule] == DOCUMENT["small_gpt"][schedule]


def test_another_number_of_layers_is_noticed(counted: Any) -> None:
    """A prediction for a layer more on each rank is not what torch holds: the comparison can fail."""
    for schedule in SCHEDULES:
        for rank, found in enumerate(counted[schedule]):
            assert found["saved"] < held_in_the_small_gpt(schedule, rank, LAYERS_A_RANK + 1)["saved"]
