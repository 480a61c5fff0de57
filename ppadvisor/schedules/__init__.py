"""Who works when: one file a schedule, one line in `SCHEDULES`; `replay` runs any order against given times."""

from __future__ import annotations

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
}


def get(schedule_id: str) -> Schedule:
    """The schedule of this id; an unknown one is an `InputError` that offers the nearest."""
    if schedule_id not in SCHEDULES:
        raise unknown_name("schedule", schedule_id, SCHEDULES)
    module = importlib.import_module(f"{__name__}.{SCHEDULES[schedule_id]}")
    return cast("Schedule", module.SCHEDULE)
