"""`export A=1`, `declare -i A=1+1`, `local A`, `readonly A=1`: variables, and what kind they are of.

Source: Bash Reference Manual 5.2, 4.1 and 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ppadvisor.frameworks.shell.assignments import Assignment, assign, assignment_of, expanded
from ppadvisor.frameworks.shell.conditions import Truth
from ppadvisor.frameworks.shell.expand import as_fields
from ppadvisor.frameworks.shell.machine import Machine
from ppadvisor.frameworks.shell.tokens import ArrayToken, WordToken
from ppadvisor.frameworks.shell.variables import Field, Piece, Variables, as_field

DECLARING = ("export", "declare", "local", "readonly", "typeset")
REFERENCE = re.compile(r"-[a-zA-Z]*n[a-zA-Z]*")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
NOT_FOLLOWED = frozenset("Alu")
"""Options of `declare` that give a variable another kind than text, number or list."""


def expanded_tokens(tokens: Sequence[WordToken | ArrayToken], variables: Variables) -> list[Assignment | Field]:
    """What is declared: all of it is expanded before any of it is assigned."""
    found: list[Assignment | Field] = []
    for token in tokens:
        one = assignment_of(token)
        if one is not None:
            found.append(expanded(one, variables))
        elif isinstance(token, WordToken):
            found += [as_field(pieces) for pieces in as_fields(token.word, variables)]
    return found


def declare(machine: Machine, name: str, tokens: Sequence[Assignment | Field], runs: Truth) -> Truth:
    """Do a declaration."""
    line = tokens[0].line if tokens else 0
    if name == "local" and not machine.local and not machine.uncalled:
        machine.note(line, "local outside of a function has no effect in a shell")
        return False
    if name != "export" and any(isinstance(one, Field) and REFERENCE.fullmatch(one.text) for one in tokens):
        return _refer(machine, name, tokens, runs)
    options, names = "", list[str]()
    for token in tokens:
        if isinstance(token, Field) and token.text[:1] in ("-", "+") and not token.unknown:
            options += token.text[1:] if token.text[0] == "-" else ""
        elif isinstance(token, Field):
            names += _declared(machine, name, token, runs, options)
        else:
            _make_local(machine, name, token.name, options)
            assign(token, machine.variables, runs, machine.note, integer="i" in options)
            names.append(token.name)
    _mark(machine, name, options, names, runs)
    if name != "export" and NOT_FOLLOWED & set(options):
        for one_name in names:
            machine.variables.unknown(one_name, line, f"declared with -{options}, which is not followed")
    return True


def _refer(machine: Machine, name: str, tokens: Sequence[Assignment | Field], runs: Truth) -> Truth:
    """`declare -n B=A`: from here on B is A. Where it is not known which that is, what is set by it is told."""
    for token in tokens:
        if isinstance(token, Field) and token.text[:1] in ("-", "+"):
            continue
        if isinstance(token, Field):
            own, _, target = token.text.partition("=")
            known = not token.unknown
        else:
            word = as_field(token.ready[0] if token.ready else ())
            own, target, known = token.name, word.text, not word.unknown and not token.array
        if not IDENTIFIER.fullmatch(own):
            machine.note(token.line, f"what {name} sets here is not known")
            continue
        _make_local(machine, name, own, "")
        plain = known and runs is True and own != target and IDENTIFIER.fullmatch(target)
        machine.variables.references[own] = target if plain else ""
    return True


def _mark(machine: Machine, name: str, options: str, names: Sequence[str], runs: Truth) -> None:
    """Exported, read-only, or whole numbers from now on."""
    variables = machine.variables
    if name == "export" and "n" in options:
        variables.exported -= set(names)
    elif name == "export" or "x" in options:
        variables.exported |= set(names)
    if (name == "readonly" or "r" in options) and runs is True:
        variables.readonly |= set(names)
    if "i" in options and runs is True:
        variables.integers |= set(names)


def _declared(machine: Machine, name: str, word: Field, runs: Truth, options: str) -> list[str]:
    """A name alone, or an assignment in quotes."""
    target, equals, text = word.text.partition("=")
    if not IDENTIFIER.fullmatch(target):
        machine.note(word.line, f"what {name} sets here is not known")
        return []
    _make_local(machine, name, target, options)
    variables = machine.variables
    if equals and runs is True and target not in variables.readonly | variables.integers and "i" not in options:
        variables.put(target, ((Piece(text, word.line, word.unknown),),), word.line)
    elif equals:
        variables.unknown(target, word.line, "set where its value is not known here")
    return [target]


def _make_local(machine: Machine, name: str, variable: str, options: str) -> None:
    own = name in ("local", "declare", "typeset") and machine.local and "g" not in options
    if own and variable not in machine.local[-1]:
        kept = machine.variables.references.pop(variable, None)
        machine.local[-1][variable] = (machine.variables.values.get(variable), kept)
        machine.variables.drop(variable)
