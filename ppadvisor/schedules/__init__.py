"""Who works when: one file a schedule, one line in `SCHEDULES`; `replay` runs any order against given times."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Final, cast

from ppadvisor.errors import unknown_name

if TYPE_CHECKING:
    from ppadvisor.schedules.base import Schedule

# id -> module of this package that holds it. Modules are imported when asked for: `--help` needs the ids alone.
SCHEDULES: Final[dict[str, str]] = {
    "none": "none",
    "naive": "naive",
    "gpipe": "gpipe",
    "1f1b": "one_f_one_b",
    "interleaved-1f1b": "interleaved_1f1b",
    "looped-bfs": "looped_bfs",
    "interleaved-zero-bubble": "interleaved_zero_bubble",
    "gis": "gis",
    "gis-h": "gis_h",
    "dualpipe": "dualpipe",
    "dualpipev": "dualpipev",
    "chimera": "chimera",
    "hanayo": "hanayo",
    "1f1b-vocab-1": "one_f_one_b_vocab_1",
    "1f1b-vocab-2": "one_f_one_b_vocab_2",
    "1f1b-interlaced-vocab": "one_f_one_b_interlaced_vocab",
    "pipedream": "pipedream",
    "pipedream-2bw": "pipedream_2bw",
    "zb-h1": "zb_h1",
    "zb-h2": "zb_h2",
    "zb-1p": "zb_1p",
    "zb-2p": "zb_2p",
    "zb-v": "zb_v",
    "v-half": "v_half",
    "v-min": "v_min",
}


@functools.cache
def get(schedule_id: str) -> Schedule:
    """The schedule of this id; an unknown one is an `InputError` that offers the nearest."""
    if schedule_id not in SCHEDULES:
        raise unknown_name("schedule", schedule_id, SCHEDULES)
    module = importlib.import_module(f"{__name__}.{SCHEDULES[schedule_id]}")
    return cast("Schedule", module.SCHEDULE)


def microbatch_group(schedule_id: str, p: int, m: int, v: int) -> int | None:
    """N of an interleaved schedule where it is not p: p does not divide m, or the schedule takes smaller groups."""
    schedule = get(schedule_id)
    if schedule.formula_symbols is None or schedule.problem(p, m, v) is not None:
        return None
    group = schedule.formula_symbols(p, m, v).get("N", p)
    return int(group) if group != p else None
