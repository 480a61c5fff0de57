"""A configuration of DeepSpeed, from JSON with what the program says beside it, in our words.

The file knows neither the model nor p and t: they are arguments of PipelineModule and of the program.
Source: microsoft/DeepSpeed commit 38327e07, deepspeed/runtime/config.py; it parses with Hjson, which takes comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ppadvisor.errors import InputError, nearest
from ppadvisor.frameworks.configuration import Configuration, Given, GpusUnknown, Remark, Said
from ppadvisor.frameworks.deepspeed.checks import CHECKS, RULES, unknown_zero_keys, unlike
from ppadvisor.frameworks.deepspeed.options import CHANGES, DEFAULTS, TOP
from ppadvisor.frameworks.deepspeed.run import (
    BATCH,
    INTERVAL,
    METHOD,
    MICRO,
    NUM_STAGES,
    PARTITION,
    STAGE,
    STAGES,
    STEPS,
    TOPOLOGY,
    Run,
)
from ppadvisor.frameworks.places import json_places, without_comments
from ppadvisor.specs.files import parse_mapping, read_text
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import Recomputation, parse_recomputation
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.validation import validate

MAX_JSON_BYTES = 300_000
"""A configuration has a few thousand bytes."""
MOST_TOLD = 40
"""Keys of one file that nothing looks for."""
BY_PROGRAM = ("attention", "loss", "dropout", "fused_norm", "sequence_parallel")
"""Of a training run, what only the program decides."""
TAKES = (
    *("num_gpus", "model", "pipeline_parallel", "tensor_parallel", "expert_parallel", "sequence_length"),
    *("partition_method", "recompute", *BY_PROGRAM),
)
"""What the user may say beside the file."""

ADAM = ("adam", "adamw", "fusedadam", "muadam", "muadamw")
SGD = ("sgd", "musgd")
_KEY = re.compile(
    r"[\"']?(train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps|zero_optimization)[\"']?\s*:"
)


def recognises(path: Path, text: str) -> bool:
    """Whether a file is a configuration of DeepSpeed: a JSON object with a size of its batch, or ZeRO."""
    other = path.suffix.lower() in (".sh", ".bash", ".yaml", ".yml", ".toml")
    return not other and without_comments(text).lstrip().startswith("{") and _KEY.search(text) is not None


def read(path: Path, given: Given) -> Configuration:
    """Read a file. InputError for what cannot be read."""
    return read_json_text(read_text(path, MAX_JSON_BYTES), str(path), given)


def read_json_text(text: str, file: str, given: Given) -> Configuration:
    """Read a configuration; `file` is its name in messages."""
    plain = without_comments(text)
    data = parse_mapping(plain, ".json", file)
    if given.num_gpus is None:
        raise GpusUnknown(file)
    run = Run(data, json_places(plain), given.num_gpus, given)
    _check_effect(run, file)
    broken = [*unlike(run)]
    readable = not broken
    if readable:
        broken += [*unknown_zero_keys(run), *(one for check in CHECKS for one in [check.broken(run)] if one)]
    return Configuration(
        framework="deepspeed",
        file=file,
        num_gpus=given.num_gpus,
        judged=RULES if readable else RULES[:1],
        broken=tuple(broken),
        remarks=(*_missing(run), *_assumed(run), *_no_effect(run), *_not_modelled(run)),
        model=given.model,
        training=_training(run, file) if readable else None,
        plan=_plan(run, file) if readable else None,
        places=_places(run),
        options=_said(run),
    )


def _check_effect(run: Run, file: str) -> None:
    """InputError for what is said beside the file and changes nothing, or is no recomputation."""
    given = run.given
    parse_recomputation(given.recompute or "none", "--recompute")
    if given.recompute and run.p > 1 and run.interval:
        raise InputError(f"--recompute has no effect: {INTERVAL} in {file} is {run.interval}")
    if given.partition_method and run.p == 1:
        raise InputError("--partition has no effect without a pipeline: give --pp")
    if given.sequence_parallel is not None and run.t == 1:
        raise InputError("--sequence-parallel has no effect without tensor parallelism: give --tp")
    if (given.expert_parallel or 1) > 1 and given.model is not None and given.model.moe is None:
        raise InputError(f"--ep has no effect: {given.model.name} has no experts")


def _training(run: Run, where: str) -> TrainingSpec | None:
    """The training run; None where the batch or the sequence length is missing."""
    if not run.consistent or run.given.sequence_length is None:
        return None
    kind = str(run.value("optimizer.type") or "").lower()
    momentum = run.value("optimizer.params.momentum")
    data: dict[str, Any] = {
        "sequence_length": run.given.sequence_length,
        "global_batch_size": run.batch,
        "framework": "deepspeed",
        "precision": run.precision,
        "optimizer": "adam" if kind not in SGD else "sgd-momentum" if momentum else "sgd",
        "gradient_precision": run.accumulation,
        **_by_program(run),
    }
    return validate(TrainingSpec, data, where)


def _by_program(run: Run) -> dict[str, Any]:
    """What was said of the program."""
    values = {name: getattr(run.given, name) for name in BY_PROGRAM}
    return {name: value for name, value in values.items() if value is not None}


def _plan(run: Run, where: str) -> PlanSpec | None:
    """The plan; None where GPUs, batch or layers make none."""
    split = run.layers_per_stage
    if split is None or min(split) < 1 or run.d is None or not run.consistent or run.zero not in range(4):
        return None
    data: dict[str, Any] = {
        "pipeline_parallel": run.p,
        "tensor_parallel": run.t,
        "data_parallel": run.d,
        "context_parallel": 1,
        "expert_parallel": run.given.expert_parallel or 1,
        "expert_tensor_parallel": 1,
        "virtual_stages": 1,
        "micro_batch_size": run.b,
        "num_microbatches": run.m,
        "schedule": "none" if run.p == 1 else "1f1b",
        "optimizer_sharding": run.zero,
        "layers_per_stage": split,
        **PlanSpec.recomputation_fields(_recomputation(run)),
    }
    return validate(PlanSpec, data, where)


def _recomputation(run: Run) -> Recomputation:
    """The pipeline engine's interval where it has an effect, else what the program does."""
    if run.p > 1 and run.interval:
        return Recomputation("full", num_layers=run.interval)
    return parse_recomputation(run.given.recompute or "none", "--recompute")


def _remark(kind: str, text: str, run: Run, *names: str) -> Remark:
    return Remark(kind, text, names, next((line for name in names if (line := run.line(name)) is not None), None))


def _missing(run: Run) -> Iterator[Remark]:
    open_sizes = [name for name in (BATCH, MICRO, STEPS) if run.is_auto(name)]
    if open_sizes and not (run.batch and run.b and run.m):
        text = f"{', '.join(open_sizes)}: auto is filled in by the Hugging Face Trainer; write the number"
        yield _remark("missing", text, run, *open_sizes)
    absent = [
        flag
        for flag, value in (("--model", run.given.model), ("--seq-len", run.given.sequence_length))
        if value is None
    ]
    if absent:
        yield Remark("missing", f"the file knows nothing of it: give {' and '.join(absent)} for memory and time")


def _assumed(run: Run) -> Iterator[Remark]:
    given, noted = run.given, run.whole(STAGES)
    if given.pipeline_parallel is None and noted:
        text = f"p {run.p} as noted here; DeepSpeed takes it from PipelineModule alone"
        yield _remark("assumed", text, run, STAGES, NUM_STAGES)
    elif given.pipeline_parallel is None:
        yield _remark("assumed", "no --pp: no pipeline", run, NUM_STAGES)
    if given.tensor_parallel is None:
        yield _remark("assumed", "no --tp: no tensor parallelism", run, TOPOLOGY)
    if run.p > 1 and not run.method_is_known:
        shown = f"partition_method {run.method[:40]!r}" if run.method else "no --partition"
        yield _remark("assumed", f"{shown}: every layer is taken to count as one, all else as none", run, METHOD)
    if run.t > 1 and run.given.sequence_parallel is None:
        yield _remark("assumed", "sequence parallelism is taken to be on (the program says it)", run, TOPOLOGY)
    kind = run.value("optimizer.type")
    if kind is None:
        yield _remark("assumed", "no optimizer here: the program's is taken as Adam", run, "optimizer")
    elif str(kind).lower() not in (*ADAM, *SGD):
        text = f"the states of {str(kind)[:30]} are taken as Adam's"
        yield _remark("not_modelled", text, run, "optimizer.type", "optimizer")


def _no_effect(run: Run) -> Iterator[Remark]:
    for key in [key for key in run.data if key not in TOP][:MOST_TOLD]:
        near = nearest(key, TOP)
        hint = f"; did you mean {near!r}?" if near else ""
        yield _remark("no_effect", f"DeepSpeed looks nowhere for {key[:60]!r}{hint}", run, key)
    noted = run.whole(STAGES)
    if noted is not None and run.given.pipeline_parallel not in (None, noted):
        text = f"DeepSpeed does not read pipeline.stages: {noted} stands beside p {run.p}"
        yield _remark("no_effect", text, run, STAGES)
    if run.p == 1 and run.interval:
        yield _remark("no_effect", "the interval is the pipeline engine's, without one it is not read", run, INTERVAL)


def _not_modelled(run: Run) -> Iterator[Remark]:
    for name, what in CHANGES.items():
        value = run.value(name)
        if value is None or (value is False and DEFAULTS.get(name) is not True) or value == DEFAULTS.get(name):
            continue
        if isinstance(value, Mapping) and str(value.get("device", "cpu")) == "none":
            continue
        if run.t == 1 and name.startswith("pipeline."):
            continue
        if not (name.startswith("zero_optimization.") and run.zero == 0):
            yield _remark("not_modelled", f"{name} changes {what}; the estimate is made without it", run, name)


def _places(run: Run) -> dict[str, tuple[str, int | None]]:
    """Of each field of the plan what to change, in the file or in the program, and the line where it stands."""
    names = {
        "pipeline_parallel": NUM_STAGES,
        "tensor_parallel": TOPOLOGY,
        "context_parallel": TOPOLOGY,
        "expert_parallel": "ep_size",
        "expert_tensor_parallel": TOPOLOGY,
        "virtual_stages": NUM_STAGES,
        "micro_batch_size": MICRO,
        "num_microbatches": STEPS,
        "schedule": NUM_STAGES,
        "recompute": INTERVAL,
        "optimizer_sharding": STAGE,
        "sequence_parallel": TOPOLOGY,
        "layers_per_stage": METHOD,
        "global_batch_size": BATCH,
    }
    noted = {"pipeline_parallel": STAGES, "layers_per_stage": PARTITION}
    return {field: (name, run.line(noted.get(field, name))) for field, name in names.items()}


def _said(run: Run) -> dict[str, Said]:
    """All that the file says, `section.key`; which field of the plan each decides."""
    fields = {option: name for name, (option, _) in _places(run).items()}
    found = {}
    for path, line in run.places.items():
        name, value = ".".join(path), run.value(".".join(path))
        if not isinstance(value, Mapping):
            found[name] = Said(str(value)[:60], line, fields.get(name))
    return found
