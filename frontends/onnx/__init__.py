"""ONNX models to graphs of comprehensions; the only place that imports onnx."""

import frontends.onnx.operators  # noqa: F401 - fills the registry
from frontends.onnx.diagnosis import Diagnosis, Examination, examine
from frontends.onnx.importer import import_model, import_stage
from frontends.onnx.node import supported_operators
from frontends.onnx.peer import peer_values
from frontends.onnx.source import Maker, Source, given_inputs, open_model, unknown_operators
from frontends.onnx.stages import Given, OpaqueCall, Pending, Stage
from frontends.onnx.typing_info import DynamicShapeError, OpenPort

__all__ = [
    "Diagnosis",
    "DynamicShapeError",
    "Examination",
    "Given",
    "Maker",
    "OpaqueCall",
    "OpenPort",
    "Pending",
    "Source",
    "Stage",
    "examine",
    "given_inputs",
    "import_model",
    "import_stage",
    "open_model",
    "peer_values",
    "supported_operators",
    "unknown_operators",
]
