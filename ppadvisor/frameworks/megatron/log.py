"""What Megatron-LM, its fork under DeepSpeed, Megatron-Bridge and NeMo print.

Sources: NVIDIA/Megatron-LM d98e8a64, megatron/training/training.py:3567-3653 (last rank, every --log-interval, mean
over the interval) and utils/common_utils.py:313-334 (every rank with data-parallel rank 0);
bigscience-workshop/Megatron-DeepSpeed 8387ae17, megatron/training.py:793; NVIDIA-NeMo/Megatron-Bridge 355cef45,
training/utils/train_utils.py; NVIDIA/NeMo 01f7dbc5, lightning/pytorch/callbacks/progress_printer.py.
"""

from __future__ import annotations

import re

from ppadvisor.frameworks.logs import NUMBER, LogFormat, MemoryLine, SizesLine, StepLine

_ITERATION = r"iteration\s+(?P<iteration>\d+)/\s*\d+ \|"
_BATCH = r"(?:.*? global batch size:\s+(?P<batch>\d+) \|)?"

STEPS = (
    # ' iteration {:8d}/{:8d} |' ' consumed samples: {:12d} |' [' skipped samples: {:12d} |']
    # ' elapsed time per iteration (ms): {:.1f} |' ... ' global batch size: {:5d} |'
    StepLine(
        "Megatron iteration line",
        "Megatron-LM training.py:3567-3653; Megatron-Bridge train_utils.py writes the same",
        "elapsed time per iteration (ms):",
        re.compile(rf"{_ITERATION}.*? elapsed time per iteration \(ms\): (?P<value>{NUMBER}) \|{_BATCH}"),
        "step_time_s",
        1e-3,
    ),
    # ' elapsed time per iteration (s): {:.2f} |'
    StepLine(
        "Megatron-DeepSpeed iteration line",
        "bigscience-workshop/Megatron-DeepSpeed training.py:793",
        "elapsed time per iteration (s):",
        re.compile(rf"{_ITERATION}.*? elapsed time per iteration \(s\): (?P<value>{NUMBER}) \|{_BATCH}"),
        "step_time_s",
    ),
    # 'Training epoch {}, iteration {n}/{total}' then ' | {metric}: {val:.4}' of each metric
    StepLine(
        "NeMo progress line",
        "NVIDIA/NeMo progress_printer.py, format_string",
        "train_step_timing in s:",
        re.compile(
            r"Training epoch \d+, iteration (?P<iteration>\d+)/\d+ \|"
            r"(?:.*? global_batch_size: (?P<batch>\d+)(?: \||$))?"
            rf".*? train_step_timing in s: (?P<value>{NUMBER})"
        ),
        "step_time_s",
    ),
    # the progress bar of NeMo 1: '..., global_step=99.00, consumed_samples=25600.0, train_step_timing in s=3.130]'
    StepLine(
        "NeMo progress bar",
        "NVIDIA/NeMo, pytorch_lightning progress bar with its logged metrics",
        "train_step_timing in s=",
        re.compile(rf"global_step=(?P<iteration>\d+)(?:\.0+)?\b.*?train_step_timing in s=(?P<value>{NUMBER})[,\]]"),
        "step_time_s",
    ),
    # f"Step Time : {elapsed_time_per_iteration:.2f}s GPU utilization: {per_gpu_tf:.1f}MODEL_TFLOP/s/GPU"
    StepLine(
        "Megatron-Bridge step time",
        "Megatron-Bridge train_utils.py, on rank 0 only",
        "Step Time : ",
        re.compile(rf"Step Time : (?P<value>{NUMBER})s GPU utilization: "),
        "step_time_s",
    ),
)

MEMORY = (
    # '[Rank {}] {}' of '(after {iteration} iterations) memory (MB)' ' | allocated: {:.2f}' ' | max allocated: {:.2f}'
    # ' | reserved: {:.2f}' ' | max reserved: {:.2f}', MB = 1024.0 * 1024.0; older ones print all digits
    MemoryLine(
        "Megatron memory line",
        "Megatron-LM common_utils.py:313-334",
        " memory (MB) |",
        re.compile(
            rf"\[Rank (?P<rank>\d+)\] .*? memory \(MB\) \|.*? max allocated: (?P<allocated>{NUMBER}) \|"
            rf".*? max reserved: (?P<reserved>{NUMBER})"
        ),
        2.0**20,
    ),
    # '(after {iteration} iterations) memory (GB)' ' | {metric}: {value}', names of MEMORY_KEYS, GB = 1.0e9
    MemoryLine(
        "Megatron-Bridge memory line",
        "Megatron-Bridge train_utils.py, report_memory",
        " memory (GB) |",
        re.compile(
            rf"\[Rank (?P<rank>\d+)\] .*? memory \(GB\) \|.*? mem-max-allocated-gigabytes: (?P<allocated>{NUMBER}) \|"
            rf".*? mem-max-reserved-gigabytes: (?P<reserved>{NUMBER})"
        ),
        1e9,
    ),
)

SIZES = (
    # 'using world size: {}, data-parallel size: {}, context-parallel size: {}, ' [hierarchical ones, '] '
    # 'tensor-model-parallel size: {}, pipeline-model-parallel size: {}'
    SizesLine(
        "Megatron-LM arguments.py:567-576",
        "using world size: ",
        re.compile(
            r"using world size: (?P<num_gpus>\d+), data-parallel.size: (?P<data_parallel>\d+),"
            r"(?: context-parallel.size: (?P<context_parallel>\d+),)?.*?"
            r" tensor-model-parallel.size: (?P<tensor_parallel>\d+),"
            r" pipeline-model-parallel.size: (?P<pipeline_parallel>\d+)"
        ),
    ),
)

LOG = LogFormat("megatron", "Megatron-LM, Megatron-Bridge or NeMo", STEPS, MEMORY, SIZES)
