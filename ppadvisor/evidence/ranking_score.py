"""Is the order right? Plans that answer one question, ordered by us and by simple rules, against what was measured.

Every way of ordering chooses among the plans that we say fit, so that they differ in the order alone; a chosen plan
that ran out of memory is a failure, which counts as not the best and has no regret.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.evaluate import VERDICTS
from ppadvisor.engine.results import Result, Verdict
from ppadvisor.errors import InputError
from ppadvisor.evidence.cases import Case, case_of
from ppadvisor.evidence.order import CLEAR, RESOLUTION, Outcome, first_of, offered_by, outcome_of, pairs_of
from ppadvisor.evidence.predict import PREDICTORS
from ppadvisor.evidence.questions import Question, Tried, plans_of, question_of
from ppadvisor.evidence.records import Record, repeats_in
from ppadvisor.evidence.validate import REPEATED, Skipped
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

ALONE = "no other plan that ran answers the same question"


class RuleScore(Result):
    """How well one way of ordering does. What a rule leaves undecided counts half; its choice is then the mean."""

    pairs_ordered_fraction: float | None
    """Of the pairs of plans that ran and differ by at least CLEAR, those in the right order."""
    near_pairs_ordered_fraction: float | None
    """Of those that differ by at least RESOLUTION."""
    kendall_tau: float | None
    """Right less wrong over all pairs that differ by at least RESOLUTION, mean over the groups."""
    best_fraction: float | None
    """Of the groups: the first choice is the fastest plan measured, within RESOLUTION (top-1)."""
    mean_regret_fraction: float | None
    """Measured time of the first choice among the plans that ran over that of the fastest − 1: of the order alone."""
    worst_regret_fraction: float | None
    mean_choice_regret_fraction: float | None
    """The same of the first choice among the plans that we say fit, where it ran."""
    ran_out: float
    """First choices among those that ran out of memory."""


class RankScore(RuleScore):
    """Our order (by predicted step time), and simple rules beside it."""

    n: int
    """Groups, as the other kinds call their number."""
    groups: int
    """Questions: measured runs of one model, cluster and batch with different plans."""
    plans: int
    """Plans that ran."""
    plans_ran_out: int
    pairs: int
    """Pairs of plans that ran and differ by at least CLEAR."""
    near_pairs: int
    """By at least RESOLUTION."""
    baselines: dict[str, RuleScore]


class RankedPlan(Result):
    """One plan of a question."""

    id: str
    """Of its first record."""
    plan: PlanSpec
    verdict: Verdict
    predicted_step_time_s: float
    measured_step_time_s: float | None
    """None: it ran out of memory."""


class RankRow(Outcome):
    """One question."""

    source: str
    model: str
    gpu: str
    num_gpus: int
    global_batch_size: int
    sequence_length: int
    attention: str
    """Kernel of the runs, and their conditions."""
    plans: int
    plans_ran_out: int
    pairs: int
    clear_pairs: int
    chosen: tuple[RankedPlan, ...]
    """Our first choice; several where our predictions are equal."""
    fastest: RankedPlan
    """The fastest plan measured."""
    baselines: dict[str, Outcome]


class Ranking(Result):
    """What `validate --kind rank` prints."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    kind: Literal["rank"] = "rank"
    label: str
    partial: bool
    summary: RankScore
    sources: dict[str, RankScore]
    rows: tuple[RankRow, ...]
    skipped: tuple[Skipped, ...]
    defaults: dict[str, int]
    """What records leave out and what was taken instead -> number of records."""


@dataclass(frozen=True)
class Candidate:
    """A plan that was tried, as the engine takes it, and what we predict of it."""

    case: Case
    tried: Tried
    step_time_s: float
    verdict: Verdict

    @property
    def ranked(self) -> RankedPlan:
        return RankedPlan(
            id=self.tried.record.id,
            plan=self.case.plan,
            verdict=self.verdict,
            predicted_step_time_s=self.step_time_s,
            measured_step_time_s=self.tried.step_time_s,
        )


def _bubble(candidate: Candidate) -> float:
    """The closed form of the plan's schedule, stages equal and links free."""
    plan = candidate.case.plan
    sizes = (np.array([n]) for n in (plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages))
    return float(schedules.get(plan.schedule).bubble_fraction(*sizes)[0])


def _tensor_first(candidate: Candidate) -> float:
    """Tensor parallel up to the node, and beyond it as few stages as there are."""
    plan, node = candidate.case.plan, candidate.case.problem.cluster.gpus_per_node
    return plan.pipeline_parallel - 1e6 * min(plan.tensor_parallel, node)


BASELINES: dict[str, Callable[[Candidate], float]] = {
    "largest_data_parallel": lambda candidate: -candidate.case.plan.data_parallel,
    "smallest_bubble": _bubble,
    "most_microbatches_a_stage": lambda one: -one.case.plan.num_microbatches / one.case.plan.pipeline_parallel,
    "tensor_parallel_to_the_node": _tensor_first,
    "smallest_model_parallel": lambda one: one.case.plan.pipeline_parallel * one.case.plan.tensor_parallel,
    "random": lambda _: 0.0,
}
"""Rules that need no model of the step time -> what they put first is lowest."""


def rank_records(records: Iterable[Record], *, label: str = "all", partial: bool = False) -> Ranking:
    """Order the plans of every question and score the order. A question is formed of records with the label only."""
    candidates: dict[tuple[str, ...], list[Candidate]] = {}
    chosen = _chosen(records, label, partial)
    repeats = repeats_in(chosen)
    asked, skipped = _questions(record for record in chosen if record.id not in repeats)
    skipped += [Skipped(id=record.id, reason=REPEATED) for record in chosen if record.id in repeats]
    for key, (_, of_one) in asked.items():
        candidates[key], failed = _candidates(plans_of(of_one))
        skipped += failed
    rows, defaults = [], Counter[str]()
    for key, (question, _) in asked.items():
        tried = candidates[key]
        if sum(one.tried.step_time_s is not None for one in tried) < 2:
            skipped += [Skipped(id=record.id, reason=ALONE) for one in tried for record in one.tried.records]
            continue
        rows.append(_row(question, tried))
        defaults.update(text for one in tried for _ in one.tried.records for text in one.case.defaults)
    sources = dict.fromkeys(row.source for row in rows)
    return Ranking(
        label=label,
        partial=partial,
        summary=_score(rows),
        sources={name: _score([row for row in rows if row.source == name]) for name in sources},
        rows=tuple(rows),
        skipped=tuple(skipped),
        defaults=dict(sorted(defaults.items())),
    )


def _chosen(records: Iterable[Record], label: str, partial: bool) -> list[Record]:
    """Records of the label that have a step time or ran out of memory."""
    tag: Literal["time_partial", "time"] = "time_partial" if partial else "time"
    return [
        record
        for record in records
        if label in ("all", record.label)
        and (
            (tag in record.usable_for and record.measured.step_time_s is not None)
            or ("oom" in record.usable_for and record.measured.out_of_memory)
        )
    ]


Asked = dict[tuple[str, ...], tuple[Question, list[Record]]]


def _questions(records: Iterable[Record]) -> tuple[Asked, list[Skipped]]:
    """The questions with their records, and the records of which none can be told."""
    asked: Asked = {}
    skipped = []
    for record in records:
        question = question_of(record)
        if isinstance(question, str):
            skipped.append(Skipped(id=record.id, reason=question))
        else:
            asked.setdefault(question.key, (question, []))[1].append(record)
    return asked, skipped


def _candidates(plans: Iterable[Tried]) -> tuple[list[Candidate], list[Skipped]]:
    """The plans with their predictions, and those that are not modelled."""
    candidates, skipped = [], []
    for tried in plans:
        try:
            case = case_of(tried.record)
            step_time_s = PREDICTORS["time"](case, "step_time").value
            verdict = PREDICTORS["oom"](case, "out_of_memory").verdict or "fits"
        except InputError as error:
            skipped += [Skipped(id=record.id, reason=str(error)) for record in tried.records]
            continue
        candidates.append(Candidate(case, tried, step_time_s, verdict))
    return candidates, skipped


def _row(question: Question, candidates: Sequence[Candidate]) -> RankRow:
    measured = np.array([np.nan if c.tried.step_time_s is None else c.tried.step_time_s for c in candidates])
    offered = offered_by([VERDICTS.index(candidate.verdict) for candidate in candidates])
    predicted = np.array([candidate.step_time_s for candidate in candidates])
    baselines = {
        name: outcome_of(np.array([float(key(candidate)) for candidate in candidates]), measured, offered)
        for name, key in BASELINES.items()
    }
    pairs, clear = (int(pairs_of(measured, gap).sum()) for gap in (RESOLUTION, CLEAR))
    return RankRow(
        **vars(outcome_of(predicted, measured, offered)),
        source=question.source,
        model=question.model,
        gpu=question.gpu,
        num_gpus=question.num_gpus,
        global_batch_size=question.global_batch_size,
        sequence_length=question.sequence_length,
        attention=question.attention,
        plans=int(np.isfinite(measured).sum()),
        plans_ran_out=int(np.isnan(measured).sum()),
        pairs=pairs,
        clear_pairs=clear,
        chosen=tuple(candidates[place].ranked for place in first_of(predicted, offered)),
        fastest=candidates[int(np.nanargmin(measured))].ranked,
        baselines=baselines,
    )


def _score(rows: Sequence[RankRow]) -> RankScore:
    return RankScore(
        **vars(_rule_score(rows, rows)),
        n=len(rows),
        groups=len(rows),
        plans=sum(row.plans for row in rows),
        plans_ran_out=sum(row.plans_ran_out for row in rows),
        pairs=sum(row.clear_pairs for row in rows),
        near_pairs=sum(row.pairs for row in rows),
        baselines={name: _rule_score([row.baselines[name] for row in rows], rows) for name in BASELINES},
    )


def _rule_score(outcomes: Sequence[Outcome], rows: Sequence[RankRow]) -> RuleScore:
    """Of one way of ordering, whose outcomes are those of the rows."""
    choices = [one.regret_fraction for one in outcomes if one.regret_fraction is not None]
    regrets = [one.order_regret_fraction for one in outcomes]
    taus = [2 * one.pairs_right / row.pairs - 1 for one, row in zip(outcomes, rows, strict=True) if row.pairs]
    return RuleScore(
        pairs_ordered_fraction=_share((one.clear_pairs_right for one in outcomes), sum(r.clear_pairs for r in rows)),
        near_pairs_ordered_fraction=_share((one.pairs_right for one in outcomes), sum(row.pairs for row in rows)),
        kendall_tau=_share(taus, len(taus)),
        best_fraction=_share((one.best for one in outcomes), len(outcomes)),
        mean_regret_fraction=_share(regrets, len(regrets)),
        worst_regret_fraction=max(regrets, default=None),
        mean_choice_regret_fraction=_share(choices, len(choices)),
        ran_out=sum((one.ran_out for one in outcomes), 0.0),
    )


def _share(parts: Iterable[float], whole: int) -> float | None:
    return sum(parts) / whole if whole else None
