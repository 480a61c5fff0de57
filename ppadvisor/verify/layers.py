"""Transformer layers written in plain torch: on its meta device shapes and autograd without numbers, elsewhere real.

Nothing here knows what ppadvisor counts; only sizes come from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ppadvisor.specs.model import LayerKind, MlaSpec, ModelSpec, MoeSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.verify.layers_kernels import DROPOUT, Resized, dropped, flash_attention, rms_norm
from ppadvisor.verify.torch_engine import torch_module

torch: Any = torch_module()
functional: Any = torch.nn.functional


@dataclass(frozen=True)
class Shard:
    """One rank's part of a layer; messages between ranks change sizes and move nothing."""

    tensor: int = 1
    """t: ranks that share the heads and the feed-forward."""
    sequence: bool = False
    """Norms and residuals are divided over them too."""
    experts: int = 1
    """e: ranks that share the routed experts."""
    expert_tensor: int | None = None
    """etp: ranks that share each expert; None: t."""

    @property
    def sequence_ways(self) -> int:
        return self.tensor if self.sequence else 1


class Norm(torch.nn.Module):  # type: ignore[misc]
    """LayerNorm or RMSNorm over the last dimension."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        self.weight = torch.nn.Parameter(torch.empty(width))
        self.bias = torch.nn.Parameter(torch.empty(width)) if kind == "layernorm" else None

    def forward(self, x: Any) -> Any:
        if self.kind == "layernorm":
            return functional.layer_norm(x, (self.width,), self.weight, self.bias)
        return rms_norm(x, self.weight)


def linear(inputs: int, outputs: int, bias: bool = False) -> Any:
    """A linear; without a bias unless asked for."""
    return torch.nn.Linear(inputs, outputs, bias=bias)


def rotated(x: Any, angles: Any) -> Any:
    """Rotary embedding in fp32: x times a constant, in pairs."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(-2).to(x.dtype)


def gathered(x: Any, ways: int) -> Any:
    """The whole sequence on every rank, out of each one's part; DTensor hands it to the linears, which keep it."""
    return Resized.apply(x, x.shape[1] * ways) if ways > 1 else x


def scattered(x: Any, ways: int) -> Any:
    """Each rank's part of the sequence, summed over the ranks."""
    return Resized.apply(x, x.shape[1] // ways) if ways > 1 else x


class Core(torch.nn.Module):  # type: ignore[misc]
    """Attention itself, on (b, s, heads, width) and back: one fused kernel, or scores written out."""

    def __init__(self, training: TrainingSpec, scores: int) -> None:
        super().__init__()
        self.flash, self.dropout = training.attention == "flash", training.dropout
        scores = 0 if self.flash else scores
        self.register_buffer("future", torch.ones(scores, scores, dtype=torch.bool).triu(1))

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if self.flash:
            out = flash_attention(q, k, v, DROPOUT if self.dropout else 0.0)
        else:
            groups = q.shape[1] // k.shape[1]
            if groups > 1:
                k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
            scores = (torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5).masked_fill(self.future, -1e4)
            out = torch.matmul(dropped(scores.softmax(-1), self.dropout), v)
        return out.transpose(1, 2).flatten(2)


class Attention(torch.nn.Module):  # type: ignore[misc]
    """Multi-head or grouped attention, `t` of the heads' ranks: separate projections, norms of q and k, rotation."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, t: int) -> None:
        super().__init__()
        h, self.head = model.hidden_size, model.head_dim
        q, kv = model.num_attention_heads * self.head // t, model.num_query_groups * self.head // t
        self.q, self.k, self.v = linear(h, q, model.qkv_bias), linear(h, kv, model.qkv_bias), linear(h, kv)
        self.out = linear(q, h, model.attention_output_bias)
        self.core = Core(training, training.sequence_length)
        self.per_head = model.qk_norm in ("head", "per_head")
        widths = () if model.qk_norm == "none" else (self.head, self.head) if self.per_head else (q, kv)
        self.norms = torch.nn.ModuleList(Norm(model.normalization, width) for width in widths)
        self.turns = model.positional_embedding == "rope"
        self.register_buffer("angles", torch.empty(training.sequence_length, 1, self.head // 2, dtype=torch.cfloat))

    def forward(self, x: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.norms and not self.per_head:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k, v = (x.unflatten(-1, (-1, self.head)) for x in (q, k, v))
        if self.norms and self.per_head:
            q, k = self.norms[0](q), self.norms[1](k)
        if self.turns:
            q, k = rotated(q, self.angles), rotated(k, self.angles)
        return self.out(self.core(q, k, v))


class LatentAttention(torch.nn.Module):  # type: ignore[misc]
    """DeepSeek-V2's attention (arXiv 2405.04434, section 2.1): latents, their norms, one rotated key for all heads."""

    def __init__(self, model: ModelSpec, mla: MlaSpec, training: TrainingSpec, t: int) -> None:
        super().__init__()
        h, heads = model.hidden_size, model.num_attention_heads // t
        self.nope, self.rope, self.v = mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim
        self.heads, self.rank = heads, mla.kv_lora_rank
        q = heads * (self.nope + self.rope)
        self.q_low = mla.q_lora_rank is not None
        if mla.q_lora_rank:
            self.q_down, self.q_norm = linear(h, mla.q_lora_rank), Norm(model.normalization, mla.q_lora_rank)
        self.q_up = linear(mla.q_lora_rank or h, q)
        self.kv_down, self.kv_norm = linear(h, self.rank + self.rope), Norm(model.normalization, self.rank)
        self.kv_up = linear(self.rank, heads * (self.nope + self.v))
        self.out = linear(heads * self.v, h)
        self.core = Core(training, training.sequence_length)
        self.register_buffer("angles", torch.empty(training.sequence_length, 1, self.rope // 2, dtype=torch.cfloat))

    def forward(self, x: Any) -> Any:
        q = self.q_up(self.q_norm(self.q_down(x)) if self.q_low else x).unflatten(-1, (self.heads, -1))
        fixed, turning = q.split([self.nope, self.rope], -1)
        q = torch.cat([fixed, rotated(turning, self.angles)], -1)
        latent, key = self.kv_down(x).split([self.rank, self.rope], -1)
        key = rotated(key.unsqueeze(2), self.angles).expand(-1, -1, self.heads, -1)
        fixed, v = self.kv_up(self.kv_norm(latent)).unflatten(-1, (self.heads, -1)).split([self.nope, self.v], -1)
        return self.out(self.core(q, torch.cat([fixed, key], -1), v))


class FeedForward(torch.nn.Module):  # type: ignore[misc]
    """Two linears around GELU, or three around a gate with SiLU, each operation on its own."""

    def __init__(self, h: int, width: int, gated: bool) -> None:
        super().__init__()
        self.up, self.down = linear(h, width), linear(width, h)
        self.gate = linear(h, width) if gated else None

    def forward(self, x: Any) -> Any:
        if self.gate is None:
            return self.down(functional.gelu(self.up(x)))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(torch.nn.Module):  # type: ignore[misc]
    """Softmax router in fp32, the k best renormalized, tokens sorted by expert, grouped products, weighted sum.

    A rank of e has 1/e of the experts and, balanced, as many rows as without; one of t that does not share each expert
    takes its part of the rows.
    """

    def __init__(self, model: ModelSpec, moe: MoeSpec, shard: Shard) -> None:
        super().__init__()
        t = shard.tensor
        expert_tensor = shard.expert_tensor or t
        h, width, count = model.hidden_size, moe.moe_ffn_hidden_size // expert_tensor, moe.num_experts // shard.experts
        self.k, self.gated, self.row_ways = moe.experts_per_token, model.gated_mlp, t // expert_tensor
        self.router = linear(h, moe.num_experts)
        self.up, self.gate = (torch.nn.Parameter(torch.empty(count, h, width)) for _ in range(2))
        self.down = torch.nn.Parameter(torch.empty(count, width, h))
        shared = moe.shared_experts_ffn_hidden_size // t
        self.shared = FeedForward(h, shared, model.gated_mlp) if shared else None
        self.shared_gate = linear(h, 1) if moe.shared_expert_gate else None
        # where each expert's rows end: a matter of numbers, which are absent here
        self.register_buffer("ends", torch.empty(count, dtype=torch.int32))

    def forward(self, x: Any) -> Any:
        tokens = x.flatten(0, 1)
        chances, chosen = self.router(tokens).float().softmax(-1).topk(self.k, -1)
        weights = (chances / chances.sum(-1, keepdim=True)).to(x.dtype).flatten()
        order = chosen.flatten().argsort(stable=True)
        if self.row_ways > 1:
            order = order[: len(order) // self.row_ways].clone()
        rows = tokens[order // self.k]
        inner = torch._grouped_mm(rows, self.up, offs=self.ends)
        if self.gated:
            inner = functional.silu(torch._grouped_mm(rows, self.gate, offs=self.ends)) * inner
        else:
            inner = functional.gelu(inner)
        done = torch._grouped_mm(inner, self.down, offs=self.ends) * weights[order].unsqueeze(-1)
        back = done.new_zeros((len(weights), done.shape[1]))
        back[order] = done
        out = back.unflatten(0, (-1, self.k)).sum(1)
        if self.shared is not None:
            shared = self.shared(tokens)
            out = out + (shared if self.shared_gate is None else shared * self.shared_gate(tokens).sigmoid())
        return out.view_as(x)


class Layer(torch.nn.Module):  # type: ignore[misc]
    """One transformer layer of a model, or one rank's part of it, without messages."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, kind: LayerKind, shard: Shard) -> None:
        super().__init__()
        h, self.dropout, self.parallel = model.hidden_size, training.dropout, model.parallel_block
        t, self.ways = shard.tensor, shard.sequence_ways
        if model.mla:
            self.attention = LatentAttention(model, model.mla, training, t)
        else:
            self.attention = Attention(model, training, t)
        if kind.moe and model.moe:
            self.feed_forward = Experts(model, model.moe, shard)
        else:
            self.feed_forward = FeedForward(h, model.ffn_hidden_size // t, model.gated_mlp)
        # last, as in torchtitan's TransformerBlock: in this order a split backward makes the weights' gradients
        self.norms = torch.nn.ModuleList(Norm(model.normalization, h) for _ in range(model.norms_per_layer))

    def forward(self, x: Any) -> Any:
        before, norms = x, self.norms
        normed = norms[0](x)
        out = scattered(self.attention(gathered(normed, self.ways)), self.ways)
        if len(norms) == 4:
            out = norms[2](out)
        x = x + dropped(out, self.dropout)
        if not self.parallel:
            normed = norms[1](x)
        elif len(norms) == 2:
            normed = norms[1](before)
        out = scattered(self.feed_forward(gathered(normed, self.ways)), self.ways)
        if len(norms) == 4:
            out = norms[3](out)
        return x + dropped(out, self.dropout)


def on_meta(build: Callable[[], Any], training: TrainingSpec) -> Any:
    """A module on the meta device in the run's precision (its fp32 constants stay fp32)."""
    with torch.device("meta"):
        module = build()
    dtype = element_type(training)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    return module


def element_type(training: TrainingSpec) -> Any:
    """Of weights and activations."""
    return {"fp32": torch.float32, "fp16": torch.float16}.get(training.precision, torch.bfloat16)


def layer(model: ModelSpec, training: TrainingSpec, kind: LayerKind, shard: Shard | None = None) -> Any:
    """One layer on the meta device."""
    return on_meta(lambda: Layer(model, training, kind, shard or Shard()), training)
