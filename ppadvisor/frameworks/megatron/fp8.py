"""What Transformer Engine keeps of a layer under fp8: inputs of its linears in one byte an element.

Source: NVIDIA/TransformerEngine commit d0067d0d, pytorch/module/linear.py:388, :613-621, layernorm_linear.py:469-532:
the quantized input is saved, in the one layout that the weight gradient reads. Scales (1/32 of a byte in mxfp8) are
left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ppadvisor.frameworks.profile import Spread, Tensor
from ppadvisor.frameworks.tensors import ACTIVATION, ATTENTION_NORM, ATTENTION_OUTPUT, FEED_FORWARD_NORM
from ppadvisor.specs.model import LayerKind
from ppadvisor.specs.recomputation import CORE_ATTENTION

INPUTS_OF_LINEARS = (
    ATTENTION_NORM,
    "normed latents",
    ACTIVATION,
    "expert input",
    "expert activation",
    f"shared {ACTIVATION}",
)
TRANSPOSED = "attention output, transposed"


def quantized(tensors: Iterable[Tensor], kind: LayerKind, element: int) -> Iterator[Tensor]:
    """The tensors of a layer, those that linears read in fp8.

    In front of experts the router reads the norm's output in 16 bit. Attention keeps its own output for its backward;
    what the projection reads is a copy in fp8, transposed or not.
    """
    inputs = INPUTS_OF_LINEARS if kind.moe else (*INPUTS_OF_LINEARS, FEED_FORWARD_NORM)
    for tensor in tensors:
        if tensor.name in inputs:
            yield replace(tensor, bytes_per_token=tensor.bytes_per_token / element)
        elif tensor.name == ATTENTION_OUTPUT:
            yield replace(tensor, modules=CORE_ATTENTION)
            narrow = tensor.bytes_per_token / element
            yield Tensor("attention output in fp8", narrow, Spread.TENSOR, attention_share=1.0)
        elif tensor.name != TRANSPOSED:
            yield tensor
