"""torchtitan's checks of what goes together: recomputation, compilation, quantization, optimizer.

Source: pytorch/torchtitan commit 238fa995; below torchtitan/.
"""

from __future__ import annotations

from ppadvisor.frameworks.checks import Check
from ppadvisor.frameworks.torchtitan.job import CONVERTERS, ETP, RESHARD, SCHEDULE, C, E, Job, P
from ppadvisor.frameworks.torchtitan.options import CHOICES

MODE, OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
ASYNC, BACKEND = "parallelism.enable_async_tensor_parallel", "parallelism.expert_parallel_comm_backend"
BALANCER = "parallelism.context_parallel_load_balancer"
IN_BACKWARD = "optimizer.early_step_in_backward"
OVERLAP = "parallelism.pipeline_parallel_expert_parallel_overlap"
QUANTIZERS = tuple(f"quantize.{what}.{kind}" for what in ("linear", "grouped_mm") for kind in ("float8", "mx"))


def compiled(job: Job) -> bool:
    """Whether the layers are compiled."""
    return job.on("compile.enable") and "model" in job.words("compile.components")


def _converters(job: Job) -> str | None:
    given = job.words(CONVERTERS)
    unknown = [name for name in given if name not in QUANTIZERS]
    if unknown and not job.given.get("experimental.custom_import"):
        return f"no converter {unknown[0]!r} is registered (KeyError); known: {', '.join(QUANTIZERS)}"
    kinds = sorted({name.rpartition(".")[2] for name in given if name in QUANTIZERS})
    return f"{' and '.join(kinds)} cannot be combined" if len(kinds) > 1 else None


def _choice(name: str, job: Job) -> str | None:
    value = job.value(name)
    if not isinstance(value, str) or value in CHOICES[name]:
        return None
    return f"{value!r}; allowed: {', '.join(CHOICES[name])}"


def _mode(job: Job) -> str | None:
    return _choice(MODE, job)


def _option(job: Job) -> str | None:
    """An integer in TOML is none here: torchtitan asks the text whether it is digits."""
    value = job.value(OPTION)
    if job.text(MODE) != "selective" or (isinstance(value, str) and (value == "op" or value.isdigit())):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value} needs quotes, '{value}': torchtitan calls .isdigit() of it"
    return f"{str(value)[:40]!r}; allowed: 'op', or every how many layers, in quotes"


def _budget(job: Job) -> str | None:
    if job.text(MODE) != "memory_budget" or compiled(job):
        return None
    return "memory_budget needs compile.enable with model among compile.components"


def _reshard(job: Job) -> str | None:
    return _choice(RESHARD, job) if job.sharded else None


def _dtypes(job: Job) -> str | None:
    names = ("training.dtype", "training.mixed_precision_param", "training.mixed_precision_reduce")
    return next((f"{name} {problem}" for name in names if (problem := _choice(name, job))), None)


def _optimizer(job: Job) -> str | None:
    names = ("optimizer.name", "optimizer.implementation")
    return next((f"{name} {problem}" for name in names if (problem := _choice(name, job))), None)


def _in_backward(job: Job) -> str | None:
    if not job.on(IN_BACKWARD) or (job.p == 1 and job.e == 1):
        return None
    return f"an optimizer step in the backward runs with neither pipeline (p {job.p}) nor expert parallel (e {job.e})"


def _async(job: Job) -> str | None:
    if not job.on(ASYNC) or job.t == 1 or compiled(job):
        return None
    return "async tensor parallelism needs compile.enable with model among compile.components"


def _deepep(job: Job) -> str | None:
    if job.text(BACKEND) != "deepep" or job.named not in ("llama4", "deepseek_v3"):
        return None
    if job.e == 1:
        return "deepep needs expert parallel above 1"
    return f"deepep has no expert tensor parallelism: {job.etp}" if job.etp > 1 else None


def _overlap(job: Job) -> str | None:
    both = job.p > 1 and job.e > 1 and job.schedule == "dualpipev" and job.on(OVERLAP)
    if not both or job.text(MODE) == "none":
        return None
    return f"DualPipeV with expert parallel overlaps the two and takes no recomputation, got {job.text(MODE)}"


def context_attention(name: str) -> tuple[str, ...]:
    """The kernels of attention that context parallelism takes in a model of torchtitan's."""
    return {"gpt_oss": (), "llama3": ("sdpa", "flex")}.get(name, ("sdpa",))


def _context(job: Job) -> str | None:
    allowed = context_attention(job.named)
    if job.c == 1 or not job.named or job.attention in allowed:
        return None
    if not allowed:
        return f"{job.named} has no context parallelism: c {job.c}"
    flavor = job.text("model.flavor")
    return f"context parallelism needs {' or '.join(allowed)} attention; {job.named} {flavor} has {job.attention}"


def _balancer(job: Job) -> str | None:
    return "an empty name; 'headtail' or 'ptrr'" if job.given.get(BALANCER) == "" else None


def _validation(job: Job) -> str | None:
    if not job.on("validation.enable"):
        return None
    steps = job.whole("validation.steps")
    return f"validation steps {steps}; positive, or -1" if steps is not None and steps < 1 and steps != -1 else None


CHECKS = (
    Check("converters", (CONVERTERS,), "protocols/model_converter.py:61-63", _converters),
    Check("precision", ("training.dtype", "training.mixed_precision_param"), "config/__init__.py", _dtypes),
    Check("recompute_mode", (MODE,), "distributed/activation_checkpoint.py:167-171", _mode),
    Check("recompute_option", (OPTION,), "distributed/activation_checkpoint.py:177-183", _option),
    Check("recompute_budget", (MODE, "compile.enable"), "distributed/activation_checkpoint.py:226-227", _budget),
    Check("reshard_after_forward", (RESHARD,), "models/llama3/infra/parallelize.py:319-331", _reshard),
    Check("async_tensor_parallel", (ASYNC, "compile.enable"), "distributed/tensor_parallel.py", _async),
    Check("context_parallel_attention", (C, "model.flavor"), "models/*/model/args.py, update_from_config", _context),
    Check("load_balancer", (BALANCER,), "config/job_config.py, Parallelism.__post_init__", _balancer),
    Check("optimizer", ("optimizer.name",), "components/optimizer.py, build_optimizers", _optimizer),
    Check("step_in_backward", (IN_BACKWARD, P, E), "components/optimizer.py, build_optimizers", _in_backward),
    Check("deepep", (BACKEND, E, ETP), "models/deepseek_v3/infra/parallelize.py:100-111", _deepep),
    Check("expert_overlap", (MODE, OVERLAP, SCHEDULE), "distributed/dual_pipe_v.py:45-49", _overlap),
    Check("validation_steps", ("validation.steps",), "config/job_config.py, Validation", _validation),
)
