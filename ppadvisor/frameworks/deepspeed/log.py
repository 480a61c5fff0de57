"""What DeepSpeed prints.

Source: microsoft/DeepSpeed 38327e07. deepspeed/runtime/pipe/engine.py:396-406, rank 0, every steps_per_print, mean over
them:
    f'steps: {global_steps} loss: {agg_train_loss:0.4f} ' [f'{loss_name}: {loss_value:0.4f} ' ...]
    f'iter time (s): {iter_time:0.3f} samples/sec: {tput:0.3f}'
deepspeed/utils/timer.py:265, without pipelining, of one step:
    "epoch={}/micro_step={}/global_step={}, RunningAvgSamplesPerSec={}, CurrSamplesPerSec={}, "
    "MemAllocated={}GB, MaxMemAllocated={}GB" (GB = 1024**3, two digits)
deepspeed/runtime/utils.py:782, see_memory_usage, rank 0:
    f"MA {} GB         Max_MA {} GB         CA {} GB         Max_CA {} GB "
(1024**3, two digits; Max_CA is rounded to a whole GB, which is too coarse beside the others and not read).
"""

from __future__ import annotations

import re

from ppadvisor.frameworks.logs import NUMBER, LogFormat, MemoryLine, StepLine

_THROUGHPUT = r"global_step=(?P<iteration>\d+), RunningAvgSamplesPerSec=.*?"

STEPS = (
    StepLine(
        "DeepSpeed pipeline line",
        "DeepSpeed runtime/pipe/engine.py:396-406",
        "iter time (s):",
        re.compile(rf"steps: (?P<iteration>\d+) .*?iter time \(s\): (?P<value>{NUMBER}) samples/sec: "),
        "step_time_s",
    ),
    StepLine(
        "DeepSpeed throughput line",
        "DeepSpeed utils/timer.py:265",
        "CurrSamplesPerSec=",
        re.compile(rf"{_THROUGHPUT} CurrSamplesPerSec=(?P<value>{NUMBER}),"),
        "samples_per_s",
    ),
)

MEMORY = (
    MemoryLine(
        "DeepSpeed throughput line",
        "DeepSpeed utils/timer.py:265; rank 0",
        "MaxMemAllocated=",
        re.compile(rf"MaxMemAllocated=(?P<allocated>{NUMBER})GB"),
        2.0**30,
    ),
    MemoryLine(
        "DeepSpeed memory line",
        "DeepSpeed runtime/utils.py:782, see_memory_usage; rank 0",
        "Max_MA ",
        re.compile(rf"Max_MA (?P<allocated>{NUMBER}) GB"),
        2.0**30,
    ),
)

LOG = LogFormat("deepspeed", "DeepSpeed", STEPS, MEMORY)
