"""The forms of a network: quantised by ONNX Runtime's tools in four ways, float16 and bfloat16."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.kernel import Array
from benchmarks.narrow.networks import inputs_of
from benchmarks.sixteen_bits import between_wide_ports, halved_model

#: Inputs from which the ranges of values are taken.
CALIBRATION = 3
_FIRST_SEED = 100
#: Operators whose quantised forms are in ONNX; others get ones of ONNX Runtime's own domain.
STANDARD = ("Conv", "MatMul")


@dataclass(frozen=True)
class Form:
    """How a network is made narrow.

    element : of 16 bits, else empty
    static : quantised with ranges found beforehand, else while it runs
    format : of ONNX Runtime's tools, for static ones
    per_channel : weights have a scale for each channel, not one
    operators : the only ones that are quantised; empty for all that the tools know
    tolerance : the greatest difference from the network on float32, where 16 bits bring it
    """

    element: str = ""
    static: bool = False
    format: str = ""
    per_channel: bool = False
    operators: tuple[str, ...] = ()
    tolerance: float = 0.0


FORMS: Mapping[str, Form] = {
    "qdq": Form(static=True, format="QDQ"),
    "qdq per channel": Form(static=True, format="QDQ", per_channel=True),
    "qoperator": Form(static=True, format="QOperator"),
    "qoperator of onnx": Form(static=True, format="QOperator", operators=STANDARD),
    "dynamic": Form(),
    "float16": Form("float16", tolerance=0.02),
    "bfloat16": Form("bfloat16", tolerance=0.1),
}


class _Reader:
    """Inputs, one after the other, as ONNX Runtime's tools read them."""

    def __init__(self, inputs: Iterable[dict[str, Array]]) -> None:
        self._inputs: Iterator[dict[str, Array]] = iter(inputs)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._inputs, None)


def write_form(form: Form, wide: Path, path: Path) -> None:
    """Write a network in a form, from its file on float32.

    Weights are int8, other values uint8; in 16 bits all are, but inputs and outputs of the network.
    """
    if form.element:
        half = halved_model(onnx.load(wide), form.element)
        onnx.save(between_wide_ports(half), path)
        return
    seeds = range(_FIRST_SEED, _FIRST_SEED + CALIBRATION)
    model = onnx.load(wide)
    write_quantised(form, wide, path, (inputs_of(model, s) for s in seeds))


def write_quantised(form: Form, wide: Path, path: Path, seen: Iterable[dict[str, Array]]) -> None:
    """Write a network in a form of 8 bits; ranges of values are taken from inputs, where needed."""
    tools = importlib.import_module("onnxruntime.quantization")
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)
    types: dict[str, Any] = {"weight_type": tools.QuantType.QInt8}
    try:
        if not form.static:
            tools.quantize_dynamic(str(wide), str(path), **types)
            return
        tools.quantize_static(
            str(wide),
            str(path),
            _Reader(seen),
            quant_format=tools.QuantFormat[form.format],
            per_channel=form.per_channel,
            op_types_to_quantize=list(form.operators) or None,
            activation_type=tools.QuantType.QUInt8,
            **types,
        )
    finally:
        logging.getLogger().setLevel(level)


def plain_results(path: Path, inputs: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime computes node by node, without its graph optimisations."""
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, dict(inputs))]
