"""Reading shell scripts without a shell: what a script would call, as far as its own text says. Nothing is executed."""

from __future__ import annotations

from ppadvisor.frameworks.shell.script import Call, Note, Script, read_script
from ppadvisor.frameworks.shell.variables import Field

__all__ = ["Call", "Field", "Note", "Script", "read_script"]
