"""Recomputation: which activations are dropped in the forward and made again in the backward.

In words `none`, `selective` (the attention core), `selective:layernorm+moe_act` (modules), `full` (every layer),
`full:block:4` (the first 4 layers of each chunk), `full:uniform:2` (every layer, in groups of 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ppadvisor.errors import InputError, unknown_name

Recompute = Literal["none", "selective", "full"]
RecomputeMethod = Literal["uniform", "block"]

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
METHODS: tuple[RecomputeMethod, ...] = ("uniform", "block")

MODULES: tuple[str, ...] = (
    "core_attn",
    "mlp",
    "moe",
    "shared_experts",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "activation",
    "dropout",
)
"""Parts of a layer that selective recomputation can drop. Megatron-Core's --recompute-modules, and the activation of a
dense feed-forward and dropout (PipeOffload's --recompute-lgd: layernorm, activation, dropout)."""

CORE_ATTENTION: tuple[str, ...] = ("core_attn",)


@dataclass(frozen=True)
class Recomputation:
    """One choice. `modules` with selective alone, `method` and `num_layers` with full alone."""

    kind: Recompute
    modules: tuple[str, ...] = ()
    method: RecomputeMethod = "uniform"
    num_layers: int = 1
    """block: layers of each chunk that are recomputed; uniform: layers between two kept inputs."""

    @property
    def text(self) -> str:
        """As the user says it."""
        if self.kind == "selective" and self.modules != CORE_ATTENTION:
            return f"selective:{'+'.join(self.modules)}"
        if self.kind == "full" and (self.method, self.num_layers) != ("uniform", 1):
            return f"full:{self.method}:{self.num_layers}"
        return self.kind


NONE = Recomputation("none")
SELECTIVE = Recomputation("selective", CORE_ATTENTION)
FULL = Recomputation("full")


def parse_recomputation(text: str, where: str = "") -> Recomputation:
    """Read what the user says. InputError for an unknown kind, module or method and for a number of layers below 1.

    >>> parse_recomputation("full:block:4")
    Recomputation(kind='full', modules=(), method='block', num_layers=4)
    """
    kind, colon, rest = text.partition(":")
    plain = {"none": NONE, "selective": SELECTIVE, "full": FULL}
    if kind not in plain:
        raise unknown_name("recompute", kind, RECOMPUTE, where=where)
    if not colon:
        return plain[kind]
    if kind == "selective":
        return _of_modules(rest)
    if kind == "full":
        return _of_layers(text, rest)
    raise InputError(f"recompute: got {text!r}; none takes nothing behind it")


def _of_modules(text: str) -> Recomputation:
    names = text.split("+")
    for name in names:
        if name not in MODULES:
            raise unknown_name("recompute module", name, MODULES)
    return Recomputation("selective", tuple(name for name in MODULES if name in names))


def _of_layers(text: str, rest: str) -> Recomputation:
    method, _, number = rest.partition(":")
    if method not in METHODS:
        raise unknown_name("recompute method", method, METHODS)
    if not (number.isascii() and number.isdigit() and int(number[:9]) > 0):
        raise InputError(f"recompute: got {text!r}; needs a whole number of layers from 1, as in full:{method}:4")
    return Recomputation("full", method="block" if method == "block" else "uniform", num_layers=int(number[:9]))
