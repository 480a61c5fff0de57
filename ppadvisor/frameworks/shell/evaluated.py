"""What `eval` is given, read once more."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ppadvisor.frameworks.shell.commands import Commands
from ppadvisor.frameworks.shell.expand import split_again
from ppadvisor.frameworks.shell.lexer import tokenize
from ppadvisor.frameworks.shell.parser import parse_commands
from ppadvisor.frameworks.shell.variables import Field, Piece, Pieces

PLAIN = re.compile(r"[\w./:,@%+= \t-]*")
ASSIGNS = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)


def plain_words(arguments: Sequence[Pieces]) -> list[Field] | None:
    """The words where nothing in them has a meaning to a shell, with their lines; None otherwise."""
    if not all(PLAIN.fullmatch(piece.text) for pieces in arguments for piece in pieces):
        return None
    words = [word for pieces in arguments for word in split_again(pieces)]
    return None if any(word.unknown or ASSIGNS.match(word.text) for word in words[:1]) else words


def with_names(pieces: Pieces) -> tuple[str, dict[str, Piece]] | None:
    """A text with a name of ours for each piece that is not known, and what these stand for.

    None where such a name could be read as something else than a variable, or as the command itself.
    """
    if (pieces and pieces[0].unknown) or any("'" in piece.text or "\\" in piece.text for piece in pieces):
        return None
    held = {f"_unknown{at}": piece for at, piece in enumerate(pieces) if piece.unknown}
    texts = [f"${{_unknown{at}}}" if piece.unknown else piece.text for at, piece in enumerate(pieces)]
    return "".join(texts), held


def commands_of(text: str, file: str, line: int) -> Commands:
    """The commands that a text is."""
    return parse_commands(tokenize(text, file, line), file)
