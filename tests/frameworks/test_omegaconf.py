"""YAML as OmegaConf and Hydra read it: references, values set from outside, and documents that mean harm."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ppadvisor.errors import InputError
from ppadvisor.frameworks.omegaconf import Document, override, read_document

VALUES = """\
model:
  hidden_size: 768
  ffn: ${multiply:4,${.hidden_size}}
  rows: ${model.hidden_size}
  launched: ${training.model.hidden_size}
  less: ${sum:${.hidden_size},-1}
  home: ${oc.env:HOME}
  wanted: ???
  loop: ${.loop}
  far: ${nowhere.to.be}
  deep: {a: [1, {b: 2}], c: {}}
"""


def read(folder: Path, text: str, **variables: str) -> Document:
    """A file with this text."""
    path = folder / "run.yaml"
    path.write_text(text)
    return read_document(path, {key.replace("__", "."): value for key, value in variables.items()})


def test_references_are_resolved_or_unknown(tmp_path: Path) -> None:
    """Documentation of OmegaConf: absolute, relative, in a resolver; what runs code or is nowhere stays unknown."""
    found = read(tmp_path, VALUES)
    values = {key.removeprefix("model."): entry.value for key, entry in found.items()}
    assert (values["ffn"], values["rows"], values["launched"], values["less"]) == (3072, 768, 768, 767)
    assert values["deep.a"] == [1, {"b": 2}]
    assert values["deep.c"] == {}
    for key, reason in (("home", "when it runs"), ("wanted", "has to be set"), ("loop", "nowhere"), ("far", "nowhere")):
        assert values[key] is None
        assert reason in found[f"model.{key}"].unknown
    assert found["model.ffn"].line == 3


def test_values_from_outside_win(tmp_path: Path) -> None:
    """What is set from outside holds, also where other values refer to it; it keeps the line of what it replaces."""
    found = read(tmp_path, VALUES, model__hidden_size="1024", model__new="[1, 2]")
    assert found["model.ffn"].value == 4096
    assert found["model.hidden_size"].line == 2
    assert found["model.new"].value == [1, 2]
    with pytest.raises(InputError, match=r"--define SHELL: .* has no such value"):
        read(tmp_path, VALUES, SHELL="x")


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("train.micro_batch_size=2", "train.micro_batch_size", 2),
        ("++model.sequence_parallel=True", "model.sequence_parallel", True),
        ("model.window_size=[512,0]", "model.window_size", [512, 0]),
        ("model.recompute_granularity=null", "model.recompute_granularity", None),
        ("model.name=a=b", "model.name", "a=b"),
    ],
)
def test_overrides(word: str, key: str, value: object) -> None:
    """Hydra's grammar for the plain cases: a key, an optional + or ++, a value as YAML has it."""
    found = override(word, 7)
    assert found is not None
    assert (found[0], found[1].value, found[1].line) == (key, value, 7)


@pytest.mark.parametrize("word", ["~model.x=1", "--model.x=1", "plain=1", "model.x", "torchrun"])
def test_other_words_are_no_overrides(word: str) -> None:
    """A deletion, an option, a variable of the shell and a plain word set nothing."""
    assert override(word, 1) is None


def test_an_alias_is_read_and_a_merge_key_refused(tmp_path: Path) -> None:
    """An alias stands for its value; of merged mappings nothing is guessed, nor of one that merges itself."""
    found = read(tmp_path, "a: &x {n: 3, l: [1, 2]}\nc: *x\n")
    assert (found["c.n"].value, found["c.l"].value) == (3, [1, 2])
    for text in ("a: &x {n: 3}\nb:\n  <<: *x\n", "a: &x\n  <<: *x\n"):
        with pytest.raises(InputError, match="a merge key"):
            read(tmp_path, text)


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 20))
MAPPINGS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}\n" for i in range(1, 20)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "nested too deeply|aliases"),
        (MAPPINGS, "more than"),
        ("a: &a\n  b: *a\n", "nested too deeply|more than"),
        ("a: !!python/object/apply:os.system ['touch pwned']\n", "makes an object"),
        ("a: !!python/name:os.system\n", "makes an object"),
        ("!custom\na: 1\n", "makes an object"),
        ("a: " + "[" * 5_000, "nested too deeply"),
        ("".join("  " * depth + "a:\n" for depth in range(900)), "nested too deeply"),
        ("a: 1\nb: 1\na: 2\n", "line 3: the key 'a' stands twice, first on line 1"),
        ("- 1\n", "no mapping"),
        ("", "no mapping"),
        ("a: 'x\n", "not valid YAML"),
        ("a: 1\x00\n", "not valid YAML"),
    ],
    ids=(
        *("bomb", "mappings", "cycle", "apply", "name", "tag", "brackets", "depth", "twice", "list", "empty", "quote"),
        "nul",
    ),
)
def test_hostile_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    """One clear line, nothing is run, and no time is spent on what only grows."""
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).count("\n") == 0
    assert time.monotonic() - started < 10
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]
