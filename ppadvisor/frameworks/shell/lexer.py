"""From the text of a script to its tokens. InputError for what no shell would read: open quotes, endless nesting."""

from __future__ import annotations

import re

from ppadvisor.errors import InputError
from ppadvisor.frameworks.shell.tokens import (
    Arithmetic,
    ArrayToken,
    Operator,
    Parameter,
    Part,
    Text,
    Token,
    Unknown,
    Word,
    WordToken,
)

MAX_DEPTH = 30
"""Substitutions in each other; scripts have two or three."""
MAX_TOKENS = 50_000
"""Words and operators; long scripts have a thousand."""
MAX_PARTS = 5_000
"""Quoted and expanded parts of one word."""

ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
OPERATORS = re.compile(r";;&|;;|;&|;|&&|\|\||\|&|\||&(?!>)|\(|\)")
REDIRECT = re.compile(r"\d*(?:&>>?|<<<|>>|>\||[<>]&(?:\d+|-)?|<>|>|<(?!<))")
HEREDOC = re.compile(r"\d*<<(-?)[ \t]*(['\"\\]?)([\w.!-]+)\2")
PLAIN = re.compile(r"[^\s\\'\"$`;&|()<>]+")
DOUBLE_PLAIN = re.compile(r"[^\\\"$`\n]+|\n")
BRACED = re.compile(r"([A-Za-z_]\w*|\d+|[@*])(?:\[([^\]]*)\])?(:?[-=+?])?")


def tokenize(text: str, file: str) -> list[Token]:
    """The tokens of a script. InputError names file and line."""
    return _Lexer(text.replace("\r\n", "\n"), file).tokens()


class _Lexer:
    """One pass over the text."""

    def __init__(self, text: str, file: str, line: int = 1, depth: int = 0) -> None:
        self.text, self.file, self.at, self.line, self.depth = text, file, 0, line, depth
        self.heredocs: list[tuple[str, bool]] = []
        if depth > MAX_DEPTH:
            raise self.problem(f"nested more than {MAX_DEPTH} deep")

    def problem(self, what: str, line: int | None = None) -> InputError:
        return InputError(f"{self.file}:{line or self.line}: {what}")

    def tokens(self) -> list[Token]:
        """Everything up to the end."""
        found: list[Token] = []
        while self._skip_blanks():
            token = self._token()
            if token is not None:
                found.append(token)
            if len(found) > MAX_TOKENS:
                raise self.problem(f"more than {MAX_TOKENS:,} words")
        return found

    def _token(self) -> Token | None:
        line = self.line
        if self._peek("\n"):
            self._take("\n")
            self._skip_heredocs()
            return Operator("\n", line)
        if self._redirection():
            return None
        array = ARRAY.match(self.text, self.at)
        if array:
            self._take(array[0])
            return ArrayToken(array[1], bool(array[2]), self._array_words(line), line)
        operator = OPERATORS.match(self.text, self.at)
        if operator:
            self._take(operator[0])
            return Operator(operator[0], line)
        word = self.word()
        if not word:
            raise self.problem(f"{self.text[self.at]!r} cannot stand here")
        return WordToken(word, line)

    def _peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _take(self, text: str) -> str:
        self.at += len(text)
        self.line += text.count("\n")
        return text

    def _skip_blanks(self) -> bool:
        """Past blanks, continued lines and comments; False at the end."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r\f\v":
                self.at += 1
            elif self._peek("\\\n"):
                self._take("\\\n")
            elif self._peek("#"):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return True
        return False

    def _redirection(self) -> bool:
        """Past a redirection and its target; a here-document is remembered, its body follows the line."""
        heredoc = HEREDOC.match(self.text, self.at)
        if heredoc:
            self._take(heredoc[0])
            self.heredocs.append((heredoc[3], bool(heredoc[1])))
            return True
        redirect = REDIRECT.match(self.text, self.at)
        if not redirect or self._peek("<(") or self._peek(">("):
            return False
        self._take(redirect[0])
        if not redirect[0].rstrip("0123456789-").endswith("&") and self._skip_blanks() and not self._peek("\n"):
            self.word()
        return True

    def _skip_heredocs(self) -> None:
        for delimiter, indented in self.heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                body = self.text[self.at : len(self.text) if end < 0 else end + 1]
                self._take(body)
                if (body.lstrip("\t") if indented else body).rstrip("\n") == delimiter:
                    break
        self.heredocs = []

    def _array_words(self, opened: int) -> tuple[Word, ...]:
        words: list[Word] = []
        while self._skip_blanks():
            if self._peek(")"):
                self._take(")")
                return tuple(words)
            if self._peek("\n"):
                self._take("\n")
            elif self.text[self.at] in ";&|(<>":
                raise self.problem(f"{self.text[self.at]!r} cannot stand in an array")
            else:
                words.append(self.word())
            if len(words) > MAX_TOKENS:
                raise self.problem(f"more than {MAX_TOKENS:,} words")
        raise self.problem("this array is never closed", opened)

    def word(self) -> Word:
        """Up to a blank or an operator."""
        parts: list[Part] = []
        while self.at < len(self.text):
            plain = PLAIN.match(self.text, self.at)
            if plain:
                parts.append(Text(plain[0], self.line, quoted=False))
                self._take(plain[0])
            elif not self._quoted_part(parts):
                break
            if len(parts) > MAX_PARTS:
                raise self.problem(f"a word of more than {MAX_PARTS:,} parts")
        return tuple(parts)

    def _quoted_part(self, parts: list[Part]) -> bool:
        """A quoted or expanded part of a word; False where the word ends."""
        sign, line = self.text[self.at], self.line
        if sign == "\\":
            if self._peek("\\\n"):
                self._take("\\\n")
            else:
                parts.append(Text(self.text[self.at + 1 : self.at + 2], line, quoted=True))
                self._take(self.text[self.at : self.at + 2])
        elif sign == "'" or self._peek("$'"):
            self._take("'" if sign == "'" else "$'")
            parts.extend(_lines(self._until("'", "a quote '"), line))
        elif sign == '"':
            self._take('"')
            self._double_quoted(parts, line)
        elif sign in "$`":
            parts.append(self._expansion(quoted=False))
        elif self._peek("<(") or self._peek(">("):
            parts.append(Unknown(self._command(sign + "("), line, quoted=False))
        else:
            return False
        return True

    def _until(self, end: str, what: str) -> str:
        """The text up to `end`, and past it."""
        close = self.text.find(end, self.at)
        if close < 0:
            raise self.problem(f"{what} is opened here and never closed")
        found = self._take(self.text[self.at : close])
        self._take(end)
        return found

    def _double_quoted(self, parts: list[Part], opened: int) -> None:
        parts.append(Text("", opened, quoted=True))
        while self.at < len(self.text):
            plain = DOUBLE_PLAIN.match(self.text, self.at)
            if plain:
                parts.append(Text(plain[0], self.line, quoted=True))
                self._take(plain[0])
            elif self._peek('"'):
                self._take('"')
                return
            elif self._peek("\\"):
                pair = self.text[self.at : self.at + 2]
                escaped = pair[1:] if pair[1:] in ("$", "`", '"', "\\", "\n") else pair
                parts.append(Text("" if escaped == "\n" else escaped, self.line, quoted=True))
                self._take(pair)
            else:
                parts.append(self._expansion(quoted=True))
        raise self.problem('a quote " is opened here and never closed', opened)

    def _expansion(self, *, quoted: bool) -> Part:
        line = self.line
        if self._peek("`"):
            self._take("`")
            return Unknown(f"`{_short(self._until('`', 'a backtick'))}`", line, quoted)
        if self._peek("$(("):
            return self._arithmetic(line, quoted)
        if self._peek("$("):
            return Unknown(self._command("$("), line, quoted)
        if self._peek("${"):
            return self._braced(line, quoted)
        self._take("$")
        name = NAME.match(self.text, self.at)
        if not name:
            return Text("$", line, quoted)
        self._take(name[0])
        every = name[0] if name[0] in "@*" else ""
        return Parameter(name[0], line, quoted, every)

    def _arithmetic(self, line: int, quoted: bool) -> Part:
        end = self.text.find("))", self.at)
        inner = self.text[self.at + 3 : end]
        if end < 0 or "$(" in inner or "`" in inner:
            return Unknown(self._command("$("), line, quoted)
        self._take(self.text[self.at : end + 2])
        return Arithmetic(inner, line, quoted)

    def _command(self, opening: str) -> str:
        """Past a command substitution; what it says, shortened."""
        start, opened = self.at, self.line
        self._take(opening)
        inner = _Lexer(self.text, self.file, self.line, self.depth + 1)
        inner.at, open_brackets = self.at, 1
        while open_brackets and inner._skip_blanks():
            token = inner._token()
            if isinstance(token, Operator):
                open_brackets += {"(": 1, ")": -1}.get(token.text, 0)
        if open_brackets:
            raise self.problem(f"{opening} is opened here and never closed", opened)
        self.at, self.line = inner.at, inner.line
        return _short(self.text[start : self.at])

    def _braced(self, line: int, quoted: bool) -> Part:
        """`${...}`: a name, an element, a default; anything else is not known."""
        start = self.at
        self._take("${")
        head = BRACED.match(self.text, self.at)
        if head:
            self._take(head[0])
        argument = self._braced_rest(line)
        text = _short(self.text[start : self.at])
        if not head or (argument and not head[3]):
            return Unknown(text, line, quoted)
        subscript = head[1] if head[1] in "@*" else head[2] or ""
        if subscript not in ("", "@", "*", "0"):
            return Unknown(text, line, quoted)
        every = subscript if subscript in ("@", "*") else ""
        return Parameter(head[1], line, quoted, every, head[3] or "", argument)

    def _braced_rest(self, opened: int) -> Word:
        """The word up to the closing brace, and past it."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.problem(f"nested more than {MAX_DEPTH} deep")
        parts: list[Part] = []
        while self.at < len(self.text) and not self._peek("}"):
            if self.text[self.at] in "\\'\"$`":
                self._quoted_part(parts)
            else:
                plain = re.compile(r"[^\\'\"$`}]+").match(self.text, self.at)
                if plain:
                    parts.append(Text(plain[0], self.line, quoted=False))
                    self._take(plain[0])
        if self.at >= len(self.text):
            raise self.problem("${ is opened here and never closed", opened)
        self._take("}")
        self.depth -= 1
        return tuple(parts)


def _lines(text: str, line: int) -> list[Part]:
    """Quoted text in pieces of one line each, so that every piece knows where it stands."""
    pieces = text.split("\n")
    return [
        Text(piece + ("\n" if index < len(pieces) - 1 else ""), line + index, quoted=True)
        for index, piece in enumerate(pieces)
    ]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."
