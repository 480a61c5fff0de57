"""Commands of the shell itself that change what it knows: each done where its words are known, else told.

Source: Bash Reference Manual 5.2, chapter 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ppadvisor.frameworks.shell.arithmetic import calculate, whole_number
from ppadvisor.frameworks.shell.conditions import Truth
from ppadvisor.frameworks.shell.machine import Machine
from ppadvisor.frameworks.shell.variables import Field, Piece, as_piece

NOT_FOLLOWED = {
    "extglob": "patterns with brackets are taken as not known",
    "nullglob": "words with * ? [ that fit no file are no words in bash, and are taken as written here",
    "failglob": "words with * ? [ that fit no file are an error in bash, and are taken as written here",
}
"""Options of `shopt` that change what words become."""
IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
CONVERSION = re.compile(r"%[sdi%]|%.?|\\")

Words = Sequence[Field]


def _exit(machine: Machine, words: Words, runs: Truth) -> Truth:
    failing = len(words) > 1 and not words[1].unknown and words[1].text.strip("0") != ""
    text = " ".join(word.text for word in words[:2] if not word.unknown)
    machine.end(words[0].line, text, runs, failing=failing)
    return None


def _return(machine: Machine, words: Words, runs: Truth) -> Truth:
    if machine.active:
        machine.alive = False if runs is True else None
    elif not machine.uncalled:
        machine.note(words[0].line, "return outside of a function: a script that is started goes on behind it")
    return None


def _unset(machine: Machine, words: Words, runs: Truth) -> Truth:
    kind = words[1].text if len(words) > 1 else ""
    for word in words[1:]:
        if kind == "-n":
            machine.variables.references.pop(word.text, None)
        elif kind == "-f":
            _unset_function(machine, word.text, runs)
        elif not word.text.startswith("-"):
            _unset_variable(machine, word, runs)
    return True


def _unset_function(machine: Machine, name: str, runs: Truth) -> None:
    if name in machine.functions and runs is True:
        del machine.functions[name]
    elif name in machine.functions:
        machine.functions[name] = (machine.functions[name][0], None)


def _unset_variable(machine: Machine, word: Field, runs: Truth) -> None:
    variables, name = machine.variables, word.text
    if variables.meant(name) == "" and name:
        machine.note(word.line, f"{name} stands for another variable, which is not known here; it is unset")
    elif not IDENTIFIER.fullmatch(name) or word.unknown or variables.meant(name) in variables.readonly:
        _sets(machine, [name.partition("[")[0]], word, "changed by unset")
    elif runs is True:
        variables.drop(name, word.line)
    else:
        variables.unknown(name, word.line, "unset under a condition that is not known here")


def _sets(machine: Machine, names: Sequence[str], word: Field, why: str) -> None:
    """Variables that nobody knows afterwards."""
    for name in names:
        if IDENTIFIER.fullmatch(name):
            machine.variables.unknown(name, word.line, why)
        else:
            machine.note(word.line, f"a variable is {why}; which one is not known here")


def _source(machine: Machine, words: Words, runs: Truth) -> Truth:
    target = words[1].text if len(words) > 1 and not words[1].unknown else "a file"
    machine.note(words[0].line, f"{target} is not read ({words[0].text})")
    return None


def _set(machine: Machine, words: Words, runs: Truth) -> Truth:
    rest = list(words[1:])
    while rest and not rest[0].unknown and rest[0].text[:1] in ("-", "+") and rest[0].text not in ("--", "-"):
        option = rest.pop(0).text
        named = [rest.pop(0).text] if option[1:].endswith("o") and rest else []
        letters = {"e": "errexit", "a": "allexport", "n": "noexec"}
        found = {letters[letter] for letter in option[1:] if letter in letters} | set(named)
        if option[0] == "-" and "noexec" in found:
            machine.end(words[0].line, "set -n", runs)
        machine.flags = machine.flags | found if option[0] == "-" and runs is True else machine.flags - found
    if not rest:
        return True
    if runs is not True or rest[0].unknown:
        machine.variables.shifted = words[0].line
        return None
    rest = rest[1:] if rest[0].text in ("--", "-") else rest
    machine.variables.positional = tuple((as_piece(word),) for word in rest)
    machine.variables.shifted = 0
    return True


def _shift(machine: Machine, words: Words, runs: Truth) -> Truth:
    variables = machine.variables
    by = whole_number(words[1].text) if len(words) > 1 and not words[1].unknown else 1 if len(words) == 1 else None
    held = variables.positional
    loose = held is not None and any(piece.loose for pieces in held[: by or 0] for piece in pieces)
    if runs is not True or by is None or by < 0 or loose:
        variables.shifted = words[0].line
    elif held is not None:
        variables.positional = held[by:] if by <= len(held) else held
    else:
        numbered = {int(name): value for name, value in variables.values.items() if name.isdigit() and name != "0"}
        for number in numbered:
            variables.read.add(str(number))
            del variables.values[str(number)]
        variables.values |= {str(number - by): value for number, value in numbered.items() if number > by}
    return True if runs is True else None


def _read(machine: Machine, words: Words, runs: Truth) -> Truth:
    """`read`, `mapfile`, `readarray`, `getopts`: whatever name stands there is not known afterwards."""
    own = {"read": "REPLY", "getopts": "OPTARG"}.get(words[0].text, "MAPFILE")
    named = [word.text.partition("[")[0] for word in words[1:] if not word.unknown]
    names = [name for name in named if IDENTIFIER.fullmatch(name)]
    for word in words[1:]:
        if word.unknown:
            machine.note(word.line, f"a variable is set by {words[0].text}; which one is not known here")
    _sets(machine, [*names, own], words[0], f"set by {words[0].text}")
    return None


def _printf(machine: Machine, words: Words, runs: Truth) -> Truth:
    if len(words) < 3 or words[1].text != "-v":
        return True
    name = words[2].text.partition("[")[0]
    text = None if any(word.unknown for word in words) or runs is not True else _formatted(words[3:])
    if text is None or not IDENTIFIER.fullmatch(words[2].text):
        _sets(machine, [name], words[0], "set by printf")
    else:
        machine.variables.put(name, ((Piece(text, words[0].line),),), words[0].line)
    return True


def _formatted(words: Words) -> str | None:
    """`%s` and `%d`, each with its word; None for anything else."""
    form, *values = [word.text for word in words] or [""]
    signs = CONVERSION.findall(form)
    if any(sign not in ("%s", "%d", "%i", "%%") for sign in signs) or len(signs) - signs.count("%%") != len(values):
        return None
    for sign in signs:
        if sign in ("%d", "%i"):
            number = whole_number(values[0])
            if number is None:
                return None
            values = [*values[1:], str(number)]
        elif sign == "%s":
            values = [*values[1:], values[0]]
    found = iter(values)
    return CONVERSION.sub(lambda match: "%" if match[0] == "%%" else next(found), form)


def _let(machine: Machine, words: Words, runs: Truth) -> Truth:
    value: int | None = None
    for word in words[1:]:
        result = calculate("?" if word.unknown else word.text, machine.variables.number_text)
        value = result.value
        names = {**result.assigned, **({word.text.partition("=")[0].rstrip("+-*/%"): None} if word.unknown else {})}
        for name, number in names.items():
            if number is None or runs is not True:
                _sets(machine, [name], word, "set by let, to what is not known here")
            else:
                machine.variables.put(name, ((Piece(str(number), word.line),),), word.line)
    return None if value is None else value != 0


def _shopt(machine: Machine, words: Words, runs: Truth) -> Truth:
    names = {word.text for word in words[1:]}
    if "-s" in names and "expand_aliases" in names:
        machine.note(words[0].line, "aliases are not followed")
    for name, what in NOT_FOLLOWED.items():
        if "-s" in names and name in names:
            machine.note(words[0].line, f"shopt -s {name} is not followed: {what}")
    if "nocasematch" in names or any(word.unknown for word in words):
        machine.variables.caseless = ("-s" in names) if runs is True and "nocasematch" in names else None
    if "lastpipe" in names:
        machine.flags = machine.flags | {"lastpipe"} if "-s" in names else machine.flags - {"lastpipe"}
    return None


def _trap(machine: Machine, words: Words, runs: Truth) -> Truth:
    """What runs when the script ends changes no call; what runs between commands may."""
    if {word.text for word in words} & {"DEBUG", "RETURN"}:
        machine.note(words[0].line, "trap: what runs between the commands is not followed")
    return True


BUILTINS: Mapping[str, Callable[[Machine, Words, Truth], Truth]] = {
    "exit": _exit,
    "return": _return,
    "unset": _unset,
    "source": _source,
    ".": _source,
    "set": _set,
    "shift": _shift,
    "read": _read,
    "mapfile": _read,
    "readarray": _read,
    "getopts": _read,
    "printf": _printf,
    "let": _let,
    "shopt": _shopt,
    "trap": _trap,
}
