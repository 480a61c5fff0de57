"""`verify --memory` on the installed torch: rows run again, what torch keeps and why, the command itself."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.cli.main import main
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.recomputation import layer_saved
from ppadvisor.frameworks.torchtitan.repeats import repeats
from ppadvisor.verify.layers import Shard, layer, torch
from ppadvisor.verify.layers_kernels import Resized
from ppadvisor.verify.layers_stage import Recomputed
from ppadvisor.verify.memory import verify_memory
from ppadvisor.verify.memory_ledger import storage_bytes
from ppadvisor.verify.memory_rank import measure_rank, rank_of
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.cli.test_schema import check
from tests.live.saved import keeping
from tests.problems import model, plan, problem, table_of, training
from tests.verify.memory_rows import CASES, MemoryCase, record_of, records

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="compares with torch 2.13"),
]
SHORT = (
    "llama-3-8b gpipe",
    "llama-3-8b interleaved-zero-bubble",
    "llama-3-8b dualpipev",
    "llama-3-70b zb-v",
    "deepseek-v2-lite dualpipev",
    "mixtral-8x7b zb-v",
)
"""Rows that are run again; all of them by `python -m tests.live.recount_memory`, in some minutes."""
SMALL = "--model gpt2-124m --gpu a100-sxm-80gb --gpus 2 --seq-len 1024 --global-batch 8 --pp 2 --tp 1 --dp 1"
T, H, WAYS = 2 * 32, 64, 4


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if case.name.startswith(SHORT)])
def test_the_published_rows_are_this_torchs(case: MemoryCase) -> None:
    """To the byte, the action and the operation, on the first and the last rank; and nothing is left after the step."""
    pipeline = case.pipeline()
    ranks = {rank: measure_rank(pipeline, rank) for rank in (0, case.p - 1)}
    again = record_of(case, list(ranks.values()))["ranks"]
    assert again == [records()[case.name]["ranks"][rank] for rank in ranks]
    assert [one.left_bytes for one in ranks.values()] == [0, 0]


@pytest.mark.parametrize("schedule", ["zb-h1", "v-half", "hanayo"])
def test_orders_that_torch_does_not_have(schedule: str) -> None:
    """Run through torch's list-driven runtime, ranks hold what is predicted for it, with split backward and without."""
    v = 1 if schedule == "zb-h1" else 2
    of = problem(model("llama", num_layers=8, vocab_size=512), framework="generic", loss="torch", global_batch_size=8)
    layers = (8 // (4 * v),) * (4 * v)
    one = plan([2] * 4, schedule=schedule, virtual_stages=v, layers_per_chunk=layers)
    report = verify_memory(of, one)
    assert "runtime" in report.engine
    assert all(abs(row.saved_difference_fraction) < 0.02 for row in report.rows), report.rows


def test_dtensor_keeps_the_gathered_sequence() -> None:
    """torch's own tensor parallelism, as torchtitan sets it up: a linear behind a gather saves the whole sequence.

    Our stand-in for the collective makes the same of the sizes, so that our list may say T h, not T h / t.
    """
    tensor, parallel = torch.distributed.tensor, torch.distributed.tensor.parallel
    block = torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(H), "up": torch.nn.Linear(H, 256, bias=False)})
    styles = {
        "norm": parallel.SequenceParallel(),
        "up": parallel.ColwiseParallel(input_layouts=tensor.Shard(1)),
    }
    saved = []

    def pack(kept: Any) -> Any:
        saved.append(tuple((kept.to_local() if isinstance(kept, tensor.DTensor) else kept).shape))
        return kept

    with rank_of(0, WAYS):
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (WAYS,))
        parallel.parallelize_module(block, mesh, styles)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
            block["up"](block["norm"](torch.randn(2, 32 // WAYS, H, requires_grad=True)))
    assert (2, 32, H) in saved or (2 * 32, H) in saved
    part = torch.empty((2, 32 // WAYS, H), device="meta", requires_grad=True)
    assert Resized.apply(part, 32).shape == (2, 32, H)


@pytest.mark.parametrize("name", ["gpt", "llama", "moe"])
def test_a_layer_of_one_tensor_parallel_rank_keeps_what_torchtitan_is_said_to(name: str) -> None:
    """t = 2 with sequence parallelism: saved bytes of each kind of layer, to the byte; both ranks share experts."""
    spec, run = model(name), training(framework="torchtitan", sequence_length=512)
    of = problem(spec, framework="torchtitan", sequence_length=512)
    cut = {"tensor_parallel": 2, "expert_tensor_parallel": 2 if spec.moe else 1}
    inputs = PlanInputs.of(of, table_of([plan([12], **cut)]), every_stage=True)
    for index, kind in enumerate(inputs.kinds):
        module = layer(spec, run, kind, Shard(2, sequence=True))
        x = torch.empty((1, 256, spec.hidden_size), dtype=torch.bfloat16, device="meta", requires_grad=True)
        kept, output = keeping(module, partial(module, x))
        assert storage_bytes(kept.alive) == layer_saved(inputs)[0, index]
        assert output.shape == x.shape


@pytest.mark.parametrize(("name", "groups"), [("gpt", (8,)), ("llama", (9,)), ("moe", (9, 13)), ("mla-mtp", (12, 16))])
def test_a_split_backward_repeats_a_recomputed_layer_for_each_group_of_weights(
    name: str, groups: tuple[int, ...]
) -> None:
    """One forward for the input gradient, one more for each parameter group, as many as are priced for that layer."""
    spec, run = model(name), training(sequence_length=64)
    steps = pytest.importorskip("torch.distributed.pipelining._backward")
    found = set()
    for kind in spec.layer_kinds()[0]:
        once = layer(spec, run, kind)
        calls: list[int] = []
        once.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        module = Recomputed(once)
        x = torch.empty((1, 64, spec.hidden_size), dtype=torch.bfloat16, device="meta", requires_grad=True)
        output = module(x)
        assert len(calls) == 1
        _, made = steps.stage_backward_input([output], [torch.empty_like(output)], [x], iter(module.parameters()))
        assert len(calls) == 2
        steps.stage_backward_weight(iter(module.parameters()), made)
        assert len(calls) == 2 + len(made) == 2 + repeats(spec, run, kind).groups
        found.add(len(made))
    assert tuple(sorted(found)) == groups


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    """A saved plan agrees, exit code 0; the JSON has every rank and part; fewer micro-batches may be asked for."""
    path = tmp_path / "plan.json"
    asked = f"{SMALL} --framework torchtitan --schedule 1f1b --recompute none --micro-batch 1 --format json"
    assert main(["plan", *asked.split(), "--output", str(path)]) == 0
    result = cli("verify", str(path), "--memory", "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = result.document
    assert (document["kind"], document["agrees"], document["num_microbatches"]) == ("memory", True, 8)
    check(document, "verification")
    parts: dict[int, int] = {}
    for term in document["terms"]:
        parts[term["rank"]] = parts.get(term["rank"], 0) + term["measured_bytes"]
    assert parts == {row["rank"]: row["measured_bytes"] for row in document["rows"]}
    fewer = json.loads(cli("verify", str(path), "--memory", "--microbatches", "4", "--format", "json").stdout)
    assert (fewer["num_microbatches"], fewer["agrees"]) == (4, True)


def test_what_does_not_agree_ends_with_four(cli: Cli, tmp_path: Path) -> None:
    """generic does not count the receive buffers that torch's engine keeps: exit code 4, which rank, which term."""
    path = tmp_path / "plan.json"
    asked = f"{SMALL} --framework generic --schedule gpipe --recompute full --micro-batch 1 --format json"
    assert main(["plan", *asked.split(), "--output", str(path)]) == 0
    result = cli("verify", str(path), "--memory")
    assert result.exit_code == 4
    assert "DOES NOT AGREE" in result.stdout
    assert "receive_buffers" in result.stdout


def test_what_cannot_be_verified_ends_with_two(cli: Cli, tmp_path: Path) -> None:
    """A plan for Megatron has other layers: one line, exit code 2."""
    path = tmp_path / "plan.json"
    assert main(["plan", *f"{SMALL} --format json".split(), "--output", str(path)]) == 0
    result = cli("verify", str(path), "--memory")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "megatron has layers and a pipeline of its own" in result.stderr


def test_views_of_a_storage_count_once() -> None:
    """Two views of four bytes are four bytes."""
    x = torch.empty(4, dtype=torch.int8, device="meta")
    assert storage_bytes([x, x.view(2, 2)]) == 4
