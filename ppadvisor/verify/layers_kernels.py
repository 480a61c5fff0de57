"""The kernels of a layer: on torch's meta device those that a GPU would run, on a device the ones that it has.

On `meta` the same kernels are chosen as on a GPU where that matters for memory: norm statistics in fp32, dropout with a
one-byte mask, flash attention with its log-sum-exp.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ppadvisor.verify.torch_engine import torch_module

torch: Any = torch_module()
functional: Any = torch.nn.functional
attention_kernels: Any = torch_module("torch.nn.attention")

DROPOUT = 0.1


class FusedRmsNorm(torch.autograd.Function):  # type: ignore[misc] # torch may be missing, so it has no types here
    """Stands in for aten's _fused_rms_norm, a composite on `meta`: that saves its input and rstd in fp32, as here."""

    @staticmethod
    def forward(context: Any, x: Any, weight: Any) -> Any:
        rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
        context.save_for_backward(x, weight, rstd)
        return torch.empty_like(x)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        x, weight, _ = context.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def rms_norm(x: Any, weight: Any) -> Any:
    """RMSNorm over the last dimension, in one kernel."""
    return FusedRmsNorm.apply(x, weight) if x.is_meta else functional.rms_norm(x, weight.shape, weight, 1e-5)


def dropped(x: Any, on: bool) -> Any:
    """Dropout as a GPU runs it: a mask of one byte an element."""
    return torch.native_dropout(x, DROPOUT, True)[0] if on else x


def flash_attention(q: Any, k: Any, v: Any, dropout: float) -> Any:
    """Causal attention of (b, heads, s, width) in one kernel; k and v may have fewer heads.

    Flash attention wants equal widths, cuDNN's kernel does not. What has neither (fp32, an old GPU) takes the
    memory-efficient kernel.
    """
    equal = q.shape[-1] == v.shape[-1]
    if q.is_meta and equal:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, True)[0]
    if q.is_meta:
        return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)[0]
    grouped = q.shape[1] != k.shape[1]
    with _one_kernel(q.is_cuda, equal):
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=grouped)


def _one_kernel(on_gpu: bool, equal: bool) -> AbstractContextManager[None]:
    """On a GPU only kernels that keep no scores; what a CPU takes is its own business."""
    kind = attention_kernels.SDPBackend
    allowed = [kind.FLASH_ATTENTION if equal else kind.CUDNN_ATTENTION, kind.EFFICIENT_ATTENTION]
    return attention_kernels.sdpa_kernel(allowed) if on_gpu else nullcontext()


class Resized(torch.autograd.Function):  # type: ignore[misc]
    """What a collective does to sizes: the sequence (dimension 1) becomes `length` long, and its gradient as before."""

    @staticmethod
    def forward(context: Any, x: Any, length: int) -> Any:
        context.length = x.shape[1]
        return x.new_empty((x.shape[0], length, *x.shape[2:]))

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient.new_empty((gradient.shape[0], context.length, *gradient.shape[2:])), None
