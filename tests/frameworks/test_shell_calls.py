"""What scripts call, held against what bash 5.2 calls: `tests/published/bash_calls.json` has what it printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.errors import InputError
from ppadvisor.frameworks.shell import Call, read_script

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "published" / "bash_calls.json").read_text(encoding="utf-8")
)["cases"]


def calls_of(text: str, **defined: str) -> list[Call]:
    """The calls of `run` that are reached."""
    calls = read_script(text, "x.sh", defined).calls
    return [call for call in calls if call.words[0].text == "run" and not call.unreached and not call.uncalled]


def words_of(call: Call) -> list[str | None]:
    """The arguments, None for one that only a shell would know."""
    return [None if word.unknown else word.text for word in call.words[1:]]


def cases(reading: str) -> pytest.MarkDecorator:
    """The scripts whose reading has to be this."""
    found = [case for case in CASES if case["reading"] == reading]
    return pytest.mark.parametrize("case", found, ids=lambda case: case["script"][:40])


@cases("exact")
def test_what_a_script_says_by_itself_is_what_bash_calls(case: dict[str, Any]) -> None:
    """Subshells, pipelines, functions, arithmetic, builtins, tests and quotes: the same calls with the same words."""
    calls = calls_of(case["script"])
    assert [words_of(call) for call in calls] == case["calls"]
    assert all(call.certain for call in calls)


@cases("told")
def test_what_only_a_shell_knows_is_told(case: dict[str, Any]) -> None:
    """Where a word or a call is not known it is marked or noted, and the others are bash's: nothing else in silence."""
    notes = read_script(case["script"], "x.sh").notes
    calls = calls_of(case["script"])
    assert notes or any(None in words_of(call) or not call.certain for call in calls)
    if not notes and all(call.certain for call in calls):
        for call, printed in zip(calls, case["calls"], strict=False):
            assert None in words_of(call) or words_of(call) == printed


@cases("refused")
def test_what_is_not_read_is_refused(case: dict[str, Any]) -> None:
    """What bash itself refuses, and what is not read, is one line with the place."""
    with pytest.raises(InputError, match=r"^x\.sh:1: "):
        read_script(case["script"], "x.sh")


def test_names_that_the_file_does_not_set_are_told_once() -> None:
    """A condition, a default and a default that leaves nothing: one note with all names, the value taken as not set."""
    text = '[ "$A" = 2 ] && X=1\nrun ${B:-4} ${C:-} ${B:-4} ${C:-} $D'
    script = read_script(text, "x.sh")
    (note,) = script.assumed(script.calls[-1].words)
    assert note.kind == "assumed"
    assert (note.line, "A, C, B; --define NAME=VALUE" in note.text) == (1, True)
    assert script.calls[-1].words[-1].unknown == "$D is not set in the file"


def test_a_name_that_is_set_is_not_told() -> None:
    """A default that is not taken, and a condition on what the file or the user sets, take nothing as not set."""
    script = read_script("A=1\n[ $A = 1 ] && run ${A:-2} ${B:-3}", "x.sh", {"B": "5"})
    assert [word.text for word in script.calls[-1].words] == ["run", "1", "5"]
    assert script.assumed(script.calls[-1].words) == ()


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("run $PP", {}),
        ("run ${PP:-4}", {}),
        ("((PP == 4)) && run", {}),
        ('[ "$PP" = 4 ] && run', {}),
        ("PP=$PP\nrun $PP", {}),
        ("run x", {"PP": "x.sh never reads PP"}),
        ("PP=4\nrun $PP", {"PP": "x.sh:1 sets PP itself, before it is read"}),
        ("run ${PPS:-4}", {"PP": "x.sh never reads PP; did you mean PPS?"}),
        ("export PP\nrun x", {"PP": "x.sh never reads PP"}),
        ("if false; then run $PP; fi", {"PP": "x.sh never reads PP"}),
    ],
)
def test_a_definition_without_effect_is_known(text: str, unread: dict[str, str]) -> None:
    """A variable of the user's that nothing reads, or that the script sets itself, with the reason."""
    assert read_script(text, "x.sh", {"PP": "4"}).variables.unread() == unread


def test_a_call_behind_the_end_is_marked() -> None:
    """What stands behind `exit` is read, and said never to run, with the line of the end."""
    script = read_script("if [ 1 = 1 ]; then\n exit 0\nfi\nPP=4\nrun $PP", "x.sh")
    assert [call.unreached for call in script.calls] == ["the script ends on line 2 (exit 0)"]
    assert "PP" not in script.variables.values


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[ -f x ] && exit 0\nrun", [1]),
        ("[ -f x ] || exit 1\nrun", []),  # a script that fails trains nothing
        ("run --a 1 \\\n # --b 2 \\\n --c 3", [3]),
        ("source other.sh\nrun", [1]),
        ('\neval "$(env.py)"\nrun', [2]),
        ("f() {\n:\n}\nreturn 0\nrun", [4]),
    ],
)
def test_what_is_not_followed_has_its_line(text: str, lines: list[int]) -> None:
    """An end that is open, a line that does not go on, a file or text that is not read: a note on their line."""
    assert [note.line for note in read_script(text, "x.sh").notes] == lines


def test_a_loop_is_told_on_its_line() -> None:
    """What a loop sets is unknown, for the reason of the line where the loop stands."""
    (call,) = calls_of("\n\nfor PP in $(seq 2)\ndo\n run $PP\ndone")
    assert call.words[1].unknown == "$PP is set by a loop (line 3)"


def test_a_variable_that_the_script_ends_without_is_told() -> None:
    """`${DATA:?}` ends a script in bash where nothing sets DATA: a note on its line, and how to set it."""
    script = read_script('\n: "${DATA:?must be set}"\nrun', "x.sh")
    (note,) = script.assumed(())
    assert (note.line, "the script ends without it: DATA; --define DATA=VALUE" in note.text) == (2, True)
    assert read_script(': "${DATA:?must be set}"\nrun', "x.sh", {"DATA": "x"}).assumed(()) == ()


def test_loops_are_run_round_by_round_up_to_a_limit() -> None:
    """Behind more rounds than any script needs what a loop sets is unknown, for the reason of its line."""
    (call,) = calls_of("i=0\nwhile [ $i -lt 5000 ]; do i=$((i+1)); done\nrun $i")
    assert "line 2" in call.words[1].unknown


def test_a_function_that_nothing_calls_is_marked() -> None:
    """Its calls are read, with its name; of one that is called they are certain, with its arguments."""
    script = read_script("f() { run $1; }\ng() { run a; }\nf 4", "x.sh")
    assert [(call.words[1].text, call.certain, call.uncalled) for call in script.calls] == [
        ("4", True, ""),
        ("a", False, "g"),
    ]


def test_windows_line_endings_are_refused() -> None:
    """bash would take the CR into the last word of each line; the message has the line and what to do."""
    with pytest.raises(InputError, match=r"^x\.sh:2: Windows line endings .*dos2unix x\.sh"):
        read_script("A=1\nrun --pp 4\r\n", "x.sh")


HOSTILE = {
    "functions that double": "f0() { :; }\n"
    + "".join(f"f{i}() {{ f{i - 1}; f{i - 1}; }}\n" for i in range(1, 40))
    + "f39",
    "a long chain": "f0() { :; }\n" + "".join(f"f{i}() {{ f{i - 1}; }}\n" for i in range(1, 2000)) + "f1999",
    "a function of itself": "f() { f; }\nf",
    "loops in conditions": "while " * 39 + "false" + "; do :; done" * 39,
    "eval of itself": 'X=\'eval "$X";:\'\neval "$X"',
    "many copies": "".join(f"a{i}=1\n" for i in range(8000)) + "(:)\n" * 8000,
    "brackets in a condition": "[[ " + "( " * 5000 + "a " + ") " * 5000 + "]]",
    "brackets in arithmetic": "x=" + "$((" * 5000,
    "an open block": "if true; then run",
    "an open function": "f()",
    "a lone end": "run\nfi",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_scripts_are_one_clear_line(text: str) -> None:
    """What never ends, or takes for ever, is an InputError that names the file."""
    with pytest.raises(InputError, match=r"^x\.sh:"):
        read_script(text, "x.sh")


@pytest.mark.parametrize("text", ["run {" + "," * 200_000, "((" + "a" * 200_000 + "))", "((" + "a[" * 100_000 + "))"])
def test_long_words_are_read_at_once(text: str) -> None:
    """No pattern goes over a long word again and again."""
    assert len(read_script(text, "x.sh").calls) <= 1
