"""The part of a model that one stage of a pipeline holds; and its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.recomputation import Recomputation
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.verify.layers import Layer, Norm, Shard, functional, gathered, linear, scattered, torch
from ppadvisor.verify.layers_kernels import dropped

checkpoint: Any = torch.utils.checkpoint.checkpoint


@dataclass(frozen=True)
class StageSizes:
    """What a stage of the model holds on one rank of it."""

    model: ModelSpec
    training: TrainingSpec
    layers: tuple[LayerKind, ...]
    recomputation: Recomputation
    shard: Shard
    vocab_size: int
    """Of the whole vocabulary, as the trainer stores it."""
    first: bool
    last: bool


class Recomputed(torch.nn.Module):  # type: ignore[misc] # torch may be missing, so it has no types here
    """A module that keeps its input alone and is run again in the backward: torch's checkpoint around it."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        return checkpoint(self.module, *inputs, use_reentrant=False, preserve_rng_state=False)


def recomputed(layers: Sequence[Any], choice: Recomputation) -> list[Any]:
    """The layers of a chunk under a recomputation: all, the first of them, groups of them, or their attention core."""
    if choice.kind == "selective":
        for layer in layers:
            layer.attention.core = Recomputed(layer.attention.core)
    if choice.kind != "full":
        return list(layers)
    if choice.method == "block":
        return [Recomputed(layer) if i < choice.num_layers else layer for i, layer in enumerate(layers)]
    starts = range(0, len(layers), choice.num_layers)
    return [Recomputed(torch.nn.Sequential(*layers[start : start + choice.num_layers])) for start in starts]


class StageModule(torch.nn.Module):  # type: ignore[misc]
    """Layers, on the first stage with the embedding before them, on the last with norm and output layer behind."""

    def __init__(self, sizes: StageSizes) -> None:
        super().__init__()
        model, training, shard = sizes.model, sizes.training, sizes.shard
        h, vocab = model.hidden_size, sizes.vocab_size // shard.tensor
        self.ways, self.dropout = shard.sequence_ways, training.dropout
        layers = [Layer(model, training, kind, shard) for kind in sizes.layers]
        self.layers = torch.nn.Sequential(*recomputed(layers, sizes.recomputation))
        self.table: Any = torch.nn.Embedding(vocab, h) if sizes.first else None
        learned = sizes.first and model.positional_embedding == "learned"
        rows = max(model.max_position_embeddings or 0, training.sequence_length)
        self.positions = torch.nn.Parameter(torch.zeros(rows, h)) if learned else None
        self.embedding_norm = Norm(model.normalization, h) if sizes.first and model.embedding_norm else None
        self.norm = Norm(model.normalization, h) if sizes.last and model.final_norm else None
        self.head: Any = linear(h, vocab, model.lm_head_bias) if sizes.last else None
        if self.head is not None and self.table is not None and model.tied_embeddings:
            self.head.weight = self.table.weight

    def embedded(self, tokens: Any) -> Any:
        x = self.table(tokens)
        if self.positions is not None:
            # a whole table is not cut, for whose cut the backward would make a table of its own
            length = tokens.shape[1]
            x = x + (self.positions if len(self.positions) == length else self.positions[:length])
        x = scattered(x, self.ways)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return dropped(x, self.dropout)

    def forward(self, x: Any) -> Any:
        x = self.layers(x if self.table is None else self.embedded(x))
        if self.norm is not None:
            x = self.norm(x)
        return x if self.head is None else self.head(gathered(x, self.ways))


def cross_entropy(logits: Any, target: Any) -> Any:
    """The plain loss in fp32, as torchtitan takes it (torchtitan/components/loss.py, cross_entropy_loss)."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten(0, 1))


LOSSES: dict[str, Callable[[Any, Any], Any]] = {"torch": cross_entropy}
"""Those that plain torch has."""
