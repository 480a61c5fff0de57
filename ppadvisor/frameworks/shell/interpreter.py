"""Commands run against the variables of a script, without running anything: every command surely, never, or perhaps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ppadvisor.frameworks.shell.commands import (
    AndOr,
    Calculation,
    Case,
    Command,
    Commands,
    Condition,
    Function,
    Group,
    If,
    Loop,
    Pipeline,
    Simple,
)
from ppadvisor.frameworks.shell.conditions import (
    Truth,
    as_pattern,
    both,
    condition,
    either,
    matches,
    negated,
)
from ppadvisor.frameworks.shell.expand import as_text, calculated
from ppadvisor.frameworks.shell.loops import Loops, jumps


class Interpreter(Loops):
    """Runs commands; `runs` says of each whether it does: True, or None where that is open."""

    def run_script(self, commands: Commands) -> None:
        """All of it, and then the functions that nothing calls."""
        self.run(commands, True)
        for name, (function, _) in list(self.functions.items()):
            if name not in self.called:
                self.uncalled = name
                with self.subshell():
                    self.variables.positional = None
                    self.command(function.body, None)
                self.uncalled = ""
        if self.kept is not None:
            self.variables.restore(self.kept)

    def run(self, commands: Commands, runs: Truth) -> Truth:
        """Commands one behind the other."""
        truth: Truth = True
        for one in commands:
            if not one.background:
                truth = self._joined(one, runs)
                continue
            with self.subshell():
                self._joined(one, runs)
            truth = True
        return truth

    def _joined(self, one: AndOr, runs: Truth) -> Truth:
        truth: Truth = True
        for index, (sign, pipeline) in enumerate(one.pipelines):
            here = both(runs, {"&&": truth, "||": negated(truth)}.get(sign, True))
            here = both(here, self.alive)
            if here is False or self.left:
                continue
            last = index == len(one.pipelines) - 1
            with nullcontext() if last and not pipeline.negated else self.testing():
                result = self._pipeline(pipeline, here)
            truth = both(truth, result) if sign == "&&" else either(truth, result) if sign == "||" else result
            if last and result is False and not pipeline.negated and "errexit" in self.flags and not self.tested:
                self.end(pipeline.line, "a command fails under set -e", here, failing=True)
        return truth

    def _pipeline(self, pipeline: Pipeline, runs: Truth) -> Truth:
        self.step(pipeline.line)
        truth: Truth = None
        for index, command in enumerate(pipeline.commands):
            last = index == len(pipeline.commands) - 1
            if len(pipeline.commands) == 1 or (last and "lastpipe" in self.flags):
                found = self.command(command, runs)
            else:
                with self.subshell():
                    found = self.command(command, runs)
            truth = both(truth, found) if "pipefail" in self.flags and index else found
        return negated(truth) if pipeline.negated else truth

    def command(self, command: Command, runs: Truth) -> Truth:
        kinds: dict[type, Callable[[Any, Truth], Truth]] = {
            Simple: self.simple,
            Condition: self._condition,
            Calculation: self._calculation,
            Group: self._group,
            If: self._if,
            Case: self._case,
            Loop: self.loop,
            Function: self._function,
        }
        self.variables.certain = runs is True
        with self.deeper(command.line):
            return kinds[type(command)](command, runs)

    def _condition(self, command: Condition, runs: Truth) -> Truth:
        return condition(command.items, self.variables)

    def _calculation(self, command: Calculation, runs: Truth) -> Truth:
        value = calculated(command.text, command.word, command.line, self.variables)
        return None if value is None else value != 0

    def _group(self, command: Group, runs: Truth) -> Truth:
        if not command.subshell:
            return self.run(command.body, runs)
        with self.subshell():
            return self.run(command.body, runs)

    def _if(self, command: If, runs: Truth) -> Truth:
        done: Truth = False
        result: Truth = True
        for test_of_it, body in command.branches:
            here = both(runs, negated(done))
            if here is False:
                break
            with self.testing():
                truth = self.run(test_of_it, here)
            if both(here, truth) is not False:
                result = self.run(body, both(here, truth))
            done = either(done, truth)
        if both(runs, negated(done)) is not False:
            result = self.run(command.otherwise, both(runs, negated(done)))
        return None if done is None else result

    def _case(self, command: Case, runs: Truth) -> Truth:
        value = as_text(command.word, self.variables)
        done: Truth = False
        through: Truth = False
        for arm in command.arms:
            fits: Truth = False
            for word in arm.patterns if done is not True else ():
                pattern = as_pattern(word, self.variables)
                truth = matches(pattern, value, self.variables.caseless)
                fits = either(fits, truth)
                if truth is not None and (pattern.text != "*" or pattern.unknown):
                    self.variables.assume_unset((*value.unset, *pattern.unset), command.line)
            here = either(both(negated(done), fits), through)
            if both(runs, here) is not False:
                self.run(arm.body, both(runs, here))
            through = here if arm.ending == ";&" else False
            done = done if arm.ending == ";;&" else either(done, here)
        return None

    def _function(self, command: Function, runs: Truth) -> Truth:
        self.functions[command.name] = (command, runs)
        self.jumping |= jumps(command)
        return True
