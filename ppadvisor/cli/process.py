"""The command line as the whole life of a process: what is set before anything is imported, and an end at once."""

from __future__ import annotations

import atexit
import gc
import os
import sys

QUICK_START = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
"""What saves a tenth of a second before the work begins: no threads for matrix products, of which there are none, and
no look through every installed package for plugins of pydantic, which we do not use."""
COLLECT_AFTER = 500_000
"""New objects before Python looks for cycles: what a command makes is in use, and looking takes a tenth of its time."""


def process() -> int:
    """`main`, after which the process ends at once: nothing that it holds is taken down piece by piece.

    Python takes 15 ms for that. What was asked to be run at the end is run, and what is not written yet is written;
    where that fails, the exit code is returned and Python ends in its way.
    """
    for name, value in QUICK_START.items():
        os.environ.setdefault(name, value)
    gc.set_threshold(COLLECT_AFTER)
    from ppadvisor.cli.main import main

    exit_code = main()
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):  # a full disk; a stream that is closed
        return exit_code
    os._exit(exit_code)
