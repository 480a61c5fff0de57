"""What is kept while a script is read: its variables, functions and options, and whether it still runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ppadvisor.errors import InputError
from ppadvisor.frameworks.shell.commands import Function, Loop
from ppadvisor.frameworks.shell.conditions import Truth
from ppadvisor.frameworks.shell.script import Script
from ppadvisor.frameworks.shell.variables import Field, Piece, Shell, Value

MAX_STEPS = 20_000
"""Commands that are looked at, those of a function at each call."""
MAX_EVALS = 10
"""In each other."""
MAX_DEPTH = 90
"""Blocks, functions and evals in each other."""

Outside = tuple[Value | None, str | None]
"""Of a variable that a function has for itself: its value outside, and the name it stands for there."""


class Machine:
    """The state that commands change."""

    def __init__(self, script: Script) -> None:
        self.script, self.variables = script, script.variables
        self.functions: dict[str, tuple[Function, Truth]] = {}
        self.called: set[str] = set()
        self.active: list[str] = []
        """Functions that run at the moment."""
        self.local: list[dict[str, Outside]] = []
        """What stood in the variables that each of them has for itself."""
        self.flags: frozenset[str] = frozenset()
        self.alive: Truth = True
        """Whether the function that runs has not returned."""
        self.left = False
        """Whether the subshell that runs has ended."""
        self.ended = ""
        """Why what follows never runs."""
        self.kept: Shell | None = None
        """The variables when the script ended."""
        self.uncalled = ""
        self.launcher: tuple[Field, ...] = ()
        """What stands in front of the `bash -c` that runs."""
        self.rounds = 0
        self.jumping = False
        """Whether a function of the script has `break` or `continue`."""
        self.looked_at: dict[int, tuple[Loop, bool]] = {}
        """Loops, and whether they have."""
        self.last: Truth = True
        """How the last round of a loop ended."""
        self.subshells = self.children = self.tested = self.silent = self.steps = self.evals = self.depth = 0

    def step(self, line: int) -> None:
        """InputError where a script never comes to its end."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise InputError(f"{self.variables.file}:{line}: more than {MAX_STEPS:,} commands")

    def note(self, line: int, text: str) -> None:
        """Keep what was not taken into account."""
        if not self.silent and not self.uncalled:
            self.script.add_note(line, text)

    @contextmanager
    def subshell(self) -> Iterator[None]:
        """What happens in it changes nothing outside."""
        shell, functions, flags = self.variables.saved(), dict(self.functions), self.flags
        alive, left, caseless = self.alive, self.left, self.variables.caseless
        self.subshells += 1
        yield
        self.subshells -= 1
        self.variables.restore(shell)
        self.functions, self.flags = functions, flags
        self.alive, self.left, self.variables.caseless = alive, left, caseless

    @contextmanager
    def child(
        self, inherits: bool, added: Mapping[str, str], flags: frozenset[str], launcher: Sequence[Field]
    ) -> Iterator[None]:
        """A shell of its own: nothing but what is exported (where it `inherits`) and what is `added` reaches it, and
        nothing comes back.
        """
        variables = self.variables
        kept = (self.active, self.local, self.tested, self.launcher)
        with self.subshell():
            exported = variables.exported if inherits else frozenset[str]()
            held: dict[str, Value] = {
                name: value for name, value in variables.values.items() if name in exported and len(value) == 1
            }
            held |= {name: ((Piece(text, 0),),) for name, text in added.items()}
            variables.values, variables.exported = held, exported | added.keys()
            variables.integers, variables.readonly, variables.references = frozenset(), frozenset(), {}
            self.functions = {name: one for name, one in self.functions.items() if name in exported}
            self.flags, self.alive, self.launcher = flags, True, (*self.launcher, *launcher)
            self.active, self.local, self.tested = [], [], 0
            self.children += 1
            yield
        self.children -= 1
        self.active, self.local, self.tested, self.launcher = kept

    @contextmanager
    def deeper(self, line: int) -> Iterator[None]:
        """InputError where blocks, functions and evals stand in each other without end."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError(f"{self.variables.file}:{line}: more than {MAX_DEPTH} blocks and functions in each other")
        yield
        self.depth -= 1

    @contextmanager
    def testing(self) -> Iterator[None]:
        """Commands whose failing is asked for."""
        self.tested += 1
        yield
        self.tested -= 1

    @contextmanager
    def once_more(self, line: int) -> Iterator[None]:
        """Text that is read as commands."""
        self.evals += 1
        if self.evals > MAX_EVALS:
            raise InputError(f"{self.variables.file}:{line}: more than {MAX_EVALS} evals in each other")
        yield
        self.evals -= 1

    def end(self, line: int, word: str, runs: Truth, *, failing: bool = False) -> None:
        """The script, or the subshell, ends here, or may."""
        if runs is not True:
            # a script that may fail in front of its call says nothing of what the call is
            if not failing:
                self.note(line, f"whether the script ends here ({word}) depends on what is not known here; it goes on")
        elif self.subshells:
            self.left = True
        elif not self.ended:
            self.ended = self.script.ended = f"the script ends on line {line} ({word})"
            self.kept = self.variables.saved()

    def environment(self) -> dict[str, str]:
        """The exported variables whose text is known."""
        names = sorted(self.variables.exported)
        self.variables.count_names(len(names))
        return {name: text for name in names if (text := self.variables.peek(name)) is not None}

    def forget_local(self, before: dict[str, Outside]) -> None:
        """Give the variables that a function had for itself back what they were."""
        for name, (value, reference) in before.items():
            self.variables.references.pop(name, None)
            if reference is not None:
                self.variables.references[name] = reference
            elif value is None:
                self.variables.drop(name)
            else:
                self.variables.put(name, value)
