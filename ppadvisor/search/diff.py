"""Two configurations held against each other: what changed, what that does, and whether it is too much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ppadvisor.engine.results import PlanEstimate
from ppadvisor.errors import InputError
from ppadvisor.search.check_results import Judgement
from ppadvisor.search.compare_words import binding_terms
from ppadvisor.search.diff_changes import changed_fields, changed_options
from ppadvisor.search.diff_effects import Side, effects, parts, stages, summary
from ppadvisor.search.diff_results import DiffReport, FieldChanged, Metric, OptionChanged, Regression
from ppadvisor.search.judge import Subject, judgement
from ppadvisor.search.noise import faster_in

SIZES = ("num_layers", "hidden_size", "ffn_hidden_size", "num_experts", "vocab_size")
USUAL_CAUSES: dict[str, tuple[str, ...]] = {
    "compute": (*SIZES, "sequence_length", "micro_batch_size", "precision"),
    "recompute": ("recompute",),
    "tensor_parallel": ("tensor_parallel", "sequence_parallel"),
    "context_parallel": ("context_parallel",),
    "expert_parallel": ("expert_parallel",),
    "bubble": ("pipeline_parallel", "num_microbatches", "virtual_stages"),
    "imbalance": ("pipeline_parallel", "layers_per_stage", "virtual_stages"),
    "saved_activations": ("recompute", "micro_batch_size", "sequence_length"),
    "recomputed_layer": ("recompute", "micro_batch_size", "sequence_length"),
    "logits": ("micro_batch_size", "sequence_length", "vocab_size"),
    "optimizer_states": ("optimizer_sharding", "optimizer", *SIZES),
    "weights": SIZES,
    "gradients": ("gradient_precision", *SIZES),
}
"""Fields that come to mind first where a part of the step or a memory term has grown."""

Cause = tuple[str | None, int | None]
"""(option, line of HEAD)."""


def diff(
    base: Subject, head: Subject, *, tolerance: float | None = None, price_per_gpu_hour: float | None = None
) -> DiffReport:
    """Both judged, and what differs. InputError where a limit or a price has nothing to measure."""
    before, after = Side.of("BASE", base), Side.of("HEAD", head)
    _check_measurable((before, after), tolerance, price_per_gpu_hour)
    one, other = judgement(base, before.estimate), judgement(head, after.estimate)
    options = changed_options(base.configuration, head.configuration)
    fields = changed_fields((base, before.problem), (head, after.problem), options)
    why_not = None if tolerance is None else _not_comparable(one)
    found: Iterable[Regression] = ()
    if tolerance is not None and why_not is None:
        found = _regressions(before, after, tolerance, fields, options)
    return DiffReport(
        base=one,
        head=other,
        changes=fields,
        options=options,
        summary=summary(before, after),
        effects=effects(before, after, price_per_gpu_hour),
        parts=parts(before.estimate, after.estimate),
        stages=stages(before.estimate, after.estimate),
        head_slower_in_fraction=_head_slower_in(before, after),
        price_per_gpu_hour=price_per_gpu_hour,
        tolerance_fraction=tolerance,
        not_comparable=why_not,
        regressions=tuple(found),
    )


def _check_measurable(sides: tuple[Side, Side], tolerance: float | None, price: float | None) -> None:
    """InputError where the user asks for a number that nothing gives, for want of a machine or a vocabulary."""
    asked = "--fail-on-regression" if tolerance is not None else "--price" if price is not None else ""
    for side in sides:
        if asked and side.problem is None and side.subject.configuration.legal:
            raise InputError(f"{asked} needs an estimate of {side.name}: {side.subject.missing()}")
    gpus = {side.subject.cluster.gpu.name for side in sides if side.subject.cluster is not None}
    if price is not None and len(gpus) > 1:
        raise InputError(f"--price is one price, and the two run on different GPUs: {', '.join(sorted(gpus))}")


def _not_comparable(base: Judgement) -> str | None:
    """Why BASE is nothing that HEAD could be worse than."""
    if not base.runs:
        return "base does not fit" if base.fits is False else "base does not run"
    return "base has no estimate" if base.estimate is None else None


def _cause(fields: Iterable[FieldChanged], options: Iterable[OptionChanged], grown: str) -> Cause:
    """The changed option that the likeliest cause is: one that decides a changed field, and stands in HEAD.

    Of several the one whose field is known for what has `grown` most, a part of the step or a memory term.
    """
    usual = USUAL_CAUSES.get(grown, ())
    changed = sorted(
        (one for one in fields if one.option is not None), key=lambda one: one.field.rpartition(".")[2] not in usual
    )
    unseen = [(one.option, one.head_line) for one in options if one.effect == "not_modelled"]
    known: list[Cause] = [*((one.option, one.line) for one in changed), *unseen]
    return next((one for one in known if one[1] is not None), known[0] if known else (None, None))


def _regressions(
    base: Side, head: Side, tolerance: float, fields: Sequence[FieldChanged], options: Sequence[OptionChanged]
) -> Iterator[Regression]:
    """Step time and peak memory, where HEAD is worse by more than the tolerance."""
    if base.estimate is None or head.estimate is None:
        return  # what does not run is said before
    one, other = base.estimate, head.estimate
    same = base.tokens_per_step == head.tokens_per_step
    times = one.time.step_time_s, other.time.step_time_s
    if not same:
        times = times[0] / base.tokens_per_step, times[1] / head.tokens_per_step
    peaks = float(one.memory.peak_bytes), float(other.memory.peak_bytes)
    measured: tuple[tuple[Metric, float, float, str], ...] = (
        ("step_time_s" if same else "time_per_token_s", *times, _most_grown(one.time.terms, other.time.terms)),
        ("peak_bytes", *peaks, _most_grown(*map(binding_terms, (one, other)))),
    )
    for metric, before, after, grown in measured:
        worse = after / before - 1
        if worse > tolerance:
            option, line = _cause(fields, options, grown.removesuffix("_s"))
            yield Regression(
                metric=metric,
                base=before,
                head=after,
                worse_fraction=worse,
                tolerance_fraction=tolerance,
                option=option,
                line=line,
            )


def _most_grown(base: Mapping[str, float], head: Mapping[str, float]) -> str:
    """The part of which HEAD has most more."""
    return max(base, key=lambda name: head[name] - base[name])


def _head_slower_in(base: Side, head: Side) -> float | None:
    """For the same tokens a step, and other times."""
    if base.estimate is None or head.estimate is None or base.problem is None or head.problem is None:
        return None
    if base.tokens_per_step != head.tokens_per_step or not _differ(base.estimate, head.estimate):
        return None
    return faster_in(base.problem, base.estimate, head.estimate, head.problem)


def _differ(one: PlanEstimate, other: PlanEstimate) -> bool:
    return one.time.step_time_s != other.time.step_time_s
