"""The transformer: its sizes, in the field's own words, with unlike layers kept unlike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from ppadvisor.specs.base import Spec

if TYPE_CHECKING:
    from ppadvisor.specs.kinds import Field, Indices, NonNegativeInt, PositiveInt, Shown

Normalization = Literal["layernorm", "rmsnorm"]
PositionalEmbedding = Literal["learned", "rope", "alibi", "none"]
QkNorm = Literal["none", "head", "per_head", "full"]

MAX_LAYERS = 10_000
"""Every layer is looked at one by one; more than this is a slip of the keyboard."""


@dataclass(frozen=True)
class LayerKind:
    """What makes layers unlike each other in cost: routed experts or not, and the attention window."""

    moe: bool
    window: int | None

    @property
    def title(self) -> str:
        window = f", window {self.window}" if self.window else ""
        return ("MoE" if self.moe else "dense") + window


class MoeSpec(Spec):
    """Routed experts. Layers `first_dense_layers`.. are MoE every `layer_period`-th, unless `moe_layers` lists them."""

    num_experts: PositiveInt
    experts_per_token: PositiveInt
    moe_ffn_hidden_size: PositiveInt
    num_shared_experts: NonNegativeInt = 0
    shared_expert_ffn_hidden_size: PositiveInt | None = None
    """Width of ONE shared expert."""
    shared_expert_gate: bool = False
    """A hidden -> 1 gate on the shared experts (Qwen2-MoE)."""
    first_dense_layers: NonNegativeInt = 0
    layer_period: PositiveInt = 1
    """Layer i >= first_dense_layers is MoE iff (i - layer_offset) mod layer_period = 0."""
    layer_offset: NonNegativeInt = 0
    moe_layers: Indices | None = None
    """Explicit indices of the MoE layers; then the three fields above stay at their defaults."""
    router_bias: bool = False
    """A trained bias on the router logits (GPT-OSS)."""
    score_correction_bias: bool = False
    """A per-expert bias outside the gradient (DeepSeek-V3, GLM-4-MoE: a buffer, not a parameter)."""
    expert_bias: bool = False

    @property
    def shared_experts_ffn_hidden_size(self) -> int:
        """Width of all shared experts together, which act as one; 0 where there is none."""
        return self.num_shared_experts * (self.shared_expert_ffn_hidden_size or 0)

    def check(self) -> None:
        """ValueError where fields contradict each other."""
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token must be at most num_experts: got {self.experts_per_token} of {self.num_experts}"
            )
        if self.num_shared_experts and self.shared_expert_ffn_hidden_size is None:
            raise ValueError("num_shared_experts needs shared_expert_ffn_hidden_size (width of one shared expert)")


class MlaSpec(Spec):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt


class ModelSpec(Spec):
    """A decoder-only transformer of `num_layers` layers."""

    name: Shown
    source: str = "given by the user"
    num_layers: Annotated[PositiveInt, Field(le=MAX_LAYERS)]
    hidden_size: PositiveInt
    ffn_hidden_size: PositiveInt
    """Width of the dense feed-forward network; unused where every layer is MoE."""
    num_attention_heads: PositiveInt
    num_query_groups: PositiveInt
    """Key/value heads (= num_attention_heads without grouping)."""
    head_dim: PositiveInt
    vocab_size: PositiveInt
    gated_mlp: bool
    tied_embeddings: bool
    normalization: Normalization
    positional_embedding: PositionalEmbedding
    max_position_embeddings: PositiveInt | None = None
    """Rows of the learned position table (offsets of the family included); only with learned positions."""
    norm_bias: bool | None = None
    """Whether LayerNorms have a bias (default: LayerNorm yes, RMSNorm no)."""
    norms_per_layer: Annotated[PositiveInt, Field(le=8)] = 2
    """2 usually; 1 for parallel blocks with one norm; 4 with post-norms (Gemma 2/3, GLM-4)."""
    norm_weight: bool = True
    """False for norms without parameters (OLMo 1)."""
    final_norm: bool = True
    embedding_norm: bool = False
    """A norm right after the embedding (BLOOM)."""
    parallel_block: bool = False
    """Attention and feed-forward read the same normed input (GPT-J, NeoX, Falcon, Cohere)."""
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    qk_norm: QkNorm = "none"
    """`head`: one norm of width head_dim shared by the heads (Qwen3); `per_head`: heads x head_dim (Cohere);
    `full`: over the whole projected width (OLMo 2)."""
    attention_sinks: bool = False
    """One trained sink logit per attention head (GPT-OSS)."""
    sliding_window: PositiveInt | None = None
    """Keys a windowed layer attends to."""
    sliding_window_period: PositiveInt | None = None
    """Layer i attends to everything iff (i + 1) mod period = 0, others are windowed; None: every layer is windowed."""
    full_attention_layers: Indices | None = None
    """Explicit indices of the layers without a window, where they follow no period; then the period stays None."""
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    mtp_num_layers: Annotated[NonNegativeInt, Field(le=MAX_LAYERS)] = 0
    """Multi-token-prediction layers after the last layer (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""
    declared_parameters: PositiveInt | None = None
    """The published count of the main model's weights, checked by a test against our own; never used in a computation.

    Without MTP layers (papers and model cards name the main model), and with the routers' score correction biases,
    which the released files hold and `count_parameters` leaves out as a buffer.
    """

    @property
    def has_norm_bias(self) -> bool:
        return self.normalization == "layernorm" if self.norm_bias is None else self.norm_bias

    def is_moe_layer(self, index: int) -> bool:
        """Whether layer `index` (from 0) has routed experts."""
        if self.moe is None:
            return False
        if self.moe.moe_layers is not None:
            return index in self.moe.moe_layers
        if index < self.moe.first_dense_layers:
            return False
        return (index - self.moe.layer_offset) % self.moe.layer_period == 0

    def attention_window(self, index: int) -> int | None:
        """Keys that layer `index` attends to at most, or None for the whole sequence."""
        if self.sliding_window is None:
            return None
        if self.full_attention_layers is not None and index in self.full_attention_layers:
            return None
        if self.sliding_window_period is not None and (index + 1) % self.sliding_window_period == 0:
            return None
        return self.sliding_window

    def layer_kind(self, index: int) -> LayerKind:
        """The kind of layer `index` (from 0)."""
        return LayerKind(moe=self.is_moe_layer(index), window=self.attention_window(index))

    def layer_kinds(self) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
        """The distinct kinds in order of appearance, and for each layer the index of its kind."""
        return _layer_kinds(self)

    def check(self) -> None:
        """ValueError where fields contradict each other."""
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                "num_attention_heads must be a multiple of num_query_groups: "
                f"got {self.num_attention_heads} heads and {self.num_query_groups} groups"
            )
        if (self.positional_embedding == "learned") != (self.max_position_embeddings is not None):
            raise ValueError(
                "max_position_embeddings (rows of the position table) belongs to positional_embedding = 'learned', "
                f"and only there: got {self.positional_embedding!r} and {self.max_position_embeddings}"
            )
        if self.moe and self.moe.moe_layers is not None and any(i >= self.num_layers for i in self.moe.moe_layers):
            raise ValueError(f"moe.moe_layers holds an index beyond num_layers = {self.num_layers}")
        self._check_windows()

    def _check_windows(self) -> None:
        if self.full_attention_layers is None:
            return
        if self.sliding_window is None or self.sliding_window_period is not None:
            raise ValueError("full_attention_layers needs sliding_window, and no sliding_window_period beside it")
        if any(i >= self.num_layers for i in self.full_attention_layers):
            raise ValueError(f"full_attention_layers holds an index beyond num_layers = {self.num_layers}")


@lru_cache(maxsize=64)
def _layer_kinds(model: ModelSpec) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
    """Asked hundreds of times in a search, of one model."""
    of_layer = [model.layer_kind(i) for i in range(model.num_layers)]
    kinds = tuple(dict.fromkeys(of_layer))
    return kinds, tuple(kinds.index(kind) for kind in of_layer)
