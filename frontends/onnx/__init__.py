"""ONNX models to graphs of comprehensions; the only place that imports onnx."""

from frontends.onnx.importer import import_model
from frontends.onnx.node import supported_operators

__all__ = ["import_model", "supported_operators"]
