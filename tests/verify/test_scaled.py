"""What `verify --layers` runs of a plan, and what is predicted of that run, without torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.errors import InputError
from ppadvisor.verify.run_predicted import expected_of
from ppadvisor.verify.scaled import scaled, subject_of
from tests.problems import model, plan, problem


def test_a_share_of_the_layers_keeps_their_kinds() -> None:
    """Half of 2 x 6 layers, the first 3 dense: each stage keeps its first three, so 3 dense, 3 with experts; all alike
    otherwise.
    """
    of, asked = problem(model("moe"), framework="torchtitan"), plan([6, 6])
    fewer, run = scaled(of, asked, 0.5)
    assert (run.layers_per_stage, run.layers_per_chunk) == ((3, 3), (3, 3))
    kinds, of_layer = fewer.model.layer_kinds()
    assert [kinds[index].moe for index in of_layer] == [False] * 3 + [True] * 3
    assert fewer.model.moe is not None
    assert (fewer.model.moe.first_dense_layers, fewer.model.moe.moe_layers) == (3, None)
    unlike = {field for field in type(of.model).names() if getattr(of.model, field) != getattr(fewer.model, field)}
    assert unlike == {"name", "num_layers"}


def test_experts_that_no_longer_begin_at_a_layer_are_listed() -> None:
    """Of 2 + 10 layers, the first 3 dense, a half keeps layers 0 and 2-6: from the third on, experts."""
    fewer, _ = scaled(problem(model("moe"), framework="torchtitan"), plan([2, 10]), 0.5)
    assert [fewer.model.is_moe_layer(layer) for layer in range(6)] == [False, False, True, True, True, True]


@pytest.mark.parametrize(("share", "layers"), [(0.5, (3, 3)), (0.51, (4, 4)), (1 / 3, (2, 2)), (0.01, (1, 1))])
def test_the_share_is_rounded_up(share: float, layers: tuple[int, ...]) -> None:
    """Of 6 layers: 3, 3.06, 2 and 0.06, rounded up, but a third of six is two."""
    _, run = scaled(problem(model("llama"), framework="torchtitan"), plan([6, 6]), share)
    assert run.layers_per_stage == layers


def test_chunks_and_recomputed_layers_are_scaled_alike() -> None:
    """Two chunks a rank of 3 layers, of which the first two are recomputed: half are 2 and 1."""
    asked = plan(
        [6, 6],
        schedule="interleaved-1f1b",
        virtual_stages=2,
        layers_per_chunk=[3] * 4,
        recompute="full",
        recompute_method="block",
        recompute_num_layers=2,
    )
    _, run = scaled(problem(model("llama"), framework="torchtitan"), asked, 0.5)
    assert (run.layers_per_chunk, run.layers_per_stage, run.recompute_num_layers) == ((2,) * 4, (4, 4), 1)


def test_a_share_that_leaves_all_layers_has_no_effect() -> None:
    """One layer a stage cannot be halved: an error, not a silent run of all."""
    of = problem(model("llama").changed(num_layers=2), framework="torchtitan")
    with pytest.raises(InputError, match=r"--scale 0.5 leaves all layers"):
        scaled(of, plan([1, 1]), 0.5)


def test_what_is_run_is_one_pipeline_of_plain_torch() -> None:
    """d = 4 with ZeRO 2 becomes d = 1 without, the batch one rank's; of the model the embedding alone is untied."""
    of = problem(model("gpt"), framework="torchtitan", num_gpus=8, global_batch_size=32)
    asked = plan([6, 6], data_parallel=4, num_microbatches=8, optimizer_sharding=2)
    subject = subject_of(of, asked, ranks_of_node=2)
    training = subject.problem.training
    assert (subject.plan.data_parallel, subject.plan.optimizer_sharding, training.global_batch_size) == (1, 0, 8)
    assert (training.optimizer, training.gradient_precision) == ("adam-pure-bf16", "bf16")
    assert subject.problem.model == of.model.changed(tied_embeddings=False)
    assert (subject.problem.cluster.num_gpus, subject.problem.cluster.gpus_per_node) == (2, 2)
    assert not subject.sharded


def test_the_prediction_is_that_of_explain() -> None:
    """Step time and every peak are those of `estimate_plan` for the scaled plan, to the byte."""
    of = problem(model("llama"), framework="torchtitan", num_gpus=2, global_batch_size=8)
    subject = subject_of(of, plan([6, 6], num_microbatches=8), scale=0.5, ranks_of_node=2)
    expected, estimate = expected_of(subject), estimate_plan(subject.problem, subject.plan, margin=0.9)
    assert expected.step_s == pytest.approx(estimate.time.step_time_s, rel=1e-12)
    allocated = [stage.allocated_bytes for stage in estimate.memory.stages]
    assert [one.allocated_bytes for one in expected.ranks] == pytest.approx(allocated, abs=1)


def test_static_memory_is_eight_bytes_a_parameter() -> None:
    """16-bit weight and gradient and two 16-bit moments: 2 + 2 + 2 + 2, on each rank whole."""
    of = problem(model("llama"), framework="torchtitan", num_gpus=2, global_batch_size=8)
    subject = subject_of(of, plan([6, 6], num_microbatches=8), ranks_of_node=2)
    for stage in estimate_plan(subject.problem, subject.plan, margin=0.9).memory.stages:
        static = sum(stage.terms[name] for name in ("weights", "gradients", "optimizer_states"))
        assert static == 8 * stage.parameters


def test_messages_that_are_not_run_are_not_predicted() -> None:
    """Of t = 2 only the sizes are run: slower links for it change nothing, though they change the plan's own step."""
    of = problem(model("llama"), framework="torchtitan", num_gpus=4, global_batch_size=8)
    asked = plan([6, 6], tensor_parallel=2, num_microbatches=8)
    slower = of.cluster.changed(intra_node_bandwidth_bytes_per_s=1e9)
    both = [of, replace(of, cluster=slower)]
    subjects = [subject_of(one, asked, ranks_of_node=2) for one in both]
    assert all(subject.sharded for subject in subjects)
    forward = [expected_of(subject).ranks[0].forward_s for subject in subjects]
    assert forward[0] == forward[1]
    steps = [estimate_plan(one, asked, margin=0.9).time.step_time_s for one in both]
    assert steps[1] > 1.1 * steps[0]


def test_nodes_are_those_of_the_run() -> None:
    """Two ranks on two machines hand over between nodes, whatever the plan's nodes are."""
    of = problem(model("llama"), framework="torchtitan", num_gpus=2, global_batch_size=8)
    near, far = (expected_of(subject_of(of, plan([6, 6], num_microbatches=8), ranks_of_node=n)) for n in (2, 1))
    assert far.pipeline_s > near.pipeline_s
