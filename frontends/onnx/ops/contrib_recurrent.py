"""DynamicQuantizeLSTM of ONNX Runtime's own domain.

It is an LSTM whose weights are stored in 8 bits, transposed.  The inputs of all steps are quantised
by their extremes, and so is the hidden state before each step; both products are exact sums of
integers, scaled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frontends.onnx.core.comprehension_text import Extent, at, declare, line
from frontends.onnx.core.node import Node, Result, Value
from frontends.onnx.ops.contrib_schemas import contrib
from frontends.onnx.ops.quantised import dynamic_parameters, quantised, scale_at
from frontends.onnx.ops.recurrent import LSTM, Inputs, Text, Writer, lstm_results
from frontends.onnx.ops.recurrent_common import check_shape
from poly.ir.dtypes import FLOAT32, INT32, UINT8


@contrib(
    "DynamicQuantizeLSTM",
    "X:T W:T2 R:T2 B:T? sequence_lens:T1? initial_h:T? initial_c:T? P:T? "
    "W_scale:T W_zero_point:T2 R_scale:T R_zero_point:T2",
    "Y:T? Y_h:T? Y_c:T?", {"T": "float", "T1": "int32", "T2": "int8 uint8"},
    activation_alpha="floats", activation_beta="floats", activations="strings", clip="float",
    direction="string", hidden_size="int", input_forget="int",
)  # fmt: skip
def dynamic_quantize_lstm(node: Node) -> Sequence[Result]:
    """An LSTM with weights in 8 bits, whose inputs and states are quantised as it runs.

    ONNX Runtime may cut the batch among its threads, and then quantises the states of each part
    on their own; here those of a batch are quantised together.
    """
    return lstm_results(_Dynamic(node))


class _Dynamic(Writer):
    """A writer with products of integers."""

    def __init__(self, node: Node) -> None:
        weights = {"W": node.required(1), "R": node.required(2)}
        inputs = list(node.inputs)
        inputs[1:3] = [_turned(node, v) for v in weights.values()]
        super().__init__(replace(node, inputs=tuple(inputs)), *LSTM)
        count = self.of.directions
        self.stored = weights
        self.quantisers: dict[str, tuple[Value, Value]] = {}
        for position, name in ((8, "W"), (10, "R")):
            pair = scale_at(node, position), node.required(position + 1)
            for what, value in zip(("scale", "zero_point"), pair, strict=True):
                if value.shape != (count,):
                    check_shape(node, f"{name}_{what}", value, (count, self.columns))
            self.quantisers[name] = pair

    def input_products(self, text: Text, at_inputs: Inputs, bias: Sequence[str]) -> None:
        """Sums of products of integers, times both scales, and the bias."""
        ranges: dict[str, Extent] = {**at_inputs.ranges, "n": self.columns}
        own: dict[str, Extent] = {**at_inputs.ranges, "i": self.of.inputs}
        plain = at("{0}", own)
        value, narrow = plain.format("X"), plain.format("XQ")
        text.lines += [
            *(declare(name, FLOAT32, ()) for name in ("XH", "XL", "XS")),
            declare("XZ", UINT8, ()),
            *dynamic_parameters(value, own, ("XH[]", "XL[]", "XS[]", "XZ[]"), {}),
            declare("XQ", UINT8, at_inputs.shape),
            line(f"{narrow} = {quantised(f'{value} / XS[]', 'XZ[]', UINT8)}", own),
        ]
        weight, scale = self._weight(text, "W", "i")
        for d, result in enumerate(at_inputs.results):
            made = at_inputs.sums(text, d, INT32, self.columns)
            read = at_inputs.reads[d].format("XQ")
            product = f"(int32({read}) - int32(XZ[])) * {weight.format(d=d)}"
            scaled = f"float32({made}) * (XS[] * {scale.format(d=d)})"
            terms = "".join(f" + {term.format(d=d)}" for term in bias)
            text.lines += [
                line(f"{made} +=! {product}", ranges | {"i": self.of.inputs}),
                line(f"{result} = {scaled}{terms}", ranges),
            ]

    def product(self, name: str, rows: tuple[int, int], target: str, source: str, op: str) -> None:
        """Add all rows of R times a state, which is quantised before each step."""
        f = self.of
        direction, ranges = self.every_direction()
        weight, scale = (text.format(d=direction) for text in self._weight(self, "R", "k"))
        state = f"{source}[{direction},t,b,k]"
        if f.lengths is not None:
            state = f"select(M[t,b], {state}, 0)"  # sequences that have ended do not count
        high, low, step, zero = (f"{source}{what}[{direction},t]" for what in "HLSZ")
        for part, dtype in zip("HLSZ", (FLOAT32, FLOAT32, FLOAT32, UINT8), strict=True):
            self.lines.append(declare(f"{source}{part}", dtype, (f.directions, f.steps)))
        shape = (f.directions, f.steps, f.batch)
        self.lines.append(declare(f"{source}Q", UINT8, (*shape, f.hidden)))
        self.lines.append(declare("A", INT32, (*shape, self.columns)))
        q, total = f"{source}Q[{direction},t,b,k]", f"A[{direction},t,b,n]"
        states: dict[str, Extent] = {**ranges, "b": f.batch, "k": f.hidden}
        columns: dict[str, Extent] = {**ranges, "b": f.batch, "n": self.columns}
        value = f"float32({total}) * ({step} * {scale})"
        self.steps += [
            *dynamic_parameters(state, states, (high, low, step, zero), ranges),
            line(f"{q} = {quantised(f'{state} / {step}', zero, UINT8)}", states),
            line(
                f"{total} +=! (int32({q}) - int32({zero})) * {weight}",
                columns | {"k": f.hidden},
            ),
            line(f"{target}[{direction},t,b,n] {op} {value}", columns),
        ]

    def _weight(self, text: Text, name: str, inner: str) -> tuple[str, str]:
        """The weights of row n without their zero point, and their scale, as formats over {d}."""
        known = self.of.w if name == "W" else self.of.r
        if known.array is not None:
            text.operand(name, known, known.array)
            weight = f"int32({name}[{{d}},n,{inner}])"
        else:
            text.operand(name, self.stored[name])
            weight = f"int32({name}[{{d}},{inner},n])"
        scale, zero = self.quantisers[name]
        index = [["{d}", "n"][: v.rank] for v in (scale, zero)]
        text.operand(f"{name}S", scale)
        if zero.array is None or zero.array.any():
            text.operand(f"{name}Z", zero)
            weight = f"({weight} - int32({at(f'{name}Z', index[1])}))"
        return weight, at(f"{name}S", index[0])


def _turned(node: Node, value: Value) -> Value:
    """Weights with the gates before the inputs, as LSTM has them."""
    if value.rank != 3:
        raise node.fail("X, W and R must have rank 3")
    shape = (value.shape[0], value.shape[2], value.shape[1])
    array = None if value.array is None else value.array.transpose(0, 2, 1)
    return Value(f"{value.name}_turned", value.dtype, shape, array)
