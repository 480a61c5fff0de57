"""The form of NeMo 1, whose language models train with Megatron-Core: memory, time and most rules are Megatron's."""

from __future__ import annotations

VERSION = "NVIDIA/NeMo, commit 8cfedd72 (2025-09-20)"
