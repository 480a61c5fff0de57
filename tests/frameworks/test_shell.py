"""Scripts read without a shell. What bash makes of each line is said by its manual, and was tried with bash 5.2."""

from __future__ import annotations

import pytest

from ppadvisor.errors import InputError
from ppadvisor.frameworks.shell import Call, read_script


def call_of(text: str, **defined: str) -> Call:
    """The last call of a script."""
    return read_script(text, "x.sh", defined).calls[-1]


def words_of(text: str, **defined: str) -> list[str]:
    """The words of the last call; `?` stands for one that only a shell would know."""
    return ["?" if word.unknown else word.text for word in call_of(text, **defined).words]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run --a 'b c' \"d e\" f\\ g", ["run", "--a", "b c", "d e", "f g"]),
        ("run a \\\n  b # c\n", ["run", "a", "b"]),
        ("A=(1 2 # two\n '3 4')\nrun ${A[@]}", ["run", "1", "2", "3", "4"]),
        ("A=(1 '3 4')\nrun \"${A[@]}\"", ["run", "1", "3 4"]),
        ("A=(1)\nA+=(2 3)\nrun ${A[*]} $A", ["run", "1", "2", "3", "1"]),
        ("B='x y'\nrun $B \"$B\"", ["run", "x", "y", "x y"]),
        ("run ${N:-4} ${M:-${N:-5}} ${K:=6} $K", ["run", "4", "5", "6", "6"]),
        ("G=8\nrun $((G*2)) $(( $G / 3 + 1 )) $((-1))", ["run", "16", "3", "-1"]),
        ('A="1 \\\n  2"\nrun $A', ["run", "1", "2"]),
        ("export A=1 B=2; run $A$B", ["run", "12"]),
        ("A=1\nA+=2\nrun $A", ["run", "12"]),
        ("X=2 run $X 2>&1 | tee log", ["tee", "log"]),
        ("cat <<EOF\nrun 1\nEOF\nrun 2", ["run", "2"]),
        ("run a > out.log 2>&1", ["run", "a"]),
        ("unset A\nA=\nrun ${A:-x} ${A-y} z", ["run", "x", "z"]),
        ("run '[0]*3+[1]*58' [0]*3+[1]*58", ["run", "[0]*3+[1]*58", "[0]*3+[1]*58"]),
        ("run $1 $(hostname) `date` ${A%x} ${#A[@]}", ["run", "?", "?", "?", "?", "?"]),
        ("N=1 M=$N\nrun $M", ["run", "1"]),
    ],
)
def test_words_become_what_bash_makes_of_them(text: str, words: list[str]) -> None:
    """Quotes, continued lines, arrays, defaults, arithmetic and redirections give the words of the call."""
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('S=7B\nif [ $S == "7B" ]; then A=1; elif [ $S = 8B ]; then A=2; else A=3; fi', "1"),
        ('S=8B\nif [[ "$S" == "7B" ]]; then A=1; elif [ $S = 8B ]; then A=2; else A=3; fi', "2"),
        ("S=9B\nif [ $S = 7B ]; then A=1\nelse\nA=3\nfi", "3"),
        ("S=8B\ncase $S in\n 7B) A=1 ;;\n 8B|9B) A=2 ;;\n *) A=3 ;;\nesac", "2"),
        ("A=1\n[ -z $NOT_SET ] && A=2", "2"),
        ("A=1\n[ -n $NOT_SET ] || A=2", "1"),  # without quotes the test is of the word -n itself
        ('A=1\n[ -n "$NOT_SET" ] || A=2', "2"),
        ("A=1\n[[ -n $NOT_SET ]] || A=2", "2"),
        ("A=1\nif [ -f x ]; then A=2; fi", "?"),
        ("A=1\nfor x in 1 2; do A=$x; done", "2"),
        ("A=1\nfor x in $(seq 2); do A=$x; done", "?"),
        ("A=1\nfor x in 1 2; do A=$x; break; done", "?"),
        ("A=1\nwhile true; do A=2; done", "?"),
        ("A=1\nf() { A=2; }", "1"),
        ("A=1\nf() { A=2; }\nf", "2"),
        ("A=1\nif [ $1 = x ]; then A=2; fi", "?"),
        ("A=1\nif [ -n x ] && [ 3 -gt 2 ]; then A=2; fi", "2"),
        ("A=1\nif ! [ -n x ]; then A=2; fi", "1"),
        ("A=1\nif [ 1 = 2 ]; then if [ 1 = 1 ]; then A=2; fi; A=3; fi", "1"),
    ],
)
def test_conditions_that_the_file_decides_are_decided(text: str, value: str) -> None:
    """A branch runs, does not run, or leaves what it sets unknown."""
    assert words_of(f"{text}\nrun $A") == ["run", value]


def test_a_value_knows_the_line_where_it_was_written() -> None:
    """A word of a call stands where it was typed: in an array, in a variable, in the middle of a string."""
    text = 'TP=8\nARGS=(\n  --tp $TP\n  --bf16\n)\nMORE="\n --x 1\n --y 2"\nrun ${ARGS[@]} $MORE'
    lines = {word.text: word.line for word in call_of(text).words}
    assert lines == {"run": 9, "--tp": 3, "8": 1, "--bf16": 4, "--x": 7, "1": 7, "--y": 8, "2": 8}


def test_what_a_condition_may_add_is_told() -> None:
    """An array keeps what surely is in it, and the line that may add to it is noted."""
    script = read_script("A=(1)\nif [ -f x ]; then\n A+=(2)\nfi\nrun ${A[@]}", "x.sh")
    assert [word.text for word in script.calls[-1].words] == ["run", "1"]
    assert [(note.line, "left out" in note.text) for note in script.notes] == [(3, True)]


def test_the_environment_of_a_call() -> None:
    """Exported variables and those in front of a command are its environment, others are not."""
    call = call_of("export A=1\nB=2\nC=3 run")
    assert call.environment == {"A": "1", "C": "3"}


def test_defined_variables_are_the_scripts() -> None:
    """What the user defines is there before the first line, arguments of the script too."""
    assert words_of("run $TP ${PP:-1} $1", TP="8", PP="4", **{"1": "x"}) == ["run", "8", "4", "x"]


HOSTILE = {
    "quote": "run 'abc",
    "double quote": 'run "abc',
    "substitution": "run $(abc",
    "backtick": "run `abc",
    "brace": "run ${abc",
    "array": "A=(1 2",
    "nested substitutions": "x=" + "$(" * 5000,
    "nested defaults": "x=" + "${a:-" * 5000,
    "nested blocks": "{\n" * 5000,
    "many words": "a " * 100_000,
    "many signs": "$" * 100_000,
    "many brackets": "(" * 100_000,
    "doubling": "A=aaaaaaaaaa\n" + 'A="$A$A"\n' * 60,
    "doubling array": "A=(a a)\n" + "A=(${A[@]} ${A[@]})\n" * 60,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_scripts_are_one_clear_line(text: str) -> None:
    """What never ends, nests without end or grows without end is an InputError with its line."""
    with pytest.raises(InputError, match=r"^x\.sh:\d+: "):
        read_script(text, "x.sh")
