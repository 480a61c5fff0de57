"""The parts in which predicted and measured memory are set beside each other, and what a measured rank says of them."""

from __future__ import annotations

from dataclasses import dataclass, field

SAVED = "saved_activations"
"""Held by autograd for a backward; the name of a storage for as long as it is, whatever else it is for."""
LOGITS = "logits_and_loss"
WAITING = "waiting_gradients"
"""Put aside between input gradient and weight gradient."""
RECEIVE = "receive_buffers"
"""Those that no layer keeps as its input."""
SENT = "sent_gradients"
"""Handed on by a split backward, and kept to the end of the step."""
OUTPUTS = "stage_outputs"
WORK = "work"
"""What no other name fits: temporaries of a forward or a backward, a layer made again, a weight's gradient."""
PARTS = (SAVED, LOGITS, WAITING, RECEIVE, SENT, OUTPUTS, WORK)
"""What comes and goes with the micro-batches."""


@dataclass(frozen=True)
class Peak:
    """The most that was alive, and its parts."""

    total: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    during: str = ""
    """The action and the operation in which it stood."""


@dataclass(frozen=True)
class RankMeasured:
    """What one rank held."""

    rank: int
    peak: Peak
    saved_peak_bytes: int
    left_bytes: int = 0
    """Saved for a backward after the step."""
