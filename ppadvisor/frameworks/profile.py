"""What a framework declares: which schedules it runs, what it keeps in memory, which rules it enforces.

A framework is data and small functions; the formulas that use them are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from ppadvisor.specs.base import Struct
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.plan import PlanSpec, PlanTable
from ppadvisor.specs.recomputation import METHODS, MODULES, RecomputeMethod
from ppadvisor.specs.training import GradientPrecision, Loss, TrainingSpec

BoolArray = NDArray[np.bool_]

Split = tuple[int, ...]
"""Layers of each stage, in model order."""


class Spread(Enum):
    """How a tensor of one micro-batch is divided over the ranks of a stage.

    T is the tokens of the micro-batch on one context-parallel rank: s b / c.
    """

    WHOLE = "T on every rank"
    SEQUENCE = "T / t with sequence parallelism, else T"
    TENSOR = "T / t"
    SCORES = "T x s / t"
    EXPERT_TOKENS = "T k etp / t: what reaches the experts of a rank, full width"
    EXPERT_INNER = "T k / t: the same, width divided by etp"


class When(Enum):
    """A condition on the plan under which a tensor exists."""

    ALWAYS = "always"
    MANY_SEQUENCES = "b > 1"
    CONTEXT_PARALLEL = "c > 1"
    SEQUENCE_PARALLEL = "t > 1 with sequence parallelism"


@dataclass(frozen=True)
class Tensor:
    """One activation tensor of one layer: bytes per token (per token and key for SCORES)."""

    name: str
    bytes_per_token: float
    spread: Spread
    when: When = When.ALWAYS
    modules: tuple[str, ...] = ()
    """Selective recomputation of any of these drops it."""
    attention_share: float = 0.0
    """Of it, what belongs to attention; the rest is the feed-forward's, whose backward comes first. Of a gradient in
    work: 0 lives in the feed-forward's backward, 1 in attention's, 0.5 in both."""


@dataclass(frozen=True)
class Repeats:
    """What torch's checkpoint makes of a layer's weight gradients, which come one group of weights after the other.

    Every group repeats the whole forward, and of each repeat all stays whose reader is still to come.
    """

    groups: int
    left: tuple[Tensor, ...]
    """What no weight gradient reads: it stays of every repeat until the stage's last weight gradient."""
    worst: tuple[tuple[int, tuple[Tensor, ...]], ...]
    """The worst moments: how many repeats came before, and what of each is there beside `left`, being read later."""
    at_end: tuple[Tensor, ...]
    """The same for the last group, if something behind the layer holds on to all repeats until then."""


@dataclass(frozen=True)
class LossProfile:
    """Bytes per logit of a cross-entropy implementation (vocabulary divided by t)."""

    title: str
    forward_bytes: float
    """Alive at the worst moment of the loss's forward."""
    backward_bytes: float
    """Alive while the output layer's backward runs."""
    saved_bytes: float
    """Kept between forward and backward of one micro-batch."""
    kept_bytes: float = field(default=0.0, kw_only=True)
    """Logits that the trainer holds until it writes the next ones over them, at every moment."""
    traffic_forward_bytes: float
    """Read and written by the kernels of the loss's forward."""
    traffic_backward_bytes: float
    source: str


@dataclass(frozen=True)
class Rule:
    """A rule that the framework enforces at start-up or at the first step."""

    code: str
    violated: Callable[[ModelSpec, TrainingSpec, PlanTable], BoolArray]
    message: Callable[[ModelSpec, TrainingSpec, PlanSpec], str]
    of_run: Callable[[ModelSpec, TrainingSpec], str | None] | None = None
    """What is wrong whatever the plan, where the rule is about model and training run alone."""
    of_sizes: bool = False
    """It asks for sizes alone (`PlanTable.distinct_sizes`), so that a search asks once for each of them."""


def no_settings(_: ModelSpec, __: PlanSpec) -> dict[str, str]:
    """Of what is no trainer, and has no configuration."""
    return {}


class FrameworkProfile(Struct):
    """All that the engine and the search need to know of a framework."""

    id: str
    title: str
    source: str
    schedules: tuple[str, ...]
    stack: str
    """Id of the software stack preset that people run it with."""
    optimizer_sharding: tuple[int, ...]
    """ZeRO stages it offers."""
    default_optimizer_sharding: int
    vocab_size_multiple: int
    """The vocabulary is padded to a multiple of this times t (1: only to a multiple of t)."""
    losses: dict[Loss, LossProfile]
    default_loss: Loss
    saved_tensors: Callable[[ModelSpec, TrainingSpec, LayerKind], tuple[Tensor, ...]]
    """What one layer keeps for its backward, recomputation `none`."""
    waiting_tensors: Callable[[ModelSpec, TrainingSpec, LayerKind], tuple[Tensor, ...]]
    """What one layer holds between the gradient of its input and that of its weights, where a schedule splits them."""
    backward_work: Callable[[ModelSpec, TrainingSpec, LayerKind], tuple[Tensor, ...]]
    """What is alive besides, at the worst moment of one layer's backward."""
    rules: tuple[Rule, ...]
    dummy_weight_gradients: bool
    """Transformer Engine keeps a 16-bit buffer per distinct weight shape for fused gradient accumulation."""
    frees_sent_outputs: bool
    """The stage output is freed after it was sent (else it lives until its backward)."""
    fp8_weights: bool = False
    """It can keep the weights of linears in fp8 alone."""
    frees_in_input_gradient: bool = False
    """A split backward's first part frees a layer's tensors as it goes, as autograd does (torch's own frees none)."""
    groups_made_twice: bool = False
    """Tensor-parallel and data-parallel groups exist a second time, made by another library; so do their buffers."""
    keeps_received_inputs: bool = False
    """What was received stays beside the copy that the first layer keeps (with t = 1; else it is put together anew)."""
    partitions_boundaries: bool = False
    """A rank keeps 1/t of what is sent and received between stages."""
    reduction_bucket_elements: float = 0.0
    """Gradients are flattened into buckets of so many elements for their reduction, into one block for the step."""
    default_gradient_precision: Literal["fp32", "weights"] = "fp32"
    """Precision of the accumulated gradient where the user does not say."""
    gathers_logits: bool = False
    """The output layer's result is gathered over the tensor-parallel ranks: V logits a token on each, not V / t."""
    keeps_autograd_gradients: bool = False
    """Autograd's 16-bit gradients stay allocated after they were added to fp32 ones (DeepSpeed's BF16_Optimizer)."""
    frees_main_gradients: bool = False
    """The fp32 copy of 16-bit gradients lives from the optimizer's step to the next forward only (else for good)."""
    accumulates_whole_gradients: bool = False
    """From ZeRO-2 on gradients are reduced once a step, so that with several micro-batches they are whole till then."""
    reduces_at_the_end: bool = False
    """Gradients are all-reduced in fp32 after the last backward, whatever ZeRO divides, and nothing of it hides."""
    eager_temporaries: bool = False
    """Many short-lived tensors of unlike sizes: what the allocator loses is a share of what comes and goes."""
    recompute_modules: tuple[str, ...] = MODULES
    """What selective recomputation can drop."""
    recompute_methods: tuple[RecomputeMethod, ...] = METHODS
    """How full recomputation can be limited to some layers or groups of them."""
    split_settings: Callable[[ModelSpec, PlanSpec], dict[str, str]] = no_settings
    """Options that build a plan's stages, as its configuration names them; a flag without a value has an empty one."""
    splits: Callable[[ModelSpec, int, int], tuple[Split, ...]] | None = None
    """The splits that it can build for p and v; None: any."""
    last_product_work: Callable[[ModelSpec, TrainingSpec, LayerKind], tuple[Tensor, ...]] | None = None
    """What is alive beside the gradient of the feed-forward's last matrix, a tensor of its own till it is added to the
    accumulated one; None: the product adds to that itself (fused gradient accumulation)."""
    keeps_gathered_inputs: bool = False
    """Under sequence parallelism a linear keeps its whole input, gathered, on every rank (torch's DTensor)."""
    freed_tail: Callable[[ModelSpec, TrainingSpec, LayerKind], tuple[Tensor, ...]] | None = None
    """Of what the last layer of a stage saved, what a split backward frees in its first part, if it frees no more."""
    holds_logits: tuple[str, ...] = ()
    """Schedules under which the last logits stay until the next ones are there, in 16 bit."""
    keeps_all_receive_buffers: bool = False
    """A receive buffer for each of the m micro-batches and each neighbour, kept for good (torch's engine)."""
    keeps_input_gradients: bool = False
    """What the first part of a split backward hands on stays to the end of the step (torch's engine)."""
    input_step_work: Callable[[ModelSpec, TrainingSpec, LayerKind], tuple[tuple[Tensor, ...], ...]] | None = None
    """What is alive at the worst moments of the first part of a layer's split backward, if that frees nothing: with
    what it has put aside by then."""
    repeats: Callable[[ModelSpec, TrainingSpec, LayerKind], Repeats] | None = None
    """What full recomputation costs the second part of a split backward; None: it is repeated once, in the first."""
    whole_backward_on_first: bool = False
    """On the model's first stage the first part of a split backward does nothing, the second all (torch's engine)."""

    def refusal(self, model: ModelSpec, training: TrainingSpec) -> str | None:
        """Why it cannot train this model in this way, whatever the plan; None where it can."""
        reasons = (rule.of_run(model, training) for rule in self.rules if rule.of_run)
        return next((reason for reason in reasons if reason), None)

    def gradient_precision(self, training: TrainingSpec) -> GradientPrecision:
        """Precision of the accumulated gradient: as given, else the framework's."""
        if training.gradient_precision:
            return training.gradient_precision
        of_weights = self.default_gradient_precision == "weights" and training.precision in ("bf16", "fp16")
        return cast(GradientPrecision, training.precision) if of_weights else "fp32"

    def loss(self, training: TrainingSpec) -> LossProfile:
        return self.losses[training.loss or self.default_loss]

    def padded_vocab_size(self, vocab_size: int, tensor_parallel: NDArray[np.int64]) -> NDArray[np.int64]:
        """The vocabulary as stored: the next multiple of `vocab_size_multiple` x t."""
        unit = self.vocab_size_multiple * tensor_parallel
        return -(-vocab_size // unit) * unit
