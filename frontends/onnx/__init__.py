"""ONNX models to graphs of comprehensions; the entry points are `import_model` and `import_stage`.

Files, operators, bodies and the importer have folders of their own; passes over graphs are in
`poly.graph_passes`.
"""

import frontends.onnx.ops.registry  # noqa: F401 - fills the registry
from frontends.onnx.core.node import supported_operators
from frontends.onnx.core.stages import Given, OpaqueCall, Pending, Stage
from frontends.onnx.core.value_types import DynamicShapeError
from frontends.onnx.importer.diagnosis import Diagnosis, Examination, examine
from frontends.onnx.importer.importer import import_model, import_stage
from frontends.onnx.model.onnxruntime_peer import peer_values
from frontends.onnx.model.source import Maker, Source, given_inputs, open_model, unknown_operators

__all__ = [
    "Diagnosis",
    "DynamicShapeError",
    "Examination",
    "Given",
    "Maker",
    "OpaqueCall",
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
