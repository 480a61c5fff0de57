"""Small configuration files as text and as mappings; everything that can be wrong with one is one clear line."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppadvisor.errors import InputError
from ppadvisor.specs.pipes import is_pipe, read_once, suffix_of

MAX_FILE_BYTES = 10_000_000
"""No configuration is near this; a larger file is a mistake (weights, a log) and is refused unread."""


MAX_BRACKETS = 200
"""Of YAML, open at a time."""
_DOTTED = re.compile(r"""^[ \t[]*(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){100}""", re.MULTILINE)
"""A name of TOML with more parts than any has."""

YAML_TAG = re.compile(r"tag:yaml\.org,2002:(map|seq|str|int|float|bool|null|timestamp|value|merge)")
"""YAML's own kinds of plain values."""


def read_text(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """A small text file, or one clear InputError: missing, a directory, unreadable, huge, binary."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a directory, needs a file")
        return (read_once(path, max_bytes) if is_pipe(path) else _whole(path, max_bytes)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _whole(path: Path, max_bytes: int) -> bytes:
    size = path.stat().st_size
    if size > max_bytes:
        raise InputError(f"{path}: {size:,} bytes, needs a file of at most {max_bytes:,} bytes")
    return path.read_bytes()


def read_mapping(path: Path, suffix: str | None = None, max_bytes: int = MAX_FILE_BYTES) -> dict[str, Any]:
    """A JSON, TOML or YAML file whose top level is a mapping: by its suffix, unless another is said to hold; a pipe
    has none, there the text says it.
    """
    suffix = suffix or (suffix_of(read_text(path, max_bytes)) if is_pipe(path) else path.suffix.lower())
    if suffix not in _PARSERS:
        raise InputError(f"{path}: unknown kind of file {suffix or '(no suffix)'!r}; allowed: {', '.join(_PARSERS)}")
    return parse_mapping(read_text(path, max_bytes), suffix, str(path))


def parse_mapping(text: str, suffix: str, where: str) -> dict[str, Any]:
    """The mapping of a text of this kind; `where` is its name in messages."""
    try:
        data = _PARSERS[suffix](text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON, line {error.lineno} column {error.colno}: {error.msg}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not valid TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    except ValueError as error:
        # Python's own words name a switch of its interpreter
        text = "a number has too many digits" if "integer string conversion" in str(error) else str(error)
        raise InputError(f"{where}: {text}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where}: the top level is a {type(data).__name__}, needs a mapping of names to values")
    return data


def check_form(path: Path, text: str) -> None:
    """InputError where a text is not what its suffix says: broken, too deep, or with tags that build objects."""
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        yaml_nodes(text, str(path))
    elif suffix in _PARSERS:
        parse_mapping(text, suffix, str(path))


Lines = dict[tuple[str, ...], int]
"""Path of a key -> the line on which it stands."""


def read_lines_of_keys(path: Path, max_bytes: int = MAX_FILE_BYTES) -> tuple[dict[str, Any], Lines]:
    """A YAML file whose top level is a mapping, with the line of each key of the first two levels."""
    import yaml

    data = read_mapping(path, ".yaml", max_bytes)
    found: Lines = {}
    top: Any = yaml.compose(read_text(path, max_bytes), Loader=yaml.SafeLoader)
    for key, value in top.value:
        found[(key.value,)] = key.start_mark.line + 1
        if value.id == "mapping":
            found |= {(key.value, str(inner.value)): inner.start_mark.line + 1 for inner, _ in value.value}
    return data, found


def yaml_nodes(text: str, where: str) -> Any:
    """The nodes of YAML, aliases still aliases, None of an empty text; each key once. InputError otherwise."""
    import yaml

    try:
        _check_brackets(text)
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_yaml_keys(root)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {_yaml_problem(error)}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return root


def yaml_scalar(node: Any, where: str) -> Any:
    """A scalar of YAML as a plain value. InputError for a tag that is none of YAML's own."""
    import yaml

    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        line = node.start_mark.line + 1
        problem = getattr(error, "problem", None) or error
        raise InputError(f"{where}: not valid YAML, line {line}: {problem}") from None


def yaml_value(text: str, where: str) -> Any:
    """A short text as YAML takes it: 8 a number, true a switch, [1, 2] a list. InputError where it is none."""
    import yaml

    if len(text) > 10_000:
        raise InputError(f"{where}: a value of {len(text):,} characters")
    try:
        return _load_yaml(text)
    except (ValueError, yaml.YAMLError, RecursionError):
        return text


def _load_json(text: str) -> object:
    read = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_once_each)
    if "\\u" in text and re.search(r"[\ud800-\udfff]", json.dumps(read, ensure_ascii=False)):
        raise ValueError("a text holds half of a character (an escape \\ud800 to \\udfff alone)")
    return read


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; a key that stands twice is no guess which one was meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that a size can have")


def _load_toml(text: str) -> object:
    # the parser's time grows with the square of the parts of a dotted name
    if _DOTTED.search(text):
        raise ValueError("nested too deeply")
    return tomllib.loads(text)


def _load_yaml(text: str) -> object:
    import yaml  # only the few users of YAML job files pay for its import

    _check_brackets(text)
    try:
        # An alias can make a few lines mean gigabytes; configurations of one flat level need none.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise ValueError("YAML aliases are not accepted")
        _check_yaml_keys(yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(_yaml_problem(error)) from None


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f", line {mark.line + 1}" if mark else ""
    return f"not valid YAML{where}: {getattr(error, 'problem', None) or 'cannot be parsed'}"


def _check_brackets(text: str) -> None:
    """The parser's time grows with the square of brackets in each other."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_BRACKETS:
            raise ValueError("nested too deeply")


def _check_yaml_keys(root: Any) -> None:
    """YAML takes the last of two equal keys; here that is an error, at any depth. So is a tag that makes an object.

    An alias shares its node, which is looked at once.
    """
    waiting, seen = [] if root is None else [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if not YAML_TAG.fullmatch(node.tag):
            line = node.start_mark.line + 1
            raise ValueError(f"line {line}: the tag {node.tag[:60]!r} makes an object; not accepted")
        if node.id == "mapping":
            keys = [key for key, _ in node.value if isinstance(key.value, str) and key.value != "<<"]
            counted = Counter(key.value for key in keys)
            twice = [key for key in keys if counted[key.value] > 1]
            if twice:
                first, again = [key.start_mark.line + 1 for key in twice if key.value == twice[0].value][:2]
                raise ValueError(f"line {again}: the key {twice[0].value!r} stands twice, first on line {first}")
            waiting += [child for _, child in node.value]
        elif node.id == "sequence":
            waiting += node.value


_PARSERS: dict[str, Callable[[str], object]] = {
    ".json": _load_json,
    ".toml": _load_toml,
    ".yaml": _load_yaml,
    ".yml": _load_yaml,
}
