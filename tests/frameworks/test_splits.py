"""A split in the words of each framework builds that split and no other."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ppadvisor import frameworks
from ppadvisor.frameworks.megatron.layout import layout_problem, layout_stages, layout_string
from ppadvisor.frameworks.scaling.split import own_split as scaling_split
from ppadvisor.frameworks.torchtitan.split import own_split, stage_modules
from ppadvisor.search.constraints import legal_plans
from ppadvisor.specs.plan import PlanSpec
from tests.frameworks.megatron_reader import LAYOUT, built
from tests.problems import model, plan, problem, table_of

Split = tuple[int, ...]

PUBLISHED = Path(__file__).parent.parent / "published" / "megatron_splits.json"
RECORDS: list[dict[str, Any]] = json.loads(PUBLISHED.read_text(encoding="utf-8"))["records"]
every_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["rule"])


def flags_of(record: dict[str, Any]) -> tuple[dict[str, str], int]:
    """(flags with their values, prediction layers) of a run of Megatron."""
    words, flags = record["flags"], {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            flags[word] = "" if after.startswith("--") else after
    return flags, int(flags.pop("--mtp-num-layers", 0))


LAYOUTS = [record for record in RECORDS if flags_of(record)[0].keys() == {LAYOUT}]
"""Runs with a layout, and no flag that would be refused beside it."""


def interleaved(split: Split, p: int) -> PlanSpec:
    """A plan with this split on p ranks."""
    v = len(split) // p
    ranks = [sum(split[rank::p]) for rank in range(p)]
    schedule = "1f1b" if v == 1 else "interleaved-1f1b"
    return plan(ranks, virtual_stages=v, schedule=schedule, layers_per_chunk=split, num_microbatches=4 * p)


def random_split(rng: random.Random) -> tuple[Split, int]:
    """(split, ranks): even ones, with lighter ends, with equal middles, and any."""
    p, v, size = rng.randint(2, 6), rng.choice((1, 1, 2, 3)), rng.randint(2, 5)
    split = [size] * (p * v)
    for stage in (0, p * v - 1):
        split[stage] -= rng.choice((0, 0, 1))
    if rng.random() < 0.3:
        first, last = rng.randint(1, 4), rng.randint(1, 4)
        split = [first if stage % p == 0 else last if stage % p == p - 1 else size for stage in range(p * v)]
    if rng.random() < 0.4:
        split = [rng.randint(1, 4) for _ in range(p * v)]
    return tuple(split), p


@every_record
def test_the_reader_of_these_tests_reads_as_megatron(record: dict[str, Any]) -> None:
    """Flags that Megatron refused are refused, others build what it built."""
    flags, mtp = flags_of(record)
    ranks = built(flags, record["num_layers"], record["pipeline_parallel"], mtp)
    assert (ranks is not None) == record["accepted"]
    if record["layers_of_ranks"] is not None:
        assert ranks == record["layers_of_ranks"]


@pytest.mark.parametrize("record", LAYOUTS, ids=lambda record: record["rule"])
def test_the_rules_of_a_layout_are_megatrons(record: dict[str, Any]) -> None:
    """A layout that Megatron took breaks no rule; one that it refused for itself breaks one."""
    flags, mtp = flags_of(record)
    sizes = {"num_layers": record["num_layers"], "pipeline_parallel": record["pipeline_parallel"]}
    problem = layout_problem(flags[LAYOUT], mtp_num_layers=mtp, **sizes)
    assert (problem is None) == record["accepted"], problem


@pytest.mark.parametrize("seed", range(200))
def test_megatron_builds_the_split_that_was_meant(seed: int) -> None:
    """Flags or layout of a random split, read by Megatron's rules, are that split on the same ranks."""
    rng = random.Random(seed)
    split, p = random_split(rng)
    mtp = rng.choice((0, 0, 1, 2))
    of = model("mla-mtp", num_layers=sum(split), mtp_num_layers=mtp)
    settings = frameworks.get("megatron").split_settings(of, interleaved(split, p))
    assert settings.pop("--pipeline-model-parallel-size") == str(p)
    assert built(settings, sum(split), p, mtp) == [list(split[rank::p]) for rank in range(p)]
    if LAYOUT in settings:
        sizes = {"num_layers": sum(split), "mtp_num_layers": mtp, "pipeline_parallel": p}
        assert layout_problem(settings[LAYOUT], **sizes) is None


@pytest.mark.parametrize(
    ("split", "p", "flags"),
    [
        ((8, 8, 8, 8), 4, []),
        ((7, 8, 8, 7), 4, ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]),
        ((8, 8, 8, 7), 4, ["--account-for-loss-in-pipeline-split"]),
        ((8, 8, 8, 5), 4, ["--decoder-last-pipeline-num-layers"]),
        ((6, 8, 8, 5), 4, ["--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"]),
        ((3, 4, 4, 3, 3, 4, 4, 3), 4, ["--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"]),
        ((8, 9, 8, 7), 4, [LAYOUT]),
        ((4, 4, 4, 3, 4, 4, 4, 3, 4, 4, 4, 2), 4, [LAYOUT]),
    ],
)
def test_the_shortest_way_is_taken(split: Split, p: int, flags: list[str]) -> None:
    """No flag where none is needed, a layout only where flags cannot say it."""
    settings = frameworks.get("megatron").split_settings(model(num_layers=sum(split)), interleaved(split, p))
    sizes = {"--pipeline-model-parallel-size", "--num-virtual-stages-per-pipeline-rank"}
    assert [name for name in settings if name not in sizes] == flags


def test_layouts_that_others_wrote() -> None:
    """The layouts of NVIDIA-NeMo/Megatron-Bridge (pull request 5391) and of Megatron's own doc, spelled out."""
    bridge = layout_stages("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL")
    assert [stage.count("t") for stage in bridge] == [2] * 35 + [3] + [2] * 3 + [1]
    assert (
        layout_problem("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", num_layers=80, mtp_num_layers=0, pipeline_parallel=8) is None
    )
    deepseek = "Ettt|(tt|)*29,m|L"
    assert layout_problem(deepseek, num_layers=61, mtp_num_layers=1, pipeline_parallel=16) is None
    assert layout_string([2] * 35 + [3] + [2] * 3 + [1]) == "Et*2|(t*2|)*34t*3|(t*2|)*3tL"


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("t*2|t*2|t*2|t*2L", "one E"),
        ("tE|t*2|t*2|t*3L", "one E"),
        ("EEt*2|t*2|t*2|t*2L", "one E"),
        ("Et*2|t*2|t*2|t*2", "one L"),
        ("Et*2|t*2|t*2L|t*2", "one L"),
        ("Et*2|t*2|t*2L|t*2L", "one L"),
        ("Et*2|t*2|t*2|tL", "7 layers (t), needs 8"),
        ("Et*2|t*2|t*2|t*2mL", "1 prediction layers (m), needs 0"),
        ("Et*2|t*2|t*4L", "3 stages are no multiple of the 4 ranks"),
        ("Et*2|t*2|t*2|t*2|L", "5 stages are no multiple of the 4 ranks"),
        ("Et*2|d*2|t*2|t*2L", "'d' is no letter"),
        ("E t*2|t*2|t*2|t*2L", "' ' is no letter"),
        ("Et*2|(t*2|*2t*2L", "is no letter"),
    ],
)
def test_a_planted_fault_in_a_layout_is_noticed(layout: str, words: str) -> None:
    """Each rule for 8 layers on 4 ranks, broken once."""
    problem = layout_problem(layout, num_layers=8, mtp_num_layers=0, pipeline_parallel=4)
    assert problem is not None
    assert words in problem


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("Et|tm|t|tL", "behind all others"),
        ("Et*2|t*2|m|mL", "in one stage"),
        ("Et*2|t*2m*2||L", "last stage of a rank"),
        ("Et*2|t*2|m*2|L", None),
        ("Et*2|t|t|m*2L", None),
    ],
)
def test_prediction_layers_have_their_place(layout: str, words: str | None) -> None:
    """Two chunks on two ranks, two prediction layers: behind the layers, together, in a last chunk."""
    stages = layout_stages(layout)
    letters = "".join(stages)
    sizes = {"num_layers": letters.count("t"), "mtp_num_layers": letters.count("m"), "pipeline_parallel": 2}
    problem = layout_problem(layout, **sizes)
    assert problem is None if words is None else problem is not None and words in problem


@pytest.mark.parametrize("seed", range(60))
def test_torchtitan_builds_the_split_that_was_meant(seed: int) -> None:
    """Weights of the ends are those that make the split; else every module stands in one stage, in order."""
    split, p = random_split(random.Random(seed))
    settings = frameworks.get("torchtitan").split_settings(model(num_layers=sum(split)), interleaved(split, p))
    assert settings.pop("parallelism.pipeline_parallel_degree") == str(p)
    modules = settings.get("parallelism.module_fqns_per_model_part")
    if modules is None:
        assert len(split) in (p, 2 * p)
        embedding = int(settings.get("parallelism.pipeline_parallel_first_stage_less_layers", 1))
        head = int(settings.get("parallelism.pipeline_parallel_last_stage_less_layers", 1))
        assert own_split(sum(split), len(split), embedding, head) == split
        return
    stages = json.loads(modules)
    names = [f"layers.{i}" for i in range(sum(split))]
    assert [name for stage in stages for name in stage] == ["tok_embeddings", *names, "norm", "lm_head"]
    assert [sum(name.startswith("layers.") for name in stage) for stage in stages] == list(split)
    assert stages == stage_modules(split)


@pytest.mark.parametrize("seed", range(60))
def test_aleph_alphas_trainer_builds_the_split_that_was_meant(seed: int) -> None:
    """Modules start to start (`pipe_partition_from_indices`), or evenly with the first stages one more (`uniform`).

    Aleph-Alpha/scaling, commit 737f855, core/nn/parallel_module/pipeline_partitioning.py:23-58.
    """
    rng = random.Random(seed)
    p = rng.randint(2, 6)
    split = tuple(rng.randint(1, 5) for _ in range(p))
    if rng.random() < 0.4:
        split = scaling_split(rng.randint(3 * p, 40), p)
    modules = ["embedding", *(["layer"] * sum(split)), "norm", "head"]
    settings = frameworks.get("scaling").split_settings(model(num_layers=sum(split)), plan(split))
    assert settings.pop("topology.pipe_parallel_size") == str(p)
    ((option, value),) = settings.items()
    if option == "topology.pipe_partition_overwrite":
        starts = json.loads(value)
    else:
        assert (option, value) == ("topology.pipe_partition_method", "uniform")
        starts = [stage * (len(modules) // p) + min(stage, len(modules) % p) for stage in range(p + 1)]
    assert (starts[0], starts[-1]) == (0, len(modules))
    stages = [modules[start:end] for start, end in pairwise(starts)]
    assert [stage.count("layer") for stage in stages] == list(split)
    assert (stages[0][0], stages[-1][-2:]) == ("embedding", ["norm", "head"])


def test_one_stage_needs_no_setting() -> None:
    """Without a pipeline there is nothing to say."""
    assert frameworks.get("scaling").split_settings(model(), plan((12,), schedule="none")) == {}


EXECUTED = [
    (10, 4, (0, 0), (3, 3, 2, 2)),
    (80, 16, (0, 1), (6, *[5] * 14, 4)),
    (126, 16, (1, 1), (7, *[8] * 14, 7)),
    (46, 4, (1, 1), (11, 12, 12, 11)),
    (46, 4, (0, 1), (12, 12, 12, 10)),
    (30, 8, (1, 0), (3, *[4] * 6, 3)),
]
"""Layers, stages, whether embedding and head count, and what DeepSpeed's own partition_balanced made of them."""


@pytest.mark.parametrize(("layers", "p", "counted", "split"), EXECUTED)
def test_deepspeed_partitions_as_its_code_does(layers: int, p: int, counted: tuple[int, int], split: Split) -> None:
    """What its function, executed (microsoft/DeepSpeed commit 38327e07), made; the method that makes it is named."""
    profile, of = frameworks.get("deepspeed"), model(num_layers=layers)
    assert profile.splits is not None
    assert split in profile.splits(of, p, 1)
    method = profile.split_settings(of, plan(split))["partition_method"]
    # where the embedding alone makes the same split, that is said
    assert ("<embedding>" in method, "<head>" in method) in {(bool(counted[0]), bool(counted[1])), (True, False)}


@pytest.mark.parametrize(
    ("layers", "p", "v", "split"),
    [
        (32, 4, 1, (8, 8, 8, 8)),
        (30, 4, 1, (7, 8, 8, 7)),
        (29, 4, 1, (7, 7, 8, 7)),
        (30, 4, 2, (3, *[4] * 6, 3)),
        (80, 16, 2, None),
    ],
)
def test_the_fork_takes_its_padding_from_fixed_places(layers: int, p: int, v: int, split: Split | None) -> None:
    """Padded to a multiple of p; what is too many goes from the last, the first, the second stage (`get_offset`)."""
    profile = frameworks.get("zero-bubble")
    assert profile.splits is not None
    assert profile.splits(model(num_layers=layers), p, v) == ((split,) if split else ())
    if split:
        settings = profile.split_settings(model(num_layers=layers), interleaved(split, p))
        assert ("--allow-padding-num-layers" in settings) == (layers % p > 0)
        assert settings.get("--num-layers-per-virtual-pipeline-stage") == (None if v == 1 else "4")


@pytest.mark.parametrize(
    ("framework", "code"), [("deepspeed", "deepspeed_split"), ("zero-bubble", "zero_bubble_split"), ("megatron", None)]
)
def test_a_split_that_cannot_be_built_is_refused(framework: str, code: str | None) -> None:
    """12 layers as 2 4 4 2: nobody's partition method, any layout's."""
    of = problem(model(tied_embeddings=False), num_gpus=4, framework=framework)
    plans = table_of([plan((3, 3, 3, 3)), plan((2, 4, 4, 2)), plan((12,), data_parallel=4)])
    legal, counts, examples = legal_plans(of, plans)
    assert dict(counts) == ({code: 1} if code else {})
    assert len(legal) == 3 - len(counts)
    assert [example.plan.layers_per_stage for example in examples] == ([(2, 4, 4, 2)] if code else [])
    if code:
        assert "it builds 3 3 3 3" in examples[0].message
