"""`--price`: what a GPU costs an hour, by the names under which candidates were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppadvisor.errors import InputError, unknown_name
from ppadvisor.units import parse_bandwidth, parse_hourly, parse_memory

FORM = "NAME=PRICE/h or NAME@NETWORK=PRICE/h, such as h100-sxm-80gb=2.50/h or h100-sxm-80gb@800Gb/s=2.80/h"


@dataclass(frozen=True)
class Price:
    """One price and what it is for."""

    text: str
    """What stands before the equals sign."""
    name: str
    """Of the GPU or cluster, as its preset is called."""
    details: Mapping[str, Any]
    """Inputs that must have these values: the network, the memory."""
    per_gpu_hour: float

    def is_for(self, chosen: Mapping[str, Any]) -> bool:
        """Whether this is a price of a candidate with these inputs."""
        same = all(chosen.get(key) == value for key, value in self.details.items())
        return same and self.name == hardware_of(chosen)


OWN = "own"
"""Name of a GPU of plain numbers."""


def hardware_of(chosen: Mapping[str, Any]) -> str:
    """What a candidate is called in prices: its cluster or its GPU."""
    return str(chosen.get("cluster") or chosen.get("gpu") or OWN)


def read_prices(texts: Sequence[str], candidates: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The price of each candidate, None where it has none; the price that says most about a candidate is its own.

    InputError for another form, a name or value that no candidate has, a repeat, a price that no candidate takes.
    """
    prices = [_read(text, candidates) for text in texts]
    for index, price in enumerate(prices):
        if any((price.name, price.details) == (other.name, other.details) for other in prices[:index]):
            raise InputError(f"--price: {price.text!r} is given twice")
    chosen = [_most_exact(prices, candidate) for candidate in candidates]
    for price in prices:
        if not any(price is one for one in chosen):
            raise InputError(f"--price {price.text!r} has no effect: every candidate has a price that says more of it")
    return [None if price is None else price.per_gpu_hour for price in chosen]


def _most_exact(prices: Sequence[Price], candidate: Mapping[str, Any]) -> Price | None:
    return max((p for p in prices if p.is_for(candidate)), key=lambda price: len(price.details), default=None)


def _read(text: str, candidates: Sequence[Mapping[str, Any]]) -> Price:
    what, equals, amount = text.rpartition("=")
    if not equals or not what.strip():
        raise InputError(f"--price: got {text!r}; needs {FORM}")
    name, *details = (part.strip() for part in what.split("@"))
    price = Price(
        what, _known(name, candidates), dict(_detail(d, what) for d in details), parse_hourly(amount, f"--price {what}")
    )
    if not any(price.is_for(candidate) for candidate in candidates):
        raise InputError(f"--price {what!r} is for no candidate: {name} has no such network or memory here")
    return price


def _known(name: str, candidates: Sequence[Mapping[str, Any]]) -> str:
    """The name as the candidates have it; a preset may be said by an unambiguous beginning, as elsewhere."""
    from ppadvisor.specs.load import preset_names

    names = dict.fromkeys(map(hardware_of, candidates))
    if name in names:
        return name
    begins = [full for full in names if name and full.startswith(name.lower())]
    if len(begins) == 1:
        return begins[0]
    if name in (*preset_names("gpus"), *preset_names("clusters")):
        raise InputError(f"--price: {name} is no candidate; candidates: {', '.join(names)}")
    raise unknown_name("candidate", name, names, where="--price")


def _detail(text: str, what: str) -> tuple[str, Any]:
    """(input, value) of what stands behind an @: a network or a memory."""
    if text.endswith(("/s", "bps")):
        return "inter_node_bandwidth", parse_bandwidth(text, f"--price {what}")
    return "gpu_memory", parse_memory(text, f"--price {what}")
