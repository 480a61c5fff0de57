"""A launch script of the zero-bubble fork in our words: Megatron's options, and those of its schedules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ppadvisor import schedules
from ppadvisor.frameworks.configuration import OF_A_SCRIPT, Configuration, Given, GpusUnknown, Remark
from ppadvisor.frameworks.megatron.arguments import parse
from ppadvisor.frameworks.megatron.call import TrainingCall, training_call
from ppadvisor.frameworks.megatron.config import UNSOUND, check_known, on_the_call, refuse_unseen
from ppadvisor.frameworks.megatron.model import model_of
from ppadvisor.frameworks.megatron.options import table_of
from ppadvisor.frameworks.megatron.places import places_of, said_in
from ppadvisor.frameworks.megatron.plan import plan_of, training_of
from ppadvisor.frameworks.megatron.run import BY_LAYERS
from ppadvisor.frameworks.shell import read_script
from ppadvisor.frameworks.zero_bubble.checks import RULES, broken_rules, remarks
from ppadvisor.frameworks.zero_bubble.run import GROUP, PACKAGE, ForkRun
from ppadvisor.specs.files import read_text
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import Recomputation
from ppadvisor.specs.training import TrainingSpec

MAX_SCRIPT_BYTES = 300_000
FRAMEWORK = "zero-bubble"
TAKES = OF_A_SCRIPT
ITS_OWN = re.compile(
    r"--(enable-zero-bubble|zero-bubble-|enable-zb-runtime|interleave-group-size|enable-1f1b-v"
    r"|no-pre-communication-optimization|allow-padding-num-layers)"
)
LGD = ("layernorm", "activation", "dropout")
"""What --recompute-lgd drops."""


def recognises(path: Path, text: str) -> bool:
    """Whether options stand in the file that the fork alone has."""
    return path.suffix.lower() not in (".json", ".toml") and ITS_OWN.search(text) is not None


def read(path: Path, given: Given) -> Configuration:
    """Read a launch script. InputError for what cannot be read, or not be known without a shell."""
    return read_script_text(read_text(path, MAX_SCRIPT_BYTES), str(path), given)


def read_script_text(text: str, file: str, given: Given) -> Configuration:
    """Read a launch script; `file` is its name in messages."""
    call = training_call(read_script(text, file, given.variables), text, file)
    arguments = parse(call.options, call.environment, PACKAGE)
    world = given.num_gpus or call.num_gpus
    if world is None:
        raise GpusUnknown(file)
    check_known(arguments, file)
    return _configuration(ForkRun(arguments, world), call, file, given)


def _configuration(run: ForkRun, call: TrainingCall, file: str, given: Given) -> Configuration:
    broken = tuple(on_the_call(one, call.line) for one in broken_rules(run))
    refuse_unseen(broken, run.arguments, file)
    sound = not any(one.rule in UNSOUND for one in broken)
    model, missing = _model(run, file, given) if sound else (None, [])
    noted = [Remark(note.kind, note.text, (), note.line) for note in call.notes]
    return Configuration(
        framework=FRAMEWORK,
        file=file,
        num_gpus=run.world,
        judged=RULES,
        broken=broken,
        remarks=(*noted, *missing, *remarks(run)),
        model=model,
        training=_training(run, file) if sound else None,
        plan=_plan(run, file) if sound else None,
        places={**places_of(run), **_places(run)},
        options=said_in(run.arguments),
        unread=call.unread,
    )


def _places(run: ForkRun) -> dict[str, tuple[str, int | None]]:
    """Fields of a plan that the fork has options of its own for."""
    chunks = "zero_bubble_v_schedule" if run.in_a_v else BY_LAYERS
    dests = {"virtual_stages": chunks, "layers_per_stage": "allow_padding_num_layers", "microbatch_group_size": GROUP}
    return {name: (table_of(PACKAGE)[dest].flag, run.arguments.line(dest)) for name, dest in dests.items()}


def _model(run: ForkRun, file: str, given: Given) -> tuple[ModelSpec | None, list[Remark]]:
    vocab = run.whole("vocab_size") or given.vocab_size
    if vocab is None:
        text = "the vocabulary is that of the tokenizer: give --vocab for memory and time"
        return None, [Remark("missing", text, ("--vocab-size",), run.arguments.line("tokenizer_type"))]
    return model_of(run, name=Path(file).stem, vocab_size=vocab, where=file), []


def _training(run: ForkRun, file: str) -> TrainingSpec | None:
    """As Megatron's; without Transformer Engine attention is flash only where it is asked for."""
    training = training_of(run, file)
    if training is None:
        return None
    flash = run.on("use_flash_attn") or run.text("transformer_impl") == "transformer_engine"
    gradient = "fp32" if run.on("bf16") else training.gradient_precision
    changed = {"framework": FRAMEWORK, "attention": "flash" if flash else "eager", "gradient_precision": gradient}
    return training.changed(**changed)


def _plan(run: ForkRun, file: str) -> PlanSpec | None:
    plan = plan_of(run, file)
    if plan is None or run.schedule is None:
        return None
    sizes = (plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)
    group = schedules.microbatch_group(run.schedule, *sizes)
    changed: dict[str, Any] = {"schedule": run.schedule, "microbatch_group_size": group}
    if run.in_a_v:
        chunks = plan.layers_per_chunk
        down, up = chunks[: run.p], reversed(chunks[run.p :])
        changed["layers_per_stage"] = tuple(map(sum, zip(down, up, strict=True)))
    if run.on("recompute_lgd") and plan.recompute == "none":
        changed |= PlanSpec.recomputation_fields(Recomputation("selective", LGD))
    return plan.changed(**changed)
