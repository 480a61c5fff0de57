"""What Megatron-Bridge itself checks before Megatron-Core does, and what it passes over.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987d; the file stands beside each.
"""

from __future__ import annotations

from collections.abc import Iterator

from ppadvisor.errors import nearest
from ppadvisor.frameworks.configuration import Broken, Outcome, Remark
from ppadvisor.frameworks.megatron_bridge.document import Bridge
from ppadvisor.frameworks.megatron_bridge.keys import PRECISIONS, fields_of
from ppadvisor.frameworks.megatron_bridge.translate import PRECISION
from ppadvisor.frameworks.omegaconf import Document

RULES = ("unknown_key", "precision_recipe", "sequence_lengths")
COMPLETE = ("train", "ddp", "optimizer", "mixed_precision", "comm_overlap", "scheduler", "dist")
"""Sections whose fields are all known; a model of a family of its own may have more."""


def broken(document: Document, bridge: Bridge) -> Iterator[Broken]:
    """Every rule that is broken."""
    yield from _unknown(document, bridge)
    yield from _precision(document)
    if bridge.whole:
        yield from _lengths(document)


def _unknown(document: Document, bridge: Bridge) -> Iterator[Broken]:
    """omegaconf_utils.py: skipped with a line in the log (_apply_overrides), refused by Hydra (parse_hydra_overrides).

    A saved configuration cannot be built.
    """
    refused = bridge.whole or bridge.of_a_call
    what = "passes it over with a line in the log" if not refused else "refuses it"
    for key, entry in document.items():
        section, _, name = key.partition(".")
        if section not in COMPLETE or not name or name.startswith("_") or name.partition(".")[0] in fields_of(section):
            continue
        close = nearest(name, fields_of(section))
        hint = f"; did you mean {section}.{close}?" if close else ""
        outcome = Outcome.REJECTED if refused else Outcome.WRONG
        text = f"{key}: {section} has no such field, Bridge {what}{hint}"
        yield Broken("unknown_key", outcome, text, (key,), entry.line or None, "training/utils/omegaconf_utils.py")


def _precision(document: Document) -> Iterator[Broken]:
    named = document.get(PRECISION)
    if named is None or not isinstance(named.value, str) or named.value.replace("-", "_") in PRECISIONS:
        return
    close = nearest(named.value, PRECISIONS)
    hint = f"; did you mean {close}?" if close else f"; known: {', '.join(sorted(PRECISIONS))}"
    text = f"mixed_precision: {named.value[:60]!r} is no recipe of Bridge{hint}"
    yield Broken("precision_recipe", Outcome.REJECTED, text, (PRECISION,), named.line or None,
                 "training/mixed_precision.py (get_mixed_precision_config)")  # fmt: skip


def _lengths(document: Document) -> Iterator[Broken]:
    model, data = document.get("model.seq_length"), document.get("dataset.seq_length")
    if model is None or data is None or None in (model.value, data.value) or model.value == data.value:
        return
    text = f"model.seq_length {model.value} and dataset.seq_length {data.value} differ"
    keys = ("dataset.seq_length", "model.seq_length")
    yield Broken("sequence_lengths", Outcome.REJECTED, text, keys, data.line or None, "training/config.py (validate)")


def remarks(document: Document) -> Iterator[Remark]:
    """What breaks no rule and changes memory or time, or is not known."""
    peft = next(((key, entry) for key, entry in document.items() if key.partition(".")[0] == "peft"), None)
    if peft is not None and peft[1].value is not None:
        text = "peft trains a few weights and freezes the rest; the estimate is that of training all of them"
        yield Remark("not_modelled", text, ("peft",), peft[1].line or None)
    overlap = document.get("model.overlap_p2p_comm")
    if overlap is not None and overlap.value is False:
        text = "model.overlap_p2p_comm changes time; the estimate overlaps hand-offs where stages are interleaved"
        yield Remark("not_modelled", text, ("model.overlap_p2p_comm",), overlap.line or None)
    for key, entry in document.items():
        section, _, name = key.partition(".")
        if entry.unknown and section in ("model", "train", "mixed_precision", "ddp", "optimizer"):
            yield Remark("not_understood", f"{key}: {entry.unknown}", (key,), entry.line or None)
        elif section == "model" and name and not name.startswith("_") and name.partition(".")[0] not in _known():
            yield Remark("not_understood", f"{key} is no field of a GPT model of Bridge", (key,), entry.line or None)


def _known() -> frozenset[str]:
    return fields_of("model") | {"transformer", "hybrid_layer_pattern", "hybrid_override_pattern"}
