"""Without torch the helpers of these tests cannot be imported, so they are not looked at for doctests either."""

from __future__ import annotations

from importlib.util import find_spec

HELPERS = ["pipeline.py", "recount.py", "recount_memory.py", "saved.py", "working.py"]
collect_ignore = [] if find_spec("torch") else HELPERS
