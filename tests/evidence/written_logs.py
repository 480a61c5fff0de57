"""Logs as the trainers' own format strings write them (their places: `frameworks/<name>/log.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MIB, GIB = 2.0**20, 2.0**30


def megatron(times: Sequence[float], *, batch: int = 64, first: int = 1, every: int = 1) -> list[str]:
    """Megatron-LM, training.py:3567-3653; a line each `every` iterations, whose mean is the time."""
    return [
        f" [2026-11-28 10:{i // 60 % 60:02d}:{i % 60:02d}.123456]"
        + f" iteration {first + every * i:8d}/{500000:8d} |"
        + f" consumed samples: {batch * (first + every * i):12d} |"
        + f" elapsed time per iteration (ms): {seconds * 1000.0:.1f} |"
        + f" throughput per GPU (TFLOP/s/GPU): {206.1:.1f} |"
        + f" learning rate: {6e-5:.6E} |"
        + f" global batch size: {batch:5d} |"
        + " {}: {:.6E} |".format("lm loss", 7.123456)
        + f" loss scale: {1.0:.1f} | grad norm: {1.234:.3f} |"
        + f" number of skipped iterations: {0:3d} |"
        + f" number of nan iterations: {0:3d} |"
        for i, seconds in enumerate(times)
    ]


def megatron_deepspeed(times: Sequence[float], *, batch: int = 64) -> list[str]:
    """bigscience-workshop/Megatron-DeepSpeed, training.py:785-830, with DeepSpeed's own line beside each."""
    lines = []
    for i, seconds in enumerate(times):
        lines += deepspeed_pipeline([seconds + 1.0], first=i + 1)
        lines.append(
            f" iteration {i + 1:8d}/{500000:8d} |"
            + f" consumed samples: {batch * i:12d} |"
            + f" consumed tokens: {2048 * batch * i:12d} |"
            + f" elapsed time per iteration (s): {seconds:.2f} |"
            + f" learning rate: {6e-5:.3E} |"
            + f" global batch size: {batch:5d} |"
            + " {}: {:.6E} |".format("lm loss", 7.123456)
        )
    return lines


def bridge(times: Sequence[float], *, batch: int = 64) -> list[str]:
    """Megatron-Bridge, train_utils.py: a short line on rank 0 beside Megatron's."""
    lines = []
    for seconds, line in zip(times, megatron(times, batch=batch), strict=True):
        lines += [f"Step Time : {seconds:.2f}s GPU utilization: {206.1:.1f}MODEL_TFLOP/s/GPU", line]
    return lines


def nemo(times: Sequence[float], *, batch: int = 64) -> list[str]:
    """NeMo, progress_printer.py: floats with four digits, whole ones as integers."""
    return [
        f"Training epoch 0, iteration {i}/{len(times)}"
        + f" | lr: {6.1e-5:.4} | global_batch_size: {batch} | global_step: {i} | reduced_train_loss: {7.123456:.4}"
        + f" | train_step_timing in s: {seconds:.4} | consumed_samples: {batch * i}"
        for i, seconds in enumerate(times)
    ]


def torchtitan(rates: Sequence[float], *, reserved_gib: float = 40.0, every: int = 1) -> list[str]:
    """torchtitan, metrics.py, behind the prefix of its logger, with its colours; rates are tokens/s of a device."""
    red, blue, off = "\033[31m", "\033[34m", "\033[39m"
    prefix = "[rank0]:[titan] 2026-11-28 10:00:03,123 - root - INFO - "
    return [
        f"{prefix}{red}step: {every * i or 1:2}  "
        + f"{off}loss: {7.12345:8.5f}  grad_norm: {1.2345:7.4f}  "
        + f"memory: {reserved_gib:5.2f}GiB({50.0:.2f}%)  "
        + f"{blue}tps: {round(tps):,}  "
        + f"tflops: {253.41:,.2f}  mfu: {25.62:.2f}%{off}"
        for i, tps in enumerate(rates)
    ]


def deepspeed_pipeline(times: Sequence[float], *, first: int = 1) -> list[str]:
    """DeepSpeed, runtime/pipe/engine.py:401-405."""
    return [
        f"steps: {first + i} loss: {7.1234:0.4f} iter time (s): {seconds:0.3f} samples/sec: {64 / seconds:0.3f}"
        for i, seconds in enumerate(times)
    ]


def deepspeed_throughput(times: Sequence[float], *, batch: int = 64) -> list[str]:
    """DeepSpeed, utils/timer.py:265."""
    prefix = "[2026-11-28 10:00:03,123] [INFO] [timer.py:264:stop] "
    text = (
        "epoch={}/micro_step={}/global_step={}, RunningAvgSamplesPerSec={}, CurrSamplesPerSec={}, "
        "MemAllocated={}GB, MaxMemAllocated={}GB"
    )
    return [prefix + text.format(0, 4 * i, i + 2, 1.0, batch / s, round(12.3456, 2), 34.5) for i, s in enumerate(times)]


def megatron_memory(rank: int, allocated_bytes: float, reserved_bytes: float, iteration: int = 2) -> str:
    """Megatron-LM, common_utils.py:313-334."""
    string = f"(after {iteration} iterations)" + " memory (MB)"
    string += f" | allocated: {0.7 * allocated_bytes / MIB:.2f}"
    string += f" | max allocated: {allocated_bytes / MIB:.2f}"
    string += f" | reserved: {reserved_bytes / MIB:.2f}"
    string += f" | max reserved: {reserved_bytes / MIB:.2f}"
    return f"[Rank {rank}] {string}"


def bridge_memory(rank: int, allocated_bytes: float, reserved_bytes: float) -> str:
    """Megatron-Bridge, train_utils.py, report_memory: 10^9 bytes, five digits."""
    string = "(after 2 iterations) memory (GB)"
    names = ("mem-allocated", "mem-max-allocated", "mem-reserved", "mem-max-reserved")
    sizes = (0.7 * allocated_bytes, allocated_bytes, reserved_bytes, reserved_bytes)
    for name, size in zip(names, sizes, strict=True):
        string += f" | {name}-gigabytes: {float(f'{size / 1e9:.5g}')}"
    return "[Rank {}] {}".format(rank, string + " | mem-alloc-retires: 0")


WITH_TIMES: dict[str, Callable[[Sequence[float]], list[str]]] = {
    "Megatron iteration line": megatron,
    "Megatron-DeepSpeed iteration line": megatron_deepspeed,
    "NeMo progress line": nemo,
    "DeepSpeed pipeline line": deepspeed_pipeline,
    "DeepSpeed throughput line": deepspeed_throughput,
}
"""Title of the line that is read -> who writes it from step times; the batch is 64."""


def text(lines: Sequence[str]) -> str:
    """A whole file."""
    return "".join(f"{line}\n" for line in lines)
