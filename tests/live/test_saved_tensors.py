"""Bytes that the installed torch keeps of real layers against our lists: equal. Skipped where torch is missing.

The layers are those of ppadvisor/verify/layers.py, on torch's meta device: everything runs but the arithmetic, so that
a layer of a real model's size takes milliseconds. The same counts stand in tests/published for machines without torch.
"""

from __future__ import annotations

import pytest

from ppadvisor.engine.recomputation import layer_saved
from ppadvisor.specs.recomputation import FULL
from ppadvisor.verify.layers import Norm
from ppadvisor.verify.memory_ledger import storage_bytes
from tests.frameworks.counted import DOCUMENT, LayerCase, every_layer
from tests.live.saved import SplitBackward, keeping, saved, stack, torch
from tests.live.working import backward_work

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="compares with torch 2.13"),
]
LAYERS = 3


@every_layer
def test_a_layer_keeps_what_torch_saves(case: LayerCase) -> None:
    """Of every kind of layer, t = 1 and 2, at two sizes: our list in bytes is what autograd holds after the forward."""
    kept, output = saved(case)
    counted = storage_bytes(kept.alive)
    assert counted == case.bytes_of(case.tensors())
    # and the published figures are still those of torch, tensor by tensor
    assert (counted, kept.listed()) == (case.counted["saved_bytes"], case.counted["tensors"])
    del output


@every_layer
def test_a_split_backward_holds_what_torch_holds(case: LayerCase) -> None:
    """torch's two backward steps: after the first gradients for the weights come on top, after the last all is gone.

    Between them all that was saved stays, but for what the end of the last layer alone kept.
    """
    split, alone = SplitBackward(case, LAYERS), SplitBackward(case, 1)
    before = storage_bytes(split.kept.alive)
    assert before == LAYERS * case.counted["saved_bytes"]
    split.input_step()
    alone.input_step()
    waiting = case.bytes_of(case.tensors("waiting_tensors")) - case.bytes_of(case.tensors())
    assert split.held() == LAYERS * waiting == LAYERS * case.counted["waiting_bytes"]
    freed = before - storage_bytes(split.kept.alive)
    assert freed == case.counted["saved_bytes"] - storage_bytes(alone.kept.alive)
    if not (case.model.moe or case.problem().training.dropout):
        assert freed == 0
    split.weight_step()
    assert storage_bytes(split.kept.alive) == 0


@every_layer
def test_the_published_working_sets_are_torchs(case: LayerCase) -> None:
    """What the backward of LAYERS layers adds to what is alive before it is as large as the file says.

    How our lists compare with that is tested without torch, tests/frameworks/test_saved_tensors.py.
    """
    assert backward_work(case, LAYERS) == case.counted["work_bytes"]


@every_layer
def test_full_recomputation_keeps_the_input_alone(case: LayerCase) -> None:
    """torch's checkpoint around a layer saves its input and nothing else."""
    module, x = stack(case)
    checkpoint = torch.utils.checkpoint.checkpoint
    kept, output = keeping(module, lambda: checkpoint(module, x, use_reentrant=False, preserve_rng_state=False))
    assert storage_bytes(kept.alive) == layer_saved(case.inputs(), FULL).item()
    del output


@every_layer
def test_a_tensor_more_is_noticed(case: LayerCase) -> None:
    """A layer that keeps one tensor more, or whose list has one less, does not pass: the comparison can fail."""
    module, x = stack(case)
    kept, output = keeping(module, lambda: torch.sigmoid(module(x)))
    ours = case.tensors()
    assert storage_bytes(kept.alive) - case.bytes_of(ours) == output.untyped_storage().nbytes()
    assert all(case.bytes_of(ours[:i] + ours[i + 1 :]) < case.counted["saved_bytes"] for i in range(len(ours)))


def test_the_norm_that_stands_in_for_torchs() -> None:
    """Our RMSNorm saves what torch's fused kernel hands to its backward: input, weight, and rstd in fp32, one a row.

    With autograd `meta` takes that norm apart, a GPU does not.
    """
    x = torch.empty(2, 3, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    norm = Norm("rmsnorm", 64).to("meta", torch.bfloat16)
    with torch.no_grad():
        _, rstd = torch.ops.aten._fused_rms_norm(x, (64,), norm.weight, 1e-5)
    kept, output = keeping(norm, lambda: norm(x))
    assert kept.listed() == [
        "[2, 3, 64] bfloat16: 768",
        f"{list(rstd.shape)} float32: {rstd.untyped_storage().nbytes()}",
    ]
    names = [argument.name for argument in torch.ops.aten._fused_rms_norm_backward.default._schema.arguments]
    assert names[:5] == ["grad_out", "input", "normalized_shape", "rstd", "weight"]
    del output


def test_the_figures_are_of_a_torch_like_this() -> None:
    """The file says which torch was counted."""
    assert DOCUMENT["torch"].startswith("2.13.")
