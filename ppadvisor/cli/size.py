"""`ppadvisor size`: how many GPUs of which kind, for so many tokens by a date or for a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ppadvisor.cli.answer import answer_options, read_assumptions
from ppadvisor.cli.job import job_option
from ppadvisor.cli.options import CommaList, Quantity, output_options
from ppadvisor.cli.output import view_of, with_progress, write
from ppadvisor.cli.request import CLUSTER_INPUTS, given_values, request_options
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK, InputError
from ppadvisor.units import (
    parse_days,
    parse_duration,
    parse_hours,
    parse_money,
    parse_rate,
    parse_tokens,
)

if TYPE_CHECKING:
    from ppadvisor.engine.problem import Problem
    from ppadvisor.search.goodput import Losses
    from ppadvisor.search.pins import Pins
    from ppadvisor.search.size import Candidate
    from ppadvisor.search.size_results import SizeReport, SizeTargets
    from ppadvisor.specs.assumptions import Assumptions

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
Values = dict[str, Any]

CANDIDATE_INPUTS = ("cluster", "gpu", "gpu_memory", "inter_node_bandwidth")
"""Inputs whose lists make the candidates: every combination is one."""

TARGET_OPTIONS = (
    click.option("--tokens", type=Quantity("tokens", parse_tokens), help="Of the whole run: 15T, 300B."),
    click.option("--days", type=Quantity("days", parse_days), help="The run may take so many days."),
    click.option("--budget", type=Quantity("money", parse_money), help="It may cost so much: 2M. Needs prices."),
    click.option(
        "--price",
        multiple=True,
        metavar="NAME[@NETWORK]=PRICE/h",
        help="Of one GPU and hour: h100-sxm-80gb=2.50/h, h100-sxm-80gb@800Gb/s=2.80/h. Repeatable.",
    ),
)
LOSS_OPTIONS = (
    click.option(
        "--failures-per-gpu-hour",
        type=Quantity("rate", parse_rate),
        help="Failures that stop the run, for one GPU and hour (default: none).",
    ),
    click.option(
        "--mtbf-hours",
        type=Quantity("hours", parse_hours),
        help="The same as hours between two failures of one GPU: 50000.",
    ),
    click.option(
        "--checkpoint-time",
        type=Quantity("time", parse_duration),
        help="Training stands still for so long at a checkpoint: 30s (default: 0).",
    ),
    click.option(
        "--restart-time",
        type=Quantity("time", parse_duration),
        help="From a failure until training goes on: 10min (default: 0).",
    ),
)


def size_options(command: CommandT) -> CommandT:
    """Targets and losses."""
    for option in reversed((*TARGET_OPTIONS, *LOSS_OPTIONS)):
        command = option(command)
    return command


def _lists() -> dict[str, click.ParamType[Any]]:
    """The inputs that take comma lists here and not in `plan`."""
    return {e.name: CommaList(e.type) for e in CLUSTER_INPUTS if e.name in (*CANDIDATE_INPUTS, "gpus")}


@click.command()
@job_option
@size_options
@request_options(axes=False, kinds=_lists())
@answer_options
@output_options
def command(format: str, output: Path | None, margin: float, assume: tuple[str, ...], **values: Any) -> int:
    """How many GPUs, of which kind, on which network: for so many tokens by a date or for a budget.

    The candidates are the combinations of the lists of --gpu (or --cluster), --gpu-memory and
    --inter-node-bandwidth; for each, numbers of GPUs (--gpus, a list; else powers of two and 3 and 5 times
    them, in whole nodes) are searched as `plan` searches them. Days are tokens / tokens per second / 86400,
    divided by what failures leave of the time: checkpoints at Daly's interval.

    Exit code 3 where nothing meets the targets.

    \b
    ppadvisor size --model llama-3-70b --seq-len 8k --global-batch 2048 --tokens 15T --days 60 \\
        --gpu h100-sxm-80gb,b200-sxm-180gb --inter-node-bandwidth 400Gb/s,800Gb/s
    """
    from ppadvisor.report.size_view import render_size

    report = _size(values, margin, read_assumptions(assume))
    view = view_of(output)
    write(render_size(report, format, width=view.width, color=view.color), output)
    return EXIT_OK if report.nearest is None else EXIT_NO_PLAN


def _size(values: Values, margin: float, assumed: dict[str, float]) -> SizeReport:
    """Ask every count of every candidate."""
    from ppadvisor.search.size import Wanted, search_counts, size_report
    from ppadvisor.search.size_points import Run
    from ppadvisor.specs.assumptions import Assumptions

    targets, losses = _targets(values), _losses(values)
    candidates = _candidates(values, Assumptions().changed(assumed))
    for candidate in candidates:
        if targets.budget is not None and candidate.price is None:
            raise InputError(f"--budget needs the price of every candidate; {candidate.name} has none: give --price")
    counts = values["gpus"]
    wanted = Wanted(targets, Run(targets.tokens, losses, margin), tuple(sorted(set(counts))) if counts else None)
    evaluated = tuple(with_progress(search_counts(candidates, wanted), "numbers of GPUs", None))
    _refuse_if_none_could_be_asked(evaluated)
    return size_report(candidates, wanted, evaluated, assumptions=assumed)


def _targets(values: Values) -> SizeTargets:
    from ppadvisor.search.size_results import SizeTargets

    if values["tokens"] is None:
        raise InputError("--tokens is missing: those of the whole training run, such as 15T")
    if values["days"] is None and values["budget"] is None:
        raise InputError("no target is given: --days, --budget (with prices), or both")
    return SizeTargets(tokens=values["tokens"], days=values["days"], budget=values["budget"])


def _losses(values: Values) -> Losses:
    from ppadvisor.search.goodput import Losses

    rate, mtbf = values["failures_per_gpu_hour"], values["mtbf_hours"]
    if rate is not None and mtbf is not None:
        raise InputError("--mtbf-hours is 1 / --failures-per-gpu-hour; give one or the other")
    failures = 1 / mtbf if mtbf is not None else rate or 0.0
    times = {name: values[name] for name in ("checkpoint_time", "restart_time") if values[name] is not None}
    if times and not failures:
        flag = f"--{next(iter(times)).replace('_', '-')}"
        raise InputError(f"{flag} has no effect without failures; give --failures-per-gpu-hour or --mtbf-hours")
    if failures and not any(times.values()):
        flag = "--mtbf-hours" if mtbf is not None else "--failures-per-gpu-hour"
        raise InputError(f"{flag} has no effect: a failure costs nothing; give --checkpoint-time or --restart-time")
    return Losses(failures, times.get("checkpoint_time", 0.0), times.get("restart_time", 0.0))


def _candidates(values: Values, assumptions: Assumptions) -> list[Candidate]:
    """The combinations of the lists, in the order of the options, the last one running fastest."""
    from ppadvisor.cli.prices import read_prices
    from ppadvisor.cli.specs import choose_framework, resolved_names

    given = given_values(values)
    # one trainer for all candidates, and what stands in its place said once
    given.setdefault("framework", choose_framework(given))
    given.pop("gpus", None)
    lists = {name: tuple(dict.fromkeys(given.pop(name))) for name in CANDIDATE_INPUTS if name in given}
    lists |= {name: resolved_names(name, lists[name]) for name in ("gpu", "cluster") if name in lists}
    chosen = [dict(zip(lists, combination, strict=True)) for combination in product(*lists.values())]
    prices = read_prices(values["price"], [_with_hardware(given, one) for one in chosen])
    told = {name for name, items in lists.items() if len(items) > 1}
    return [
        _candidate(given | one, _name(one, told), price, assumptions) for one, price in zip(chosen, prices, strict=True)
    ]


def _with_hardware(given: Values, chosen: Values) -> Values:
    """A candidate's inputs, with the network and the memory of its preset where none is given."""
    from ppadvisor.cli.specs import read_cluster

    values = given | chosen
    cluster = read_cluster({**values, "gpus": _gpus_per_node(values)})
    known = {
        "inter_node_bandwidth": cluster.inter_node_bandwidth_bytes_per_s,
        "gpu_memory": cluster.gpu.memory_bytes,
    }
    return known | {name: value for name, value in values.items() if value is not None}


def _name(chosen: Mapping[str, Any], told: set[str]) -> str:
    """What tells a candidate from the others: its GPU or cluster, and what is listed."""
    from ppadvisor.cli.prices import hardware_of
    from ppadvisor.units import format_bytes_gib

    words = [hardware_of(chosen)]
    if "gpu_memory" in told:
        words.append(format_bytes_gib(chosen["gpu_memory"]))
    if "inter_node_bandwidth" in told:
        words.append(f"{8e-9 * chosen['inter_node_bandwidth']:g} Gb/s")
    return ", ".join(words)


def _candidate(values: Values, name: str, price: float | None, assumptions: Assumptions) -> Candidate:
    from ppadvisor.cli.specs import read_cluster
    from ppadvisor.search.size import Candidate

    ask = partial(_ask, values, assumptions)
    node = _gpus_per_node(values)
    ask(node)  # what is wrong whatever the number of GPUs is said at once
    return Candidate(name, read_cluster({**values, "gpus": node}), price, ask)


def _gpus_per_node(values: Values) -> int:
    from ppadvisor.cli.specs import OWN_GPUS_PER_NODE
    from ppadvisor.specs.load import load_cluster, load_gpu

    if values.get("gpus_per_node") is not None:
        return int(values["gpus_per_node"])
    if values.get("cluster") is not None:
        return load_cluster(values["cluster"]).gpus_per_node
    return load_gpu(values["gpu"]).gpus_per_node if values.get("gpu") is not None else OWN_GPUS_PER_NODE


def _ask(values: Values, assumptions: Assumptions, num_gpus: int) -> tuple[Problem, Pins]:
    from ppadvisor.cli.specs import read_request
    from ppadvisor.search.api import check_run, make_problem

    node = values.get("gpus_per_node")
    fewer = {"gpus_per_node": min(node, num_gpus)} if node is not None else {}
    request = read_request({**values, **fewer, "gpus": num_gpus})
    problem = make_problem(request.model, request.cluster, request.training, assumptions)
    check_run(problem)
    return problem, request.pins


def _refuse_if_none_could_be_asked(evaluated: tuple[Any, ...]) -> None:
    """InputError where the inputs contradict each other at every number of GPUs."""
    from ppadvisor.search.size_points import CONTRADICTION
    from ppadvisor.search.size_results import NoPlan

    results = [one.result for one in evaluated if one.result is not None]
    misses = [result for result in results if isinstance(result, NoPlan) and result.reason_code == CONTRADICTION]
    if misses and len(misses) == len(results):
        raise InputError(
            f"every number of GPUs contradicts the other options; {misses[0].num_gpus}: {misses[0].reason}"
        )
