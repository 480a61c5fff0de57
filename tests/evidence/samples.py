"""A small record that tests change."""

from __future__ import annotations

import json
from typing import Any

from ppadvisor.evidence.records import Record, parse_records

MINIMAL: dict[str, Any] = {
    "id": "own-1",
    "group": "own",
    "source": {"key": "own", "title": "Own runs", "where": "here"},
    "model": {
        "name": "GPT 1.3B",
        "num_layers": 24,
        "hidden_size": 2048,
        "ffn_hidden_size": 8192,
        "num_attention_heads": 16,
        "num_query_groups": 16,
        "head_dim": 128,
        "vocab_size": 51200,
        "gated_mlp": False,
        "tied_embeddings": False,
        "normalization": "layernorm",
        "positional_embedding": "rope",
    },
    "cluster": {"gpu": "a100-sxm-80gb", "num_gpus": 4, "gpus_per_node": 4},
    "training": {"sequence_length": 2048, "global_batch_size": 8, "framework": "megatron", "optimizer": "adam"},
    "plan": {"pipeline_parallel": 4, "tensor_parallel": 1, "data_parallel": 1, "micro_batch_size": 1},
    "measured": {"peak_allocated_gib": 10.0},
    "usable_for": ["memory"],
}


def sample(**changes: Any) -> dict[str, Any]:
    """The record with changes; a mapping is merged into the part of that name."""
    changed = dict(MINIMAL)
    for name, value in changes.items():
        changed[name] = {**MINIMAL[name], **value} if isinstance(MINIMAL.get(name), dict) else value
    return changed


def record(**changes: Any) -> Record:
    """The same, read."""
    return parse_records(json.dumps(sample(**changes)), "sample")[0]


def lines(*records: dict[str, Any]) -> str:
    """A file of them."""
    return "".join(json.dumps(one) + "\n" for one in records)
