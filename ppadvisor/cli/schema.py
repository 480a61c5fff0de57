"""`ppadvisor schema`: JSON Schemas of what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ppadvisor.cli.options import CommaList, OneOf, Quantity
from ppadvisor.cli.output import write

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

PLAIN: dict[str, Schema] = {
    "count": {"type": "integer", "minimum": 1},
    "tokens": {"type": "integer", "minimum": 1},
    "batch": {"type": "integer", "minimum": 1},
    "ZeRO stage": {"type": "integer", "minimum": 0, "maximum": 3},
    "stage": {"type": "integer", "minimum": 0},
    "tflops": {"type": "number", "exclusiveMinimum": 0},
    "fraction": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
}
"""Quantities that a job file may give as a plain number; as text each may have its unit, the others must."""


def _output(kind: str) -> Schema:
    """Of a document that a command prints."""
    from pydantic import TypeAdapter

    from ppadvisor.evidence.calibrate import Calibration
    from ppadvisor.evidence.ranking_score import Ranking
    from ppadvisor.evidence.recipes import Recipes
    from ppadvisor.evidence.validate import Validation
    from ppadvisor.report.timeline_document import TimelineAnswer
    from ppadvisor.search.check_results import CheckReport
    from ppadvisor.search.compare import Comparison
    from ppadvisor.search.diff_results import DiffReport
    from ppadvisor.search.explain import ExplainAnswer, NothingToExplain
    from ppadvisor.search.results import PlanReport
    from ppadvisor.search.size_results import SizeReport
    from ppadvisor.search.sweep import SweepReport
    from ppadvisor.verify.results import LayersReport, MemoryReport, OpsReport, RunReport

    documents: dict[str, Any] = {
        "plan": PlanReport,
        "explain": ExplainAnswer,
        "check": CheckReport,
        "diff": DiffReport,
        "comparison": Comparison | NothingToExplain,
        "sweep": SweepReport,
        "size": SizeReport,
        "timeline": TimelineAnswer,
        "validate": Validation | Ranking | Recipes,
        "calibration": Calibration,
        "verification": OpsReport | MemoryReport | RunReport | LayersReport,
    }
    return TypeAdapter(documents[kind]).json_schema(mode="serialization")


def _spec(kind: str) -> Schema:
    """Of a specification."""
    from pydantic import TypeAdapter

    from ppadvisor.evidence.records import Record
    from ppadvisor.specs.cluster import ClusterSpec, GpuSpec
    from ppadvisor.specs.model import ModelSpec
    from ppadvisor.specs.training import TrainingSpec

    specs: dict[str, Any] = {
        "model": ModelSpec,
        "gpu": GpuSpec,
        "cluster": ClusterSpec,
        "training": TrainingSpec,
        "record": Record,
    }
    return TypeAdapter(specs[kind]).json_schema(mode="validation")


def _job(_: str) -> Schema:
    """Of the job file of `plan`: its keys are the command's own options."""
    from ppadvisor.cli.job import job_parameters
    from ppadvisor.cli.plan import command as plan_command

    return {
        "title": "job",
        "description": "Job file of `ppadvisor plan`, in TOML, YAML or JSON; in keys a hyphen may stand for `_`.",
        "type": "object",
        "properties": dict(_job_entry(parameter) for parameter in job_parameters(plan_command).values()),
        "additionalProperties": False,
    }


def _job_entry(parameter: click.Parameter) -> tuple[str, Schema]:
    """The key of an option and what it takes."""
    name, text = parameter.name or "", getattr(parameter, "help", None) or ""
    if name == "assume":
        return "assumptions", {"description": text, "type": "object", "additionalProperties": {"type": "number"}}
    return name, {"description": text, **_value(parameter.type)}


def _value(kind: click.ParamType[Any]) -> Schema:
    """What a job file may say for an option of this type."""
    if isinstance(kind, CommaList):
        one = _value(kind.item)
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}
    if isinstance(kind, OneOf):
        return {"enum": list(kind.names)}
    if isinstance(kind, click.types.BoolParamType):
        return {"type": "boolean"}
    if isinstance(kind, Quantity) and kind.name in PLAIN:
        return {"anyOf": [PLAIN[kind.name], {"type": "string"}]}
    return {"type": "string"}


KINDS: dict[str, Callable[[str], Schema]] = {
    "plan": _output,
    "explain": _output,
    "check": _output,
    "diff": _output,
    "comparison": _output,
    "sweep": _output,
    "size": _output,
    "timeline": _output,
    "validate": _output,
    "calibration": _output,
    "verification": _output,
    "job": _job,
    "model": _spec,
    "gpu": _spec,
    "cluster": _spec,
    "training": _spec,
    "record": _spec,
}


@click.command()
@click.argument("kind", type=OneOf("kind of document", tuple(KINDS)), default="plan")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE; it is replaced whole.")
def command(kind: str, output: Path | None) -> None:
    """JSON Schema of a document; without KIND that of what `plan --format json` prints.

    plan, explain, check, diff, comparison (explain of two plans), sweep, size, timeline, validate, calibration and
    verification are outputs; job is the job file; model, gpu, cluster and training are the specifications as the
    outputs repeat them, model and cluster also as a TOML file of one's own; record is a line of a file that validate
    and calibrate read.
    """
    from ppadvisor.report.json_ import dump_json

    write(dump_json({"$schema": DIALECT, **KINDS[kind](kind)}), output)
