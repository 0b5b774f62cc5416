"""Exported C as a backend of ONNX, for suites of others: what `onnx.backend.test` calls.

``ONNX_BACKEND_MODULE=tests.conformance.exported_backend pytest --pyargs …`` runs such a suite; the
variable ``CC`` chooses the compiler.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep

from tests.conformance.exported import build, exported_for, run

Array = np.ndarray[Any, np.dtype[Any]]


class Exported(BackendRep):
    """A model, which is exported for the arrays of each run."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """The outputs for inputs, in the order of the model or by name."""
        constants = {tensor.name for tensor in self.model.graph.initializer}
        names = [i.name for i in self.model.graph.input if i.name not in constants]
        arrays: Mapping[str, Array] = (
            inputs
            if isinstance(inputs, Mapping)
            else {n: np.asarray(a) for n, a in zip(names, _several(inputs), strict=False)}
        )
        made = exported_for(self.model, arrays, "x86-64-v3")
        with tempfile.TemporaryDirectory() as folder:
            library = build(made, os.environ.get("CC", "gcc").split(), Path(folder))
            return tuple(run(made, library, arrays))


def _several(inputs: Any) -> Sequence[Any]:
    return inputs if isinstance(inputs, (list, tuple)) else [inputs]


class ExportedBackend(Backend):
    """Models as C, compiled and run on this machine."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **options: Any) -> Exported:
        """A model; it is exported when it runs."""
        return Exported(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Only this machine's processor."""
        return device == "CPU"


run_model = ExportedBackend.run_model
prepare = ExportedBackend.prepare
supports_device = ExportedBackend.supports_device
is_compatible = ExportedBackend.is_compatible
run_node = ExportedBackend.run_node
