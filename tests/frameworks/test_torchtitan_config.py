"""Train configs of torchtitan: its own, reduced, read and judged; and options that are one thing and mean another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.parameters import count_parameters
from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import Configuration, Given, Outcome
from ppadvisor.frameworks.torchtitan.config import read, read_toml_text, recognises
from ppadvisor.frameworks.torchtitan.flavors import FLAVORS, flavor_of, model_of
from ppadvisor.search.api import make_problem
from ppadvisor.specs.load import load_cluster, load_model

CONFIGS = Path(__file__).parent.parent / "published" / "torchtitan_configs"


def public(name: str, num_gpus: int) -> Configuration:
    """A reduced config of torchtitan's own."""
    return read(CONFIGS / name, Given(num_gpus))


def said(text: str, num_gpus: int = 16, **given: Any) -> Configuration:
    """A config of these lines: sections in brackets, parted by semicolons."""
    return read_toml_text(text.replace("; ", "\n"), "train.toml", Given(num_gpus, **given))


def pipelined(options: str = "", *, flavor: str = "8B", local: int = 8, num_gpus: int = 16) -> Configuration:
    """Llama 3 on four stages."""
    return said(
        f'[model]; flavor = "{flavor}"; [training]; local_batch_size = {local}; '
        f"[parallelism]; pipeline_parallel_degree = 4; {options}",
        num_gpus,
    )


def rules(configuration: Configuration) -> list[str]:
    """The rules that it breaks."""
    return [broken.rule for broken in configuration.broken]


def remarks(configuration: Configuration, kind: str) -> list[str]:
    """The first option of each remark of a kind."""
    return [remark.flags[0] for remark in configuration.remarks if remark.kind == kind]


def line_of(name: str, text: str) -> int:
    """The first line that begins so."""
    lines = (CONFIGS / name).read_text().splitlines()
    return next(index for index, line in enumerate(lines, 1) if line.startswith(text))


def test_the_70b_preset() -> None:
    """A preset for 64 A100: FSDP 8 x t 8, full recomputation; without a pipeline weights are gathered anew (ZeRO 3)."""
    found = public("llama3_70b.toml", 64)
    assert found.legal
    assert found.plan is not None
    plan = found.plan
    assert (plan.pipeline_parallel, plan.tensor_parallel, plan.data_parallel) == (1, 8, 8)
    assert (plan.micro_batch_size, plan.num_microbatches, plan.recompute, plan.optimizer_sharding) == (8, 1, "full", 3)
    assert found.training is not None
    assert (found.training.global_batch_size, found.training.precision) == (64, "bf16")


def test_the_405b_preset_names_no_converter() -> None:
    """Commit 8a2686c4 renamed float8 to quantize.linear.float8 and left the preset's: its look-up is a KeyError."""
    found = public("llama3_405b.toml", 128)
    assert rules(found) == ["converters"]
    assert found.broken[0].line == line_of("llama3_405b.toml", "converters")
    assert "quantize.linear.float8" in found.broken[0].message
    assert remarks(found, "not_modelled")[0] == "compile.enable"


def test_the_maverick_preset_has_too_few_micro_batches() -> None:
    """A local batch of 1 on four stages of 1F1B: Schedule1F1B refuses fewer micro-batches than stages (B14)."""
    found = public("llama4_17bx128e.toml", 256)
    assert rules(found) == ["microbatches"]
    assert found.broken[0].line == line_of("llama4_17bx128e.toml", "local_batch_size")
    assert found.broken[0].flags[0] == "training.local_batch_size"
    # (p-1)/(m+p-1) = 3/4
    assert "= 75%" in found.broken[0].message


def test_the_deepseek_preset_is_legal() -> None:
    """torchtitan starts it on 256 GPUs (that it needs 276 GiB a rank is the estimate's to say: A38)."""
    found = public("deepseek_v3_671b.toml", 256)
    assert found.legal
    assert remarks(found, "not_modelled") == ["activation_checkpoint.mode"]


def test_the_deepseek_preset_does_not_fit() -> None:
    """A38: without a pipeline a rank needs more than 276 GiB, as torchtitan's own maintainers found."""
    found = public("deepseek_v3_671b.toml", 256)
    assert found.model is not None
    assert found.training is not None
    assert found.plan is not None
    machines = load_cluster("dgx-h100-superpod", 256)
    estimate = estimate_plan(make_problem(found.model, machines, found.training), found.plan, margin=0.9)
    assert not estimate.memory.fits
    assert estimate.memory.peak_bytes > 276 * 2**30


def test_the_qwen_preset_takes_no_pipeline() -> None:
    """Its TrainSpec has no pipelining_fn: fine as it is, refused with two stages, and never advised."""
    assert public("qwen3_32b.toml", 8).legal
    text = (CONFIGS / "qwen3_32b.toml").read_text() + "\n"
    piped = text.replace("[parallelism]", "[parallelism]\npipeline_parallel_degree = 2")
    found = read_toml_text(piped, "train.toml", Given(8))
    assert rules(found) == ["pipelining"]
    assert found.fixed == {"pipeline_parallel": (1,)}


def test_names_of_2024_are_told_by_what_they_are_now() -> None:
    """torchtitan refuses a file with one unknown name; nothing is estimated where a size stands under an old one."""
    found = public("llama3_405b_2024.toml", 128)
    assert set(rules(found)) == {"unknown_option"}
    told = {broken.flags[0]: broken.message for broken in found.broken}
    assert told["training.batch_size"].endswith("torchtitan has training.local_batch_size since")
    assert "parallelism.pipeline_parallel_degree" in told["experimental.pipeline_parallel_degree"]
    assert "quantize.linear.float8" in told["float8"]
    assert (found.plan, found.training) == (None, None)
    batch = next(broken for broken in found.broken if broken.flags[0] == "training.batch_size")
    assert batch.line == line_of("llama3_405b_2024.toml", "batch_size")


@pytest.mark.parametrize(
    ("name", "flavor", "total"),
    [
        # printed by torchtitan as "Model llama3 8B size": benchmarks and issues; published counts of the models
        ("llama3", "8B", 8_030_261_248),
        ("llama3", "70B", 70_553_706_496),
        ("llama3", "405B", 405_853_388_800),
        ("deepseek_v3", "16B", 15_706_484_224),
        ("qwen3", "0.6B", 596_049_920),
    ],
)
def test_parameters_of_flavors(name: str, flavor: str, total: int) -> None:
    """A flavor has the count that is published of its model."""
    assert count_parameters(model_of(name, flavor)) == total


def test_every_flavor_is_found_again() -> None:
    """The writer's look-up is the reader's, by sizes."""
    for name, flavors in FLAVORS.items():
        for flavor in flavors:
            found = flavor_of(model_of(name, flavor))
            assert found is not None
            assert found[0] == name
    assert flavor_of(load_model("llama-2-7b")) is None


@pytest.mark.parametrize(
    ("options", "split"),
    [
        # its own default counts embedding and head as a layer each: 34 on 4 stages
        ("", (8, 9, 8, 7)),
        ('pipeline_parallel_schedule = "Interleaved1F1B"', (4, 5, 4, 4, 4, 4, 4, 3)),
        ("pipeline_parallel_first_stage_less_layers = 0; pipeline_parallel_last_stage_less_layers = 0", (8, 8, 8, 8)),
    ],
)
def test_its_own_split(options: str, split: tuple[int, ...]) -> None:
    """generate_llm_fqn_per_model_part, by hand."""
    found = pipelined(options)
    assert found.plan is not None
    assert found.plan.layers_per_chunk == split


LISTED = '[["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["layers.3"], ["layers.4", "layers.5", {end}]]'


@pytest.mark.parametrize(
    ("lists", "told"),
    [
        (LISTED.replace("{end}", '"norm", "output"'), None),
        (LISTED.replace("{end}", '"norm", "lm_head"'), "output on no stage"),
        (LISTED.replace('"layers.3"', '"layers.9"').replace("{end}", '"norm", "output"'), "1 layer stands (3)"),
        (LISTED.replace('"layers.3"', '"layers.2"').replace("{end}", '"norm", "output"'), "1 layer stands (3)"),
        (
            LISTED.replace('"layers.3"', '"layers.3", "layers.2"').replace("{end}", '"norm", "output"'),
            "1 layer stands (2) on more than one stage",
        ),
        (LISTED.replace("layers.0", "layers.6").replace("layers.3", "layers.0").replace("layers.6", "layers.3")
         .replace("{end}", '"norm", "output"'), "order"),
    ],
)  # fmt: skip
def test_layers_on_no_stage(lists: str, told: str | None) -> None:
    """What no list names is deleted without a word: it runs, and trains another model."""
    found = pipelined(f"module_fqns_per_model_part = {lists}", flavor="debugmodel")
    if told is None:
        assert found.legal
        assert found.plan is not None
        assert found.plan.layers_per_stage == (1, 2, 1, 2)
    else:
        assert found.accepted
        assert rules(found) == ["dropped_modules"]
        assert told in found.broken[0].message
        assert found.broken[0].outcome is Outcome.WRONG


def test_heads_and_key_value_heads() -> None:
    """B19: t 16 divides the 32 heads of 8B and not its 8 key/value heads, which torchtitan copies for no rank."""
    found = said('[model]; flavor = "8B"; [parallelism]; tensor_parallel_degree = 16', 16)
    assert rules(found) == ["attention_heads"]
    assert found.broken[0].message.endswith("allowed t: 1, 2, 4, 8")
    assert found.broken[0].outcome is Outcome.FAILS


def test_without_fsdp_all_is_computed_in_fp32() -> None:
    """utils.py:251-257: mixed precision is disabled where t or p is above 1 and nothing is sharded."""
    found = pipelined("data_parallel_shard_degree = 1", num_gpus=4)
    assert remarks(found, "no_effect") == ["training.mixed_precision_param"]
    assert found.training is not None
    assert found.training.precision == "fp32"
    sharded = pipelined()
    assert sharded.training is not None
    assert (sharded.training.precision, remarks(sharded, "no_effect")) == ("bf16", [])


def test_replicas_alone() -> None:
    """DDP divides nothing (ZeRO 0), and runs beside no other parallelism."""
    alone = said('[model]; flavor = "8B"; [parallelism]; data_parallel_replicate_degree = 16')
    assert alone.plan is not None
    assert alone.plan.optimizer_sharding == 0
    beside = said(
        '[model]; flavor = "8B"; [parallelism]; data_parallel_replicate_degree = 8; tensor_parallel_degree = 2'
    )
    assert rules(beside) == ["data_parallel_only"]
    hybrid = said('[model]; flavor = "8B"; [parallelism]; data_parallel_replicate_degree = 4')
    assert remarks(hybrid, "not_modelled") == ["parallelism.data_parallel_replicate_degree"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("mode = 'none'", "none"),
        ("mode = 'full'", "full"),
        ("mode = 'selective'; selective_ac_option = '1'", "full"),
        # of 80 layers every second
        ("mode = 'selective'; selective_ac_option = '2'", "full:block:40"),
        ("mode = 'selective'; selective_ac_option = '3'", "full:block:26"),
        ("mode = 'selective'; selective_ac_option = '81'", "none"),
        ("mode = 'selective'; selective_ac_option = 'op'", "none"),
        ("", "full:block:40"),
    ],
)
def test_recomputation(options: str, words: str) -> None:
    """`selective` is every nth layer, every second by default; by operator it is told as not modelled."""
    found = said(f'[model]; flavor = "70B"; [activation_checkpoint]; {options}')
    assert found.plan is not None
    assert found.plan.recomputation.text == words
    assert ("activation_checkpoint.mode" in remarks(found, "not_modelled")) == ("op" in options.split("'"))


def test_every_nth_layer_is_counted_over_the_chunks_of_a_rank() -> None:
    """_layer_sac_count runs on: of 8 9 8 7 layers every second makes 4 4 4 3, of which 3 are taken and told."""
    found = pipelined("[activation_checkpoint]; mode = 'selective'")
    assert found.plan is not None
    assert found.plan.recomputation.text == "full:block:3"
    assert "3 to 4 of a stage" in next(one.message for one in found.remarks if one.kind == "not_modelled")


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("[activation_checkpoint]; mode = 'ful'", "recompute_mode"),
        ("[activation_checkpoint]; selective_ac_option = 2", "recompute_option"),
        ("[activation_checkpoint]; selective_ac_option = 'ops'", "recompute_option"),
        ("[activation_checkpoint]; mode = 'memory_budget'", "recompute_budget"),
        ("[training]; dtype = 'float16'", "precision"),
        ("[optimizer]; name = 'SGD'", "optimizer"),
        ("[optimizer]; early_step_in_backward = true; [parallelism]; pipeline_parallel_degree = 2", "step_in_backward"),
        ("[parallelism]; fsdp_reshard_after_forward = 'sometimes'", "reshard_after_forward"),
        ("[parallelism]; enable_async_tensor_parallel = true; tensor_parallel_degree = 2", "async_tensor_parallel"),
        ("[model]; name = 'llama5'", "model_name"),
        ("[model]; flavor = '8b'", "model_flavor"),
        ("[model]; name = 'deepseek_v3'; flavor = '16B'; [parallelism]; context_parallel_degree = 2",
         "context_parallel_attention"),
        ("[model]; converters = ['quantize.linear.mx', 'quantize.grouped_mm.float8']", "converters"),
        ("[training]; global_batch_size = 100", "global_batch_size"),
        ("[training]; seq_len = 0", "positive_sizes"),
    ],
)  # fmt: skip
def test_what_it_refuses(options: str, rule: str) -> None:
    """Each is an error of torchtitan's at start-up, with the option to change and its line."""
    found = said(options)
    assert rule in rules(found)
    broken = found.broken[rules(found).index(rule)]
    assert broken.outcome is Outcome.REJECTED
    assert broken.line is not None
    assert broken.flags


@pytest.mark.parametrize(
    ("options", "kind", "flag"),
    [
        ("[parallelism]; expert_parallel_degree = 2", "no_effect", "parallelism.expert_parallel_degree"),
        ("[training]; global_batch_size = 64; local_batch_size = 8; [parallelism]; pipeline_parallel_degree = 8",
         "not_modelled", "training.global_batch_size"),
        ("[training]; enable_cpu_offload = true", "not_modelled", "training.enable_cpu_offload"),
        ("[compile]; enable = true", "not_modelled", "compile.enable"),
        ("[metrics]; log_freq = '10'", "not_understood", "metrics.log_freq"),
        ("[parallelism]; pipeline_parallel_degree = 2; pipeline_parallel_schedule = 'ZBVZeroBubble'", "slow",
         "parallelism.pipeline_parallel_schedule"),
    ],
)  # fmt: skip
def test_what_it_takes_and_what_that_means(options: str, kind: str, flag: str) -> None:
    """Accepted, and told: no effect, not modelled, not of its type, or slow (A11)."""
    found = said("[model]; flavor = '8B'\n".replace("\n", "; ") + options)
    assert found.legal, rules(found)
    assert flag in remarks(found, kind)


def test_a_model_of_ones_own() -> None:
    """Of a flavor that is not torchtitan's the sizes come from the user; of its own they cannot."""
    text = '[experimental]; custom_import = "mine"; [model]; name = "mine"; flavor = "7B"'
    without = said(text)
    assert (without.legal, without.model, without.plan) == (True, None, None)
    assert [one.kind for one in without.remarks] == ["missing"]
    assert said(text, model=load_model("llama-2-7b")).plan is not None
    with pytest.raises(InputError, match="--model has no effect"):
        said('[model]; flavor = "8B"', model=load_model("llama-2-7b"))


def test_what_is_recognised() -> None:
    """TOML with one of its sections; no other file of ours or theirs."""
    assert recognises(Path("x.toml"), "[parallelism]\n")
    assert recognises(Path("/dev/stdin"), "a = 1\n [ training ] # x\n")
    assert not recognises(Path("x.toml"), 'name = "m"\n[moe]\n')
    assert not recognises(Path("x.sh"), "[training]\n")
