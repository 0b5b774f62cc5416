"""Quantisation, recurrent networks, and operators that come alone."""

from __future__ import annotations

import numpy as np

from tests.graphs.draft import Draft, Value
from tests.graphs.reductions import some_axis


def quantised(draft: Draft) -> None:
    value = draft.pick(lambda v: v.type in ("float32", "int8", "uint8"))
    if value is None:
        return
    scale = draft.operand(np.array(draft.rng.choice((0.5, 0.25)), np.float32))
    if value.type == "float32":
        if draft.rng.random() < 0.3:
            draft.add("DynamicQuantizeLinear", [value], 3)
            return
        zero = draft.operand(np.array(3, draft.rng.choice(("int8", "uint8"))))
        draft.add("QuantizeLinear", [value, scale, zero])
    elif draft.rng.random() < 0.5:
        draft.add("DequantizeLinear", [value, scale, draft.operand(np.array(1, value.type))])
    elif value.rank >= 1 and value.shape[-1] is not None:
        weight = draft.operand(draft.random_array("int8", (value.shape[-1], 2)))
        draft.add("MatMulInteger", [value, weight])


def recurrent(draft: Draft) -> None:
    value = draft.pick(lambda v: v.type == "float32" and v.rank == 3 and v.shape[2] is not None)
    if value is None or not value.all(lambda a: a.size > 0):
        return  # ONNX Runtime aborts
    kind = draft.rng.choice(("RNN", "GRU", "LSTM"))
    gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind], 2
    shapes = [(1, gates * hidden, value.shape[2] or 1), (1, gates * hidden, hidden)]
    weights = [draft.operand(draft.random_array("float32", s) / 4) for s in shapes]
    draft.add(kind, [value, *weights], 2, hidden_size=hidden)


def alone(draft: Draft) -> None:
    """Operators with simple operands of some rank."""
    kind, least = draft.rng.choice(
        (("EyeLike", 2), ("Shrink", 0), ("MeanVarianceNormalization", 4), ("GlobalLpPool", 3),
         ("Det", 2), ("CenterCropPad", 1), ("ReverseSequence", 2), ("BitShift", 0))
    )  # fmt: skip
    value = draft.pick(lambda v: v.rank >= least)
    if value is None:
        return
    operands: list[Value] = [value]
    attributes: dict[str, object] = {}
    if kind == "CenterCropPad":
        operands.append(draft.numbers(draft.rng.randint(1, 4)))
        attributes["axes"] = [some_axis(draft, value)]
    elif kind == "ReverseSequence":
        if value.shape[1] is None:
            return
        lengths = np.ones(value.shape[1], np.int64)
        operands.append(draft.operand(lengths))
    elif kind == "BitShift":
        operands.append(draft.operand(np.array(1, value.type)))
        attributes["direction"] = draft.rng.choice(("LEFT", "RIGHT"))
    draft.add(kind, operands, **attributes)


def suppressed(draft: Draft) -> None:
    """Boxes that overlap less than others of a higher score."""
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]], np.float32)
    scores = np.array([[[0.5, 0.75, 0.25]]], np.float32)
    most, least = draft.operand(np.array([draft.rng.randint(1, 3)])), np.array([0.5], np.float32)
    draft.add(
        "NonMaxSuppression",
        [draft.operand(boxes), draft.operand(scores), most, draft.operand(least)],
    )


ALL = {quantised: 3, recurrent: 1, alone: 3, suppressed: 1}
