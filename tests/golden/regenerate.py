"""`python -m tests.golden.regenerate`: write the key numbers of the golden plans anew, after MODEL_VERSION went up."""

from __future__ import annotations

import json
import sys

from ppadvisor.specs.version import MODEL_VERSION
from tests.golden.plans import FILE, document, kept


def main() -> int:
    """Refuse to write other numbers under the same version."""
    new = document()
    if FILE.exists():
        old = kept()
        if old["model_version"] == MODEL_VERSION and old["plans"] != new["plans"] and "--force" not in sys.argv[1:]:
            print(f"the numbers changed under {MODEL_VERSION}: bump MODEL_VERSION in ppadvisor/specs/version.py first")
            return 1
    FILE.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
