"""A plugin of pytest that runs opt_einsum's own tests with Farkas in place of numpy.

    python -m pytest --pyargs opt_einsum -p tests.farkas.kernels.opt_einsum_plugin

What the tests compare with, contractions with ``optimize=False``, stays numpy's.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

CALLS: Counter[str] = Counter()


def _counted(name: str, *arguments: Any, **options: Any) -> Any:
    CALLS[name] += 1
    return getattr(import_module("farkas"), name)(*arguments, **options)


def _renamed(original: Callable[..., str], arrays: Sequence[Any], backend: str | None) -> str:
    found = original(arrays, backend)
    return "farkas" if found == "numpy" else found


def pytest_configure() -> None:
    """Give Farkas whatever would be given to numpy."""
    # `opt_einsum.contract` is the function, which hides the module of that name.
    import_module("opt_einsum")
    contract: Any = sys.modules["opt_einsum.contract"]
    contract.parse_backend = partial(_renamed, contract.parse_backend)
    functions = import_module("opt_einsum.backends.dispatch")._cached_funcs
    for name in ("einsum", "tensordot", "transpose"):
        functions[name, "farkas"] = partial(_counted, name)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how often Farkas has been called."""
    terminalreporter.write_line(f"calls of Farkas: {CALLS['einsum']}, {CALLS['tensordot']}")
