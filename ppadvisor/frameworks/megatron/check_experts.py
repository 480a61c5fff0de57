"""Megatron's start-up checks of experts: which layers have them, how tokens are chosen, what overlaps their exchange.

Source: NVIDIA/Megatron-LM d98e8a64; the file stands beside each.
"""

from __future__ import annotations

import re

from ppadvisor.frameworks.checks import Check
from ppadvisor.frameworks.megatron.check_features import METHOD, NUMBER, OVERLAP_A2A, needs, recompute_kind
from ppadvisor.frameworks.megatron.options import flag_of
from ppadvisor.frameworks.megatron.patterns import layer_pattern
from ppadvisor.frameworks.megatron.run import Run


def _token_overlap(run: Run) -> str | None:
    """transformer_config.py:3002-3046."""
    if not run.on(OVERLAP_A2A):
        return None
    conditions = (
        (run.p > 1 and run.v == 1, "needs virtual stages where p > 1 (--num-virtual-stages-per-pipeline-rank)"),
        (run.e == 1, "needs expert parallelism (--expert-model-parallel-size)"),
        (run.text("moe_token_dispatcher_type") not in ("alltoall", "flex"), "needs dispatcher alltoall or flex"),
        (recompute_kind(run) == "full", "excludes full recomputation"),
        (run.gives(METHOD, NUMBER), "excludes --recompute-method and --recompute-num-layers"),
        ("moe" in run.texts("recompute_modules"), "excludes recomputing moe"),
        (not run.on("bf16") and not run.on("fp16"), "needs --bf16 or --fp16"),
        (run.on("moe_shared_expert_overlap"), "excludes --moe-shared-expert-overlap"),
        ((run.whole("mtp_num_layers") or 0) > 1, "goes with one prediction layer at most"),
    )
    found = [text for broken, text in conditions if broken]
    return f"{flag_of(OVERLAP_A2A)} {found[0]}" if found else None


def _expert_layers(run: Run) -> str | None:
    text = str(run.arguments.value("moe_layer_freq"))
    pattern = layer_pattern(text)
    if run.whole("num_experts") and re.fullmatch(r"0+", text):
        return "every how many layers experts stand must be larger than 0"
    if pattern is None or not run.whole("num_experts") or run.layers is None or len(pattern) == run.layers:
        return None
    return f"the pattern of expert layers has {len(pattern)} entries, the model {run.layers} layers"


def _one_expert_a_token(run: Run) -> str | None:
    """transformer_config.py:2661-2669."""
    alone = run.whole("moe_router_topk") == 1 and run.text("moe_router_score_function") == "softmax"
    if not run.whole("num_experts") or not alone or run.on("moe_router_pre_softmax"):
        return None
    if "sinkhorn" in (*run.texts("moe_router_load_balancing_type"), run.text("moe_router_load_balancing_type")):
        return None
    return "one expert a token needs --moe-router-pre-softmax"


def _shared_experts(run: Run) -> str | None:
    shared = run.whole("moe_shared_expert_intermediate_size") and run.whole("num_experts")
    return "shared experts have no bias: --disable-bias-linear" if shared and run.on("add_bias_linear") else None


CHECKS = (
    Check("expert_parallel_overlap", (OVERLAP_A2A,), "transformer_config.py:3002-3046", _token_overlap),
    Check(
        "delayed_weight_gradients",
        ("delay_wgrad_compute",),
        "transformer_config.py:3074-3077",
        needs("delay_wgrad_compute", (lambda run: run.on(OVERLAP_A2A), "needs --overlap-moe-expert-parallel-comm")),
    ),
    Check("expert_layers", ("moe_layer_freq", "num_layers"), "gpt_layer_specs.py:651-657", _expert_layers),
    Check(
        "one_expert_a_token",
        ("moe_router_pre_softmax", "moe_router_topk"),
        "transformer_config.py:2661-2669",
        _one_expert_a_token,
    ),
    Check("shared_experts", ("add_bias_linear",), "shared_experts.py:124", _shared_experts),
)
