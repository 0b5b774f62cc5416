"""Where ONNX Runtime is no judge: it does not do what ONNX says, or ONNX does not say.

The list is explicit, and as narrow as it can be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from tests.mutation.mutants import Mutant
from tests.mutation.sources import nodes_of


@dataclass(frozen=True)
class Dispute:
    """What is disputed.

    operators : one of them is in the model; difference : a pattern for how the results differ;
    infinite : only where a constant, an input or an attribute is not finite; reason : who is right,
    and why
    """

    operators: frozenset[str]
    difference: str
    reason: str
    infinite: bool = False


def _of(names: str) -> frozenset[str]:
    return frozenset(names.split())


DISPUTES = (
    Dispute(
        _of("Attention"),
        r"-inf, expected -(3\.40|65504|1\.79)",
        "scores that are masked are -inf, as the function in the operator's schema computes them; "
        "ONNX Runtime gives the least float",
    ),
    Dispute(
        _of("Attention"),
        r"nan, expected",
        "a softcap divides scores before and multiplies them after a tanh, unless it is 0; ONNX "
        "Runtime leaves out what is not above 0",
        infinite=True,
    ),
    Dispute(
        _of("Conv ConvTranspose"),
        r"expected nan",
        "padding is not multiplied (docs/decisions.md), so that infinite weights stay out of "
        "what they do not reach; ONNX Runtime multiplies zeros by them, and ONNX leaves it open",
        infinite=True,
    ),
    Dispute(
        _of("Dropout"),
        r"(1\.0, expected 0\.0|True, expected False)$",
        "the mask of what is not dropped is all ones, as ONNX says since opset 12 and leaves open "
        "before; ONNX Runtime gives zeros before",
    ),
    Dispute(
        _of("MaxPool ReduceMax ReduceMin"),
        r"nan, expected",
        "ONNX leaves open what the greatest of numbers and NaN is: here it is NaN, as for numpy; "
        "ONNX Runtime leaves NaN out here, and not in Max, Min and GlobalMaxPool",
    ),
    Dispute(
        _of("LRN"),
        r"expected nan",
        "ONNX Runtime adds to and subtracts from a running sum of squares, which rounds to less "
        "than zero where the squares are zeros and the bias is tiny",
    ),
    Dispute(
        _of("BatchNormalization"),
        r"expected nan",
        "ONNX subtracts the mean first, which keeps an infinite scale infinite; ONNX Runtime "
        "subtracts two infinities",
        infinite=True,
    ),
    Dispute(
        _of("Loop"),
        r"\[(?P<left>0, (\d+, )*)\d+(?P<right>(, \d+)*)\], expected \w+\[(?P=left)0(?P=right)\]",
        "what a Loop of no trips collects has the extents that follow from the shapes of what its "
        "body reads; ONNX Runtime gives 0 for an extent that the file leaves open",
    ),
)


def reason_of(mutant: Mutant, difference: str) -> str:
    """Why ONNX Runtime is no judge of a mutant; empty if it is."""
    model = onnx.load_from_string(mutant.data)
    operators = {n.op_type for n in nodes_of(model.graph)}
    for dispute in DISPUTES:
        applies = dispute.operators & operators and re.search(dispute.difference, difference)
        if applies and (not dispute.infinite or _is_infinite(mutant, model)):
            return dispute.reason
    return ""


def _is_infinite(mutant: Mutant, model: ModelProto) -> bool:
    arrays = [numpy_helper.to_array(t) for t in model.graph.initializer]
    arrays += mutant.inputs.values()
    arrays += [np.array(a.f) for n in nodes_of(model.graph) for a in n.attribute]
    return any(a.dtype.kind == "f" and not bool(np.isfinite(a).all()) for a in arrays)
