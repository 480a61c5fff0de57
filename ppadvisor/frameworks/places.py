"""Where the keys of a TOML or JSON file stand: the parsers of the standard library tell no lines.

Both scanners run over text that was parsed already, so they only have to find what is there.
"""

from __future__ import annotations

import json
import re

Path = tuple[str, ...]
Places = dict[Path, int]
"""Path of a key -> the line on which it stands."""

_TOML_STRING = r'"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\''
_TOML_KEY = rf"(?:[\w-]+|{_TOML_STRING})"
_TOML_NAME = re.compile(rf"\s*({_TOML_KEY}(?:\s*\.\s*{_TOML_KEY})*)\s*")
_TOML_TABLE = re.compile(rf"\s*\[\[?{_TOML_NAME.pattern}\]")
_TOML_LONG = re.compile(r'"""(?:\\.|[^\\])*?(?:"""|\Z)|\'\'\'.*?(?:\'\'\'|\Z)', re.DOTALL)
_TOML_REST = re.compile(rf"{_TOML_STRING}|#.*|[\[\]{{}}]")


def toml_places(text: str) -> Places:
    """The line of each table and key of valid TOML; keys of inline tables stand where their table does.

    >>> toml_places("[a.b]\\nc = [\\n 1,\\n]\\nd.e = 2")
    {('a', 'b'): 1, ('a', 'b', 'c'): 2, ('a', 'b', 'd', 'e'): 5}
    """
    found: Places = {}
    above: Path = ()
    depth = 0
    blanked = _TOML_LONG.sub(lambda match: '""' + "\n" * match[0].count("\n"), text)
    for number, line in enumerate(blanked.split("\n"), 1):
        table, key = _TOML_TABLE.match(line), _TOML_NAME.match(line)
        if depth == 0 and table:
            above = _keys(table[1])
            found.setdefault(above, number)
            continue
        if depth == 0 and key and line[key.end() : key.end() + 1] == "=":
            found.setdefault((*above, *_keys(key[1])), number)
        for token in _TOML_REST.findall(line):
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token, 0)
    return found


def _keys(dotted: str) -> Path:
    parts = re.findall(_TOML_KEY, dotted)
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in parts)


_JSON_TOKEN = re.compile(r'"(?:\\.|[^"\\])*(?:"|\Z)|//[^\n]*|\#[^\n]*|/\*.*?(?:\*/|\Z)|[\[\]{},:]|\n', re.DOTALL)
"""A text or comment without its end takes the rest: looking for one from each beginning would take time without end."""


def json_places(text: str) -> Places:
    """The line of each key of valid JSON (comments beside); keys below a list are left out.

    >>> json_places('{"a": {\\n "b": 1},\\n "c": 2}')
    {('a',): 1, ('a', 'b'): 2, ('c',): 3}
    """
    found: Places = {}
    open_keys: list[str] = []
    lists, line, last, last_line = 0, 1, "", 1
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        if token.startswith('"'):
            last, last_line = token, line
        elif token in "[]":
            lists += 1 if token == "[" else -1
        elif lists:
            pass
        elif token == "{":
            open_keys.append("")
        elif token == "}":
            open_keys.pop()
        elif token == ":":
            open_keys[-1] = json.loads(last)
            found.setdefault(tuple(open_keys), last_line)
        line += token.count("\n")
    return found


def without_comments(text: str) -> str:
    """JSON of the comments and trailing commas that DeepSpeed's parser (Hjson) takes, its lines where they were.

    >>> without_comments('{"a": 1, // one\\n}')
    '{"a": 1 \\n}'
    """
    kept = _JSON_TOKEN.sub(_without_comment, text)
    return re.sub(r'("(?:\\.|[^"\\])*(?:"|\Z))|,(\s*[}\]])', lambda match: match[1] or match[2], kept)


def _without_comment(match: re.Match[str]) -> str:
    token = match[0]
    if token.startswith(("//", "#", "/*")):
        return "\n" * token.count("\n")
    return token
