"""Real layers beside their prediction: which machine is judged, what disagrees, what is said. Without torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppadvisor.errors import InputError
from ppadvisor.report.verify_view import render_verification
from ppadvisor.specs.load import load_gpu
from ppadvisor.verify.launched import Launcher, Machine
from ppadvisor.verify.run_layers import is_gpu, layers_subject
from ppadvisor.verify.run_measured import StepRan, per_microbatch_s
from ppadvisor.verify.scaled import Subject, subject_of
from ppadvisor.verify.torch_engine import UnverifiableError
from tests.problems import model, plan, problem
from tests.verify.ran import report_of

GIB = 2**30
A100 = Machine("NVIDIA A100-SXM4-80GB", load_gpu("a100-sxm-80gb").memory_bytes)
CPU = Machine("CPU", None)


def subject() -> Subject:
    """Two stages of a small Llama on an A100."""
    of = problem(model("llama"), framework="torchtitan", num_gpus=2, global_batch_size=8)
    cluster = of.cluster.changed(gpu=load_gpu("a100-sxm-80gb"))
    return subject_of(replace(of, cluster=cluster), plan([6, 6], num_microbatches=8), ranks_of_node=2)


@pytest.mark.parametrize(
    ("gpu", "name", "memory_gib", "same"),
    [
        ("h100-sxm-80gb", "NVIDIA H100 80GB HBM3", 79.1, True),
        ("h100-sxm-80gb", "NVIDIA H100 NVL", 93.1, False),
        ("h100-sxm-80gb", "NVIDIA H200", 139.8, False),
        ("b200-sxm-180gb", "NVIDIA GB200", 178.3, False),
        ("a100-sxm-40gb", "NVIDIA A100-SXM4-40GB", 39.4, True),
        ("rtx-4090-24gb", "NVIDIA GeForce RTX 4090", 23.6, True),
        ("rtx-4090-24gb", "NVIDIA GeForce RTX 3090", 23.6, False),
        ("mi300x-192gb", "AMD Instinct MI300X", 191.7, True),
    ],
)
def test_a_gpu_is_known_by_its_name_and_memory(gpu: str, name: str, memory_gib: float, same: bool) -> None:
    """Names as drivers print them: the model's must be a word of it, and the memory about the preset's."""
    assert is_gpu(load_gpu(gpu), Machine(name, round(memory_gib * GIB))) is same


def test_a_run_that_keeps_to_the_prediction_agrees() -> None:
    """On the plan's GPU all is judged: the step, each rank's order, its allocated bytes."""
    report = report_of(subject(), A100)
    assert report.judged
    assert (report.agrees, report.disagreements) == (True, ())
    assert report.terms[0].difference_fraction == pytest.approx(0.0, abs=1e-9)
    assert [row.allocated_difference_fraction for row in report.rows] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_a_slow_step_and_a_full_rank_disagree() -> None:
    """A quarter slower where a fifth is allowed, and a rank with 1 TiB: both are named, the rank by its number."""
    report = report_of(subject(), A100, slower=1.25, allocated_bytes=1024 * GIB)
    assert not report.agrees
    assert [text.split(":")[0] for text in report.disagreements] == ["step time", "rank 0"]
    assert "+25.0 %" in report.disagreements[0]


def test_on_a_cpu_the_order_alone_is_judged() -> None:
    """No peaks, no difference, whatever the step took; the verdict says that no more was judged."""
    report = report_of(subject(), CPU, slower=50.0)
    assert (report.device, report.judged, report.agrees) == ("cpu", False, True)
    assert {term.difference_fraction for term in report.terms} == {None}
    assert {(row.allocated_bytes, row.reserved_bytes) for row in report.rows} == {(None, None)}
    shown = render_verification(report, "table", width=80, color=False)
    assert "the order agrees, no more was judged" in shown
    assert "torch's peaks" not in shown
    other = report_of(subject(), Machine("NVIDIA L4", 22 * GIB), slower=50.0)
    assert (other.device, other.judged, other.agrees) == ("cuda", False, True)


def test_another_order_disagrees_on_any_machine() -> None:
    """One action twice and one not at all: two places differ."""
    report = report_of(subject(), CPU)
    did = [("0F0", 1e-3), *[("0F0", 1e-3) for _ in range(report.rows[0].num_operations - 1)]]
    wrong = report_of(subject(), CPU, steps=(StepRan(1.0, 0.0, tuple(did)),))
    assert not wrong.agrees
    assert wrong.disagreements[0].startswith("rank 0, order: 15 places of 16 differ")


@pytest.mark.parametrize("machine", [A100, CPU])
def test_the_answer_is_readable(machine: Machine) -> None:
    """80 columns, and each rank in CSV."""
    report = report_of(subject(), machine)
    assert max(map(len, render_verification(report, "table", width=80, color=False).splitlines())) <= 80
    assert len(render_verification(report, "csv", width=80, color=False).splitlines()) == 1 + 2


def test_times_of_a_rank_are_those_of_all_its_stages() -> None:
    """By hand: forward of stage 0 takes 1 and 3 s, of stage 3 10 s: 2 + 10; backward in two parts, 4 + 5."""
    actions = (("0F0", 1.0), ("0F1", 3.0), ("3F0", 10.0), ("3I0", 4.0), ("3W0", 5.0))
    step = StepRan(30.0, 1.0, actions)
    assert (per_microbatch_s([step], "F"), per_microbatch_s([step], "BIW")) == (12.0, 9.0)


def test_a_process_for_each_stage() -> None:
    """Three processes for two stages: an InputError that names both numbers."""
    of = problem(model("llama"), framework="torchtitan")
    with pytest.raises(InputError, match=r"started 3 processes; needs one for each stage of the plan, p = 2"):
        layers_subject(of, plan([6, 6]), Launcher(0, 3, 0, 3), None)


def test_what_is_not_run_is_refused() -> None:
    """Windows of attention would be run as whole attention; a trainer with layers of its own is not run at all."""
    windowed = model("llama").changed(sliding_window=16)
    here = Launcher(0, 2, 0, 2)
    with pytest.raises(UnverifiableError, match="a window of 16 keys"):
        layers_subject(problem(windowed, framework="torchtitan"), plan([6, 6]), here, None)
    with pytest.raises(UnverifiableError, match="megatron has layers and a pipeline of its own"):
        layers_subject(problem(model("llama"), framework="megatron"), plan([6, 6]), here, None)
