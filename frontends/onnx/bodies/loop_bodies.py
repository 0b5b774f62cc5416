"""Bodies of loops as blocks of the language: ``for step in 0:T { … }``.

A body that is nothing but comprehensions is imported as a graph of its own, and what its calls do
becomes statements of one block.  As in recurrent networks, whatever a step makes has the step as
its first place, so that nothing is overwritten; the state before a step is ``H[step,…]``, the one
after it ``H[step+1,…]``.  What the body takes from outside stays as it is.
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
#: The most elements that all steps together may make of one value.
MAX_ELEMENTS = 1 << 28
#: The most statements of one step: dependences among many more take long to compute.
MAX_STATEMENTS = 48

Places = Sequence[Expr]
#: From the place of an element in the body to that in the program.
Place = Callable[[Places], Read]


class NoBlockError(Exception):
    """A body that cannot be written as a block."""


@dataclass(frozen=True)
class Sequenced:
    """Where the part that belongs to a step lies in a sequence: along an axis, from either end."""

    axis: int
    backward: bool = False


@dataclass(frozen=True, eq=False)
class Body:
    """A body and how it is run.

    graph : gives the next states, then a part of each sequence that is collected
    count : the number of steps; trip : the label of the input that is the number of the step
    states : by label of the input, the initial state; sequences : by label, the whole sequence
    captured : by label, what comes from outside
    batch : how often all of that is done, None for once: the first extent of states and sequences
    """

    graph: Graph
    count: Extent
    trip: str
    states: Mapping[str, Value]
    sequences: Mapping[str, tuple[Value, Sequenced]]
    captured: Mapping[str, Value]
    collected: tuple[Sequenced, ...]
    batch: Extent | None = None


#: What a body becomes before its statements are written down as those of a step.
_PASSES = (
    Pass(simplify_views),
    Pass(eliminate_common_calls),
    Pass(merge_calls),
    Pass(simplify_views),
    Pass(eliminate_dead_calls),
)


def as_block(name: str, body: Body) -> Compute:
    """The call that runs all steps: final states and collected sequences out.

    Raises
    ------
    NoBlockError : for a body that has steps itself, or changes the shape of a state.
    """
    graph = run_passes(body.graph, _PASSES, None, verify_graph)
    return _Writer(replace(body, graph=graph)).call(name)


@dataclass
class _Writer:
    """The program, as its parts are written.

    places : of the graph's values; states : by the graph's inputs, the tensors of all steps
    """

    body: Body
    places: dict[str, Place] = field(default_factory=dict)
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
                self.places[node.output] = self._viewed(node)
            else:
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
        """The index and extent in front of everything that a step makes."""
        return {} if self.body.batch is None else {BATCH: extent_expr(self.body.batch)}

    def _places_of(self, tensor: str, step: Expr) -> Place:
        """The places of what belongs to a step."""
        return _at(tensor, step, *map(Index, self.lead))

    def _all(self, shape: Places) -> Places:
        """The shape of what all batches make."""
        return (*self.lead.values(), *shape)

    def _shape(self, value: str) -> tuple[Expr, ...]:
        return self.body.graph.values[value].shape

    def _tensor(self, where: list[Tensor], letter: str, dtype: DType, shape: Places) -> str:
        name = f"{letter}{len(where)}"
        where.append(Tensor(name, dtype, tuple(shape)))
        return name

    def _stepped(self, dtype: DType, shape: Places, letter: str = "V", more: int = 0) -> str:
        """A temporary with a place for each step."""
        shape = self._all(shape)
        size = hint_of(self.body.count) * math.prod(map(_hint, shape))
        if size > MAX_ELEMENTS:
            raise NoBlockError(f"all steps make {size} elements")
        count = extent_expr(self.body.count + more)
        return self._tensor(self.temps, letter, dtype, (count, *shape))

    def _own(self, tensor: Tensor) -> Place:
        return self._places_of(self._stepped(tensor.dtype, tensor.shape), Index(STEP))

    def _operand(self, value: Value | np.ndarray, dtype: DType, shape: Places) -> str:
        self.operands.append(value)
        return self._tensor(self.inputs, "X", dtype, shape)

    def _inputs(self) -> None:
        """The places of what the body starts from."""
        body, graph = self.body, self.body.graph
        for name in graph.inputs:
            label, tensor = graph.label(name), graph.values[name]
            if label == body.trip:
                trips = self._tensor(self.temps, "N", INT64, (self.count,))
                self.places[name] = _at(trips, Index(STEP))
                self.before.append(
                    Statement("", Read(trips, (Index("i"),)), "=", False, Index("i"),
                              (Range("i", Const(0), self.count),))
                )  # fmt: skip
            elif label in body.states:
                state = self._stepped(tensor.dtype, tensor.shape, "H", more=1)
                given = self._operand(body.states[label], tensor.dtype, self._all(tensor.shape))
                self.places[name] = self._places_of(state, Index(STEP))
                self.states[name] = state
                first = _copy(_at(state, Const(0)), _at(given), self._all(tensor.shape))
                self.before.append(first)
            elif label in body.sequences:
                value, how = body.sequences[label]
                whole = self._operand(value, value.dtype, tuple(map(extent_expr, value.shape)))
                self.places[name] = self._part(whole, how)
            else:
                value = body.captured[label]
                self.places[name] = _at(self._operand(value, tensor.dtype, tensor.shape))
        for name, array in graph.constants.items():
            tensor = graph.values[name]
            self.places[name] = _at(self._operand(array, tensor.dtype, tensor.shape))

    def _part(self, whole: str, how: Sequenced) -> Place:
        """The places of a step's part of a sequence."""
        step: Expr = Index(STEP)
        if how.backward:
            step = sub(extent_expr(self.body.count - 1), step)

        def place(indices: Places) -> Read:
            places = (*indices[: how.axis], step, *indices[how.axis :])
            return Read(whole, (*map(Index, self.lead), *places))

        return place

    def _targets(self) -> dict[str, Place]:
        """Where calls can put what the body gives; declares the outputs."""
        body, graph = self.body, self.body.graph
        found: dict[str, Place] = {}
        for (source, state), name in zip(self.states.items(), graph.outputs, strict=False):
            tensor = graph.values[name]
            if (tensor.dtype, tensor.shape) != (graph.values[source].dtype, self._shape(source)):
                raise NoBlockError("a state changes its type")
            self._tensor(self.outputs, "Y", tensor.dtype, self._all(tensor.shape))
            found.setdefault(name, self._places_of(state, add(Index(STEP), Const(1))))
        for name, raw in zip(graph.outputs[len(self.states) :], body.collected, strict=True):
            tensor = graph.values[name]
            how = _from_front(raw, tensor.rank + 1)
            shape = [*tensor.shape[: how.axis], self.count, *tensor.shape[how.axis :]]
            whole = self._tensor(self.outputs, "Y", tensor.dtype, self._all(shape))
            found.setdefault(name, self._part(whole, how))
        return found

    # --- statements ---

    def _viewed(self, view: View) -> Place:
        """The places of a value under another shape."""
        source, inner, outer = self.places[view.input], *map(self._shape, (view.input, view.output))
        one = Const(1)
        if [e for e in inner if e != one] == [e for e in outer if e != one]:

            def same(indices: Places) -> Read:
                rest = iter([i for i, e in zip(indices, outer, strict=True) if e != one])
                return source([Const(0) if e == one else next(rest) for e in inner])

            return same
        if not all(isinstance(e, Const) for e in (*inner, *outer)):
            raise NoBlockError("a view of open sizes")

        def flat(indices: Places) -> Read:
            position: Expr = Const(0)
            for index, extent in zip(indices, outer, strict=True):
                position = add(mul(position, extent), index)
            places: list[Expr] = []
            for size in map(_hint, reversed(inner)):
                places.insert(0, mod(position, size))
                position = floordiv(position, size)
            return source(places)

        return flat

    def _call(self, call: Call, targets: Mapping[str, Place]) -> None:
        """What a call does, as statements of the block."""
        program = call.program
        own: dict[str, Place] = {}
        for tensor, name in zip(program.inputs, call.inputs, strict=True):
            own[tensor.name] = self.places[name]
        for tensor, name in zip(program.outputs, call.outputs, strict=True):
            place = targets.get(name)
            if place is None:
                place = self._own(tensor)
            own[tensor.name] = self.places[name] = place
        for tensor in program.temps:
            own[tensor.name] = self._own(tensor)

        def moved(e: Expr) -> Expr:
            return own[e.tensor](e.indices) if isinstance(e, Read) else e

        for s in program.statements:
            if s.block or {STEP, BATCH} & set(s.indices):
                raise NoBlockError("a loop in a loop")
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
        """The ranges of what is done for each step."""
        extents = {STEP: self.count, **self.lead}
        return tuple(Range(index, Const(0), extent) for index, extent in extents.items())

    def _numbered(self, value: Expr) -> Expr:
        """A value in which the number of the step needs no table; a place that it decides does."""
        if isinstance(value, Read):
            return Index(STEP) if value.tensor.startswith("N") else value
        if isinstance(value, Op):
            return replace(value, args=tuple(map(self._numbered, value.args)))
        if isinstance(value, Cast):
            return replace(value, arg=self._numbered(value.arg))
        return value

    def _results(self, targets: Mapping[str, Place]) -> None:
        """What is left to copy: states that are handed on, final ones, values that are two."""
        body, graph = self.body, self.body.graph
        made = {o for node in graph.nodes if isinstance(node, Call) for o in node.outputs}
        given: set[str] = set()
        states = list(self.states.values())
        for number, (name, output) in enumerate(zip(graph.outputs, self.outputs, strict=True)):
            direct, shape = name in made and name not in given, self._shape(name)
            given.add(name)
            if number < len(states):
                if not direct:
                    after = self._places_of(states[number], add(Index(STEP), Const(1)))
                    self._step(_copy(after, self.places[name], shape))
                end = _at(states[number], self.count)
                self.after.append(_copy(_at(output.name), end, self._all(shape)))
            elif not direct:
                how = _from_front(body.collected[number - len(states)], len(shape) + 1)
                copy = _copy(self._part(output.name, how), self.places[name], shape)
                self.after.append(replace(copy, ranges=(*self._steps, *copy.ranges)))


def _apart(
    block: Sequence[Statement], states: Collection[str]
) -> tuple[list[Statement], list[Statement], list[Statement]]:
    """What needs no state and what no state needs, for all steps at once, and what is between.

    A product of each part of a sequence is one large product before the first step.
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


def _at(tensor: str, *first: Expr) -> Place:
    """Places in a tensor, behind these."""
    return lambda indices: Read(tensor, (*first, *indices))


def _copy(target: Place, source: Place, shape: Places) -> Statement:
    """A statement that copies a value of a shape."""
    indices = names(len(shape))
    ranges = tuple(Range(i, Const(0), e) for i, e in zip(indices, shape, strict=True))
    place = tuple(map(Index, indices))
    return Statement("", target(place), "=", False, source(place), ranges)


def _hint(extent: Expr) -> int:
    """The value of an extent for the arrays at hand."""
    known = CURRENT.get()
    assert known is not None, "there is an import that goes on"
    return hint_of(known.extent(extent))


def _proved(program: Program, used: set[str], constraints: Mapping[str, None]) -> Program:
    """The program as its text says, with what is known of sizes; all places are checked."""
    known = CURRENT.get()
    assert known is not None, "there is an import that goes on"
    tensors = (*program.inputs, *program.outputs, *program.temps)
    sizes = sorted(used | {n for t in tensors for e in t.shape for n in sizes_of(e)})
    facts = {**constraints, **dict.fromkeys(known.facts(sizes))}
    text = str(replace(program, sizes=tuple(sizes)))
    head, rest = text.split(" {\n", 1)
    where = f" where {', '.join(facts)}" if facts else ""
    return parsed(f"{head}{where} {{\n{rest}")
