"""The installed torch, if it is the one whose private names are used here."""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any

from ppadvisor.errors import EXIT_USAGE, InputError, PpadvisorError

TORCH_VERSION = "2.13"
"""Private names are used, and orders and rules differ between versions."""
INSTALL = f"pip install 'torch=={TORCH_VERSION}.*' (the extra ppadvisor[torch])"


class UnverifiableError(PpadvisorError):
    """Torch, or the machine, cannot run what was asked for: no answer, neither yes nor no."""

    exit_code = EXIT_USAGE


def installed_version() -> str | None:
    """The version of the installed torch, without importing it, which takes a second; None where there is none."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def require_torch() -> None:
    """InputError, which says what to install, unless the installed torch is the right one."""
    found = installed_version()
    if found is None:
        raise InputError(f"verify runs on torch {TORCH_VERSION}, which is not installed: {INSTALL}")
    if not found.startswith(f"{TORCH_VERSION}."):
        raise InputError(f"verify runs on torch {TORCH_VERSION} and no other version, found {found}: {INSTALL}")


def torch_module(name: str = "torch") -> Any:
    """A module of torch; its types are not known here, since it may be missing."""
    require_torch()
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        raise InputError(f"torch is installed, but {name} cannot be imported: {error}") from None
