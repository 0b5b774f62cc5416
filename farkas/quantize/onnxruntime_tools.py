"""ONNX Runtime's quantiser, its preparation of models, and sessions: what Farkas uses of them.

The package is optional.  What it raises becomes errors of this project, with its reason cut short.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from farkas.quantize.calibration import Array, Sample
from frontends.onnx.core.serialise import serialised
from poly.errors import ArgumentError, ModelError
from runtime.common.arguments import default_threads

_LONGEST_REASON = 240
#: How it shows the type of a tensor.
_TENSOR = re.compile(r"tensor\((\w+)\)")
#: What ONNX Runtime writes to the error stream; warnings are its default.
_WARNINGS, _ERRORS = 2, 3


class _Reader:
    """Samples one after the other, as the quantiser reads them."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._rest = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        found = next(self._rest, None)
        return None if found is None else dict(found)


def check_installed() -> None:
    """Raises `ArgumentError` if ONNX Runtime or its quantiser is missing."""
    _package("onnxruntime")
    _package("onnxruntime.quantization")


def operators() -> frozenset[str]:
    """The operators that the quantiser knows."""
    registry = _package("onnxruntime.quantization.registry")
    return frozenset({*registry.QLinearOpsRegistry, *registry.QDQRegistry})


def prepare(path: Path, prepared: Path, optimise: bool) -> None:
    """Infer shapes and, with `optimise`, fold constants and norms.  Raises `ModelError`."""
    tools = _package("onnxruntime.quantization.shape_inference")
    with _reported("prepare"):
        tools.quant_pre_process(
            str(path), str(prepared), skip_symbolic_shape=True, skip_optimization=not optimise
        )


def quantise(
    path: Path, result: Path, samples: Sequence[Sample], exclude: Sequence[str], ranges: Path
) -> None:
    """Write the model of `path` in QDQ format, with the nodes `exclude` left as they are.

    Activations are uint8, weights int8 with a scale for each channel.  What Farkas computes with
    is the same for int8 activations, but Relu and Clip disappear only into the range of uint8.

    ranges : a file that keeps the ranges of values from one call to the next

    Raises
    ------
    ModelError : the quantiser refuses the model.
    """
    tools = _package("onnxruntime.quantization")
    more: dict[str, Any] = {}
    if "calibration_cache_path" in inspect.signature(tools.quantize_static).parameters:
        more["calibration_cache_path"] = str(ranges)
    with _reported("quantise"):
        tools.quantize_static(
            str(path),
            str(result),
            _Reader(samples),
            quant_format=tools.QuantFormat.QDQ,
            per_channel=True,
            activation_type=tools.QuantType.QUInt8,
            weight_type=tools.QuantType.QInt8,
            nodes_to_exclude=list(exclude),
            **more,
        )


def runner(model: bytes, threads: int | None) -> Callable[[Sample], list[Array]]:
    """A function from a sample to the outputs, computed node by node, without optimisations.

    threads : None for one per processor of this process

    Raises
    ------
    ModelError : the model cannot be loaded or, from the function, run.
    """
    session = _session(model, threads or default_threads())

    def run(sample: Sample) -> list[Array]:
        with _reported("run"):
            return [np.asarray(a) for a in session.run(None, dict(sample))]

    return run


def types_of(model: bytes, names: Sequence[str]) -> dict[str, int]:
    """The element types of inner values, as numbers of ONNX; without what is no tensor.

    Raises
    ------
    ModelError : the model cannot be loaded.
    """
    shown = onnx.load_from_string(model)
    shown.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in names)
    session = _session(serialised(shown), 1)
    kinds = {o.name: _TENSOR.fullmatch(o.type) for o in session.get_outputs()}
    found = {n: kinds[n] for n in names if n in kinds}
    return {n: onnx.TensorProto.DataType.Value(m[1].upper()) for n, m in found.items() if m}


def _session(model: bytes, threads: int) -> Any:
    """A session without optimisations.  Raises `ModelError` if the model cannot be loaded."""
    runtime = _package("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _ERRORS
    options.intra_op_num_threads = threads
    with _reported("load"):
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ArgumentError(
            f"quantising needs the package onnxruntime (pip install '.[quantize]' in a clone of "
            f"Farkas); {name} cannot be imported: {error}"
        ) from error


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Quiet, with errors for the user: ONNX Runtime's are of many types, none of them public."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    runtime = _package("onnxruntime")
    runtime.set_default_logger_severity(_ERRORS)
    try:
        with np.errstate(all="ignore"):  # masks may be infinite
            yield
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = (lines or [type(error).__name__])[0][:_LONGEST_REASON]
        raise ModelError(f"ONNX Runtime cannot {what} the network: {reason}") from error
    finally:
        logger.setLevel(level)
        runtime.set_default_logger_severity(_WARNINGS)
