"""What torchtitan prints.

Source: pytorch/torchtitan b5bcd76c, torchtitan/components/metrics.py, MetricsProcessor.log:
    f"step: {step:2}  loss: {global_avg_loss:8.5f}  grad_norm: {grad_norm:7.4f}  "
    f"memory: {max_reserved_gib:5.2f}GiB({max_reserved_pct:.2f}%)  tps: {round(tps):,}  "
    f"tflops: {tflops:,.2f}  mfu: {mfu_str}"
with colours between the fields, and without `grad_norm` and `tflops` in older releases. tps counts the tokens of a
device: those of its data-parallel rank over time and p t c. Validation lines have no field behind tps.
"""

from __future__ import annotations

import re

from ppadvisor.frameworks.logs import NUMBER, LogFormat, MemoryLine, StepLine

_LINE = rf"step:\s+(?P<iteration>\d+)  .*?memory:\s+(?P<reserved>{NUMBER})GiB\(.*?\)"

STEPS = (
    StepLine(
        "torchtitan step line",
        "torchtitan metrics.py, MetricsProcessor.log",
        "tps: ",
        re.compile(rf"(?<!validate ){_LINE}  tps: (?P<value>[0-9,]+)  \w+: "),
        "tokens_per_s_per_gpu",
    ),
)

MEMORY = (
    MemoryLine(
        "torchtitan step line",
        "torchtitan metrics.py: peak reserved since the last line, of the rank that prints",
        "GiB(",
        re.compile(rf"(?<!validate ){_LINE}"),
        2.0**30,
    ),
)

LOG = LogFormat("torchtitan", "torchtitan", STEPS, MEMORY)
