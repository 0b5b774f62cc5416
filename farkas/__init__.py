"""Farkas: a polyhedral compiler for tensor comprehensions and ONNX networks.

>>> import numpy as np
>>> import farkas as fk
>>> matmul = fk.compile("C[i,j] +=! A[i,k] * B[k,j]")
>>> matmul(np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)).shape
(2, 4)

========================================  ==================================================
`compile`, `Kernel`                       text to a function of numpy arrays
`compile_onnx`, `Model`, `StagedModel`    an ONNX file to a function of named arrays
`parse`, `Program`                        what a text means
`Schedule`, `auto_schedule`               execution orders, and the checked steps that make them
`show`, `space`, `steps`, `footprints`    pictures of these, as HTML and as text
`explore`                                 a schedule under one's hands, in Jupyter
`evaluate`, `verify`                      the numpy reference, and comparing with it
`find_toolchain`, `Toolchain`, `Cache`    the C compiler and the cache on disk
`DType`, `DTYPES`                         element types
`FarkasError` and its subclasses          everything that Farkas raises for its user
========================================  ==================================================

Importing this module is quick: numpy, isl and onnx are loaded when they are first needed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farkas.house import ForeignPackageError, check_packages, started_as_command

try:
    check_packages(Path(__file__).parent.parent)
except ForeignPackageError as _error:
    if not started_as_command():
        raise
    sys.exit(f"error: {_error}")  # a command's user gets no traceback

from farkas.errors import UntypedError
from poly.errors import (
    ArgumentError,
    CacheError,
    FarkasError,
    IllegalScheduleError,
    LanguageError,
    ModelError,
    ProgramError,
    ScheduleError,
    ToolchainError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from farkas.device_model import DeviceModel
    from farkas.kernel import Kernel, compile
    from farkas.model import compile_onnx
    from farkas.network import Model
    from farkas.staged import StagedModel
    from farkas.text import parse
    from farkas.views import View, explore, footprints, show, space, steps
    from poly.dtypes import DTYPES, DType
    from poly.program import Program
    from poly.schedule import Schedule
    from poly.strategy import auto_schedule
    from runtime.cache import Cache
    from runtime.reference import evaluate
    from runtime.toolchain import Toolchain, find_toolchain
    from runtime.verify import Report, verify

    __version__: str

__all__ = [
    "DTYPES",
    "ArgumentError",
    "Cache",
    "CacheError",
    "DType",
    "DeviceModel",
    "FarkasError",
    "ForeignPackageError",
    "IllegalScheduleError",
    "Kernel",
    "LanguageError",
    "Model",
    "ModelError",
    "Program",
    "ProgramError",
    "Report",
    "Schedule",
    "ScheduleError",
    "StagedModel",
    "Toolchain",
    "ToolchainError",
    "UnsupportedModelError",
    "UntypedError",
    "View",
    "__version__",
    "auto_schedule",
    "compile",
    "compile_onnx",
    "evaluate",
    "explore",
    "find_toolchain",
    "footprints",
    "parse",
    "show",
    "space",
    "steps",
    "verify",
]

#: Where the names live that are loaded when they are first used.
_HOMES = {
    "DTYPES": "poly.dtypes",
    "DType": "poly.dtypes",
    "Program": "poly.program",
    "Schedule": "poly.schedule",
    "auto_schedule": "poly.strategy",
    "Cache": "runtime.cache",
    "evaluate": "runtime.reference",
    "Toolchain": "runtime.toolchain",
    "find_toolchain": "runtime.toolchain",
    "Report": "runtime.verify",
    "verify": "runtime.verify",
    "Kernel": "farkas.kernel",
    "compile": "farkas.kernel",
    "DeviceModel": "farkas.device_model",
    "Model": "farkas.network",
    "StagedModel": "farkas.staged",
    "compile_onnx": "farkas.model",
    "parse": "farkas.text",
    "View": "farkas.views",
    "explore": "farkas.views",
    "footprints": "farkas.views",
    "show": "farkas.views",
    "space": "farkas.views",
    "steps": "farkas.views",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from farkas.version import version

        value: Any = version()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'farkas' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
