"""Public launch scripts of Megatron-LM, reduced, read and judged; and options that are one thing and mean another."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppadvisor.engine.parameters import count_parameters
from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import Configuration, Given, Outcome
from ppadvisor.frameworks.megatron.config import read
from ppadvisor.frameworks.megatron.options import options
from ppadvisor.frameworks.megatron.patterns import layer_pattern

SCRIPTS = Path(__file__).parent.parent / "published" / "megatron_scripts"

PLAIN = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000"
)

CHUNKED = "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2"


def public(name: str, num_gpus: int | None = None, vocab_size: int | None = None) -> Configuration:
    """A reduced public script."""
    return read(SCRIPTS / name, Given(num_gpus, vocab_size))


def line_of(name: str, text: str) -> int:
    """The first line of a script that begins with this."""
    lines = (SCRIPTS / name).read_text().splitlines()
    return next(index for index, line in enumerate(lines, 1) if line.strip().startswith(text))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file to write a script into."""
    return tmp_path / "train.sh"


def said(path: Path, options: str, num_gpus: int = 8) -> Configuration:
    """A call with these options behind the plain ones."""
    path.write_text(f"export CUDA_DEVICE_MAX_CONNECTIONS=1\npython pretrain_gpt.py {PLAIN} {options}\n")
    return read(path, Given(num_gpus=num_gpus))


def rules(configuration: Configuration) -> list[str]:
    """The rules that it breaks."""
    return [broken.rule for broken in configuration.broken]


def test_the_gpt3_example_is_refused() -> None:
    """NVIDIA's own 175B example cannot start: 8 GPUs for t p = 128, a schedule beside a batch, whose quotes are lost.

    The second was found by running Megatron (facts of the pinned commit); the third is bash's splitting of
    ${TRAINING_ARGS[@]} without quotes, the first arithmetic.
    """
    found = public("gpt3_175b.sh", vocab_size=50257)
    assert rules(found) == ["left_over_words", "world_size", "batch_and_schedule"]
    schedule = line_of("gpt3_175b.sh", "--step-batch")
    assert [broken.line for broken in found.broken] == [schedule, line_of("gpt3_175b.sh", "--tensor"), schedule]
    assert found.broken[1].flags[0] == "--tensor-model-parallel-size"


def test_the_gpt3_example_on_enough_gpus_is_175b() -> None:
    """On 128 GPUs it is p 16, t 8, m 1536 of 6 layers a stage, and 174.6 B parameters (Brown et al. 2020: 175 B)."""
    found = public("gpt3_175b.sh", num_gpus=128, vocab_size=50257)
    assert found.plan is not None
    assert found.model is not None
    plan = found.plan
    assert (plan.pipeline_parallel, plan.tensor_parallel, plan.num_microbatches) == (16, 8, 1536)
    assert plan.layers_per_stage == (6,) * 16
    assert count_parameters(found.model) == pytest.approx(174.6e9, rel=0.001)


def test_the_llama_example() -> None:
    """Accepted; 8 030 261 248 parameters (published); gradients in bf16, ZeRO-1, sequence parallelism idle."""
    found = public("llama3_8b_fp8.sh")
    assert found.legal
    assert found.num_gpus == 8
    assert found.model is not None
    assert found.training is not None
    assert found.plan is not None
    assert count_parameters(found.model) == 8_030_261_248
    assert (found.training.precision, found.training.gradient_precision) == ("fp8", "bf16")
    assert not found.training.dropout
    assert (found.plan.optimizer_sharding, found.plan.data_parallel, found.plan.num_microbatches) == (1, 8, 16)
    told = {(remark.kind, remark.line) for remark in found.remarks}
    assert ("no_effect", line_of("llama3_8b_fp8.sh", "--sequence-parallel")) in told
    assert found.training.fp8_weights
    assert not any("--fp8-param-gather" in remark.flags for remark in found.remarks)


def test_the_mixtral_example() -> None:
    """As shipped its 8 GPUs are one pipeline of 4 with e = 8, which the experts' groups cannot be; on 64 it is legal.

    46 702 792 704 parameters: the published count of Mixtral 8x7B.
    """
    assert rules(public("mixtral_8x7b.sh", vocab_size=32000)) == ["expert_world_size"]
    found = public("mixtral_8x7b.sh", num_gpus=64, vocab_size=32000)
    assert found.legal
    assert found.model is not None
    assert found.plan is not None
    assert count_parameters(found.model) == 46_702_792_704
    assert (found.plan.expert_parallel, found.plan.data_parallel, found.plan.num_microbatches) == (8, 16, 16)


def test_the_gpt_oss_example_is_refused() -> None:
    """12 layers on 8 stages, and an option that the pinned Megatron does not have; p follows from WORLD_SIZE."""
    found = public("gpt_oss_20b.sh")
    assert rules(found) == ["unknown_option", "layers_divide"]
    where = [line_of("gpt_oss_20b.sh", "--enable-gpt-oss"), line_of("gpt_oss_20b.sh", "WORLD_SIZE")]
    assert [broken.line for broken in found.broken] == where
    assert found.model is not None
    assert [found.model.attention_window(layer) for layer in range(4)] == [128, None, 128, None]
    assert found.model.attention_sinks


def test_deepseek_options_in_a_variable() -> None:
    """Options without a call are taken, and told; with its vocabulary it has the published 671 B parameters."""
    found = public("deepseek_r1_arguments.sh", num_gpus=512, vocab_size=129280)
    assert found.legal
    assert found.model is not None
    assert found.plan is not None
    assert count_parameters(found.model) == pytest.approx(671.0e9, rel=0.0001)
    assert found.plan.recompute_modules == ("core_attn", "moe")
    assert any("MODEL_ARGS" in remark.message for remark in found.remarks if remark.kind == "not_understood")


def test_a_functional_test_in_yaml() -> None:
    """Flags under MODEL_ARGS: v = 12 / 4 / 1 = 3, m = 32 / (4 x 2) = 4 = p, which interleaving allows."""
    found = public("gpt3_tp1_pp4_vp1.yaml", num_gpus=8, vocab_size=50257)
    assert found.legal
    assert found.plan is not None
    assert found.training is not None
    assert (found.plan.virtual_stages, found.plan.num_microbatches) == (3, 4)
    assert found.training.attention == "eager"
    assert found.places["pipeline_parallel"] == ("--pipeline-model-parallel-size", 15)


def test_yaml_by_names_of_values(tmp_path: Path) -> None:
    """Names as --yaml-cfg has them hold values: `add_bias_linear: false` is --disable-bias-linear."""
    path = tmp_path / "run.yaml"
    lines = [f"{word[2:].replace('-', '_')}: " for word in PLAIN.split() if word.startswith("--") and word != "--bf16"]
    values = [word for word in PLAIN.split() if not word.startswith("--")]
    text = "\n".join(f"{line}{value}" for line, value in zip(lines, values, strict=True))
    path.write_text(f"{text}\nbf16: true\nadd_bias_linear: false\nmodel_parallel:\n  pipeline_model_parallel_size: 4\n")
    found = read(path, Given(num_gpus=8))
    assert found.legal
    assert found.model is not None
    assert found.plan is not None
    assert not found.model.mlp_bias
    assert found.plan.pipeline_parallel == 4
    assert found.places["pipeline_parallel"][1] == text.count("\n") + 5


@pytest.mark.parametrize(
    ("options", "rule", "outcome"),
    [
        # facts of schedules.py:1160-1180: p <= N <= m, m mod N = 0 or >= p
        (f"{CHUNKED} --global-batch-size 20", "microbatch_group", "fails"),
        (f"{CHUNKED} --global-batch-size 20 --microbatch-group-size-per-virtual-pipeline-stage 5", "", ""),
        (
            f"{CHUNKED} --global-batch-size 12 --microbatch-group-size-per-virtual-pipeline-stage 8",
            "microbatch_group",
            "fails",
        ),
        (
            "--pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 3",
            "microbatch_group",
            "fails",
        ),
        ("--num-query-groups 8", "query_groups_ignored", "wrong"),
        ("--rampup-batch-size 8 8 1000", "batch_ramp_ignored", "wrong"),
        ("--swiglu --ffn-hidden-size 11000 --tensor-model-parallel-size 8", "", ""),
        ("--ffn-hidden-size 11004 --tensor-model-parallel-size 8", "feed_forward_width", "rejected"),
        ("--group-query-attention --num-query-groups 5", "heads_of_groups", "fails"),
        ("--num-experts 4 --moe-router-topk 8", "chosen_experts", "fails"),
        ("--pipeline-model-parallel-size 3 --world 6", "unknown_option", "rejected"),
        ("--bf16 --fp16", "precision", "rejected"),
        ("--tensor-model-parallel 8", "unknown_option", "rejected"),
        ("--num-layers thirty", "option_value", "rejected"),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E(t*99999999|)*99999999L",
            "layout",
            "rejected",
        ),
    ],
)
def test_rules_beyond_the_55(written: Path, options: str, rule: str, outcome: str) -> None:
    """Each option set breaks the one rule, which says what becomes of the run; or none."""
    found = said(written, options.replace("(", "\\(").replace(")", "\\)").replace("|", "\\|"))
    if not rule:
        assert found.legal, found.broken
        return
    assert [(broken.rule, broken.outcome) for broken in found.broken][:1] == [(rule, Outcome(outcome))]
    assert not found.legal
    assert found.accepted == (outcome != "rejected")


USER_CASES = [
    # what users met, from the threads named; what Megatron of the pinned commit makes of it, by its rules
    (
        "NVIDIA/Megatron-LM issue 326",
        8,
        "--num-layers 40 --pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 2",
        "layers_per_virtual_stage",
        "allowed: 1, 5",
    ),
    (
        "NVIDIA/Megatron-LM issue 1778",
        8,
        "--num-layers 20 --decoder-last-pipeline-num-layers 1",
        "first_and_last_stage",
        "19 layers are left for 0 stages",
    ),
    (
        "NVIDIA-NeMo/Megatron-Bridge issue 5551, GLM-4.5-Air",
        8,
        "--num-layers 46 --pipeline-model-parallel-size 4",
        "layers_divide",
        "with --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split they are",
    ),
    (
        "NVIDIA-NeMo/Megatron-Bridge issue 5551, GLM-4.5",
        8,
        "--num-layers 92 --pipeline-model-parallel-size 8",
        "layers_divide",
        "--decoder-first-pipeline-num-layers 10 --decoder-last-pipeline-num-layers 10 leaves 12 for each",
    ),
    (
        "NVIDIA-NeMo/Megatron-Bridge issue 5884",
        8,
        "--num-layers 30 --pipeline-model-parallel-size 8 "
        "--decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 8 "
        "--num-virtual-stages-per-pipeline-rank 3",
        "ends_in_chunks",
        "no multiple of 3 virtual stages",
    ),
    (
        "bigscience tr1-13B chronicles",
        384,
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --global-batch-size 1024",
        "global_batch_size",
        "the next that is: 1056",
    ),
    (
        "THU-KEG/AdaptThink issue 1",
        8,
        "--hidden-size 3584 --num-attention-heads 28 --tensor-model-parallel-size 8",
        "attention_heads",
        "allowed t: 1, 2, 4, 7, 14, 28",
    ),
    (
        "verl-project/verl issue 3296",
        8,
        "--seq-length 4092 --tensor-model-parallel-size 8 --sequence-parallel",
        "sequence_over_ranks",
        "4092 is no multiple of t x c = 8",
    ),
    (
        "NVIDIA-NeMo/Speech issue 14288",
        6,
        "--num-layers 36 --pipeline-model-parallel-size 6 --global-batch-size 3 "
        "--num-virtual-stages-per-pipeline-rank 2",
        "microbatch_group",
        "m = batch 3 / (b 1 x d 1)",
    ),
]


@pytest.mark.parametrize(
    ("options", "num_gpus", "rule", "advice"),
    [case[2:3] + case[1:2] + case[3:] for case in USER_CASES],
    ids=[case[0] for case in USER_CASES],
)
def test_what_users_met(written: Path, options: str, num_gpus: int, rule: str, advice: str) -> None:
    """Configurations of public threads break the rule that their users met, and the message says the way out."""
    found = said(written, options, num_gpus)
    messages = {broken.rule: broken.message for broken in found.broken}
    assert rule in messages, messages
    assert advice in messages[rule]


def test_each_step_of_a_batch_schedule_has_to_divide(written: Path) -> None:
    """A step of 20 on 8 replicas stops the run (num_microbatches_calculator.py:580-587), though the last divides."""
    plain = PLAIN.replace("--global-batch-size 64 ", "")
    written.write_text(f'python pretrain_gpt.py {plain} --step-batch-size-schedule "0:20 1B:64"\n')
    found = read(written, Given(num_gpus=8))
    assert [(broken.rule, broken.outcome) for broken in found.broken] == [("batch_steps", Outcome.FAILS)]
    assert found.training is not None
    assert found.training.global_batch_size == 64


def test_without_a_batch_there_is_one_micro_batch(written: Path) -> None:
    """--global-batch-size left out is b d, so m = 1: legal, and told with its bubble, 3/4 at p = 4."""
    plain = PLAIN.replace("--global-batch-size 64 ", "")
    written.write_text(f"python pretrain_gpt.py {plain} --pipeline-model-parallel-size 4\n")
    found = read(written, Given(num_gpus=8))
    assert found.legal
    assert [remark.message for remark in found.remarks if remark.kind == "slow"] == [
        "without --global-batch-size the batch is b d, one micro-batch a step: "
        "the bubble of 4 equal stages is (p-1)/(m+p-1) = 75%"
    ]


@pytest.mark.parametrize(
    ("options", "recompute"),
    [
        ("", "none"),
        ("--recompute-activations", "selective"),
        ("--recompute-granularity selective --recompute-modules mlp layernorm", "selective:mlp+layernorm"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 4", "full:block:4"),
    ],
)
def test_recomputation(written: Path, options: str, recompute: str) -> None:
    """Megatron's options of recomputation are our choices of it."""
    plan = said(written, options).plan
    assert plan is not None
    assert plan.recomputation.text == recompute


def test_every_known_option_has_one_name() -> None:
    """The table holds the 839 options of the built parser, each with flags of its own."""
    flags = [flag for option in options().values() for flag in option.flags]
    assert sum(len(line) > 0 and not line.startswith("#") for line in _table()) == 839
    assert len(flags) == len(set(flags))


def _table() -> list[str]:
    import ppadvisor.frameworks.megatron as megatron

    return (Path(megatron.__file__).parent / "options.tsv").read_text().splitlines()


@pytest.mark.parametrize(
    ("text", "pattern"),
    [("[0]*3+[1]*2", (0, 0, 0, 1, 1)), ("([1]*2+[0])*2", (1, 1, 0, 1, 1, 0)), ("[0,1,1]", (0, 1, 1)), ("9", None)],
)
def test_layer_patterns_are_what_python_makes_of_them(text: str, pattern: tuple[int, ...] | None) -> None:
    """Megatron evaluates them as Python (arguments.py, moe_freq_type); we read them, and Python agrees."""
    assert layer_pattern(text) == pattern
    if pattern is not None:
        assert list(pattern) == eval(text)


@pytest.mark.parametrize("text", ["__import__('os')", "[1]*999999*99999", "(" * 90_000, "[1]" + "*9" * 50, "", "[2]"])
def test_other_patterns_are_refused(text: str) -> None:
    """What is no list of 0 and 1, or too long a one, is no pattern."""
    assert layer_pattern(text) is None


def test_values_that_only_a_shell_knows(written: Path) -> None:
    """A size that is an argument of the script cannot be guessed: the line, the option and the way out are told."""
    written.write_text(f"TP=$1\npython pretrain_gpt.py {PLAIN} \\\n --tensor-model-parallel-size $TP\n")
    with pytest.raises(InputError, match=r"train\.sh:1: --tensor-model-parallel-size: .* \(\$1 is an argument"):
        read(written, Given(num_gpus=8))
    found = read(written, Given(num_gpus=8, variables={"1": "4"}))
    assert found.plan is not None
    assert found.plan.tensor_parallel == 4


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("torchrun --nproc-per-node=4 --nnodes 2", 8),
        ("torchrun --nproc_per_node 8", 8),
        ("python -m torch.distributed.launch --nproc_per_node 8 --nnodes=4", 32),
        ("srun -N 2 --ntasks-per-node=8 python -u", 16),
        ("srun --ntasks 24 python", 24),
    ],
)
def test_gpus_of_the_launcher(written: Path, launcher: str, gpus: int) -> None:
    """Processes that torchrun or srun start, as their manuals say."""
    batch = PLAIN.replace("--global-batch-size 64", "--global-batch-size 96")
    written.write_text(f"{launcher} pretrain_gpt.py {batch}\n")
    assert read(written, Given()).num_gpus == gpus


def test_gpus_of_a_batch_job(written: Path) -> None:
    """#SBATCH lines name nodes and tasks of a node."""
    written.write_text(f"#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\nsrun python pretrain_gpt.py {PLAIN}\n")
    assert read(written, Given()).num_gpus == 8


def test_gpus_that_nobody_names(written: Path) -> None:
    """Without a launcher that says so, --gpus has to."""
    written.write_text(f"python pretrain_gpt.py {PLAIN}\n")
    with pytest.raises(InputError, match="give --gpus"):
        read(written, Given())


@pytest.mark.parametrize("extra", ['"$@"', "$EXTRA", "$(cat extra.txt)"])
def test_what_nobody_knows_behind_a_list_is_told(written: Path, extra: str) -> None:
    """The known values of a list are taken; a word behind them that only the shell knows is told, not taken."""
    found = said(written, f"--recompute-granularity selective --recompute-modules core_attn mlp {extra}")
    assert found.plan is not None
    assert found.plan.recompute_modules == ("core_attn", "mlp")
    assert [remark.line for remark in found.remarks if remark.kind == "not_understood"] == [2]
