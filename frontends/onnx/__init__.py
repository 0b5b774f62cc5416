"""ONNX models to graphs of comprehensions; the entry points are `import_model` and `import_stage`.

Files, operators, bodies and the importer have folders of their own; passes over graphs are in
`poly.graph_passes`.  What needs onnx is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from frontends.onnx.core.stages import Given, OpaqueCall, Pending, Routines, Stage, StoredNode

if TYPE_CHECKING:
    from frontends.onnx.core.node import supported_operators
    from frontends.onnx.core.value_types import DynamicShapeError
    from frontends.onnx.importer.diagnosis import Diagnosis, Examination, examine, never_supported
    from frontends.onnx.importer.importer import import_model, import_stage
    from frontends.onnx.model.onnxruntime_peer import peer_values
    from frontends.onnx.model.source import (
        Maker,
        Source,
        given_inputs,
        open_model,
        unknown_operators,
    )

__all__ = [
    "Diagnosis",
    "DynamicShapeError",
    "Examination",
    "Given",
    "Maker",
    "OpaqueCall",
    "Pending",
    "Routines",
    "Source",
    "Stage",
    "StoredNode",
    "examine",
    "given_inputs",
    "import_model",
    "import_stage",
    "never_supported",
    "open_model",
    "peer_values",
    "supported_operators",
    "unknown_operators",
]

#: The modules of the names that are loaded when they are first used.
_HOMES = {
    "Diagnosis": "frontends.onnx.importer.diagnosis",
    "DynamicShapeError": "frontends.onnx.core.value_types",
    "Examination": "frontends.onnx.importer.diagnosis",
    "Maker": "frontends.onnx.model.source",
    "Source": "frontends.onnx.model.source",
    "examine": "frontends.onnx.importer.diagnosis",
    "given_inputs": "frontends.onnx.model.source",
    "import_model": "frontends.onnx.importer.importer",
    "import_stage": "frontends.onnx.importer.importer",
    "never_supported": "frontends.onnx.importer.diagnosis",
    "open_model": "frontends.onnx.model.source",
    "peer_values": "frontends.onnx.model.onnxruntime_peer",
    "supported_operators": "frontends.onnx.core.node",
    "unknown_operators": "frontends.onnx.model.source",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'frontends.onnx' has no attribute {name!r}")
    import_module("frontends.onnx.ops.registry")  # which operators there are
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
