"""One word of a script at a time: quotes, escapes and expansions. InputError for what never ends or nests endlessly."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from ppadvisor.errors import InputError
from ppadvisor.frameworks.shell.tokens import Arithmetic, Parameter, Part, Text, Unknown, Word

MAX_DEPTH = 30
"""Substitutions in each other; scripts have two or three."""
MAX_PARTS = 5_000
"""Quoted and expanded parts of one word."""

NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]", re.ASCII)
PLAIN = re.compile(r"[^\s\\'\"$`;&|()<>]+")
DOUBLE_PLAIN = re.compile(r"[^\\\"$`\n]+|\n")
BRACED_PLAIN = re.compile(r"[^\\'\"$`}]+")
BRACED = re.compile(r"(#?)([A-Za-z_]\w*|\d+|[@*#])(?:\[([^\]]*)\])?(:?[-=+?])?", re.ASCII)
BACKTICKS = re.compile(r"`(?:[^`\\]|\\.)*`", re.S)
PARENTHESES = re.compile(r"[()]")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|u[0-9a-fA-F]{1,4}|.)", re.S)


class WordReader(ABC):
    """A place in a text, and the words read from there."""

    def __init__(self, text: str, file: str, line: int = 1, depth: int = 0) -> None:
        self.text, self.file, self.at, self.line, self.depth = text, file, 0, line, depth
        if depth > MAX_DEPTH:
            raise self.problem(f"nested more than {MAX_DEPTH} deep")

    def problem(self, what: str, line: int | None = None) -> InputError:
        """The error at this place."""
        return InputError(f"{self.file}:{line or self.line}: {what}")

    @abstractmethod
    def command(self, opening: str) -> str:
        """Past a command substitution; what it says, shortened."""

    def peek(self, text: str) -> bool:
        """Whether this text comes next."""
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> str:
        """Go past a text that comes next."""
        self.at += len(text)
        self.line += text.count("\n")
        return text

    def word(self) -> Word:
        """Up to a blank or an operator."""
        parts: list[Part] = []
        while self.at < len(self.text):
            plain = PLAIN.match(self.text, self.at)
            if plain:
                parts.append(Text(plain[0], self.line, quoted=False))
                self.take(plain[0])
            elif not self._quoted_part(parts):
                break
            if len(parts) > MAX_PARTS:
                raise self.problem(f"a word of more than {MAX_PARTS:,} parts")
        return tuple(parts)

    def calculation(self) -> Word:
        """The whole text as what stands in `(( ))`: expanded as in quotes, quotes themselves left out."""
        parts: list[Part] = []
        while self.at < len(self.text):
            if self.text[self.at] in "$`":
                parts.append(self._expansion(quoted=True))
            else:
                plain = re.compile(r"[^$`]+").match(self.text, self.at)
                parts.append(Text((plain[0] if plain else "").replace('"', ""), self.line, quoted=True))
                self.take(plain[0] if plain else "")
        return tuple(parts)

    def closed_by_two(self, start: int, opened: int) -> int | None:
        """Where `))` closes what `((` opened in front of `start`; None where the two close apart: brackets in each
        other then, no arithmetic.
        """
        depth = 2
        for found in PARENTHESES.finditer(self.text, start):
            depth += 1 if found[0] == "(" else -1
            if depth == 1:
                return found.start() if self.text.startswith("))", found.start()) else None
        raise self.problem("(( is opened here and never closed", opened)

    def _quoted_part(self, parts: list[Part]) -> bool:
        """A quoted or expanded part of a word; False where the word ends."""
        sign, line = self.text[self.at], self.line
        if sign == "\\":
            if self.peek("\\\n"):
                self.take("\\\n")
            else:
                parts.append(Text(self.text[self.at + 1 : self.at + 2], line, quoted=True))
                self.take(self.text[self.at : self.at + 2])
        elif sign == "'":
            self.take("'")
            parts.extend(lines_of(self._until("'", "a quote '"), line))
        elif self.peek("$'"):
            parts.extend(lines_of(self._escaped_quote(), line))
        elif sign == '"' or self.peek('$"'):
            self.take('"' if sign == '"' else '$"')
            self._double_quoted(parts, line)
        elif sign in "$`":
            parts.append(self._expansion(quoted=False))
        elif self.peek("<(") or self.peek(">("):
            parts.append(Unknown(self.command(sign + "("), line, quoted=True))
        else:
            return False
        return True

    def _until(self, end: str, what: str) -> str:
        """The text up to `end`, and past it."""
        close = self.text.find(end, self.at)
        if close < 0:
            raise self.problem(f"{what} is opened here and never closed")
        found = self.take(self.text[self.at : close])
        self.take(end)
        return found

    def _escaped_quote(self) -> str:
        """`$'...'`, its escapes as what they stand for."""
        found = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.S).match(self.text, self.at)
        if not found:
            raise self.problem("a quote $' is opened here and never closed")
        self.take(found[0])
        return ESCAPED.sub(_stands_for, found[1])

    def _double_quoted(self, parts: list[Part], opened: int) -> None:
        before = len(parts)
        while self.at < len(self.text):
            plain = DOUBLE_PLAIN.match(self.text, self.at)
            if plain:
                parts.append(Text(plain[0], self.line, quoted=True))
                self.take(plain[0])
            elif self.peek('"'):
                self.take('"')
                if len(parts) == before:
                    parts.append(Text("", opened, quoted=True))
                return
            elif self.peek("\\"):
                self._escaped(parts)
            else:
                parts.append(self._expansion(quoted=True))
        raise self.problem('a quote " is opened here and never closed', opened)

    def _kept_quotes(self) -> int:
        """Where the single quote that begins here ends: in double quotes both stay, and no brace closes in them."""
        close = self.text.find("'", self.at + 1)
        if close < 0:
            raise self.problem("a quote ' is opened here and never closed")
        if '"' in self.text[self.at : close]:
            raise self.problem("single quotes in ${ } in double quotes, with a double quote in them, are not read")
        return close

    def _escaped(self, parts: list[Part], also: str = "") -> None:
        """A backslash in double quotes: it stays but in front of what has a meaning there."""
        pair = self.text[self.at : self.at + 2]
        escaped = pair[1:] if pair[1:] in ("$", "`", '"', "\\", "\n", also) else pair
        parts.append(Text("" if escaped == "\n" else escaped, self.line, quoted=True))
        self.take(pair)

    def _expansion(self, *, quoted: bool) -> Part:
        line = self.line
        if self.peek("`"):
            found = BACKTICKS.match(self.text, self.at)
            if not found:
                raise self.problem("a backtick is opened here and never closed")
            return Unknown(shortened(self.take(found[0])), line, quoted)
        if self.peek("$(("):
            return self._arithmetic(line, quoted)
        if self.peek("$("):
            return Unknown(self.command("$("), line, quoted)
        if self.peek("${"):
            return self._braced(line, quoted)
        if self.peek("$["):
            return Unknown(shortened(self._until("]", "$[")) + "]", line, quoted)
        self.take("$")
        name = NAME.match(self.text, self.at)
        if not name:
            return Text("$", line, quoted)
        self.take(name[0])
        every = name[0] if name[0] in "@*" else ""
        return Parameter(name[0], line, quoted, every)

    def _arithmetic(self, line: int, quoted: bool) -> Part:
        end = self.closed_by_two(self.at + 3, line)
        if end is None:
            return Unknown(self.command("$("), line, quoted)
        inner = self.text[self.at + 3 : end]
        self.take(self.text[self.at : end + 2])
        return Arithmetic(inner, line, quoted, type(self)(inner, self.file, line, self.depth + 1).calculation())

    def _braced(self, line: int, quoted: bool) -> Part:
        """`${...}`: a name, an element, their number, a default; anything else is not known."""
        start = self.at
        self.take("${")
        head = None if self.peek("#}") else BRACED.match(self.text, self.at)
        if self.peek("#}"):
            self.take("#")
            head = BRACED.match("#", 0)
        elif head:
            self.take(head[0])
        argument = self._braced_rest(line, quoted)
        text = shortened(self.text[start : self.at])
        if not head or (argument and not head[4]) or (head[1] and head[4]):
            return Unknown(text, line, quoted)
        subscript = head[2] if head[2] in "@*" else head[3] or ""
        every = subscript if subscript in ("@", "*") else ""
        if not every and (head[1] or not re.fullmatch(r"(0|[1-9]\d{0,4})?", subscript)):
            return Unknown(text, line, quoted)
        index = 0 if every or not subscript else int(subscript)
        return Parameter(head[2], line, quoted, every, head[4] or "", argument, index, bool(head[1]))

    def _braced_rest(self, opened: int, quoted: bool) -> Word:
        """The word up to the closing brace, and past it; `quoted`: double quotes stand around the whole."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.problem(f"nested more than {MAX_DEPTH} deep")
        parts: list[Part] = []
        single = 0
        while self.at < len(self.text) and (not self.peek("}") or self.at < single):
            plain = BRACED_PLAIN.match(self.text, self.at)
            if plain or self.peek("}"):
                text = plain[0] if plain else "}"
                parts.append(Text(text, self.line, quoted))
                self.take(text)
            elif quoted and self.peek("'"):
                single = 0 if single == self.at else self._kept_quotes()
                parts.append(Text(self.take("'"), self.line, quoted=True))
            elif not quoted or self.peek('"'):
                self._quoted_part(parts)
            elif self.peek("\\"):
                self._escaped(parts, "}")
            else:
                parts.append(self._expansion(quoted=True))
        if self.at >= len(self.text):
            raise self.problem("${ is opened here and never closed", opened)
        self.take("}")
        self.depth -= 1
        return tuple(parts)


def lines_of(text: str, line: int) -> list[Part]:
    """Quoted text in pieces of one line each, so that every piece knows where it stands."""
    pieces = text.split("\n")
    return [
        Text(piece + ("\n" if index < len(pieces) - 1 else ""), line + index, quoted=True)
        for index, piece in enumerate(pieces)
    ]


def shortened(text: str) -> str:
    """A text as a message shows it."""
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."


def _stands_for(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] in "xu" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return ESCAPES.get(code, code if code in "\\'\"?" else f"\\{code}")
