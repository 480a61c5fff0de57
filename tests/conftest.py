"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# The same examples in every run, so that red and green say something about the change; no deadline, since the
# machine's load is not what these tests are about.
settings.register_profile("ppadvisor", derandomize=True, deadline=None, database=None)
settings.load_profile("ppadvisor")
