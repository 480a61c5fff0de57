"""What `eval` is given, read once more."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ppadvisor.frameworks.shell.commands import Commands
from ppadvisor.frameworks.shell.expand import split_again
from ppadvisor.frameworks.shell.lexer import tokenize
from ppadvisor.frameworks.shell.parser import parse_commands
from ppadvisor.frameworks.shell.variables import Field, Pieces

PLAIN = re.compile(r"[\w./:,@%+= \t-]*")


def plain_words(arguments: Sequence[Pieces]) -> list[Field] | None:
    """The words where nothing in them has a meaning to a shell, with their lines; None otherwise."""
    texts = [piece.text for pieces in arguments for piece in pieces]
    if not all(PLAIN.fullmatch(text) for text in texts) or any("=" in text.split("-", 1)[0] for text in texts[:1]):
        return None
    words = [word for pieces in arguments for word in split_again(pieces)]
    return None if any(word.unknown for word in words[:1]) else words


def commands_of(words: Sequence[Field], file: str, line: int) -> Commands:
    """The commands that the words are."""
    return parse_commands(tokenize(" ".join(word.text for word in words), file, line), file)
