"""Without torch 2.13 what is built on it cannot be imported, so it is not collected, for doctests either."""

from __future__ import annotations

from ppadvisor.verify.torch_engine import TORCH_VERSION, installed_version

ON_TORCH = (
    "pipeline.py",
    "recount.py",
    "recount_memory.py",
    "saved.py",
    "working.py",
    "test_layers.py",
    "test_memory.py",
    "test_pipeline_memory.py",
    "test_saved_tensors.py",
)
collect_ignore = [] if (installed_version() or "").startswith(f"{TORCH_VERSION}.") else list(ON_TORCH)
