"""No predicted number changes without a new MODEL_VERSION."""

from __future__ import annotations

import pytest

from ppadvisor.specs.version import MODEL_VERSION
from tests.golden.plans import CASES, kept, measure

CHANGED = (
    "a predicted number changed: bump MODEL_VERSION in ppadvisor/specs/version.py, "
    "then run `python -m tests.golden.regenerate`"
)


def test_the_kept_numbers_are_of_this_version() -> None:
    """The file holds the plans of `CASES` under the present MODEL_VERSION."""
    assert kept()["model_version"] == MODEL_VERSION, "run `python -m tests.golden.regenerate`"
    assert list(kept()["plans"]) == list(CASES), "run `python -m tests.golden.regenerate --force`"


@pytest.mark.parametrize("name", CASES)
def test_numbers_change_with_the_version_only(name: str) -> None:
    """Step time, peaks and bubble of each plan are those kept for this version, to one part in 10^9."""
    assert measure(CASES[name]) == pytest.approx(kept()["plans"][name], rel=1e-9), CHANGED
