"""The version of the installed package, and its parts."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

#: All packages between a text and its result, which may change with any of their code.
PACKAGES = ("poly", "frontends", "codegen", "runtime", "farkas")


def version() -> str:
    """Farkas's version, from the package's metadata."""
    try:
        return installed("farkas")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"
