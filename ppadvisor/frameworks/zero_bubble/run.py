"""A run of the zero-bubble fork: Megatron's sizes, and which of its schedules the options turn on.

Source: sail-sg/zero-bubble-pipeline-parallelism 39f2c186, megatron/core/zbpp_utils.py (validate_arguments),
megatron/training/arguments.py:260-300, megatron/core/pipeline_parallel/zerobubble/runtime.py:1430-1600.
"""

from __future__ import annotations

from functools import cached_property

from ppadvisor.frameworks.megatron.options import table_of
from ppadvisor.frameworks.megatron.run import BY_LAYERS, Run
from ppadvisor.frameworks.profile import Split
from ppadvisor.frameworks.zero_bubble.split import padded_split

PACKAGE = "ppadvisor.frameworks.zero_bubble"
V_SCHEDULES = {"zb": "zb-v", "half": "v-half", "min": "v-min"}
GROUP, PENDING, MEMORY = "interleave_group_size", "zero_bubble_max_pending_backward", "zero_bubble_v_schedule_mem_setup"


class ForkRun(Run):
    """The options with the number of GPUs."""

    def option(self, dest: str) -> str:
        """The fork's own flag; what it has none for is called as it is, as a variable of the environment."""
        own = table_of(PACKAGE)
        return own[dest].flag if dest in own else dest

    @property
    def in_a_v(self) -> bool:
        """Two chunks a rank, down the ranks and up again."""
        return self.on("zero_bubble_v_schedule") or self.on("enable_1f1b_v")

    @property
    def split_backward(self) -> bool:
        """Whether the backward is split; V schedules without 1F1B's turn it on."""
        return self.on("enable_zero_bubble") or self.on("zero_bubble_v_schedule")

    @property
    def own_runtime(self) -> bool:
        """zbpp_utils.py:80-87."""
        group = self.whole(GROUP) or 0
        return self.split_backward or self.on("enable_1f1b_v") or group > 0 or self.on("enable_zb_runtime")

    @property
    def overlaps_handoffs(self) -> bool:
        """arguments.py:298-303: without virtual stages only where its runtime is asked for by its own name."""
        return self.on("overlap_p2p_comm") and (self.gives(BY_LAYERS) or self.on("enable_zb_runtime"))

    @cached_property
    def padded_layers(self) -> int | None:
        """A multiple of p where padding is allowed."""
        if self.layers is None or not self.on("allow_padding_num_layers"):
            return self.layers
        return -(-self.layers // self.p) * self.p

    @cached_property
    def v(self) -> int | None:
        """Chunks of a rank, None where nothing follows."""
        if self.in_a_v:
            return 2
        if not self.gives(BY_LAYERS):
            return 1
        size, layers = self.whole(BY_LAYERS), self.padded_layers
        if not size or not layers or layers % self.p or (layers // self.p) % size:
            return None
        return layers // self.p // size

    @cached_property
    def layers_per_chunk(self) -> Split | None:
        if self.layers is None or self.padded_layers is None or self.v is None or self.padded_layers % self.p:
            return None
        return padded_split(self.layers, self.p, self.v)

    @property
    def schedule(self) -> str | None:
        """Our name of it, None for one that is not modelled (1F1B in a V, groups of another size)."""
        if self.p == 1:
            return "none"
        if self.split_backward:
            setup = self.text(MEMORY) or "zb"
            return V_SCHEDULES.get(setup) if self.in_a_v else "zb-h1" if self.pending == self.p else "zb-h2"
        if self.on("enable_1f1b_v"):
            return None
        if self.whole(GROUP):
            return {self.p: "gis", (self.p + 1) // 2: "gis-h"}.get(self.whole(GROUP) or 0)
        return "1f1b" if self.v == 1 else "interleaved-1f1b"

    @property
    def pending(self) -> int | None:
        """Backwards that may wait; None where the fork finds the number by what memory is left."""
        text = str(self.arguments.value(PENDING))
        return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None
