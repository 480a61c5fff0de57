"""The forms of Megatron-Bridge, which trains with Megatron-Core: memory, time and most rules are Megatron's."""

from __future__ import annotations

VERSION = "NVIDIA-NeMo/Megatron-Bridge, commit 067f987d (2026-08-22)"
