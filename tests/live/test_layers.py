"""Layers with numbers on a CPU: every family, and one pipeline of one rank in this process."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.errors import EXIT_USAGE, InputError
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.verify.launched import Met, have_met, launched, met
from ppadvisor.verify.layers import Shard, on_meta, torch
from ppadvisor.verify.layers_kernels import FusedRmsNorm
from ppadvisor.verify.layers_run import LEARNING_RATE, Rank, real_module
from ppadvisor.verify.layers_stage import StageModule, StageSizes, cross_entropy
from ppadvisor.verify.run_layers import verify_layers
from ppadvisor.verify.run_predicted import expected_of
from ppadvisor.verify.scaled import Subject, subject_of
from ppadvisor.verify.torch_engine import UnverifiableError
from tests.live.working import Allocated
from tests.problems import model, plan, problem, training

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="runs on torch 2.13"),
]
S, B = 64, 2
SMALL = {"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "head_dim": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {"num_query_groups": 4, "vocab_size": 320},
    "llama": {"num_query_groups": 2, "vocab_size": 320},
    "moe": {"num_query_groups": 2, "vocab_size": 320},
    "mla-mtp": {"num_query_groups": 4, "vocab_size": 320, "mtp_num_layers": 0},
}


def sizes(name: str, shard: Shard, **run: Any) -> StageSizes:
    """All of a small model on one stage."""
    spec = model(name, **SMALL, **FAMILIES[name])
    kinds, of_layer = spec.layer_kinds()
    one: TrainingSpec = training(sequence_length=S, **run)
    layers = tuple(kinds[kind] for kind in of_layer)
    return StageSizes(spec, one, layers, plan([2]).recomputation, shard, spec.vocab_size, first=True, last=True)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("shard", "run"),
    [
        (Shard(), {}),
        (Shard(), {"attention": "eager", "dropout": True}),
        (Shard(tensor=2, sequence=True), {}),
        (Shard(experts=2, tensor=2, expert_tensor=1), {}),
    ],
)
def test_a_stage_with_numbers_does_what_one_without_does(name: str, shard: Shard, run: dict[str, Any]) -> None:
    """The same shapes as on the meta device, a gradient of each parameter; undivided, the loss begins near ln V."""
    held = sizes(name, shard, **run)
    real, empty = real_module(held, B, torch.device("cpu")), on_meta(lambda: StageModule(held), held.training)
    tokens = torch.randint(held.vocab_size // shard.tensor, (B, S))
    logits = real(tokens)
    assert (logits.shape, logits.dtype) == ((out := empty(tokens.to("meta"))).shape, out.dtype)
    loss = cross_entropy(logits, tokens)
    loss.backward()
    assert all(parameter.grad is not None for parameter in real.parameters())
    shapes = [[one.shape for one in module.parameters()] for module in (real, empty)]
    assert shapes[0] == shapes[1]
    if shard == Shard():
        assert float(loss.detach()) == pytest.approx(float(torch.tensor(held.vocab_size).log()), rel=0.1)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of one rank of one."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    there = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
    for name, value in {**there, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


@pytest.mark.usefixtures("alone")
def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three is alone: after the wait it says who is missing, and does not hang."""
    monkeypatch.setattr("ppadvisor.verify.launched.MEETING_S", 0.3)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(UnverifiableError, match=r"after 0.3 s not there: rank 1, 2"), met(launched()):
        pass


@pytest.mark.usefixtures("alone")
def test_where_ranks_meet_must_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK without MASTER_PORT is a launcher half set up: the missing name is said."""
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(InputError, match=r"but not MASTER_PORT: start it with torchrun"), met(launched()):
        pass


@pytest.mark.usefixtures("alone")
def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fourth rank of a machine with two GPUs: refused with both numbers, before anyone waits for it."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    there = {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 3, "LOCAL_WORLD_SIZE": 4, "TORCHELASTIC_USE_AGENT_STORE": False}
    for name, value in there.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UnverifiableError, match=r"rank 3 needs GPU 3 of its machine, which has 2"), met(launched()):
        pass


def one_stage(name: str = "llama", length: int = S, recompute: str = "none", **wider: int) -> Subject:
    """A small model without a pipeline, three micro-batches."""
    spec = model(name, **{**SMALL, **FAMILIES[name], **wider})
    of = problem(spec, framework="torchtitan", num_gpus=1, global_batch_size=3, sequence_length=length)
    return subject_of(of, plan([2], schedule="none", num_microbatches=3, recompute=recompute), ranks_of_node=1)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_one_stage_runs_alone(recompute: str) -> None:
    """p = 1 on a CPU: three forwards and backwards in turn, as planned; no peak is claimed."""
    with met(launched()) as here:
        report = verify_layers(one_stage(recompute=recompute), here, steps=2, progress=lambda items, *_: items)
    assert (report.agrees, report.judged, report.device_name) == (True, False, "CPU")
    assert [(row.num_operations, row.num_differences, row.allocated_bytes) for row in report.rows] == [(6, 0, None)]
    assert len(report.steps_s) == 2
    assert all(0 < row.forward_s < row.forward_s + row.backward_s < max(report.steps_s) for row in report.rows)


@pytest.mark.usefixtures("alone")
def test_a_rank_without_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's error for a full GPU, raised in a step: the rank's number and torch's first line, exit code 2."""

    def full(_: Rank) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nIf reserved memory ...")

    monkeypatch.setattr(Rank, "step", full)
    told = r"^rank 0: CUDA out of memory. Tried to allocate 2.00 GiB.$"
    try:
        with pytest.raises(UnverifiableError, match=told) as caught, met(launched()) as here:
            verify_layers(one_stage(), here, steps=1, progress=lambda items, *_: items)
        assert caught.value.exit_code == EXIT_USAGE
        assert have_met()  # so that the command ends the process at once
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["llama", "gpt"])
def test_what_stays_is_what_is_predicted(name: str) -> None:
    """Bytes of weights, gradients and moments that a rank really holds: those of the prediction, tied weights once.

    Biases of values and of the feed-forward are not built: with GPT a part in a thousand of so small a model.
    """
    subject = one_stage(name)
    (stage,) = estimate_plan(subject.problem, subject.plan, margin=0.9).memory.stages
    with met(launched()) as here:
        rank = _stepped(subject, here)
        parameters = [one for stage in rank.stages for one in stage.submod.parameters()]
        weights = sum(one.untyped_storage().nbytes() for one in parameters)
        moments = [one for of in rank.optimizer.state.values() for one in of.values() if one.dim()]
    exact = {"llama": 0.0, "gpt": 2e-3}[name]
    assert stage.terms["weights"] == stage.terms["gradients"] == pytest.approx(weights, rel=exact)
    held = sum(one.untyped_storage().nbytes() for one in moments)
    assert held == 2 * weights
    assert stage.terms["optimizer_states"] == pytest.approx(held, rel=exact)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["gpt", "llama"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_peak_of_a_whole_step_is_what_is_predicted(
    name: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every storage of a real step on a CPU, counted, optimizer and all: within half a percent of the allocated peak.

    RMSNorm is a composite on a CPU, which keeps copies in fp32; it is the stand-in for a GPU's kernel here.
    """
    monkeypatch.setattr("ppadvisor.verify.layers.rms_norm", FusedRmsNorm.apply)
    subject = one_stage(name, 1024, hidden_size=256, ffn_hidden_size=1024, vocab_size=2048, recompute=recompute)
    expected = expected_of(subject)
    with met(launched()) as here:
        rank = Rank(expected.pipeline, None, here)
        rank.step()
        counted = Allocated(set())
        modules = [stage.submod for stage in rank.stages]
        for held in [one for module in modules for one in (*module.parameters(), *module.buffers())]:
            counted.add(held)
        for moments in rank.optimizer.state.values():
            for held in moments.values():
                counted.add(held)
        with counted:
            rank.step()
    assert counted.peak == pytest.approx(expected.ranks[0].allocated_bytes, rel=5e-3)


def _stepped(subject: Subject, here: Met) -> Rank:
    rank = Rank(expected_of(subject).pipeline, None, here)
    before = rank.stages[0].submod.table.weight.detach().clone()
    rank.step()
    moved = (rank.stages[0].submod.table.weight.detach().float() - before.float()).abs().max()
    assert 0 <= float(moved) <= 0.01 + LEARNING_RATE
    return rank


def test_a_model_without_its_own_precision_is_not_made_up() -> None:
    """fp16 and fp32 runs have such weights: what is measured is the rate of that type."""
    for precision, dtype in (("fp16", torch.float16), ("fp32", torch.float32), ("bf16", torch.bfloat16)):
        held = sizes("llama", Shard())
        held = replace(held, training=held.training.changed(precision=precision))
        made = {one.dtype for one in real_module(held, B, torch.device("cpu")).parameters()}
        assert made == {dtype}
