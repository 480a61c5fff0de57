"""`python -m tests.live.recount_memory`: run the rows of tests/published/torch_memory_rows.json again, write them."""

from __future__ import annotations

import json

from ppadvisor.verify.memory_rank import measure_rank
from tests.verify.memory_rows import CASES, FILE, HEAD, MemoryCase, readme_table, record_of


def counted(case: MemoryCase) -> str:
    """One row, run."""
    pipeline = case.pipeline()
    record = record_of(case, [measure_rank(pipeline, rank) for rank in range(case.p)])
    print(case.name, flush=True)
    return json.dumps(record)


def main() -> None:
    """Write the file, a row a line, and print the table of the README."""
    rows = ",\n".join(map(counted, CASES))
    FILE.write_text(f'{json.dumps(HEAD, indent=2)[:-2]},\n  "records": [\n{rows}\n  ]\n}}\n', encoding="utf-8")
    print(readme_table())


if __name__ == "__main__":
    main()
