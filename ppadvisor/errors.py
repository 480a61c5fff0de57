"""The errors a user can meet. Each message says what is wrong, where, what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable

EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_NO_PLAN = 3
EXIT_THRESHOLD = 4
EXIT_REGRESSION = 5


class PpadvisorError(Exception):
    """Base of every error that is shown to a user as one line; `exit_code` ends the process."""

    exit_code = EXIT_INTERNAL


class InputError(PpadvisorError):
    """Wrong usage or bad input: the command line, a file, a field or a combination of pins."""

    exit_code = EXIT_USAGE


class RefusedError(PpadvisorError):
    """The plan that was asked about is sound, and what should run it does not."""

    exit_code = EXIT_NO_PLAN


def printable(text: str) -> str:
    r"""The text as one line, without what drives a terminal or hides in it: such characters as their escapes.

    >>> printable("ok\x1b[2J")
    'ok\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name closest to `name`, or None where nothing is close."""
    import difflib  # only who errs pays for it

    matches = difflib.get_close_matches(name.lower(), list(allowed), n=1, cutoff=0.4)
    return matches[0] if matches else None


def unknown_name(what: str, name: str, allowed: Iterable[str], where: str | None = None) -> InputError:
    """The error for a name that is not in a list: offers the nearest one, else lists what is allowed.

    Long lists are cut: the command that prints them in full is the caller's to name in `where`.
    """
    names = sorted(allowed)
    hint = nearest(name, names)
    place = f"{where}: " if where else ""
    tail = f"did you mean {hint!r}? " if hint else ""
    shown = ", ".join(names[:40]) + (f", ... ({len(names)} in all)" if len(names) > 40 else "")
    return InputError(f"{place}unknown {what} {name!r}; {tail}known: {shown}")
