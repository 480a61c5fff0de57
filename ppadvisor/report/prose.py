"""Text around tables: paragraphs that stay within the width of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby


def join_blocks(blocks: Iterable[Sequence[str]], format: str, width: int) -> str:
    """Blocks of lines with an empty line between two of them; empty blocks are left out.

    Lines that are too wide for a terminal continue indented; tables (of several lines) and markdown stay as they are.
    """
    texts = ["\n".join(line if format == "markdown" else _wrapped(line, width) for line in block) for block in blocks]
    return "\n\n".join(text for text in texts if text) + "\n"


def _wrapped(line: str, width: int) -> str:
    if "\n" in line or len(line) <= width:
        return line
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def layers_text(layers_per_stage: Sequence[int]) -> str:
    """Layers of the stages in runs: `10` where all are equal, `9 6x10 11` elsewhere."""
    runs = [(size, len(list(run))) for size, run in groupby(layers_per_stage)]
    if len(runs) == 1:
        return str(runs[0][0])
    return " ".join(f"{count}x{size}" if count > 1 else str(size) for size, count in runs)
