"""Farkas: a polyhedral compiler for tensor comprehensions and ONNX networks.

>>> import numpy as np
>>> import farkas as fk
>>> matmul = fk.compile("C[i,j] +=! A[i,k] * B[k,j]")
>>> matmul(np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)).shape
(2, 4)

========================================  ==================================================
`compile`, `Kernel`                       text to a function of numpy arrays
`einsum`, `tensordot`                     numpy's, compiled; einsum over other semirings, too
`compile_onnx`, `Network`                 an ONNX file to a function of named arrays
`grad`, `value_and_grad`, `jvp`           derivatives of programs, as programs
`torch.op`, `jax.op`                      operators of torch and JAX from texts
`compile_torch`                           a program of ``torch.export`` to a `Network`
`sklearn.Compiled`                        an estimator of scikit-learn that predicts compiled
`load`                                    a file of `Network.save` or `Kernel.save`
`quantize_onnx`, `QuantizedModel`         an ONNX file to one in 8 bits
`tune`, `tune_onnx`                       faster schedules, found by measuring
`train_onnx`, `Training`, `Optimiser`     an ONNX file to a step that trains it
`export_onnx`                             an ONNX file to C that needs nothing of Farkas
`parse`, `Program`                        what a text means
`Schedule`, `auto_schedule`               execution orders, and the checked steps that make them
`show`, `space`, `dataflow`, `steps`, …   pictures of these, as HTML and as text
`intrinsic`, `load_intrinsics`            instructions of CPUs, by their meaning
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

from farkas.check_install import ForeignPackageError, check_packages, started_as_command

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
    CacheWarning,
    CapacityError,
    FarkasError,
    GradientError,
    IllegalScheduleError,
    IntrinsicError,
    LanguageError,
    ModelError,
    ModelWarning,
    ProgramError,
    SavedFileError,
    ScheduleError,
    ThreadsWarning,
    ToolchainError,
    TuningError,
    TuningWarning,
    UndecidedError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from farkas.frameworks.torch_export import compile_torch
    from farkas.intrinsics.declare import intrinsic
    from farkas.intrinsics.intrinsic_file import load_intrinsics
    from farkas.kernels.einsum import einsum, tensordot
    from farkas.kernels.gradients import grad, jvp, value_and_grad
    from farkas.kernels.kernel import Kernel, compile
    from farkas.kernels.source_text import parse
    from farkas.kernels.tune_kernel import TunedKernel, tune
    from farkas.networks.compile_onnx import compile_onnx
    from farkas.networks.export_onnx import export_onnx
    from farkas.networks.load import load
    from farkas.networks.network import Network
    from farkas.networks.tune_network import TunedNetwork, tune_onnx
    from farkas.quantize.quantize import QuantizedModel, quantize_onnx
    from farkas.training.optimisers import SGD, Adam, AdamW, Optimiser
    from farkas.training.train_onnx import train_onnx
    from farkas.training.trainer import Trainer
    from farkas.training.training import Training
    from farkas.views import View, dataflow, explore, footprints, show, space, steps
    from poly.ir.dtypes import DTYPES, DType
    from poly.ir.program import Program
    from poly.schedule.schedule import Schedule
    from poly.strategy.cpu.auto_schedule import auto_schedule
    from runtime.common.cache import Cache
    from runtime.cpu.toolchain import Toolchain, find_toolchain
    from runtime.reference.evaluate import evaluate
    from runtime.reference.verify import Report, verify

    __version__: str

__all__ = [
    "DTYPES",
    "SGD",
    "Adam",
    "AdamW",
    "ArgumentError",
    "Cache",
    "CacheError",
    "CacheWarning",
    "CapacityError",
    "DType",
    "FarkasError",
    "ForeignPackageError",
    "GradientError",
    "IllegalScheduleError",
    "IntrinsicError",
    "Kernel",
    "LanguageError",
    "ModelError",
    "ModelWarning",
    "Network",
    "Optimiser",
    "Program",
    "ProgramError",
    "QuantizedModel",
    "Report",
    "SavedFileError",
    "Schedule",
    "ScheduleError",
    "ThreadsWarning",
    "Toolchain",
    "ToolchainError",
    "Trainer",
    "Training",
    "TunedKernel",
    "TunedNetwork",
    "TuningError",
    "TuningWarning",
    "UndecidedError",
    "UnsupportedModelError",
    "UntypedError",
    "View",
    "__version__",
    "auto_schedule",
    "compile",
    "compile_onnx",
    "compile_torch",
    "dataflow",
    "einsum",
    "evaluate",
    "explore",
    "export_onnx",
    "find_toolchain",
    "footprints",
    "grad",
    "intrinsic",
    "jvp",
    "load",
    "load_intrinsics",
    "parse",
    "quantize_onnx",
    "show",
    "space",
    "steps",
    "tensordot",
    "train_onnx",
    "tune",
    "tune_onnx",
    "value_and_grad",
    "verify",
]

#: The modules of the names that are loaded when they are first used.
_HOMES = {
    "DTYPES": "poly.ir.dtypes",
    "DType": "poly.ir.dtypes",
    "Program": "poly.ir.program",
    "Schedule": "poly.schedule.schedule",
    "auto_schedule": "poly.strategy.cpu.auto_schedule",
    "Cache": "runtime.common.cache",
    "evaluate": "runtime.reference.evaluate",
    "Toolchain": "runtime.cpu.toolchain",
    "find_toolchain": "runtime.cpu.toolchain",
    "Report": "runtime.reference.verify",
    "verify": "runtime.reference.verify",
    "einsum": "farkas.kernels.einsum",
    "tensordot": "farkas.kernels.einsum",
    "transpose": "farkas.kernels.einsum",  # for opt_einsum
    "grad": "farkas.kernels.gradients",
    "jvp": "farkas.kernels.gradients",
    "value_and_grad": "farkas.kernels.gradients",
    "TunedKernel": "farkas.kernels.tune_kernel",
    "tune": "farkas.kernels.tune_kernel",
    "Kernel": "farkas.kernels.kernel",
    "compile": "farkas.kernels.kernel",
    "Network": "farkas.networks.network",
    "Adam": "farkas.training.optimisers",
    "AdamW": "farkas.training.optimisers",
    "SGD": "farkas.training.optimisers",
    "Optimiser": "farkas.training.optimisers",
    "Training": "farkas.training.training",
    "Trainer": "farkas.training.trainer",
    "train_onnx": "farkas.training.train_onnx",
    "TunedNetwork": "farkas.networks.tune_network",
    "tune_onnx": "farkas.networks.tune_network",
    "compile_onnx": "farkas.networks.compile_onnx",
    "compile_torch": "farkas.frameworks.torch_export",
    "export_onnx": "farkas.networks.export_onnx",
    "load": "farkas.networks.load",
    "intrinsic": "farkas.intrinsics.declare",
    "load_intrinsics": "farkas.intrinsics.intrinsic_file",
    "QuantizedModel": "farkas.quantize.quantize",
    "quantize_onnx": "farkas.quantize.quantize",
    "parse": "farkas.kernels.source_text",
    "View": "farkas.views",
    "explore": "farkas.views",
    "footprints": "farkas.views",
    "dataflow": "farkas.views",
    "show": "farkas.views",
    "space": "farkas.views",
    "steps": "farkas.views",
}
#: Modules with Farkas's face in other frameworks.
_FRAMEWORKS = ("jax", "sklearn", "torch")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from farkas.version import version

        value: Any = version()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _FRAMEWORKS:
        value = import_module(f"farkas.{name}")
    else:
        raise AttributeError(f"module 'farkas' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names and those of every module, without this module's imports."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
