"""RNN, GRU and LSTM.

The contribution of the inputs to the gates is one product for all steps, `G`; the steps then run
one after another in a block of the language, which adds the contribution of the last hidden state
and computes the next state.  States are kept for all steps: `H[d,s,…]` is the state of direction d
before its step s.  A direction that runs backwards counts its steps from the end.

With lengths for each sequence, a step after its end keeps the state and outputs 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from frontends.onnx.core.comprehension_text import Extent, affine, at, declare, function, line
from frontends.onnx.core.node import (
    Before,
    Compute,
    Known,
    Node,
    Operand,
    Reshaped,
    Result,
    Value,
    operator,
)
from frontends.onnx.ops.recurrent_common import Activation, Recurrence, check_shape, recurrence
from poly.ir.dtypes import BOOL, DType


class Text:
    """A program, as its parts are written."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.inputs: list[str] = []
        self.operands: list[Operand] = []
        self.declared: set[str] = set()
        self.lines: list[str] = []

    def operand(self, name: str, value: Value | np.ndarray, what: np.ndarray | None = None) -> str:
        """Declare an input, once; `what` is the needed part of a known value."""
        if name in self.declared:
            return name
        self.declared.add(name)
        found = value if what is None else np.ascontiguousarray(what)
        dtype = self.dtype if isinstance(value, np.ndarray) else value.dtype
        self.inputs.append(declare(name, dtype, found.shape))
        self.operands.append(found)
        return name

    def view(self, name: str, dtype: DType, operand: Reshaped | Before) -> str:
        """Declare an input under another shape."""
        self.inputs.append(declare(name, dtype, operand.shape))
        self.operands.append(operand)
        return name

    def temporary(self, name: str, *shape: int) -> str:
        """Declare a temporary of the program."""
        self.lines.append(declare(name, self.dtype.compute, shape))
        return name


@dataclass(frozen=True)
class Inputs:
    """Where the inputs of all steps are, and where the products go.

    ranges : the loops over inputs; shape : of X
    reads : for each direction the element i of an input, in a tensor {0}
    results : for each direction the element n of the products
    """

    ranges: Mapping[str, Extent]
    shape: tuple[int, ...]
    reads: Sequence[str]
    results: Sequence[str]

    def sums(self, text: Text, d: int, dtype: DType, columns: int) -> str:
        """Declare a temporary for the sums of a direction: its element n."""
        extents = [e for e in self.ranges.values() if not isinstance(e, tuple)]
        text.lines.append(declare(f"P{d}", dtype, (*extents, columns)))
        return at(f"P{d}", [*self.ranges, "n"])


class Writer(Text):
    """The program of one recurrent node, as its parts are written."""

    def __init__(self, node: Node, gates: int, defaults: tuple[str, ...], states: str) -> None:
        self.node, self.gates, self.states = node, gates, states
        self.of: Recurrence = recurrence(node, gates, defaults, len(states))
        super().__init__(self.of.x.dtype)
        self.columns = gates * self.of.hidden
        self.steps: list[str] = []
        self.free: dict[str, Extent] = {"b": self.of.batch, "j": self.of.hidden}
        self.every: dict[str, Extent] = {"t": self.of.steps, **self.free}

    def directions(self) -> Iterator[tuple[Sequence[Activation], str, dict[str, Extent]]]:
        """Activations, index and range of each direction; of both at once if they have the same."""
        functions = self.of.functions
        if len(functions) == 2 and functions[0] == functions[1]:
            yield functions[0], "d", {"d": 2}
            return
        for n, own in enumerate(functions):
            yield own, str(n), {}

    def every_direction(self) -> tuple[str, dict[str, Extent]]:
        """Index and range of statements that are the same in all directions."""
        return ("d", {"d": 2}) if self.of.directions == 2 else ("0", {})

    # --- before the steps -----------------------------------------------------------------

    def masks(self) -> None:
        """M, which steps each sequence has, if lengths differ."""
        if self.of.lengths is None:
            return
        self.operand("L", self.of.lengths)
        self.lines.append(declare("M", BOOL, (self.of.steps, self.of.batch)))
        ranges: dict[str, Extent] = {"t": self.of.steps, "b": self.of.batch}
        self.lines.append(line("M[t,b] = t < L[b]", ranges))

    def gate_inputs(self, parts: int) -> None:
        """G, the contribution of the inputs and of some parts of the bias: first that of W, then
        that of R.
        """
        f = self.of
        self.temporary("G", f.directions, f.steps, f.batch, self.columns)
        bias = ["B[{d},n]", f"B[{{d}},{self.columns} + n]"][:parts]
        is_open = not (isinstance(f.steps, int) and isinstance(f.batch, int))
        if (is_open and 1 not in (f.steps, f.batch)) or (f.lengths is not None and any(f.reverse)):
            self._inputs_before(bias)
            return
        self.operand("X", f.x)
        if f.bias is not None and bias:
            self.operand("B", f.bias)
        ranges: dict[str, Extent] = {"t": f.steps, "b": f.batch}
        reads = [self._input(d, "i") for d in range(f.directions)]
        results = [f"G[{d},t,b,n]" for d in range(f.directions)]
        self.input_products(self, Inputs(ranges, f.x.shape, reads, results), bias)

    def _inputs_before(self, bias: Sequence[str]) -> None:
        """G, from the products of all inputs as they lie in memory.

        Otherwise loops over open numbers of steps and of sequences could not be joined, and the
        inputs of sequences of several lengths would have to be reversed.
        """
        f, text = self.of, Text(self.of.x.dtype)
        rows = f.steps * f.batch
        text.view("X", f.x.dtype, Reshaped(f.x, (rows, f.inputs)))
        if f.bias is not None and bias:
            text.operand("B", f.bias)
        reads = ["{0}[r,i]"] * f.directions
        results = [f"U{d}[r,n]" for d in range(f.directions)]
        self.input_products(text, Inputs({"r": rows}, (rows, f.inputs), reads, results), bias)
        dtype = self.dtype.compute
        outputs = [declare(f"U{d}", dtype, (rows, self.columns)) for d in range(f.directions)]
        name = f"{self.node.operator.lower()}_inputs"
        made = Compute(function(name, text.inputs, outputs, text.lines), tuple(text.operands))
        ranges: dict[str, Extent] = {"t": f.steps, "b": f.batch, "n": self.columns}
        for d in range(f.directions):
            self.view(f"U{d}", dtype, Before(made, d, (*f.x.shape[:2], self.columns)))
            read = self._input(d, "n").format(f"U{d}")
            self.lines.append(line(f"G[{d},t,b,n] = {read}", ranges))

    def _input(self, d: int, element: str) -> str:
        """An element of step t of a direction, in a tensor like X, whose name is {0}."""
        f = self.of
        last = f"{f.steps - 1}" if f.lengths is None else "L[b] - 1"
        step = f"{last} - t" if f.reverse[d] else "t"
        return at("{0}", ["b", step, element] if f.batch_first else [step, "b", element])

    def input_products(self, text: Text, at_inputs: Inputs, bias: Sequence[str]) -> None:
        """The products of inputs X with the weights of each direction; `bias` are terms that are
        added, in {d} and n.
        """
        f, ranges = self.of, {**at_inputs.ranges, "n": self.columns}
        weights = "W" if f.w.array is not None else text.operand("W", f.w)
        for d, result in enumerate(at_inputs.results):
            if f.w.array is not None:
                weights = text.operand(f"W{d}", f.w, f.w.array[d])
            weight = at(weights, ["n", "i"] if f.w.array is not None else [d, "n", "i"])
            # The bias is added while the sum is in registers.
            made = at_inputs.sums(text, d, self.dtype.compute, self.columns) if bias else result
            product = f"{made} +=! {at_inputs.reads[d].format('X')} * {weight}"
            text.lines.append(line(product, ranges | {"i": f.inputs}))
            if bias:
                terms = " + ".join(term.format(d=d) for term in bias)
                text.lines.append(line(f"{result} = {made} + ({terms})", ranges))

    def start(self) -> None:
        """The states before the first step."""
        f = self.of
        direction, ranges = self.every_direction()
        for state, value in zip(self.states, f.initial, strict=True):
            self.temporary(state, f.directions, f.steps + 1, f.batch, f.hidden)
            source = "0"
            if value is not None:
                self.operand(f"{state}0", value)
                order = ["b", direction, "j"] if f.batch_first else [direction, "b", "j"]
                source = at(f"{state}0", order)
            self.lines.append(line(f"{state}[{direction},0,b,j] = {source}", ranges | self.free))

    # --- steps ----------------------------------------------------------------------------

    def product(self, name: str, rows: tuple[int, int], target: str, source: str, op: str) -> None:
        """Add rows of R times a vector: ``target[d,t,b,n] op R[d,n,k] * source[d,t,b,k]``.

        rows : the first and the one after the last; n counts from the first
        """
        f, (first, end) = self.of, rows
        direction, ranges = self.every_direction()
        row = affine([(1, "n")], first)
        if f.r.array is not None:
            self.operand(name, f.r, f.r.array[:, first:end])
            weight = f"{name}[{direction},n,k]"
        else:
            # Transposed, so that each step reads contiguous rows.
            self.operand("R", f.r)
            self.temporary(name, f.directions, f.hidden, end - first)
            transposed: dict[str, Extent] = {**ranges, "k": f.hidden, "n": end - first}
            self.lines.append(line(f"{name}[{direction},k,n] = R[{direction},{row},k]", transposed))
            weight = f"{name}[{direction},k,n]"
        own: dict[str, Extent] = {**ranges, "b": f.batch, "n": end - first, "k": f.hidden}
        self.steps.append(
            line(f"{target}[{direction},t,b,n] {op} {weight} * {source}[{direction},t,b,k]", own)
        )

    def unit(self, k: int) -> str:
        """The column of hidden unit j in the k-th of the concatenated parts."""
        return affine([(1, "j")], k * self.of.hidden)

    def each(self, text: str, direction: str, ranges: dict[str, Extent]) -> None:
        """A statement for each hidden unit of a step; {d} stands for the direction."""
        self.steps.append(line(text.replace("{d}", direction), ranges | self.free))

    def next_state(self, state: str, value: str, direction: str, ranges: dict[str, Extent]) -> None:
        """Compute the state after the step; after the end of a sequence it does not change."""
        if self.of.lengths is not None:
            value = f"select(M[t,b], {value}, {state}[{{d}},t,b,j])"
        self.each(f"{state}[{{d}},t+1,b,j] = {value}", direction, ranges)

    # --- results --------------------------------------------------------------------------

    def results(self) -> list[Result]:
        """The program, with the outputs that the node has."""
        f, node = self.of, self.node
        wanted = [k for k in range(1 + len(self.states)) if node.has_output(k)]
        if not wanted:
            return []
        # Results define consecutive outputs, so unused ones between others are computed, too.
        outputs, skipped = [], [Known(np.zeros(0, np.float32))] * wanted[0]
        after: list[str] = []
        dtype = f.x.dtype
        for k in range(wanted[0], wanted[-1] + 1):
            if k == 0:
                shape = (f.batch, f.steps) if f.batch_first else (f.steps,)
                rest = () if f.batch_first else (f.batch,)
                outputs.append(declare("Y", dtype, (*shape, f.directions, *rest, f.hidden)))
                after += [self._sequence(d) for d in range(f.directions)]
                continue
            state = self.states[k - 1]
            direction, ranges = self.every_direction()
            order = ["b", direction, "j"] if f.batch_first else [direction, "b", "j"]
            first = (f.batch, f.directions) if f.batch_first else (f.directions, f.batch)
            outputs.append(declare(f"Y{state}", dtype, (*first, f.hidden)))
            last = f"{state}[{direction},{f.steps},b,j]"
            after.append(line(f"{at(f'Y{state}', order)} = {last}", ranges | self.free))
        head = f"for t in 0:{f.steps} {{"
        body = [*self.lines, head, *(f"    {s}" for s in self.steps), "}", *after]
        program = function(node.operator.lower(), self.inputs, outputs, body)
        return [*skipped, Compute(program, tuple(self.operands))]

    def _sequence(self, d: int) -> str:
        """The statement for the outputs of a direction, for all steps."""
        f = self.of
        direction = str(d)
        order = ["b", "t", direction, "j"] if f.batch_first else ["t", direction, "b", "j"]
        step = "t + 1" if not f.reverse[d] else f"{f.steps} - t"
        if f.reverse[d] and f.lengths is not None:
            step = "L[b] - t"
        value = f"H[{d},{step},b,j]"
        if f.lengths is not None:
            value = f"select(M[t,b], {value}, 0)"
        return line(f"{at('Y', order)} = {value}", self.every)


@operator("RNN")
def rnn(node: Node) -> Sequence[Result]:
    """h' = f(Wx + Rh + b)"""
    w = Writer(node, 1, ("Tanh",), "H")
    w.masks()
    w.gate_inputs(_parts(w))
    w.start()
    w.product("F", (0, w.columns), "G", "H", "+=")
    for (f,), direction, ranges in w.directions():
        w.next_state("H", f("G[{d},t,b,j]"), direction, ranges)
    return w.results()


@operator("GRU")
def gru(node: Node) -> Sequence[Result]:
    """h' = (1 - z) * g(Wx + r * Rh) + z * h, with gates z and r.

    With linear_before_reset, r is a factor of R h and its bias, else of h.
    """
    w = Writer(node, 3, ("Sigmoid", "Tanh"), "H")
    f, hidden = w.of, w.of.hidden
    linear = node.flag("linear_before_reset") if node.opset >= 3 else False
    w.masks()
    if linear:
        w.gate_inputs(min(_parts(w), 1))
        w.start()
        if f.bias is not None:
            w.operand("B", f.bias)
        # Kept apart from G, because r is a factor of a part of it.
        w.temporary("S", f.directions, f.steps, f.batch, w.columns)
        w.product("F", (0, w.columns), "S", "H", "+=!")
    else:
        w.gate_inputs(_parts(w))
        w.start()
        w.temporary("Q", f.directions, f.steps, f.batch, hidden)
        w.temporary("S", f.directions, f.steps, f.batch, hidden)
        w.product("F", (0, 2 * hidden), "G", "H", "+=")

    def gate(k: int) -> str:
        value = f"G[{{d}},t,b,{w.unit(k)}]"
        return f"{value} + {state_part(k)}" if linear and k < 2 else value

    def state_part(k: int) -> str:
        value = f"S[{{d}},t,b,{w.unit(k)}]"
        return value if f.bias is None else f"({value} + B[{{d}},{w.unit(3 + k)}])"

    if not linear:
        for (activation, _), direction, ranges in w.directions():
            w.each(f"Q[{{d}},t,b,j] = {activation(gate(1))} * H[{{d}},t,b,j]", direction, ranges)
        w.product("E", (2 * hidden, w.columns), "S", "Q", "+=!")
    for (activation, g), direction, ranges in w.directions():
        reset = f"{activation(gate(1))} * {state_part(2)}" if linear else "S[{d},t,b,j]"
        made = f"{gate(2)} + {reset}"
        z = activation(gate(0))
        w.next_state("H", f"(1 - {z}) * {g(made)} + {z} * H[{{d}},t,b,j]", direction, ranges)
    return w.results()


@operator("LSTM")
def lstm(node: Node) -> Sequence[Result]:
    """c' = f * c + i * g(…);  h' = o * h(c'), with gates i, o and f, which may see c, too."""
    return lstm_results(Writer(node, *LSTM))


#: Gates, activation functions and states.
LSTM = (4, ("Sigmoid", "Tanh", "Tanh"), "HC")


def lstm_results(w: Writer) -> list[Result]:
    """The program of an LSTM, with the products that its writer makes."""
    node = w.node
    hidden, peepholes = w.of.hidden, node.optional(7)
    check_shape(node, "P", peepholes, (w.of.directions, 3 * hidden))
    w.masks()
    w.gate_inputs(_parts(w))
    w.start()
    if peepholes is not None:
        w.operand("P", peepholes)
    coupled = node.flag("input_forget")
    w.product("F", (0, w.columns), "G", "H", "+=")

    def gate(k: int, step: str = "t") -> str:
        value = f"G[{{d}},t,b,{w.unit(k)}]"
        if peepholes is None or k == 3:
            return value
        return f"{value} + P[{{d}},{w.unit(k)}] * C[{{d}},{step},b,j]"

    for (f, g, h), direction, ranges in w.directions():
        i = f(gate(0))
        forget = f"(1 - {i})" if coupled else f(gate(2))
        made = f"{forget} * C[{{d}},t,b,j] + {i} * {g(gate(3))}"
        w.next_state("C", made, direction, ranges)
        # As in other implementations, inputs of gates are clipped, but the cell state is not.
        w.next_state("H", f"{f(gate(1, 't+1'))} * {h('C[{d},t+1,b,j]', False)}", direction, ranges)
    return w.results()


def _parts(w: Writer) -> int:
    """How many parts the bias has: that of W and that of R."""
    return 0 if w.of.bias is None else 2
