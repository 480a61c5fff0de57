"""`FILE` or `FILE#2`: a plan out of the JSON that `ppadvisor plan` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppadvisor.errors import InputError
from ppadvisor.search.results import PlanReport, ProblemEcho
from ppadvisor.specs.files import read_mapping, read_text
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.validation import validate
from ppadvisor.specs.version import FORMAT_VERSION

MAX_PLAN_FILE_BYTES = 200_000_000
"""Ten plans of 64 stages are 3 MB; what is far beyond is no answer of `plan`."""


@dataclass(frozen=True)
class SavedPlan:
    """A plan with the problem that it answers."""

    problem: ProblemEcho
    plan: PlanSpec | None
    """None where no plan was legal."""
    nearest_miss: bool
    """The file holds no plan that fits, and this is its nearest miss."""
    model_version: str


def read_saved_plan(reference: str) -> SavedPlan:
    """The plan of this rank, the first unless said; where none fits, the nearest miss. InputError for anything else."""
    path, rank = path_and_rank(reference)
    document = _document(path)
    problem = validate(ProblemEcho, document["problem"], f"{path}: problem")
    chosen, where = _chosen(document, path, rank)
    plan = None if chosen is None else validate(PlanSpec, _part(chosen, "plan", dict, where), f"{where}.plan")
    missed = plan is not None and not document["plans"]
    return SavedPlan(problem, plan, missed, document["model_version"])


def holds_plans(reference: str) -> bool:
    """Whether this is `FILE#2` or a file of JSON that we wrote. InputError where there is no such text."""
    path = Path(reference)
    if "#" in path.name and not path.exists():
        return True
    text = read_text(path, MAX_PLAN_FILE_BYTES)
    return text.lstrip()[:1] == "{" and '"format_version"' in text and '"model_version"' in text


def read_saved_report(reference: str) -> tuple[PlanReport, int, Path]:
    """(the whole answer, the rank that is meant, its file). InputError for anything else."""
    path, rank = path_and_rank(reference)
    document = _document(path)
    _chosen(document, path, rank)
    return validate(PlanReport, document, str(path)), rank or 1, path


def path_and_rank(reference: str) -> tuple[Path, int | None]:
    """The file and the rank that a reference names, None where it names none."""
    name, hash_sign, rank = reference.rpartition("#")
    if not hash_sign:
        return Path(reference), None
    if not rank.isascii() or not rank.isdigit() or int(rank[:9]) == 0:
        raise InputError(f"{reference!r}: the rank behind '#' is {rank!r}, needs a whole number from 1")
    return Path(name), int(rank[:9])


def _document(path: Path) -> dict[str, Any]:
    """An answer of `plan`. InputError for anything else."""
    if path.suffix.lower() != ".json" and not read_text(path, MAX_PLAN_FILE_BYTES).lstrip().startswith("{"):
        raise InputError(
            f"{path}: holds no plans; needs the JSON that `ppadvisor plan --format json` writes, of which FILE#2 is "
            "the second plan. A trainer's own file is what `check` and `diff` read, by its name alone"
        )
    document = read_mapping(path, ".json", MAX_PLAN_FILE_BYTES)
    _check_form(document, path)
    return document


def _check_form(document: dict[str, Any], path: Path) -> None:
    """InputError unless this is an answer of `plan` in a form that we know."""
    kinds = {"format_version": str, "model_version": str, "problem": dict, "plans": list}
    for key, kind in kinds.items():
        if not isinstance(document.get(key), kind):
            raise InputError(
                f"{path}: no plan JSON ({key!r} is missing or of another kind); `plan --format json` writes one"
            )
    major = FORMAT_VERSION.partition(".")[0]
    if document["format_version"].partition(".")[0] != major:
        raise InputError(f"{path}: format_version is {document['format_version']!r}, this program reads {major}.x")


def _chosen(document: dict[str, Any], path: Path, rank: int | None) -> tuple[Any, str]:
    """(the estimate of the plan, or None where there is none; where it stands)."""
    plans = document["plans"]
    if not plans and rank is None:
        miss = document.get("nearest_miss")
        where = f"{path}: nearest_miss"
        return (None if miss is None else _part(miss, "estimate", dict, where)), f"{where}.estimate"
    index = (rank or 1) - 1
    if index >= len(plans):
        held = (
            f"holds plans 1 to {len(plans)}" if plans else "holds no plan that fits (without a rank: its nearest miss)"
        )
        raise InputError(f"{path}: rank {index + 1} is not there; the file {held}")
    return plans[index], f"{path}: plans.{index}"


def _part(record: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(record, dict) or not isinstance(record.get(key), kind):
        raise InputError(f"{where}: {key!r} is missing or of another kind")
    return record[key]
