"""The version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """Farkas's version, from the package's metadata."""
    try:
        return installed("farkas")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"
