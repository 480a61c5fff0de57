"""Public configurations of Megatron-Bridge, reduced, read and judged; its rules; and plans written for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppadvisor.errors import InputError, RefusedError
from ppadvisor.frameworks import recognised
from ppadvisor.frameworks.configuration import Configuration, Given, Outcome
from ppadvisor.frameworks.megatron_bridge import checks
from ppadvisor.frameworks.megatron_bridge.config import read
from ppadvisor.frameworks.megatron_bridge.document import read_bridge
from ppadvisor.frameworks.megatron_bridge.launch import launch
from ppadvisor.specs.load import load_model
from ppadvisor.specs.training import TrainingSpec
from tests.frameworks.launched import CHANGED, costs_the_same
from tests.frameworks.test_megatron_launch import PLANS, PUBLISHED, RUN, Sizes, cases, cluster, plan_of

FILES = Path(__file__).parent.parent / "published" / "bridge_configs"

SAVED = """\
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  vocab_size: 32000
  seq_length: 4096
  gated_linear_unit: true
  pipeline_model_parallel_size: 4
train:
  global_batch_size: 64
  micro_batch_size: 1
dataset:
  seq_length: 4096
mixed_precision: bf16_mixed
"""


def public(name: str, num_gpus: int | None = None, model: str | None = None) -> Configuration:
    """A reduced public configuration."""
    return read(FILES / name, Given(num_gpus, model=None if model is None else load_model(model)))


def said(folder: Path, *changes: str) -> Configuration:
    """The saved configuration with `section.key: value` over it."""
    path = folder / "run.yaml"
    path.write_text(SAVED)
    return read(path, Given(num_gpus=8, variables=dict(change.split(": ", 1) for change in changes)))


def rules(configuration: Configuration) -> list[str]:
    """The rules that it breaks."""
    return [broken.rule for broken in configuration.broken]


def test_the_llama_3_70b_recipe() -> None:
    """Its model is the preset of its Hugging Face id; p 4, t 4, c 2, v 5 on 32 GPUs leave one replica and m 512.

    Transformer Engine's fused loss, which Megatron-LM's command line refuses, is Bridge's own and no rule here.
    """
    found = public("llama3_70b_pretrain.yaml", 32)
    assert found.legal
    assert found.model == load_model("llama-3-70b")
    assert found.plan is not None
    assert found.training is not None
    plan = found.plan
    assert (plan.pipeline_parallel, plan.tensor_parallel, plan.context_parallel, plan.virtual_stages) == (4, 4, 2, 5)
    assert (plan.data_parallel, plan.num_microbatches, plan.optimizer_sharding) == (1, 512, 1)
    assert (found.training.precision, found.training.gradient_precision) == ("bf16", "fp32")
    told = [remark.flags for remark in found.remarks if remark.kind == "not_modelled"]
    assert told == [("comm_overlap.tp_comm_overlap",)]


def test_the_glm_4_5_recipe() -> None:
    """92 layers on p 8 stand as 10, six times 12, and 10: the fix of issue 5551; without it, it cannot start."""
    found = public("glm45_355b_pretrain.yaml", 128)
    assert found.legal
    assert found.plan is not None
    assert found.plan.layers_per_stage == (10, *(12,) * 6, 10)
    assert (found.plan.expert_parallel, found.plan.expert_tensor_parallel) == (16, 1)
    ends = ("model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage")
    before = read(FILES / "glm45_355b_pretrain.yaml", Given(128, variables=dict.fromkeys(ends, "null")))
    assert rules(before) == ["layers_divide"]
    assert f"{ends[0]} 10 {ends[1]} 10 leaves 12 for each" in before.broken[0].message


def test_the_gpt_oss_script() -> None:
    """Overrides in a variable of a batch job: 4 nodes of 8; the model is the recipe's and given beside it."""
    found = public("gpt_oss_slurm_pretrain.sh", model="gpt-oss-20b")
    assert found.legal
    assert found.num_gpus == 32
    assert found.plan is not None
    plan = found.plan
    assert (plan.pipeline_parallel, plan.tensor_parallel, plan.expert_parallel, plan.num_microbatches) == (4, 2, 4, 32)
    assert found.model == load_model("gpt-oss-20b")
    assumed = " ".join(remark.message for remark in found.remarks if remark.kind == "assumed")
    assert "bf16_mixed is taken" in assumed
    assert "virtual_pipeline_model_parallel_size, recompute_granularity" in assumed
    with pytest.raises(InputError, match="the model is that of gpt_oss_20b_pretrain_config: give --model"):
        public("gpt_oss_slurm_pretrain.sh")


def test_the_llama_3_2_1b_tutorial() -> None:
    """One GPU, eight micro-batches: legal; Bridge's defaults that it leaves to the recipe are told."""
    found = public("llama32_1b_pretrain.yaml", 1, "llama-3.2-1b")
    assert found.legal
    assert found.plan is not None
    assert (found.plan.schedule, found.plan.num_microbatches) == ("none", 8)
    assert {remark.kind for remark in found.remarks} == {"assumed"}


def test_a_learning_rate_that_is_passed_over() -> None:
    """Bridge's own example sets optimizer.finetune_lr, which no optimizer has: it trains at the recipe's rate."""
    path = FILES / "qwen3_next_finetune.yaml"
    bridge = read_bridge(path, {})
    broken = list(checks.broken(bridge.document, bridge))
    assert [(one.rule, one.outcome, one.flags) for one in broken] == [
        ("unknown_key", Outcome.WRONG, ("optimizer.finetune_lr",))
    ]
    assert broken[0].line == 1 + path.read_text().splitlines().index("  finetune_lr: 0.000005")
    missing = "model.tensor_model_parallel_size, model.pipeline_model_parallel_size: left to the recipe"
    with pytest.raises(InputError, match=missing):
        public(path.name, 8)


@pytest.mark.parametrize(
    ("changes", "rule", "outcome"),
    [
        (("model.seq_length: 2048",), "sequence_lengths", Outcome.REJECTED),
        (("mixed_precision: bf16-mixd",), "precision_recipe", Outcome.REJECTED),
        (("train.micro_batchsize: 2",), "unknown_key", Outcome.REJECTED),
        (("model.tensor_model_parallel_size: 3",), "world_size", Outcome.REJECTED),
        (("model.virtual_pipeline_model_parallel_size: 3",), "virtual_stages", Outcome.REJECTED),
        (("model.num_layers: 30",), "layers_divide", Outcome.REJECTED),
        (("model.virtual_pipeline_model_parallel_size: 2", "train.global_batch_size: 20"), "microbatch_group",
         Outcome.FAILS),
        (("model.recompute_granularity: full",), "recompute", Outcome.REJECTED),
        (("model.num_moe_experts: 8", "model.moe_router_topk: 2", "model.add_bias_linear: false",
          "model.tensor_model_parallel_size: 2"), "experts_sequence_parallel", Outcome.FAILS),
    ],
)  # fmt: skip
def test_rules(tmp_path: Path, changes: tuple[str, ...], rule: str, outcome: Outcome) -> None:
    """Bridge's own checks (training/config.py) and Megatron-Core's below them."""
    assert [(broken.rule, broken.outcome) for broken in said(tmp_path, *changes).broken][:1] == [(rule, outcome)]


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("model.sequence_parallel: true",),  # switched off at t 1
        ("model.cross_entropy_fusion_impl: te",),
        ("ddp.overlap_param_gather: true",),
        ("comm_overlap.tp_comm_overlap: true",),  # switched off with a warning
        ("model.num_query_groups: 32",),
        ("model.virtual_pipeline_model_parallel_size: 2", "model.overlap_p2p_comm: false"),
        ("env_vars.CUDA_DEVICE_MAX_CONNECTIONS: 32", "model.context_parallel_size: 2"),
        ("model.pipeline_model_parallel_layout: [[embedding, decoder, decoder], [decoder, loss]]",
         "model.num_layers: 3", "model.pipeline_model_parallel_size: 2"),
        ("model.attention_backend: AttnBackend.fused",),
        ("model.window_size: [127, 0]", "model.window_attn_skip_freq: 2"),
    ],
    ids=str,
)  # fmt: skip
def test_what_bridge_accepts(tmp_path: Path, changes: tuple[str, ...]) -> None:
    """What a command line of Megatron-LM refuses, or Bridge sets right by itself, breaks no rule."""
    assert said(tmp_path, *changes).broken == ()


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        (("mixed_precision: bf16_with_fp8_delayed_scaling_mixed",), "precision", "fp8"),
        (("mixed_precision: fp16-mixed",), "precision", "fp16"),
        (("mixed_precision: fp16-mixed",), "gradient_precision", "fp16"),
        (("mixed_precision: null", "mixed_precision.bf16: true", "mixed_precision.grad_reduce_in_fp32: false"),
         "gradient_precision", "bf16"),
        (("mixed_precision: null", "model.bf16: true"), "gradient_precision", "bf16"),  # Megatron-Core's default
        (("ddp.grad_reduce_in_fp32: false",), "gradient_precision", "fp32"),  # mixed precision overwrites it
        (("mixed_precision: null",), "precision", "fp32"),
    ],
)  # fmt: skip
def test_precision(tmp_path: Path, changes: tuple[str, ...], field: str, value: str) -> None:
    """mixed_precision.py: recipes by name, with hyphens too, and what they overwrite."""
    assert getattr(said(tmp_path, *changes).training, field) == value


def test_experts_are_not_divided_by_tensor_parallelism(tmp_path: Path) -> None:
    """transformer_config.py, finalize: 1 where expert parallelism is on and nobody says; Megatron-LM takes t."""
    experts = ("model.num_moe_experts: 8", "model.moe_router_topk: 2", "model.add_bias_linear: false")
    sizes = ("model.tensor_model_parallel_size: 2", "model.sequence_parallel: true")
    plan = said(tmp_path, *experts, *sizes, "model.expert_model_parallel_size: 2").plan
    assert plan is not None
    assert plan.expert_tensor_parallel == 1


@pytest.mark.parametrize(
    ("ends", "v", "rule"),
    [
        ((), 4, "layers_divide"),
        ((4, 8), 4, ""),
        ((4, 8), 3, "ends_in_chunks"),
    ],
)
def test_60_layers_in_chunks(tmp_path: Path, ends: tuple[int, ...], v: int, rule: str) -> None:
    """Issue 5884 of Bridge, Qwen3.5-VL: p 8 and v 4 take 4, six times 8, and 8 layers; 4 are no multiple of v 3."""
    names = ("model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage")
    sizes = ("model.num_layers: 60", "model.pipeline_model_parallel_size: 8")
    chunks = f"model.virtual_pipeline_model_parallel_size: {v}"
    found = said(tmp_path, *sizes, chunks, *(f"{name}: {size}" for name, size in zip(names, ends, strict=False)))
    assert rules(found) == ([rule] if rule else [])
    if not rule:
        assert found.plan is not None
        assert found.plan.layers_per_stage == (4, *(8,) * 7)


def test_a_call_with_overrides(tmp_path: Path) -> None:
    """run_recipe.py's own options, overrides behind them, quotes; what only a shell knows, and a deletion, are told.

    Hydra refuses a key that no section has (parse_hydra_overrides: struct).
    """
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun --nproc_per_node=8 --nnodes 2 scripts/training/run_recipe.py --recipe vanilla_gpt \\\n"
        "  -tp 2 -pp 4 -gb 64 -mb 1 -sl 4096 model.num_layers=32 "
        "model.hidden_size=4096 model.num_attention_heads=32 \\\n"
        '  model.vocab_size=32000 "model.window_size=[127,0]" model.pipeline_model_parallel_size=2 '
        '~model.x $MORE "$@"\n'
    )
    found = read(path, Given())
    assert found.legal
    assert (found.num_gpus, found.framework) == (16, "megatron-bridge")
    assert found.plan is not None
    assert found.model is not None
    assert (found.plan.pipeline_parallel, found.plan.tensor_parallel, found.plan.num_microbatches) == (2, 2, 16)
    assert found.model.sliding_window == 128
    told = [remark.message for remark in found.remarks if remark.kind == "not_understood"]
    assert [message.partition(";")[0].partition(":")[0] for message in told] == [
        "~model.x",
        "$MORE is not set in the file",
        "$@ is an argument of the script",
    ]
    path.write_text(path.read_text().replace("-mb 1", "-mb 1 train.micro_batchsize=2"))
    assert rules(read(path, Given())) == ["unknown_key"]
    assert not read(path, Given()).accepted


def test_messages_speak_of_keys(tmp_path: Path) -> None:
    """No option of the command line is named where Bridge has a key for it; lines are those of the file."""
    found = said(tmp_path, "model.num_layers: 30")
    assert found.broken[0].line == 11
    assert "--" not in found.broken[0].message
    assert found.places["pipeline_parallel"] == ("model.pipeline_model_parallel_size", 11)
    assert found.names["--pipeline-model-parallel-layout"] == "model.pipeline_model_parallel_layout"


def test_saved_objects(tmp_path: Path) -> None:
    """A dtype and an enumeration as Megatron saves them (yaml_utils.py), a model with its sizes one level down."""
    path = tmp_path / "run.yaml"
    text = SAVED.replace("model:\n", "model:\n  transformer:\n    attention_dropout: 0.0\n    hidden_dropout: 0.0\n")
    dtype = "{_target_: torch.bfloat16, _call_: false}"
    backend = "{_target_: megatron.core.transformer.enums.AttnBackend, _call_: true, _args_: [3]}"
    text += f"optimizer:\n  use_precision_aware_optimizer: true\n  exp_avg_dtype: {dtype}\n"
    text += f"  exp_avg_sq_dtype: {dtype}\nddp:\n  use_distributed_optimizer: true\n"
    path.write_text(text.replace("  num_layers", f"  attention_backend: {backend}\n  num_layers"))
    found = read(path, Given(num_gpus=8))
    assert found.broken == ()
    assert found.training is not None
    training = found.training
    assert (training.optimizer, training.attention, training.dropout) == ("adam-bf16-moments", "eager", False)


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir()))
def test_public_files_are_recognised(name: str) -> None:
    """Each is told from Megatron-LM's own by its sections or overrides."""
    assert recognised(FILES / name, (FILES / name).read_text()) == "megatron-bridge"


@pytest.mark.parametrize(("name", "plan_name"), cases())
def test_the_yaml_says_the_plan(tmp_path: Path, name: str, plan_name: str) -> None:
    """What `check` reads is the same plan in all fields, and costs the same time and memory to the last bit."""
    model = load_model(name)
    plan, batch = plan_of(model, PLANS[plan_name])
    training = TrainingSpec(**{**RUN, "global_batch_size": batch})
    written = launch(model, training, plan, cluster(), one_connection=True)
    path = tmp_path / "plan.yaml"
    path.write_text(written.text)
    found = read(path, Given(num_gpus=cluster().num_gpus))
    assert (written.unsaid, found.broken, found.remarks, found.plan) == ((), (), (), plan)
    assert costs_the_same(model, training, plan, found, cluster())
    assert max(map(len, written.text.splitlines())) <= 500
    assert recognised(path, written.text) == "megatron-bridge"


@pytest.mark.parametrize("changed", CHANGED, ids=str)
def test_the_yaml_says_how_it_trains(changed: Sizes) -> None:
    """Precision, optimizer, kernels: all are read as they were asked for."""
    model = load_model("llama-3.1-8b")
    plan, _ = plan_of(model, {"p": 2, "t": 2})
    assert launch(model, TrainingSpec(**{**RUN, **changed}), plan, cluster(), one_connection=True).unsaid == ()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_yaml_says_the_model(name: str) -> None:
    """Every value of these models has a field."""
    model = load_model(name)
    plan, batch = plan_of(model, {"p": 1})
    training = TrainingSpec(sequence_length=1024, global_batch_size=batch)
    assert launch(model, training, plan, cluster(), one_connection=True).unsaid == ()


def test_what_has_no_field_is_told_and_what_is_refused_is_refused() -> None:
    """Falcon's parallel blocks stand in a comment; bf16 moments without the distributed optimizer write nothing."""
    model = load_model("falcon-7b")
    plan, _ = plan_of(model, {"p": 1})
    written = launch(model, TrainingSpec(**RUN), plan, cluster(), one_connection=True)
    told = "parallel_block = True; Megatron-Bridge takes False"
    assert told in written.unsaid
    assert f"# not said, Megatron-Bridge has no field for it: {told}\n" in written.text
    plan, _ = plan_of(load_model("llama-3.1-8b"), {"p": 2, "zero": 0})
    training = TrainingSpec(**RUN, optimizer="adam-bf16-moments")
    with pytest.raises(RefusedError, match=r"optimizer\.use_precision_aware_optimizer needs ddp\.use_distributed"):
        launch(load_model("llama-3.1-8b"), training, plan, cluster(), one_connection=True)
