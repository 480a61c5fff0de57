"""Lines of keys: found by scanners of our own, checked against what the parsers of the standard library find."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppadvisor.frameworks.places import json_places, toml_places, without_comments


def keys_of(data: dict[str, Any], above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The paths of all keys that are in no list."""
    found = set()
    for key, value in data.items():
        found.add((*above, key))
        if isinstance(value, dict):
            found |= keys_of(value, (*above, key))
    return found


TOML = """
a = 1
[x.'y z']  # [no.table]
b = "[ # no comment" # c = 2
"q r" = '''
d = 1
'''
list = [ # e = 1
  "f = 1", ["g"],
]
h.i = 2
[last]
j = '''k = 1''' # l
"""


def test_lines_of_toml() -> None:
    """Each key on its line, none of those that stand in texts, lists and comments."""
    places = toml_places(TOML)
    lines = TOML.split("\n")
    for path, line in places.items():
        assert path[-1] in lines[line - 1]
    inline = {path for path in keys_of(tomllib.loads(TOML)) if path not in places}
    # tables that only a dotted name makes
    assert inline == {("x",), ("x", "y z", "h")}


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=8) | st.lists(st.dictionaries(st.text(max_size=3), st.none())),
        lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=12,
    ).filter(lambda data: isinstance(data, dict)),
    st.sampled_from([None, 1]),
)
def test_lines_of_json(data: dict[str, Any], indent: int | None) -> None:
    """Every key that is in no list has its line, whatever stands in keys and texts."""
    text = json.dumps(data, indent=indent)
    places = json_places(text)
    assert places.keys() == keys_of(data)
    lines = text.split("\n")
    assert all(json.dumps(path[-1]) in lines[line - 1] for path, line in places.items())
    assert json.loads(without_comments(text)) == data


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ('{"a": 1, // one\n "b": [1, 2,], # two\n /* three\n */ "c": {"d": "/* # // ,]"},}', {"a": 1, "b": [1, 2]}),
        ('# "no": 1\n{"a": "\\" // ", "b": [1,2]}', {"a": '" // ', "b": [1, 2]}),
    ],
)
def test_comments_and_trailing_commas(text: str, data: dict[str, Any]) -> None:
    """What DeepSpeed's parser takes beside JSON goes, texts stay, and so do the lines."""
    plain = without_comments(text)
    assert {key: value for key, value in json.loads(plain).items() if key != "c"} == data
    assert plain.count("\n") == text.count("\n")
