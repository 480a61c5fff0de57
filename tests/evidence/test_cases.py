"""From records to what the engine takes: nothing is left out for its name, what is filled in is said."""

from __future__ import annotations

import pytest

from ppadvisor import frameworks, schedules
from ppadvisor.errors import InputError
from ppadvisor.evidence.cases import case_of
from ppadvisor.evidence.predict import Footprint
from ppadvisor.evidence.records import shipped_records
from ppadvisor.evidence.trainers import (
    NOT_MODELLED,
    SCHEDULE_NAMES,
    TRAINERS,
    UNSPECIFIED,
    keeps_fp8_weights,
    trainer_of,
)
from tests.evidence.samples import record


def test_every_framework_of_the_data_has_a_trainer() -> None:
    """The map covers every id of the shipped records, once, and leads to profiles that exist."""
    assert {one.training.framework for one in shipped_records()} <= {trainer.framework for trainer in TRAINERS}
    assert len({trainer.framework for trainer in TRAINERS}) == len(TRAINERS)
    assert {trainer.profile for trainer in TRAINERS} <= set(frameworks.FRAMEWORKS)


def test_every_schedule_name_of_the_data_is_known() -> None:
    """A schedule of the shipped records is one of ours, another name of one, or stated as not modelled."""
    names = {one.plan.schedule for one in shipped_records() if one.plan.schedule}
    assert names <= {*schedules.SCHEDULES, *SCHEDULE_NAMES, *NOT_MODELLED}
    assert set(SCHEDULE_NAMES.values()) <= set(schedules.SCHEDULES)
    assert set(UNSPECIFIED) <= {one.source.key for one in shipped_records()}


def test_every_shipped_record_is_a_case_or_not_modelled() -> None:
    """Only PipeOffload's own schedules are left out, and the reason says so."""
    for one in shipped_records():
        if one.plan.schedule in NOT_MODELLED:
            with pytest.raises(InputError, match="is not modelled"):
                case_of(one)
        else:
            assert case_of(one).plan.pipeline_parallel == one.plan.pipeline_parallel


def test_what_a_record_leaves_out_is_said() -> None:
    """Defaults are listed by field; what follows from other fields (m = B / (d b)) is not one."""
    case = case_of(record())
    assert case.plan.num_microbatches == 8
    assert case.plan.layers_per_stage == (6, 6, 6, 6)
    assert set(case.defaults) == {
        "plan.schedule = 1f1b",
        "plan.virtual_stages = 1",
        "plan.recompute = none",
        "training.optimizer_sharding = 1",
        "training.precision = bf16",
        "training.gradient_precision = fp32",
        "training.attention = flash",
        "training.dropout = true",
        "training.fused_norm = true",
        "training.loss = native",
    }


def test_an_unknown_framework_is_a_generic_one() -> None:
    """A name that the map does not have is predicted as the generic trainer, and said to be."""
    case = case_of(record(training={"framework": "ours"}))
    assert case.problem.framework.id == "generic"
    assert "training.framework = generic (for ours)" in case.defaults


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"optimizer": "adam8bit"}}, "unknown optimizer 'adam8bit'"),
        ({"plan": {"schedule": "po-h"}}, "offloading is not modelled"),
        (
            {"plan": {"schedule": "zb-v", "virtual_stages": 1}},
            "plan.virtual_stages: got 1 with schedule zb-v",
        ),
        ({"cluster": {"gpu": "abacus"}}, "unknown gpu 'abacus'"),
    ],
)
def test_what_is_not_modelled_has_a_reason(changes: dict[str, dict[str, object]], message: str) -> None:
    """An optimizer, schedule, v or GPU that we do not have is refused by its name."""
    with pytest.raises(InputError, match=message):
        case_of(record(**changes))


def test_layers_of_ranks_are_spread_over_their_chunks() -> None:
    """PipeOffload counts embedding and head as layers: of 38 on p = 8, v = 5 the first and last chunk are empty."""
    layers = [4, 5, 5, 5, 5, 5, 5, 4]
    cluster = {"num_gpus": 8, "gpus_per_node": 8}
    plan = {"pipeline_parallel": 8, "virtual_stages": 5, "layers_per_stage": layers}
    case = case_of(record(model={"num_layers": 38}, cluster=cluster, plan=plan))
    assert case.plan.layers_per_chunk == (0, *[1] * 38, 0)
    assert case.plan.layers_per_stage == tuple(layers)


def test_modules_that_only_notes_name() -> None:
    """Recomputed modules of a note are the plan's where its field is empty; what a field says comes first."""
    noted = record(notes="recomputed modules: norm, mlp; older version", plan={"recompute": None})
    assert case_of(noted).plan.recompute_modules == ("layernorm", "mlp")
    assert case_of(noted).plan.recompute == "selective"
    full = record(notes="recomputed modules: mlp", plan={"recompute": "full"})
    assert case_of(full).plan.recompute_modules is None
    assert case_of(full).plan.recompute == "full"


def test_the_right_stage_is_named_wherever_a_source_tells_stages_apart() -> None:
    """Peaks of every stage were measured in a few runs: the fullest one is the one that we name."""
    told = [one for one in shipped_records() if one.measured.peak_by_stage_gib]
    assert len(told) >= 7
    for one in told:
        measured = one.measured.peak_by_stage_gib or ()
        allocated = Footprint(case_of(one)).table.allocated[0]
        assert int(allocated.argmax()) == measured.index(max(measured)), one.id


@pytest.mark.parametrize(("layers", "p", "split"), [(40, 2, (21, 19)), (40, 4, (10, 11, 11, 8)), (60, 2, (31, 29))])
def test_aleph_alphas_trainer_divides_modules(layers: int, p: int, split: tuple[int, ...]) -> None:
    """43 modules (embedding, 40 layers, norm, head) on 4 stages are 11, 11, 11, 10: pipe_partition_uniform.

    Aleph-Alpha/scaling, commit 737f855, core/nn/parallel_module/pipeline_partitioning.py.
    """
    even = [layers // p] * p
    run = record(
        training={"framework": "aa-scaling", "global_batch_size": 8},
        model={"num_layers": layers},
        plan={"pipeline_parallel": p, "layers_per_stage": even},
        cluster={"num_gpus": p, "gpus_per_node": p},
    )
    assert case_of(run).plan.layers_per_stage == split


@pytest.mark.parametrize(("schedule", "chunks"), [("gis", 6), ("gis-h", 6), ("interleaved-1f1b", 2)])
def test_generalised_interleaving_has_a_layer_a_chunk(schedule: str, chunks: int) -> None:
    """Without v a record of GIS has as many chunks as layers a rank, as the authors' script; others the least v."""
    case = case_of(record(plan={"schedule": schedule}))
    assert case.plan.virtual_stages == chunks
    assert f"plan.virtual_stages = {chunks}" in case.defaults


def test_a_layer_a_chunk_counts_embedding_and_head_where_the_rank_says_so() -> None:
    """The rank with the most layers gives v: of 38 on 8 ranks, 4 on the ends, 5."""
    layers = [4, 5, 5, 5, 5, 5, 5, 4]
    plan = {"pipeline_parallel": 8, "layers_per_stage": layers, "schedule": "gis-h"}
    case = case_of(record(model={"num_layers": 38}, cluster={"num_gpus": 8, "gpus_per_node": 8}, plan=plan))
    assert case.plan.layers_per_chunk == (0, *[1] * 38, 0)


@pytest.mark.parametrize(
    ("precision", "name", "gpu", "kept"),
    [
        ("fp8", "Llama 3 70B", "h100-sxm-80gb", True),
        ("mxfp8", "DeepSeek-V3 671B", "gb300-288gb", True),
        ("fp8", "DeepSeek-V3 671B", "h100-sxm-80gb", False),
        ("mxfp8", "GPT-OSS 120B", "gb300-288gb", False),
        ("nvfp4", "Llama 3.1 405B", "gb300-288gb", False),
        ("bf16", "Llama 3 70B", "h100-sxm-80gb", False),
    ],
)
def test_bridges_recipes_keep_weights_in_fp8_alone(precision: str, name: str, gpu: str, kept: bool) -> None:
    """As training/mixed_precision.py of Megatron-Bridge sets fp8_param_gather, and as perf_recipes/ override it."""
    trainer = trainer_of("megatron-bridge")
    assert trainer is not None
    assert keeps_fp8_weights(trainer, precision, name, gpu) is kept
    megatron = trainer_of("megatron")
    assert megatron is not None
    assert not keeps_fp8_weights(megatron, precision, name, gpu)
