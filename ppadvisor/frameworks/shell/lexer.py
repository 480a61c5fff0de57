"""From the text of a script to its tokens. InputError for what no shell would read: open quotes, endless nesting."""

from __future__ import annotations

import re

from ppadvisor.errors import InputError
from ppadvisor.frameworks.shell.tokens import (
    ArithmeticToken,
    ArrayToken,
    ConditionToken,
    Operator,
    Token,
    Unknown,
    Word,
    WordToken,
)
from ppadvisor.frameworks.shell.words import MAX_DEPTH, WordReader, shortened

MAX_TOKENS = 50_000
"""Words and operators; long scripts have a thousand."""

ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(", re.ASCII)
OPERATORS = re.compile(r";;&|;;|;&|;|&&|\|\||\|&|\||&(?!>)|\(|\)")
IN_CONDITION = re.compile(r"&&|\|\||[()<>]")
REDIRECT = re.compile(r"(?:\d*|\{\w+\})(?:&>>?|<<<|>>|>\||[<>]&|<>|>|<(?!<))")
UNARY = re.compile(r"-[a-hknoprstuvwxzGLNORS]")
DESCRIPTOR = re.compile(r"\d+-?(?=[\s;&|()<>]|$)|-(?=[\s;&|()<>]|$)")
HEREDOC = re.compile(r"\d*<<(-?)[ \t]*(?:(['\"])([^'\"\n]*)\2|\\?([\w.!-]+))")
BEFORE_A_COMMAND = ("if", "then", "elif", "else", "while", "until", "do", "!", "{", "time")
"""Words behind which a command begins."""


def tokenize(text: str, file: str, line: int = 1) -> list[Token]:
    """The tokens of a script that begins on this line. InputError names file and line."""
    carriage_return = text.find("\r\n")
    if carriage_return >= 0:
        at = text.count("\n", 0, carriage_return) + line
        raise InputError(
            f"{file}:{at}: Windows line endings (CR LF): bash takes the CR as part of the last word of the line; "
            f"write the file with LF alone, as `dos2unix {file}` does"
        )
    return _Lexer(text, file, line).tokens()


class _Brackets:
    """How many brackets are open in a command substitution; those that end a pattern of `case` close none."""

    def __init__(self) -> None:
        self.open = 1
        self.cases: list[tuple[int, str]] = []
        """Of each `case` that is open: the brackets around it, and what comes next in it: in, pattern or body."""

    def take(self, token: Token | None, begins: bool) -> None:
        """Look at a token; `begins`: a command may begin with it."""
        around, following = self.cases[-1] if self.cases else (0, "")
        if isinstance(token, WordToken):
            if token.plain == "case" and begins and following != "pattern":
                self.cases.append((self.open, "in"))
            elif token.plain == "in" and following == "in":
                self.cases[-1] = (around, "pattern")
            elif token.plain == "esac" and (begins or following == "pattern") and self.cases:
                self.cases.pop()
        elif isinstance(token, Operator):
            self._operator(token.text, around, following)

    def _operator(self, sign: str, around: int, following: str) -> None:
        here = self.open == around
        if here and following == "pattern" and sign in "()":
            if sign == ")":
                self.cases[-1] = (around, "body")
        elif here and sign in (";;", ";&", ";;&"):
            self.cases[-1] = (around, "pattern")
        else:
            self.open += {"(": 1, ")": -1}.get(sign, 0)


class _Lexer(WordReader):
    """One pass over the text."""

    def __init__(self, text: str, file: str, line: int = 1, depth: int = 0) -> None:
        super().__init__(text, file, line, depth)
        self.heredocs: list[tuple[str, bool]] = []
        self.begins = True
        """Whether a command may begin here."""

    def tokens(self) -> list[Token]:
        """Everything up to the end."""
        found: list[Token] = []
        while self._skip_blanks():
            token = self.token()
            if token is not None:
                found.append(token)
            if len(found) > MAX_TOKENS:
                raise self.problem(f"more than {MAX_TOKENS:,} words")
        return found

    def token(self) -> Token | None:
        """The next token; None for a redirection, which is no part of the command."""
        line = self.line
        if self.peek("\n"):
            self.take("\n")
            self._skip_heredocs()
            self.begins = True
            return Operator("\n", line)
        if self.begins and self.peek("(("):
            calculation = self._double_brackets(line)
            if calculation is not None:
                return calculation
        if self._redirection():
            return None
        array = ARRAY.match(self.text, self.at)
        if array:
            self.take(array[0])
            return ArrayToken(array[1], bool(array[2]), self._array_words(line), line)
        operator = OPERATORS.match(self.text, self.at)
        if operator:
            self.take(operator[0])
            self.begins = True
            return Operator(operator[0], line)
        return self._word_token(line)

    def _word_token(self, line: int) -> Token:
        word = self.word()
        if not word and self.at < len(self.text):
            raise self.problem(f"{self.text[self.at]!r} cannot stand here")
        token = WordToken(word, line)
        begins, self.begins = self.begins, False
        if begins and token.plain == "[[":
            return self._condition(line)
        if begins and token.plain in (*BEFORE_A_COMMAND, "for"):
            self.begins = True
        return token

    def _skip_blanks(self) -> bool:
        """Past blanks, continued lines and comments; False at the end."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t":
                self.at += 1
            elif self.peek("\\\n"):
                self.take("\\\n")
            elif self.peek("#"):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return True
        return False

    def _redirection(self) -> bool:
        """Past a redirection and its target; a here-document is remembered, its body follows the line."""
        heredoc = HEREDOC.match(self.text, self.at)
        if heredoc:
            self.take(heredoc[0])
            self.heredocs.append((heredoc[4] or heredoc[3] or "", bool(heredoc[1])))
            return True
        redirect = REDIRECT.match(self.text, self.at)
        if not redirect or self.peek("<(") or self.peek(">("):
            return False
        self.take(redirect[0])
        descriptor = DESCRIPTOR.match(self.text, self.at) if redirect[0][-1] == "&" else None
        if descriptor:
            self.take(descriptor[0])
        elif self._skip_blanks() and not self.peek("\n"):
            self.word()
        return True

    def _skip_heredocs(self) -> None:
        for delimiter, indented in self.heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                body = self.text[self.at : len(self.text) if end < 0 else end + 1]
                self.take(body)
                if (body.lstrip("\t") if indented else body).rstrip("\n") == delimiter:
                    break
        self.heredocs = []

    def _array_words(self, opened: int) -> tuple[Word, ...]:
        words: list[Word] = []
        while self._skip_blanks():
            if self.peek(")"):
                self.take(")")
                return tuple(words)
            if self.peek("\n"):
                self.take("\n")
            elif self.text[self.at] in ";&|(<>" and not (self.peek("<(") or self.peek(">(")):
                raise self.problem(f"{self.text[self.at]!r} cannot stand in an array")
            else:
                words.append(self.word())
                if not words[-1] and self.at < len(self.text) and self.text[self.at].isspace():
                    raise self.problem(f"{self.text[self.at]!r} cannot stand here")
            if len(words) > MAX_TOKENS:
                raise self.problem(f"more than {MAX_TOKENS:,} words")
        raise self.problem("this array is never closed", opened)

    def _double_brackets(self, line: int) -> ArithmeticToken | None:
        """`(( ... ))`, or None for a subshell in a subshell."""
        end = self.closed_by_two(self.at + 2, line)
        if end is None:
            return None
        inner = self.text[self.at + 2 : end]
        self.take(self.text[self.at : end + 2])
        self.begins = False
        return ArithmeticToken(inner, _Lexer(inner, self.file, line, self.depth + 1).calculation(), line)

    def _condition(self, opened: int) -> ConditionToken:
        """What stands up to `]]`: there < and > compare, and && and || are its own."""
        items: list[WordToken | Operator] = []
        brackets = 0
        while len(items) <= MAX_TOKENS:
            while self._skip_blanks() and self.peek("\n"):
                self.take("\n")
            operator = IN_CONDITION.match(self.text, self.at)
            if operator:
                items.append(Operator(self.take(operator[0]), self.line))
                brackets += operator[0] == "("
                if brackets > MAX_DEPTH:
                    raise self.problem(f"more than {MAX_DEPTH} brackets in a condition")
                continue
            line = self.line
            token = WordToken(self._condition_word(items), line)
            if not token.word:
                break
            if token.plain == "]]":
                if len(items) == 1 and UNARY.fullmatch(getattr(items[0], "plain", None) or ""):
                    raise self.problem("[[ asks something of nothing: a word is missing in front of ]]", opened)
                return ConditionToken(tuple(items), opened)
            items.append(token)
        raise self.problem("[[ is opened here and never closed", opened)

    def _condition_word(self, items: list[WordToken | Operator]) -> Word:
        """A word of `[[ ]]`; a regular expression or an extended pattern is not known."""
        start, line = self.at, self.line
        before = items[-1].plain if items and isinstance(items[-1], WordToken) else None
        word = self.word()
        if before != "=~" and not (word and self.peek("(") and self.text[self.at - 1] in "?*+@!"):
            return word
        depth = 0
        while self.at < len(self.text) and (depth > 0 or not self.text[self.at].isspace()):
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            self.take(self.text[self.at])
        return (Unknown(shortened(self.text[start : self.at]), line, quoted=False),)

    def command(self, opening: str) -> str:
        """Past a command substitution; what it says, shortened."""
        start, opened = self.at, self.line
        self.take(opening)
        inner = _Lexer(self.text, self.file, self.line, self.depth + 1)
        inner.at, brackets = self.at, _Brackets()
        while brackets.open and inner._skip_blanks():
            begins = inner.begins
            brackets.take(inner.token(), begins)
        if brackets.open:
            raise self.problem(f"{opening} is opened here and never closed", opened)
        self.at, self.line = inner.at, inner.line
        return shortened(self.text[start : self.at])
