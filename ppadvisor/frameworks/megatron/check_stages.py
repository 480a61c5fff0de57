"""Megatron's checks of how layers become pipeline stages, at start-up and when the model is built.

Source: NVIDIA/Megatron-LM d98e8a64; lines of arguments.py where no other file is named.
"""

from __future__ import annotations

from ppadvisor.frameworks.checks import Check
from ppadvisor.frameworks.megatron.layout import layout_problem
from ppadvisor.frameworks.megatron.options import flag_of
from ppadvisor.frameworks.megatron.patterns import layout_is_huge
from ppadvisor.frameworks.megatron.run import BY_COUNT, BY_LAYERS, EMBEDDING, FIRST, LAST, LAYOUT, LOSS, Run

P, L = "pipeline_model_parallel_size", "num_layers"


def _one_way(run: Run) -> str | None:
    given = [dest for dest in (BY_LAYERS, BY_COUNT, LAYOUT) if run.gives(dest)]
    if len(given) < 2:
        return None
    flags = " and ".join(f"{flag_of(dest)}" for dest in given)
    return f"{flags} exclude each other; keep one"


def _layout_alone(run: Run) -> str | None:
    others = [dest for dest in (FIRST, LAST, EMBEDDING, LOSS) if run.gives(dest)]
    if not run.gives(LAYOUT) or not others:
        return None
    return f"a layout says it all; drop {', '.join(flag_of(dest) for dest in others)}"


def _layout(run: Run) -> str | None:
    text = run.text(LAYOUT)
    if text is None or run.layers is None:
        return None
    if layout_is_huge(text):
        return "the layout has more stages or layers than any model"
    mtp = run.whole("mtp_num_layers") or 0
    problem = layout_problem(text, num_layers=run.layers, mtp_num_layers=mtp, pipeline_parallel=run.p)
    return f"layout {text if len(text) <= 80 else text[:77] + '...'}: {problem}" if problem else None


def _ends_or_counted(run: Run) -> str | None:
    if not run.gives(FIRST, LAST) or not (run.on(EMBEDDING) or run.on(LOSS)):
        return None
    return "layers of the first and last stage, and counting embedding or loss as a layer, exclude each other"


def _ends_by_count(run: Run) -> str | None:
    if not run.gives(FIRST, LAST) or not run.gives(BY_LAYERS) or run.gives(BY_COUNT):
        return None
    return "with layers of the first or last stage, say virtual stages by --num-virtual-stages-per-pipeline-rank"


def _ends(run: Run) -> str | None:
    """transformer_config.py:2292-2368."""
    given = [(dest, run.whole(dest)) for dest in (FIRST, LAST) if run.gives(dest)]
    if not given or run.layers is None or run.gives(LAYOUT):
        return None
    for dest, size in given:
        if size is None or size <= 0:
            return f"{flag_of(dest)} must be larger than 0"
    left, middle = run.layers - sum(size or 0 for _, size in given), run.p - len(given)
    if bool(left) != bool(middle):
        return f"{left} layers are left for {middle} stages between the first and the last"
    if middle > 0 and left % middle:
        return f"{left} layers cannot be divided over {middle} stages between the first and the last"
    return None


def _ends_in_chunks(run: Run) -> str | None:
    v = run.v
    if not run.gives(FIRST, LAST) or run.gives(LAYOUT) or v is None or v < 2 or _ends(run):
        return None
    given = [run.whole(dest) or 0 for dest in (FIRST, LAST) if run.gives(dest)]
    middle = run.p - len(given)
    sizes = given + ([((run.layers or 0) - sum(given)) // middle] if middle else [])
    bad = [str(size) for size in sizes if size % v]
    return f"stages of {', '.join(bad)} layers are no multiple of {v} virtual stages" if bad else None


def _even(run: Run) -> str | None:
    """985-998, and transformer_block.py:150 where virtual stages are counted."""
    if run.gives(FIRST, LAST, LAYOUT) or run.counted_layers is None or run.layers is None:
        return None
    if run.counted_layers % run.p == 0:
        return None
    extra = run.counted_layers - run.layers
    counted = f" (+ {extra} counted for embedding or loss)" if extra else ""
    return f"{run.layers} layers{counted} are no multiple of p {run.p}; {_ways_out(run.layers, run.p)}"


def _ways_out(layers: int, p: int) -> str:
    """What would build them: the nearest p, counting the ends as layers, unequal ends, a layout."""
    for extra, flags in ((1, flag_of(LOSS)), (2, f"{flag_of(EMBEDDING)} {flag_of(LOSS)}")):
        if (layers + extra) % p == 0:
            return f"with {flags} they are"
    ends = _equal_ends(layers, p)
    if ends is not None:
        others = (layers - 2 * ends) // (p - 2)
        return f"{flag_of(FIRST)} {ends} {flag_of(LAST)} {ends} leaves {others} for each of the others"
    nearest = [n for n in range(min(p, layers), 0, -1) if layers % n == 0][:1]
    return f"a layout builds any split ({flag_of(LAYOUT)}), or p {nearest[0] if nearest else 1}"


def _equal_ends(layers: int, p: int) -> int | None:
    """Layers of the first and of the last stage, as near below the others' as they go; None where they are far off."""
    middle = p - 2
    if middle < 1:
        return None
    sizes = [size for size in range(layers // p, 0, -1) if (layers - 2 * size) % middle == 0]
    return sizes[0] if sizes and 2 * sizes[0] * p >= layers else None


def _chunks_by_layers(run: Run) -> str | None:
    size = run.whole(BY_LAYERS)
    if not run.gives(BY_LAYERS) or run.gives(FIRST, LAST) or run.counted_layers is None or run.counted_layers % run.p:
        return None
    of_rank = run.counted_layers // run.p
    if not size or size < 1:
        return "the number of layers must be larger than 0"
    if of_rank % size == 0:
        return None
    fitting = ", ".join(str(n) for n in range(1, min(of_rank, 1000) + 1) if of_rank % n == 0)
    return f"{of_rank} layers of a rank are no multiple of {size} layers a virtual stage; allowed: {fitting}"


def _chunks_by_count(run: Run) -> str | None:
    """transformer_block.py:156-177."""
    v, counted = run.whole(BY_COUNT), run.counted_layers
    if not run.gives(BY_COUNT) or run.gives(FIRST, LAST) or counted is None or counted % run.p or run.p == 1:
        return None
    if not v or v < 1:
        return "the number of virtual stages must be larger than 0"
    if (counted // run.p) % v == 0:
        return None
    fitting = ", ".join(str(n) for n in range(1, min(counted // run.p, 1000) + 1) if (counted // run.p) % n == 0)
    return f"{counted // run.p} layers of a rank are no multiple of {v} virtual stages; allowed: {fitting}"


def _ranks_for_virtual(run: Run) -> str | None:
    if run.v is None or run.v < 2:
        return None
    if run.on("overlap_p2p_comm"):
        return None if run.p > 1 else f"{run.v} virtual stages need p of 2 or more, got {run.p}"
    return (
        None if run.p > 2 else f"{run.v} virtual stages without overlapped hand-offs need p of 3 or more, got {run.p}"
    )


CHECKS = (
    Check("virtual_stages_said_once", (BY_COUNT, BY_LAYERS, LAYOUT), "928-939", _one_way),
    Check("layout_alone", (LAYOUT, FIRST, LAST, EMBEDDING, LOSS), "transformer_config.py:2242-2258", _layout_alone),
    Check("layout", (LAYOUT, P, L), "pipeline_parallel_layer_layout.py:86-151", _layout),
    Check("ends_or_counted", (FIRST, LAST, EMBEDDING, LOSS), "transformer_config.py:2229-2240", _ends_or_counted),
    Check("ends_by_count", (BY_LAYERS, BY_COUNT), "954-956", _ends_by_count),
    Check("first_and_last_stage", (FIRST, LAST, P, L), "transformer_config.py:2292-2345", _ends),
    Check("ends_in_chunks", (BY_COUNT, FIRST, LAST), "transformer_config.py:2300-2368", _ends_in_chunks),
    Check("layers_divide", (P, L, LAYOUT, EMBEDDING, LOSS), "985-998; transformer_block.py:150", _even),
    Check("layers_per_virtual_stage", (BY_LAYERS, P, L), "970-975", _chunks_by_layers),
    Check("virtual_stages", (BY_COUNT, P, L), "transformer_block.py:156-177", _chunks_by_count),
    Check("virtual_stages_need_ranks", (P, BY_COUNT, BY_LAYERS), "1000-1009", _ranks_for_virtual),
)
