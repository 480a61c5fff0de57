"""Megatron's small languages inside values, read without `eval` and without writing out what would not fit."""

from __future__ import annotations

import re

MOST_ITEMS = 100_000
LIST_ITEM = re.compile(r"\[\s*([01](?:\s*,\s*[01])*)?\s*,?\s*\](?:\*(\d{1,6}))?|(\()|(\))(?:\*(\d{1,6}))?|\+")


def layout_is_huge(layout: str) -> bool:
    """Whether a layout would be longer than any model: repeats multiply at most twice, `(t*2|)*3`."""
    groups = [int(number[:9]) for number in re.findall(r"\)\*(\d+)", layout)]
    singles = [int(number[:9]) for number in re.findall(r"[^)]\*(\d+)", layout)]
    return len(layout) * max([1, *groups]) * max([1, *singles]) > 20 * MOST_ITEMS


def layer_pattern(text: str) -> tuple[int, ...] | None:
    """`[0]*3+[1]*58` or `([0]+[1]*2)*4` as its items; None for anything else, or too many.

    Source: NVIDIA/Megatron-LM d98e8a64, arguments.py `moe_freq_type`, which evaluates the text as Python.

    >>> layer_pattern("([0]*2+[1])*2")
    (0, 0, 1, 0, 0, 1)
    """
    text = text.replace(" ", "")
    stack: list[list[int]] = [[]]
    at = 0
    while at < len(text):
        match = LIST_ITEM.match(text, at)
        if not match or len(stack) > 50:
            return None
        at = match.end()
        if match[3]:
            stack.append([])
        elif match[4]:
            if len(stack) == 1:
                return None
            items = stack.pop()
            if not _add(stack[-1], items, match[5]):
                return None
        elif match[0] != "+" and not _add(
            stack[-1], [int(item) for item in re.findall(r"[01]", match[1] or "")], match[2]
        ):
            return None
    return tuple(stack[0]) if len(stack) == 1 and stack[0] else None


def _add(to: list[int], items: list[int], times: str | None) -> bool:
    count = int(times) if times else 1
    if len(to) + len(items) * count > MOST_ITEMS:
        return False
    to.extend(items * count)
    return True
