"""Is it true: measured runs, and how far the predictions are from them.

The names that a command line offers stand here, where they cost no import.
"""

from __future__ import annotations

from typing import Literal, get_args

KindName = Literal["memory", "activation", "parts", "oom", "bubble", "time"]
KIND_NAMES: tuple[KindName, ...] = get_args(KindName)
"""What is predicted of one run."""

RANK = "rank"
"""What is asked of several runs: whether their order is right."""

RECIPES = "recipes"
"""What is asked of published recipes: whether we recommend anything slower."""

Label = Literal["calibrates", "tests"]
LABELS: tuple[Label, ...] = get_args(Label)
