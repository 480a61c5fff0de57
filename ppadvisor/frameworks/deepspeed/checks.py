"""What DeepSpeed checks at start-up, and what it would fail at.

Source: microsoft/DeepSpeed commit 38327e07, deepspeed/runtime/; config.py where only lines stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppadvisor.errors import nearest
from ppadvisor.frameworks.checks import Check, Told
from ppadvisor.frameworks.configuration import Broken, Outcome
from ppadvisor.frameworks.deepspeed.options import ZERO
from ppadvisor.frameworks.deepspeed.run import (
    ACCUMULATION,
    BATCH,
    DTYPES,
    INTERVAL,
    METHOD,
    MICRO,
    NUM_STAGES,
    STAGE,
    STEPS,
    TOPOLOGY,
    Run,
)

ONE_BIT = ("onebitadam", "zerooneadam", "onebitlamb")
SWITCHES = ("fp16.enabled", "bf16.enabled", "bfloat16.enabled", "amp.enabled")
PARTITIONED = ("pipeline.pipe_partitioned", "pipeline.grad_partitioned")


def _world(run: Run) -> str | None:
    if run.d is not None:
        return None
    return f"{run.world} GPUs are no multiple of p {run.p} x t {run.t} = {run.p * run.t}"


def _named(run: Run) -> str | None:
    given = any(run.whole(name) is not None or run.is_auto(name) for name in (BATCH, MICRO))
    return None if given else f"neither {BATCH} nor {MICRO} is given"


def _positive(run: Run) -> Told | None:
    given = {name: run.whole(name) for name in (BATCH, MICRO, STEPS)}
    found = {name: f"{name} {value}" for name, value in given.items() if value is not None and value < 1}
    return Told(f"must be larger than 0: {', '.join(found.values())}", tuple(found)) if found else None


def _identity(run: Run) -> str | None:
    batch, b, m = run.sizes
    if run.d is None or batch is None or b is None or m is None or run.consistent or _positive(run):
        return None
    of_gpus = f"d {run.d} (= {run.world} GPUs / (p {run.p} x t {run.t}))"
    if b < 1 or m < 1:
        return f"a batch of {batch} is too small for {of_gpus}: it leaves micro-batches of {b} in {m} steps"
    whole = b * run.d
    return f"batch {batch} is not micro-batch {b} x steps {m} x {of_gpus} = {whole * m}{_that_fits(batch, whole)}"


def _that_fits(batch: int, whole: int) -> str:
    below, above = batch // whole * whole, -(-batch // whole) * whole
    sizes = f"{below} or {above}" if 0 < below < above else str(above)
    return f"; multiples of {whole} fit: {sizes} with {STEPS} left out"


def _both_halves(run: Run) -> str | None:
    both = run.on("fp16.enabled") and (run.on("bf16.enabled") or run.on("bfloat16.enabled"))
    return "fp16 and bf16 exclude each other" if both else None


def _stage(run: Run) -> str | None:
    value = run.value("zero_optimization")
    if isinstance(value, bool) or value is None:
        return None
    stage = run.value(STAGE)
    return None if stage is None or (run.whole(STAGE) in range(4)) else f"ZeRO stage {str(stage)[:30]}; allowed: 0 to 3"


def _pipeline_zero(run: Run) -> str | None:
    if run.p == 1 or run.zero < 2:
        return None
    return f"the pipeline engine does not run with ZeRO {run.zero}; it allows 0 and 1 with p {run.p}"


def _master(run: Run) -> str | None:
    if not run.on("fp16.enabled") or not run.on("fp16.fp16_master_weights_and_grads") or run.zero == 2:
        return None
    return f"fp16 main weights need ZeRO 2, got {run.zero}"


def _amp(run: Run) -> str | None:
    if not run.on("amp.enabled"):
        return None
    if run.zero:
        return f"amp and ZeRO {run.zero} exclude each other"
    return f"amp and {run.precision} exclude each other" if run.precision != "fp32" else None


def _gradients(run: Run) -> str | None:
    dtype = run.value(ACCUMULATION)
    if dtype is not None and str(dtype) not in DTYPES:
        return f"{str(dtype)[:30]!r} is no data type of accumulated gradients; allowed: fp32, bf16, fp16"
    if run.zero or run.on("amp.enabled"):
        return None
    kinds = (run.precision, run.accumulation)
    if kinds == ("bf16", "bf16") and run.p == 1:
        return "bf16 gradients need ZeRO, or fp32 accumulation"
    if kinds[0] != kinds[1] and kinds != ("bf16", "fp32"):
        return f"a model in {kinds[0]} cannot accumulate gradients in {kinds[1]} without ZeRO"
    return None


def _clipped(run: Run) -> str | None:
    params = run.value("optimizer.params")
    if not isinstance(params, dict) or "max_grad_norm" not in params:
        return None
    return "max_grad_norm is no parameter of an optimizer; gradient_clipping is DeepSpeed's"


def _one_bit(run: Run) -> str | None:
    kind = str(run.value("optimizer.type") or "").lower()
    return f"{kind} does not run with ZeRO {run.zero}" if kind in ONE_BIT and run.zero else None


def _elastic(run: Run) -> str | None:
    return "elasticity does not run with pipeline parallelism" if run.p > 1 and run.on("elasticity.enabled") else None


def _partitioned(run: Run) -> str | None:
    wrong = [name for name in PARTITIONED if run.value(name) not in (None, True, False)]
    return f"{wrong[0]} must be true or false" if wrong and run.p > 1 else None


def _interval(run: Run) -> str | None:
    value = run.value(INTERVAL)
    return None if value is None or run.whole(INTERVAL) is not None else f"{str(value)[:30]!r} is no number of layers"


def _heads(run: Run) -> str | None:
    model = run.given.model
    if model is None or model.num_attention_heads % run.t == 0:
        return None
    heads = model.num_attention_heads
    allowed = ", ".join(str(t) for t in range(1, min(heads, 128) + 1) if heads % t == 0)
    return f"{heads} attention heads are no multiple of t {run.t}; allowed t: {allowed}"


def _layers(run: Run) -> str | None:
    model = run.given.model
    split = run.layers_per_stage
    if model is None or run.p == 1 or (split is not None and min(split) >= 1):
        return None
    held = "" if split is None else f" ({' '.join(map(str, split[:16]))})"
    return f"{model.num_layers} layers on {run.p} stages leave a stage without one{held}"


CHECKS = (
    Check("world_size", (NUM_STAGES, TOPOLOGY), "pipe/module.py:175-177", _world),
    Check("batch_named", (BATCH, MICRO), "976-979", _named),
    Check("batch_positive", (BATCH, MICRO, STEPS), "925-929", _positive),
    Check("batch_identity", (STEPS, BATCH, MICRO), "931-934", _identity),
    Check("fp16_and_bf16", ("fp16.enabled", "bf16.enabled"), "834-835", _both_halves),
    Check("zero_stage", (STAGE,), "zero/config.py:91", _stage),
    Check("pipeline_zero", (STAGE, NUM_STAGES), "pipe/engine.py:77-78", _pipeline_zero),
    Check("fp16_main_weights", ("fp16.fp16_master_weights_and_grads", STAGE), "1021-1022", _master),
    Check("amp", ("amp.enabled", STAGE), "engine.py:1305-1325", _amp),
    Check("gradient_precision", (ACCUMULATION, STAGE), "engine.py:1332-1350", _gradients),
    Check("optimizer_parameters", ("optimizer.params.max_grad_norm",), "engine.py:1410-1413", _clipped),
    Check("one_bit", ("optimizer.type", STAGE), "engine.py:1453-1467", _one_bit),
    Check("elasticity", ("elasticity.enabled",), "pipe/engine.py:91-94", _elastic),
    Check("partitioned", PARTITIONED, "pipe/engine.py:142-143", _partitioned),
    Check("checkpoint_interval", (INTERVAL,), "pipe/engine.py:212", _interval),
    Check("attention_heads", (TOPOLOGY,), "Megatron-DeepSpeed megatron/core/utils.py, divide", _heads),
    Check("layers", (NUM_STAGES, METHOD), "pipe/module.py:393-414", _layers, Outcome.FAILS),
)
MOST_KEYS = 100
"""Keys of zero_optimization that are looked at: twice what it has."""
RULES = ("option_value", "zero_keys", *(check.rule for check in CHECKS))
NUMBERS = (BATCH, MICRO, STEPS)
SECTIONS = ("fp16", "bf16", "bfloat16", "amp", "pipeline", "optimizer", "data_types", "elasticity")


def unknown_zero_keys(run: Run) -> Iterator[Broken]:
    """Keys and sizes that the class of this section refuses."""
    value = run.value("zero_optimization")
    for key in list(value)[:MOST_KEYS] if isinstance(value, dict) else ():
        name = f"zero_optimization.{key}"
        if key not in ZERO:
            near = nearest(key, ZERO)
            message = f"zero_optimization has no {key[:40]!r}" + (f"; did you mean {near!r}?" if near else "")
            yield Broken("zero_keys", Outcome.REJECTED, message, (name,), run.line(name), "config_utils.py:105-113")
        elif key.endswith("bucket_size") and not (run.whole(name) or 0) >= 0:
            message = f"{name}: got {run.whole(name)}; needs 0 or more elements"
            yield Broken("zero_keys", Outcome.REJECTED, message, (name,), run.line(name), "zero/config.py:109-128")


def unlike(run: Run) -> Iterator[Broken]:
    """Values of another kind than DeepSpeed computes with."""
    for name in NUMBERS:
        value = run.value(name)
        if value is not None and (isinstance(value, bool) or run.whole(name) is None):
            yield _unlike(run, name, value, "a whole number")
    for name in SECTIONS:
        value = run.value(name)
        if value is not None and not isinstance(value, dict):
            yield _unlike(run, name, value, "a section")
    zero = run.data.get("zero_optimization", {})
    if not isinstance(zero, dict | bool):
        yield _unlike(run, "zero_optimization", zero, "a section")
    for name in SWITCHES:
        value = run.value(name)
        if value is not None and not isinstance(value, bool):
            yield _unlike(run, name, value, "true or false")


def _unlike(run: Run, name: str, value: Any, needs: str) -> Broken:
    shown = repr(value)[:40]
    message = f"{name}: got {shown}; needs {needs}"
    return Broken("option_value", Outcome.REJECTED, message, (name,), run.line(name), "config.py:802-931")
