"""A split in Megatron's words: account flags, first and last stage, or a layout string, and the rules for one.

Source: NVIDIA/Megatron-LM commit d98e8a64: pipeline_parallel_layer_layout.py (letters, repeats, rules; compared with it
on 20,000 layouts, most of them broken), transformer_config.py:2229-2368 (first and last stage), arguments.py:928-998
(which exclude each other). E is the embedding, t a transformer layer, m a multi-token-prediction layer, L the head and
the loss; stage i in the order of the text lies on rank i mod p.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from ppadvisor.frameworks.profile import Split
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec

SIZE = "--pipeline-model-parallel-size"
VIRTUAL = "--num-virtual-stages-per-pipeline-rank"
ACCOUNT = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
ENDS = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
LAYOUT = "--pipeline-model-parallel-layout"


def split_settings(model: ModelSpec, plan: PlanSpec) -> dict[str, str]:
    """The flags that build a plan's split, the shortest way: none, account flags, first and last stage, a layout.

    A flag without a value has an empty one. A layout says v itself and excludes all other flags but p.
    """
    p, v, split = plan.pipeline_parallel, plan.virtual_stages, plan.layers_per_chunk
    flags = _account(split)
    if flags is None:
        flags = _first_and_last(plan.layers_per_stage, split, v)
    if flags is None:
        return {SIZE: str(p), LAYOUT: layout_string(split, model.mtp_num_layers)}
    return {SIZE: str(p)} | ({VIRTUAL: str(v)} if v > 1 else {}) | flags


def _account(split: Split) -> dict[str, str] | None:
    """Flags where all stages are equal once embedding and loss count as a layer; `{}` where they are anyway."""
    for flags in ((), ACCOUNT[:1], ACCOUNT[1:], ACCOUNT):
        counted = list(split)
        counted[0] += ACCOUNT[0] in flags
        counted[-1] += ACCOUNT[1] in flags
        if len(set(counted)) == 1:
            return dict.fromkeys(flags, "")
    return None


def _first_and_last(ranks: Split, split: Split, v: int) -> dict[str, str] | None:
    """Flags where the ranks between the first and the last are equal, each with equal chunks."""
    if any(size * v != ranks[stage % len(ranks)] for stage, size in enumerate(split)):
        return None
    for first, last in ((False, True), (True, False), (True, True)):
        middle = ranks[int(first) : len(ranks) - int(last)]
        if len(set(middle)) <= 1:
            given = ((ENDS[0], ranks[0], first), (ENDS[1], ranks[-1], last))
            return {flag: str(layers) for flag, layers, used in given if used}
    return None


def layout_string(split: Sequence[int], mtp_num_layers: int = 0) -> str:
    """The layout of a split, embedding first, prediction layers and head last, equal stages together.

    The example of NVIDIA/Megatron-LM, issue 1303: 40 layers on 16 stages.

    >>> layout_string([2] + [3] * 8 + [2] * 7)
    'Et*2|(t*3|)*8(t*2|)*6t*2L'
    """
    first, *middle = [_repeated("t", size) for size in split]
    end = _repeated("m", mtp_num_layers) + "L"
    if not middle:
        return f"E{first}{end}"
    runs = [(stage, len(list(run))) for stage, run in groupby(middle[:-1])]
    texts = [f"({stage}|)*{count}" if count > 1 else f"{stage}|" for stage, count in runs]
    return f"E{first}|{''.join(texts)}{middle[-1]}{end}"


def _repeated(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count


def layout_stages(layout: str) -> list[str]:
    """The letters of each stage: commas say nothing, x*n and (...)*n repeat, | ends a stage.

    Megatron's own example:

    >>> layout_stages("Ettt|(tt|)*29,m|L")[-3:]
    ['tt', 'm', 'L']
    """
    text = layout.replace(",", "")
    for repeated in (r"\(([^()]+)\)\*(\d+)", r"([^()*])\*(\d+)"):
        text = re.sub(repeated, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def layout_problem(layout: str, *, num_layers: int, mtp_num_layers: int, pipeline_parallel: int) -> str | None:
    """The first rule that a layout breaks, in words, or None: letters, number of stages, order, numbers, place of m.

    >>> layout_problem("Et*2|t*2L", num_layers=4, mtp_num_layers=0, pipeline_parallel=2)
    >>> layout_problem("Et*2|tL", num_layers=4, mtp_num_layers=0, pipeline_parallel=2)
    '3 layers (t), needs 4'
    """
    stages = layout_stages(layout)
    letters = "".join(stages)
    strange = sorted(set(letters) - set("EtmL"))
    if strange:
        return f"{strange[0]!r} is no letter of a layout: E, t, m, L, |"
    if len(stages) % pipeline_parallel:
        return f"{len(stages)} stages are no multiple of the {pipeline_parallel} ranks"
    if letters.count("E") != 1 or not letters.startswith("E"):
        return "one E, in front of all, is the embedding"
    if letters.count("L") != 1 or not letters.endswith("L"):
        return "one L, behind all, is the head"
    for letter, number, what in (("t", num_layers, "layers"), ("m", mtp_num_layers, "prediction layers")):
        if letters.count(letter) != number:
            return f"{letters.count(letter)} {what} ({letter}), needs {number}"
    return _prediction_problem(stages, pipeline_parallel) if mtp_num_layers else None


def _prediction_problem(stages: list[str], pipeline_parallel: int) -> str | None:
    """Where prediction layers may stand: behind all others, in one stage, the last of its rank."""
    holding = [index for index, stage in enumerate(stages) if "m" in stage]
    if "".join(stages).find("m") < "".join(stages).rfind("t"):
        return "prediction layers (m) stand behind all others (t)"
    if len(holding) > 1:
        return "all prediction layers (m) stand in one stage"
    if holding[0] < len(stages) - pipeline_parallel:
        return "prediction layers (m) stand in the last stage of a rank"
    return None
