"""Check that the packages beside `farkas` are Farkas's own.

Farkas consists of five packages, four of them with common names.  A folder or file named
``runtime`` earlier on the import path would shadow Farkas's, so `farkas` checks before it imports
them, and never runs a foreign module.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

#: The packages that must be beside `farkas`.
PACKAGES = ("poly", "frontends", "codegen", "runtime")


class ForeignPackageError(ImportError):
    """Another module has the name of one of Farkas's packages and comes first on the path.

    It is not a `FarkasError`, because the package that defines those may be the one shadowed.
    `name` is the package, `path` the file or folder that shadows it (None: Farkas's own
    package is missing and nothing else has its name).
    """


def check_packages(house: Path) -> None:
    """Check that each of `PACKAGES` is, or would be, imported from the folder `house`.

    Raises
    ------
    ForeignPackageError : naming the package and the file that shadows it.
    """
    for name in PACKAGES:
        found = _location(name)
        if found is None:
            raise ForeignPackageError(
                f"Farkas's package '{name}' is missing from {house}; install Farkas again",
                name=name,
            )
        if os.path.realpath(found) != os.path.realpath(house / name / "__init__.py"):
            raise ForeignPackageError(
                f"{found} shadows Farkas's own package '{name}' in {house}: "
                f"rename it, or remove its folder from the import path",
                name=name,
                path=found,
            )


def _location(name: str) -> str | None:
    """The file from which a top-level module was or would be imported, without running it."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        folders = list(getattr(loaded, "__path__", ()))
        return file or (folders[0] if folders else f"a module '{name}' without a file")
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.origin is not None:
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), None)


def started_as_command() -> bool:
    """Whether this process is the command ``farkas`` or ``python -m farkas``."""
    if not sys.argv:
        return False
    if sys.argv[0] == "-m":  # its value while the package of a -m module is imported
        return "farkas" in sys.orig_argv
    return os.path.basename(sys.argv[0]) in ("farkas", "farkas.exe")
