"""`python -m tests.live.recount`: count again what torch keeps and write it beside the sizes in tests/published."""

from __future__ import annotations

import json
from typing import Any

from ppadvisor.verify.memory_ledger import storage_bytes
from tests.frameworks.counted import DOCUMENT, FILE, case_of
from tests.live.saved import SplitBackward, saved, torch
from tests.live.working import backward_work

LAYERS = 3
"""In a row, for the split backward: at the ends of a stack a layer may hold less."""


def recounted(record: dict[str, Any]) -> dict[str, Any]:
    """A record with its counts new."""
    case = case_of(record)
    kept, output = saved(case)
    split = SplitBackward(case, LAYERS)
    split.input_step()
    counts = {
        "saved_bytes": storage_bytes(kept.alive),
        "waiting_bytes": split.held() // LAYERS,
        "work_bytes": backward_work(case, LAYERS),
        "tensors": kept.listed(),
    }
    del output
    return {**record, **counts}


def main() -> None:
    """Write the file, a record a line."""
    head = {**{key: DOCUMENT[key] for key in ("source", "words", "tolerance")}, "torch": torch.__version__}
    records = ",\n".join(json.dumps(recounted(record)) for record in DOCUMENT["records"])
    start = json.dumps(head, indent=2).removesuffix("\n}")
    FILE.write_text(f'{start},\n  "records": [\n{records}\n  ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
