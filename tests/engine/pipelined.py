"""What torch's pipeline engine was measured to hold on each rank, from tests/published, and ours beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.memory import TERMS
from ppadvisor.engine.memory_axes import in_table
from ppadvisor.engine.problem import Problem
from tests.problems import model, plan, problem, table_of

DOCUMENT = json.loads(
    (Path(__file__).parent.parent / "published" / "torch_pipeline_memory.json").read_text(encoding="utf-8")
)
RANKS, MICROBATCHES, LAYERS_A_RANK = 4, 8, 2
"""Of the small GPT that torch's pipeline really runs."""
SMALL: dict[str, Any] = {
    "num_layers": RANKS * LAYERS_A_RANK,
    "hidden_size": 96,
    "ffn_hidden_size": 384,
    "num_attention_heads": 4,
    "num_query_groups": 4,
    "head_dim": 24,
    "vocab_size": 160,
    "max_position_embeddings": 64,
}


def small_gpt() -> Problem:
    """Scores written out, in fp32: on a CPU the kernels of 16 bit keep other statistics than a GPU's, those not."""
    run: dict[str, Any] = {
        "sequence_length": 64,
        "precision": "fp32",
        "attention": "eager",
        "global_batch_size": MICROBATCHES,
    }
    return problem(model(**SMALL), framework="torchtitan", **run)


def terms_while_full(of: Problem, schedule: str, layers_a_rank: int, v: int = 1) -> dict[str, FloatArray]:
    """Every memory term of each rank at p = 4, m = 8 when a layer's backward starts with all in flight."""
    layers = (layers_a_rank // v,) * (RANKS * v)
    one = plan(
        [layers_a_rank] * RANKS,
        schedule=schedule,
        num_microbatches=MICROBATCHES,
        virtual_stages=v,
        layers_per_chunk=layers,
    )
    inputs = PlanInputs.of(of, table_of([one]), every_stage=True)
    return {name: in_table(term(inputs), (1, RANKS))[0, :, 0] for name, term in TERMS}


def held_in_the_small_gpt(schedule: str, rank: int, layers_a_rank: int = LAYERS_A_RANK) -> dict[str, float]:
    """Bytes that we predict for one of its ranks, in the kinds that were counted, and the micro-batches in flight.

    What was counted and is in none of our terms, since it hardly weighs at a real size: the final norm's statistics,
    and token ids of micro-batches not in flight, which are parts of one tensor of the whole batch.
    """
    of = small_gpt()
    spec, tokens, ids = of.model, of.training.sequence_length, 8
    changed = replace(of, model=spec.changed(num_layers=RANKS * layers_a_rank))
    terms = {name: float(values[rank]) for name, values in terms_while_full(changed, schedule, layers_a_rank).items()}
    in_flight = MICROBATCHES if schedule == "gpipe" else RANKS - rank
    boundary = of.training.activation_bytes * tokens * spec.hidden_size
    saved = terms["saved_activations"]
    if rank == 0:
        saved += terms["embedding_activations"] + ids * tokens * (MICROBATCHES - in_flight)
    received = in_flight * boundary if rank else 0
    if rank < RANKS - 1:
        together = saved + terms["sent_outputs"] + terms["handoff_buffers"]
        outputs = {"outputs": terms["sent_outputs"], "all": together}
    else:
        # input and output of the final norm and its statistics; the logits of the loss are a matter of their own
        saved += in_flight * (2 * boundary + 2 * 4 * tokens)
        outputs = {}
    return {"saved": saved, "buffers": terms["handoff_buffers"] + received, "in_flight": in_flight, **outputs}
