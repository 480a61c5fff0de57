"""Every way a run can fail, as one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys

import click

from ppadvisor.errors import EXIT_INTERNAL, EXIT_USAGE, InputError, PpadvisorError, printable

EXIT_INTERRUPTED = 130
TRACEBACK_VARIABLE = "PPADVISOR_TRACEBACK"


class SaidElsewhereError(Exception):
    """Another process of the same run has printed the line, or will."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


def report_error(error: Exception) -> int:
    """Print the one line that answers this error; return the exit code."""
    if isinstance(error, SaidElsewhereError):
        return error.exit_code
    message, exit_code = answer_to(error)
    if exit_code == EXIT_INTERNAL and os.environ.get(TRACEBACK_VARIABLE) == "1":
        import traceback

        traceback.print_exception(error)
    print("ppadvisor:", printable(" ".join(message.split())), file=sys.stderr)
    return exit_code


def answer_to(error: Exception) -> tuple[str, int]:
    """The line and the exit code."""
    if isinstance(error, click.ClickException):
        return f"error: {_usage_message(error)}", EXIT_USAGE
    known = error if isinstance(error, PpadvisorError) else _input_error(error)
    if known is not None:
        return f"error: {known}", known.exit_code
    hint = f"please report it with what {TRACEBACK_VARIABLE}=1 prints"
    return f"internal error: {type(error).__name__}: {error}; {hint}", EXIT_INTERNAL


def _usage_message(error: click.ClickException) -> str:
    """Click's message in our form, and where to read on."""
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "ppadvisor"
    return f"{message}{'' if message.endswith('?') else ';'} see '{command} --help'"


def _input_error(error: Exception) -> InputError | None:
    """What pydantic found wrong, as an input error; None for any other exception."""
    pydantic = sys.modules.get("pydantic")  # not imported: then nothing was validated, and it would cost 60 ms
    if pydantic is None or not isinstance(error, pydantic.ValidationError):
        return None
    from ppadvisor.specs.validation import describe_problem

    return InputError(describe_problem(error, error.title))
