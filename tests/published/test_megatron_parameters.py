"""Parameters, FLOPs and state bytes of real Megatron-LM models, for each record of `megatron_parameters.json`.

The models were instantiated with Megatron's local layer spec. It differs from the Transformer Engine spec, which
people train with and which we count, in one thing: it cuts the down-projections of latent attention over the
tensor-parallel ranks (column parallel, output gathered), where Transformer Engine keeps them whole on each rank
("duplicated"). The tests ask for exactly that difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppadvisor.engine.flops import megatron_flops_per_token
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.memory import memory_table
from ppadvisor.engine.parameters import (
    Weight,
    count_parameters,
    embedding_weights,
    head_weights,
    layer_weights,
    mtp_weights,
    rank_parameters,
)
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.validation import validate
from tests.problems import cluster, plan, problem, table_of

DATA: dict[str, Any] = json.loads((Path(__file__).parent / "megatron_parameters.json").read_text(encoding="utf-8"))
RECORDS: list[dict[str, Any]] = DATA["records"]
CHUNKS_ALIKE = [record for record in RECORDS if "mtp_rank" not in record or record["virtual_stages"] == 1]
"""Records that our engine can place by the layers of a rank alone: without chunks, or with chunks of like layers."""
FORMULA_IS_RIGHT = [record for record in RECORDS if "formula_wrong" not in record]

every_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
chunks_alike = pytest.mark.parametrize("record", CHUNKS_ALIKE, ids=lambda record: record["id"])
formula_is_right = pytest.mark.parametrize("record", FORMULA_IS_RIGHT, ids=lambda record: record["id"])

UNCOUNTED = ("_bias", "position_embedding", "query_norm", "key_norm", "mtp_")
"""Names of weights that Megatron's formula for the whole model leaves out (all its biases but those of norms, ...)."""


def model_of(record: dict[str, Any]) -> ModelSpec:
    """The model of a record."""
    return validate(ModelSpec, {"name": record["model"], **DATA["models"][record["model"]]}, record["id"])


def spread(runs: list[tuple[Any, int]]) -> list[Any]:
    """Runs [value, count] as one value a rank."""
    return [value for value, count in runs for _ in range(count)]


def layers_of_ranks(record: dict[str, Any]) -> list[list[int]]:
    """The decoder layers of each rank: chunk c of rank r is stage c p + r, the stages in order."""
    chunks = spread(record["layers_per_chunk"])
    held: list[list[int]] = [[] for _ in chunks]
    start = 0
    for chunk in range(record["virtual_stages"]):
        for rank, sizes in enumerate(chunks):
            held[rank] += range(start, start + sizes[chunk])
            start += sizes[chunk]
    return held


def weights_of_ranks(model: ModelSpec, record: dict[str, Any]) -> list[list[Weight]]:
    """The weights of each rank where the record puts them: MTP and its copy of the table on `mtp_rank`.

    The final norm stands behind the last decoder layer where there is MTP (transformer_block.py), else with the head.
    """
    p, vocab = record["pipeline_parallel"], record["padded_vocab_size"]
    held = layers_of_ranks(record)
    ranks = [[w for layer in layers for w in layer_weights(model, model.layer_kind(layer))] for layers in held]
    ranks[0] += embedding_weights(model, vocab)
    head = head_weights(model, vocab, own_copy=not model.tied_embeddings or p > 1)
    last_layer = next(rank for rank, layers in enumerate(held) if model.num_layers - 1 in layers)
    for weight in head:
        ranks[last_layer if weight.name == "final_norm" and model.mtp_num_layers else p - 1].append(weight)
    if model.mtp_num_layers:
        ranks[record["mtp_rank"]] += [*mtp_weights(model) * model.mtp_num_layers, *embedding_weights(model, vocab)]
    return ranks


def cut_by_the_local_spec(weights: list[Weight], t: int) -> float:
    """Parameters of the down-projections of latent attention that the local spec does not keep: (1 - 1/t) of them."""
    return (1 - 1 / t) * sum(w.size for w in weights if w.name in ("query_down", "key_value_down"))


@every_record
def test_parameters_of_every_rank_are_those_of_the_real_model(record: dict[str, Any]) -> None:
    """Dense and routed-expert parameters of each pipeline rank equal the instantiated model's, to the last one."""
    model, t = model_of(record), record["tensor_parallel"]
    expected = spread(record["rank_parameters"]), spread(record["rank_expert_parameters"])
    for weights, total, in_experts in zip(weights_of_ranks(model, record), *expected, strict=True):
        dense, expert = rank_parameters(
            tuple(weights),
            tensor_parallel=np.array([t]),
            expert_ways=np.array([record["expert_parallel"] * record["expert_tensor_parallel"]]),
            num_query_groups=model.num_query_groups,
        )
        assert expert[0] == in_experts
        assert dense[0] - cut_by_the_local_spec(weights, t) == total - in_experts


def inputs_of(record: dict[str, Any]) -> PlanInputs:
    """The record as the engine sees it, every stage listed."""
    batch = record["micro_batch_size"] * record["num_microbatches"] * record["data_parallel"]
    of = problem(
        model_of(record),
        machines=cluster(record["world_size"]),
        sequence_length=record["sequence_length"],
        sequence_parallel=record["sequence_parallel"],
        global_batch_size=batch,
        framework="megatron",
    )
    names = ("tensor_parallel", "context_parallel", "data_parallel", "expert_parallel", "expert_tensor_parallel")
    layers = [len(layers) for layers in layers_of_ranks(record)]
    one = plan(
        layers,
        **{name: record[name] for name in (*names, "micro_batch_size", "num_microbatches")},
        optimizer_sharding=int(record["distributed_optimizer"]),
    )
    return PlanInputs.of(of, table_of([one]), every_stage=True)


@chunks_alike
def test_the_engines_stages_hold_the_real_parameters(record: dict[str, Any]) -> None:
    """From the layers of each stage the engine finds the real parameters, embedding, head, copies and MTP included."""
    inputs = inputs_of(record)
    cut = [
        cut_by_the_local_spec(weights, record["tensor_parallel"])
        for weights in weights_of_ranks(inputs.problem.model, record)
    ]
    dense, expert = inputs.parameters
    assert inputs.vocab_size.tolist() == [record["padded_vocab_size"]]
    assert expert[0].tolist() == spread(record["rank_expert_parameters"])
    assert (dense + expert)[0].tolist() == [x + y for x, y in zip(spread(record["rank_parameters"]), cut, strict=True)]


def test_uneven_stages_are_not_averaged() -> None:
    """126 layers on 8 stages, embedding and loss counted as layers: 15 layers at the ends, 16 between, as they are."""
    (record,) = (record for record in RECORDS if record["model"] == "llama3.1-405b")
    assert [len(layers) for layers in layers_of_ranks(record)] == [15, *[16] * 6, 15]
    dense, _ = inputs_of(record).parameters
    assert int(np.argmax(dense[0])) == 1
    assert int(dense[0, 1]) == 6_375_866_368  # rank 1 of the record, Megatron's own formula says 6,540,486,656


@every_record
def test_total_is_megatrons_and_what_its_formula_leaves_out(record: dict[str, Any]) -> None:
    """Our count of the whole model less the weights that Megatron's formula does not know equals its total."""
    model = model_of(record).changed(vocab_size=record["padded_vocab_size"])
    kinds, of_layer = model.layer_kinds()
    held = [weight for kind in of_layer for weight in layer_weights(model, kinds[kind])]
    held += [*embedding_weights(model, 0), *mtp_weights(model) * model.mtp_num_layers]
    left_out = sum(w.size for w in held if any(part in w.name for part in UNCOUNTED))
    assert count_parameters(model) - left_out == record["formula_total_parameters"]


@every_record
def test_model_flops_are_megatrons(record: dict[str, Any]) -> None:
    """Model FLOPs of one iteration equal those of Megatron's num_floating_point_operations."""
    sequences = record["micro_batch_size"] * record["num_microbatches"] * record["data_parallel"]
    per_token = megatron_flops_per_token(model_of(record), record["sequence_length"], record["padded_vocab_size"])
    total = per_token * record["sequence_length"] * sequences
    assert total == pytest.approx(record["flops_per_iteration"], rel=1e-12)


@formula_is_right
def test_state_bytes_are_megatrons(record: dict[str, Any]) -> None:
    """Weights, gradients and optimizer states of the fullest stage equal Megatron's weight and optimizer bytes.

    Its formula knows the parameters of a rank but for some small ones (positions, biases, part of the final norm):
    these, at 18 or 6 + 12/d bytes each, are the whole difference, and below 2.5 % of the total.
    """
    terms = memory_table(inputs_of(record), keep_terms=True).terms
    ours = max(sum(terms[name][0] for name in ("weights", "gradients", "optimizer_states")))
    per_parameter = 6 + 12 / record["data_parallel"] if record["distributed_optimizer"] else 18
    unknown = max(spread(record["rank_parameters"])) - record["formula_most_loaded_parameters"]
    theirs = record["formula_weight_and_optimizer_bytes"]
    assert ours == pytest.approx(theirs + per_parameter * unknown, rel=1e-12)
    assert 0 <= unknown * per_parameter <= 0.025 * theirs


def test_most_records_have_a_formula_to_compare_with() -> None:
    """Bytes are compared on 20 of 25 records, and each of the others says why not."""
    assert len(RECORDS) == 25
    assert len(FORMULA_IS_RIGHT) == 20
