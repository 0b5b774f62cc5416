"""Runs the same model in ONNX Runtime, for any of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from frontends.onnx.model.source import Source
from poly.errors import ArgumentError, ModelError

#: The folder of external weights, for a model that ONNX Runtime gets as bytes.
_FOLDER = "session.model_external_initializers_file_folder_path"


def peer_values(source: Source, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a model by name, from ONNX Runtime without its optimisations.

    Raises
    ------
    ArgumentError : ONNX Runtime is not installed.
    ModelError : it cannot run the model.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ArgumentError(
            "comparing with ONNX Runtime needs the package onnxruntime, which cannot be imported: "
            f"{error}"
        ) from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    if source.loaded.folder is not None:
        options.add_session_config_entry(_FOLDER, str(source.loaded.folder.resolve()))
    given = {name: np.asarray(array) for name, array in inputs.items()}
    try:
        data = source.model.SerializeToString()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return dict(zip(source.outputs, session.run(list(source.outputs), given), strict=True))
    except Exception as error:  # it has many types of errors, none of them public
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(f"ONNX Runtime cannot run the model: {line[:300]}") from error
