"""Bodies of loops as blocks of the language: ``for step in 0:T { … }``.

A body that consists of comprehensions is imported as a graph of its own, and the programs that it
calls become statements of one block.  As in recurrent networks, the step is the first index of
everything that a step computes, so that nothing is overwritten; the state before a step is
``H[step,…]``, the one after it ``H[step+1,…]``.  Captured values stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from frontends.onnx.core.comprehension_text import names, parsed
from frontends.onnx.core.node import Compute, Value
from frontends.onnx.core.symbolic_dims import CURRENT, Extent, extent_expr, hint_of
from poly.graph_passes.fuse_calls import merge_calls
from poly.graph_passes.simplify_graph import (
    eliminate_common_calls,
    eliminate_dead_calls,
    simplify_views,
)
from poly.ir.dtypes import INT64, DType
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    floordiv,
    mod,
    mul,
    rewrite,
    sizes_of,
    sub,
)
from poly.ir.graph import Call, Graph, View, verify_graph
from poly.ir.program import Program, Range, Statement, Tensor, default_name
from poly.passes import Pass, run_passes

STEP, BATCH = "step", "batch"
#: The most elements that all steps together may compute of one value.
MAX_ELEMENTS = 1 << 28
#: The most statements of one step: dependences among many more take long to compute.
MAX_STATEMENTS = 48

Exprs = Sequence[Expr]
#: From the indices of an element of a value in the body to its read in the program.
Element = Callable[[Exprs], Read]


class NoBlockError(Exception):
    """A body that cannot be written as a block."""


@dataclass(frozen=True)
class Sequenced:
    """The part of a sequence that belongs to a step: along which axis, and from which end."""

    axis: int
    backward: bool = False


@dataclass(frozen=True, eq=False)
class Body:
    """A body and how it is run.

    graph : computes the next states, then a part of each collected sequence
    count : the number of steps; trip : the label of the input that is the number of the step
    states : by label of the input, the initial state; sequences : by label, the whole sequence
    captured : by label, the values from outside the body
    batch : how many independent loops there are, the first extent of states and sequences; None
    for one loop without such an axis
    """

    graph: Graph
    count: Extent
    trip: str
    states: Mapping[str, Value]
    sequences: Mapping[str, tuple[Value, Sequenced]]
    captured: Mapping[str, Value]
    collected: tuple[Sequenced, ...]
    batch: Extent | None = None


#: Passes over the graph of a body before its calls become statements of a step.
_PASSES = (
    Pass(simplify_views),
    Pass(eliminate_common_calls),
    Pass(merge_calls),
    Pass(simplify_views),
    Pass(eliminate_dead_calls),
)


def as_block(name: str, body: Body) -> Compute:
    """The call that runs all steps; its outputs are final states and collected sequences.

    Raises
    ------
    NoBlockError : for a body that contains a block, or changes the shape of a state.
    """
    graph = run_passes(body.graph, _PASSES, None, verify_graph)
    return _Writer(replace(body, graph=graph)).call(name)


@dataclass
class _Writer:
    """The program, as its parts are written.

    elements : of the graph's values; states : by the graph's inputs, the tensors of all steps
    """

    body: Body
    elements: dict[str, Element] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
    operands: list[Value | np.ndarray] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    temps: list[Tensor] = field(default_factory=list)
    before: list[Statement] = field(default_factory=list)
    block: list[Statement] = field(default_factory=list)
    after: list[Statement] = field(default_factory=list)
    constraints: dict[str, None] = field(default_factory=dict)
    sizes: set[str] = field(default_factory=set)

    def call(self, name: str) -> Compute:
        graph = self.body.graph
        self._inputs()
        targets = self._targets()
        for node in graph.nodes:
            if isinstance(node, View):
                self.elements[node.output] = self._viewed(node)
            elif isinstance(node, Call):
                self._call(node, targets)
        self._results(targets)
        if len(self.block) > MAX_STATEMENTS:
            raise NoBlockError(f"{len(self.block)} statements for each step")
        first, block, last = _apart(self.block, self.states.values())
        statements = (*self.before, *first, *block, *last, *self.after)
        numbered = (replace(s, name=default_name(n)) for n, s in enumerate(statements))
        made = Program(
            name, (), tuple(self.inputs), tuple(self.outputs), tuple(self.temps), tuple(numbered)
        )
        return Compute(_proved(made, self.sizes, self.constraints), tuple(self.operands))

    # --- tensors ---

    @property
    def count(self) -> Expr:
        return extent_expr(self.body.count)

    @property
    def lead(self) -> dict[str, Expr]:
        """The leading index, and its extent, of everything that a step computes."""
        return {} if self.body.batch is None else {BATCH: extent_expr(self.body.batch)}

    def _of_step(self, tensor: str, step: Expr) -> Element:
        """The elements of a value of a step."""
        return _at(tensor, step, *map(Index, self.lead))

    def _all(self, shape: Exprs) -> Exprs:
        """The shape of a value for all batches."""
        return (*self.lead.values(), *shape)

    def _shape(self, value: str) -> tuple[Expr, ...]:
        return self.body.graph.values[value].shape

    def _tensor(self, where: list[Tensor], letter: str, dtype: DType, shape: Exprs) -> str:
        name = f"{letter}{len(where)}"
        where.append(Tensor(name, dtype, tuple(shape)))
        return name

    def _stepped(self, dtype: DType, shape: Exprs, letter: str = "V", more: int = 0) -> str:
        """A temporary whose first axis is the steps."""
        shape = self._all(shape)
        size = hint_of(self.body.count) * math.prod(map(_hint, shape))
        if size > MAX_ELEMENTS:
            raise NoBlockError(f"all steps make {size} elements")
        count = extent_expr(self.body.count + more)
        return self._tensor(self.temps, letter, dtype, (count, *shape))

    def _own(self, tensor: Tensor) -> Element:
        return self._of_step(self._stepped(tensor.dtype, tensor.shape), Index(STEP))

    def _operand(self, value: Value | np.ndarray, dtype: DType, shape: Exprs) -> str:
        self.operands.append(value)
        return self._tensor(self.inputs, "X", dtype, shape)

    def _inputs(self) -> None:
        """Declare what the body starts from: its elements, and the first states."""
        body, graph = self.body, self.body.graph
        for name in graph.inputs:
            label, tensor = graph.label(name), graph.values[name]
            if label == body.trip:
                trips = self._tensor(self.temps, "N", INT64, (self.count,))
                self.elements[name] = _at(trips, Index(STEP))
                self.before.append(
                    Statement("", Read(trips, (Index("i"),)), "=", False, Index("i"),
                              (Range("i", Const(0), self.count),))
                )  # fmt: skip
            elif label in body.states:
                state = self._stepped(tensor.dtype, tensor.shape, "H", more=1)
                given = self._operand(body.states[label], tensor.dtype, self._all(tensor.shape))
                self.elements[name] = self._of_step(state, Index(STEP))
                self.states[name] = state
                first = _copy(_at(state, Const(0)), _at(given), self._all(tensor.shape))
                self.before.append(first)
            elif label in body.sequences:
                value, how = body.sequences[label]
                whole = self._operand(value, value.dtype, tuple(map(extent_expr, value.shape)))
                self.elements[name] = self._part(whole, how)
            else:
                value = body.captured[label]
                self.elements[name] = _at(self._operand(value, tensor.dtype, tensor.shape))
        for name, array in graph.constants.items():
            tensor = graph.values[name]
            self.elements[name] = _at(self._operand(array, tensor.dtype, tensor.shape))

    def _part(self, whole: str, how: Sequenced) -> Element:
        """The elements of a step's part of a sequence."""
        step: Expr = Index(STEP)
        if how.backward:
            step = sub(extent_expr(self.body.count - 1), step)

        def element(indices: Exprs) -> Read:
            inserted = (*indices[: how.axis], step, *indices[how.axis :])
            return Read(whole, (*map(Index, self.lead), *inserted))

        return element

    def _targets(self) -> dict[str, Element]:
        """The elements that calls write for the results of the body; declares the outputs."""
        body, graph = self.body, self.body.graph
        found: dict[str, Element] = {}
        for (source, state), name in zip(self.states.items(), graph.outputs, strict=False):
            tensor = graph.values[name]
            if (tensor.dtype, tensor.shape) != (graph.values[source].dtype, self._shape(source)):
                raise NoBlockError("a state changes its type")
            self._tensor(self.outputs, "Y", tensor.dtype, self._all(tensor.shape))
            found.setdefault(name, self._of_step(state, add(Index(STEP), Const(1))))
        for name, raw in zip(graph.outputs[len(self.states) :], body.collected, strict=True):
            tensor = graph.values[name]
            how = _from_front(raw, tensor.rank + 1)
            shape = [*tensor.shape[: how.axis], self.count, *tensor.shape[how.axis :]]
            whole = self._tensor(self.outputs, "Y", tensor.dtype, self._all(shape))
            found.setdefault(name, self._part(whole, how))
        return found

    # --- statements ---

    def _viewed(self, view: View) -> Element:
        """The elements of a value under another shape."""
        source = self.elements[view.input]
        inner, outer = map(self._shape, (view.input, view.output))
        one = Const(1)
        if [e for e in inner if e != one] == [e for e in outer if e != one]:

            def same(indices: Exprs) -> Read:
                rest = iter([i for i, e in zip(indices, outer, strict=True) if e != one])
                return source([Const(0) if e == one else next(rest) for e in inner])

            return same
        if not all(isinstance(e, Const) for e in (*inner, *outer)):
            raise NoBlockError("a view of open sizes")

        def flat(indices: Exprs) -> Read:
            position: Expr = Const(0)
            for index, extent in zip(indices, outer, strict=True):
                position = add(mul(position, extent), index)
            inside: list[Expr] = []
            for size in map(_hint, reversed(inner)):
                inside.insert(0, mod(position, size))
                position = floordiv(position, size)
            return source(inside)

        return flat

    def _call(self, call: Call, targets: Mapping[str, Element]) -> None:
        """Add the statements of a call to the block."""
        program = call.program
        own: dict[str, Element] = {}
        for tensor, name in zip(program.inputs, call.inputs, strict=True):
            own[tensor.name] = self.elements[name]
        for tensor, name in zip(program.outputs, call.outputs, strict=True):
            element = targets.get(name)
            if element is None:
                element = self._own(tensor)
            own[tensor.name] = self.elements[name] = element
        for tensor in program.temps:
            own[tensor.name] = self._own(tensor)

        def moved(e: Expr) -> Expr:
            return own[e.tensor](e.indices) if isinstance(e, Read) else e

        for s in program.statements:
            if s.block or {STEP, BATCH} & set(s.indices):
                raise NoBlockError("nested loops")
            target = rewrite(s.target, moved)
            assert isinstance(target, Read)
            value, *guards = (self._numbered(rewrite(e, moved)) for e in (s.value, *s.guards))
            self._step(replace(s, target=target, value=value, guards=tuple(guards)))
        self.constraints |= dict.fromkeys(map(str, program.constraints))
        self.sizes |= set(program.sizes)

    def _step(self, s: Statement) -> None:
        self.block.append(replace(s, ranges=(*self._steps, *s.ranges), block=1))

    @property
    def _steps(self) -> tuple[Range, ...]:
        """The ranges of the statements of a step."""
        extents = {STEP: self.count, **self.lead}
        return tuple(Range(index, Const(0), extent) for index, extent in extents.items())

    def _numbered(self, value: Expr) -> Expr:
        """A value with the number of the step as an index; in indices of reads it stays a table."""
        if isinstance(value, Read):
            return Index(STEP) if value.tensor.startswith("N") else value
        if isinstance(value, Op):
            return replace(value, args=tuple(map(self._numbered, value.args)))
        if isinstance(value, Cast):
            return replace(value, arg=self._numbered(value.arg))
        return value

    def _results(self, targets: Mapping[str, Element]) -> None:
        """Copy what no call wrote directly: states, final states, values that are used twice."""
        body, graph = self.body, self.body.graph
        made = {o for node in graph.nodes if isinstance(node, Call) for o in node.outputs}
        given: set[str] = set()
        states = list(self.states.values())
        for number, (name, output) in enumerate(zip(graph.outputs, self.outputs, strict=True)):
            direct, shape = name in made and name not in given, self._shape(name)
            given.add(name)
            if number < len(states):
                if not direct:
                    after = self._of_step(states[number], add(Index(STEP), Const(1)))
                    self._step(_copy(after, self.elements[name], shape))
                end = _at(states[number], self.count)
                self.after.append(_copy(_at(output.name), end, self._all(shape)))
            elif not direct:
                how = _from_front(body.collected[number - len(states)], len(shape) + 1)
                copy = _copy(self._part(output.name, how), self.elements[name], shape)
                self.after.append(replace(copy, ranges=(*self._steps, *copy.ranges)))


def _apart(
    block: Sequence[Statement], states: Collection[str]
) -> tuple[list[Statement], list[Statement], list[Statement]]:
    """Split off, to run for all steps at once, what needs no state and what no state needs.

    Gives the statements before the block, those of the block, and those after it.

    So a product of each part of a sequence is one large product before the first step.
    """
    later, needed = set(states), set(states)
    first: list[Statement] = []
    rest: list[Statement] = []
    for s in block:
        if later.isdisjoint({s.target.tensor, *(r.tensor for r in s.reads)}):
            first.append(replace(s, block=0))
        else:
            later.add(s.target.tensor)
            rest.append(s)
    between: list[Statement] = []
    last: list[Statement] = []
    for s in reversed(rest):
        if s.target.tensor in needed:
            needed |= {r.tensor for r in s.reads}
            between.append(s)
        else:
            last.append(replace(s, block=0))
    return first, between[::-1], last[::-1]


def _from_front(how: Sequenced, rank: int) -> Sequenced:
    if not -rank <= how.axis < rank:
        raise NoBlockError(f"axis {how.axis} of rank {rank}")
    return replace(how, axis=how.axis % rank)


def _at(tensor: str, *first: Expr) -> Element:
    """Elements of a tensor whose first indices are `first`."""
    return lambda indices: Read(tensor, (*first, *indices))


def _copy(target: Element, source: Element, shape: Exprs) -> Statement:
    """A statement that copies a value of a shape."""
    indices = names(len(shape))
    ranges = tuple(Range(i, Const(0), e) for i, e in zip(indices, shape, strict=True))
    point = tuple(map(Index, indices))
    return Statement("", target(point), "=", False, source(point), ranges)


def _hint(extent: Expr) -> int:
    """The value of an extent for the current arrays."""
    known = CURRENT.get()
    assert known is not None, "an import is in progress"
    return hint_of(known.extent(extent))


def _proved(program: Program, used: set[str], constraints: Mapping[str, None]) -> Program:
    """The program, parsed from its text with what is known of sizes, so that bounds are proved."""
    known = CURRENT.get()
    assert known is not None, "an import is in progress"
    tensors = (*program.inputs, *program.outputs, *program.temps)
    sizes = sorted(used | {n for t in tensors for e in t.shape for n in sizes_of(e)})
    facts = {**constraints, **dict.fromkeys(known.facts(sizes))}
    text = str(replace(program, sizes=tuple(sizes)))
    head, rest = text.split(" {\n", 1)
    where = f" where {', '.join(facts)}" if facts else ""
    return parsed(f"{head}{where} {{\n{rest}")
