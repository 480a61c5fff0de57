"""From tokens to commands. InputError, with its line, for what no shell would run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ppadvisor.errors import InputError
from ppadvisor.frameworks.shell.commands import (
    AndOr,
    Arm,
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
from ppadvisor.frameworks.shell.tokens import (
    ArithmeticToken,
    ArrayToken,
    ConditionToken,
    Operator,
    Token,
    Word,
    WordToken,
)

MAX_BLOCKS = 40
"""Open if, case, loops, functions and groups; scripts have three or four."""
CLOSING = ("then", "elif", "else", "fi", "do", "done", "esac", "}")
"""Words that end a list of commands where a command could begin."""
ARM_ENDS = (";;", ";&", ";;&")
NAME = re.compile(r"[A-Za-z_][\w:.-]*")


def parse_commands(tokens: Sequence[Token], file: str) -> Commands:
    """The commands of a script."""
    parser = _Parser(tokens, file)
    found = parser.commands(())
    if parser.token is not None:
        raise parser.unexpected()
    return found


class _Parser:
    """A walk over the tokens."""

    def __init__(self, tokens: Sequence[Token], file: str) -> None:
        self.tokens, self.file, self.at, self.depth = tokens, file, 0, 0

    @property
    def token(self) -> Token | None:
        """The next one."""
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    @property
    def line(self) -> int:
        """Where the next token stands, or the last one stood."""
        return self.tokens[min(self.at, len(self.tokens) - 1)].line if self.tokens else 1

    def unexpected(self, wanted: str = "") -> InputError:
        """The error for a token that cannot stand here."""
        token = self.token
        name = self._keyword() or (token.text if isinstance(token, Operator) else "this word")
        shown = "the file ends" if token is None else repr("newline" if name == "\n" else name)
        where = "" if token is None else " cannot stand here"
        return InputError(f"{self.file}:{self.line}: {shown}{where}{f', {wanted} is missing' if wanted else ''}")

    def _keyword(self) -> str:
        token = self.token
        return (token.plain or "") if isinstance(token, WordToken) else ""

    def _operator(self) -> str:
        token = self.token
        return token.text if isinstance(token, Operator) else ""

    def _skip_newlines(self) -> None:
        while self._operator() == "\n":
            self.at += 1

    def _expect(self, text: str) -> None:
        if text not in (self._keyword(), self._operator()):
            raise self.unexpected(text)
        self.at += 1

    def commands(self, ends: tuple[str, ...]) -> Commands:
        """Up to one of these operators, a word that closes a block, or the end."""
        found: list[AndOr] = []
        while True:
            while self._operator() in ("\n", ";"):
                self.at += 1
            if self.token is None or self._operator() in ends or self._keyword() in CLOSING:
                return tuple(found)
            pipelines = self._and_or()
            background = self._operator() == "&"
            found.append(AndOr(pipelines, background))
            if background:
                self.at += 1
            elif self._operator() not in ("\n", ";", *ends) and self.token is not None:
                if self._keyword() not in CLOSING:
                    raise self.unexpected()
                return tuple(found)

    def _and_or(self) -> tuple[tuple[str, Pipeline], ...]:
        found = [("", self._pipeline())]
        while self._operator() in ("&&", "||"):
            sign = self._operator()
            self.at += 1
            self._skip_newlines()
            found.append((sign, self._pipeline()))
        return tuple(found)

    def _pipeline(self) -> Pipeline:
        line, negated = self.line, False
        while self._keyword() in ("!", "time"):
            negated ^= self._keyword() == "!"
            timed = self._keyword() == "time"
            self.at += 1
            if timed and self._keyword() == "-p":
                self.at += 1
        found = [self._command()]
        while self._operator() in ("|", "|&"):
            self.at += 1
            self._skip_newlines()
            found.append(self._command())
        return Pipeline(tuple(found), negated, line)

    def _command(self) -> Command:
        self.depth += 1
        if self.depth > MAX_BLOCKS:
            raise InputError(f"{self.file}:{self.line}: more than {MAX_BLOCKS} blocks in each other")
        try:
            return self._any_command()
        finally:
            self.depth -= 1

    def _any_command(self) -> Command:
        token, word = self.token, self._keyword()
        if isinstance(token, ArithmeticToken):
            self.at += 1
            return Calculation(token.text, token.word, token.line)
        if isinstance(token, ConditionToken):
            self.at += 1
            return Condition(token.items, token.line)
        if self._operator() == "(" or word == "{":
            return self._group(*(("{", "}") if word else ("(", ")")))
        if word in ("for", "select", "while", "until"):
            return self._loop(word)
        if word == "function" or self._names_a_function():
            return self._function(word)
        kinds: dict[str, Callable[[], Command]] = {"if": self._if, "case": self._case}
        return kinds.get(word, self._simple)()

    def _simple(self) -> Simple:
        line, found = self.line, list[WordToken | ArrayToken]()
        while isinstance(self.token, WordToken | ArrayToken):
            found.append(self.token)
            self.at += 1
        # a redirection alone leaves nothing
        if not found and self._operator() not in ("\n", ";", "&", ")", "|", "&&", "||") and self.token is not None:
            raise self.unexpected()
        return Simple(tuple(found), line)

    def _group(self, opening: str, closing: str) -> Group:
        line = self.line
        self._expect(opening)
        body = self.commands((")",) if closing == ")" else ())
        self._expect(closing)
        return Group(body, line, subshell=opening == "(")

    def _if(self) -> If:
        line = self.line
        branches: list[tuple[Commands, Commands]] = []
        while self._keyword() in ("if", "elif"):
            self.at += 1
            condition = self.commands(())
            self._expect("then")
            branches.append((condition, self.commands(())))
        otherwise: Commands = ()
        if self._keyword() == "else":
            self.at += 1
            otherwise = self.commands(())
        self._expect("fi")
        return If(tuple(branches), otherwise, line)

    def _loop(self, kind: str) -> Loop:
        line = self.line
        self.at += 1
        condition: Commands = ()
        name, header, words = "", None, None
        if kind in ("while", "until"):
            condition = self.commands(())
        elif isinstance(self.token, ArithmeticToken):
            header = Calculation(self.token.text, self.token.word, line)
            self.at += 1
        else:
            name = self._keyword()
            if not NAME.fullmatch(name):
                raise self.unexpected("the name of a variable")
            words = self._words_of_for()
        while self._operator() in ("\n", ";"):
            self.at += 1
        if header is not None and self._keyword() == "{":
            return Loop(kind, self._group("{", "}").body, line, header=header)
        self._expect("do")
        body = self.commands(())
        self._expect("done")
        return Loop(kind, body, line, name, condition, header, words)

    def _words_of_for(self) -> tuple[WordToken, ...] | None:
        """Past the name of the variable: the words behind `in`."""
        self.at += 1
        self._skip_newlines()
        if self._keyword() != "in":
            return None
        self.at += 1
        found = []
        while isinstance(self.token, WordToken):
            found.append(self.token)
            self.at += 1
        return tuple(found)

    def _case(self) -> Case:
        line = self.line
        self.at += 1
        word = self._word()
        self._skip_newlines()
        self._expect("in")
        arms: list[Arm] = []
        self._skip_newlines()
        while self._keyword() != "esac":
            arms.append(self._arm())
            self._skip_newlines()
        self.at += 1
        return Case(word, tuple(arms), line)

    def _arm(self) -> Arm:
        if self._operator() == "(":
            self.at += 1
        patterns = [self._word()]
        while self._operator() == "|":
            self.at += 1
            patterns.append(self._word())
        self._expect(")")
        body = self.commands(ARM_ENDS)
        ending = self._operator()
        if ending in ARM_ENDS:
            self.at += 1
        elif self._keyword() != "esac":
            raise self.unexpected(";;")
        return Arm(tuple(patterns), body, ending)

    def _word(self) -> Word:
        token = self.token
        if not isinstance(token, WordToken):
            raise self.unexpected("a word")
        self.at += 1
        return token.word

    def _names_a_function(self) -> bool:
        following = self.tokens[self.at + 1 : self.at + 3]
        brackets = [token.text for token in following if isinstance(token, Operator)]
        return brackets == ["(", ")"] and NAME.fullmatch(self._keyword()) is not None

    def _function(self, word: str) -> Function:
        line = self.line
        self.at += 1 if word == "function" else 0
        name = self._keyword()
        self.at += 1
        if self._operator() == "(":
            self.at += 1
            self._expect(")")
        self._skip_newlines()
        if self.token is None:
            raise self.unexpected("the body of a function")
        return Function(name, self._command(), line)
