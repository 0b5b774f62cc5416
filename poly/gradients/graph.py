"""Gradients of graphs: those of their programs, call by call, from the last to the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from poly.errors import GradientError
from poly.gradients.request import dependent
from poly.gradients.reverse import gradient
from poly.ir.expr import Const, Expr, Index, Op, Read, sizes_of
from poly.ir.graph import Call, Graph, GraphNode, View, verify_graph
from poly.ir.program import Program, Range, Statement, Tensor, fresh_name


@dataclass(frozen=True)
class GraphGradient:
    """A graph with the gradients of one of its values.

    gradients : by the names of the values with respect to which they are, the values of `graph`;
        those on which the scalar does not depend are left out
    """

    graph: Graph
    gradients: Mapping[str, str]


def graph_gradient(graph: Graph, of: str, wrt: Sequence[str]) -> GraphGradient:
    """The graph with the gradients of a scalar with respect to some values added.

    Raises
    ------
    GradientError : a value that has no gradient, or a node that has none.
    """
    if graph.values[of].shape or not graph.values[of].dtype.is_float:
        raise GradientError(f"{graph.label(of)} is {graph.values[of]}: expected a scalar float")
    return _Backward(graph, of, wrt).result()


class _Backward:
    """The nodes of a gradient, as they are made."""

    def __init__(self, graph: Graph, of: str, wrt: Sequence[str]) -> None:
        self._graph, self._of, self._wrt = graph, of, tuple(wrt)
        self._values = dict(graph.values)
        self._constants = dict(graph.constants)
        self._taken = {*graph.values, *(n.name for n in graph.nodes)}
        self._nodes: list[GraphNode] = []
        #: What flows to each value from those that use it.
        self._parts: dict[str, list[str]] = {}
        self._known: dict[tuple[Program, tuple[str, ...], tuple[str, ...]], _Part | None] = {}
        self._active = _reached(graph, wrt)

    def result(self) -> GraphGradient:
        one = self._value("one", self._graph.values[self._of])
        self._constants[one] = np.ones((), self._graph.values[self._of].dtype.numpy)
        self._parts[self._of] = [one]
        for node in reversed(self._graph.nodes):
            given = {o: self._sum(o) for o in node.outputs if o in self._parts}
            if given and not self._active.isdisjoint(node.inputs):
                self._reverse(node, given)
        gradients = {}
        for name in self._wrt:
            if name in self._parts:
                gradients[name] = self._sum(name)
        whole = replace(
            self._graph, values=self._values, constants=self._constants,
            nodes=(*self._graph.nodes, *self._nodes),
            outputs=(*self._graph.outputs, *gradients.values()),
        )  # fmt: skip
        return GraphGradient(verify_graph(whole), gradients)

    def _reverse(self, node: GraphNode, given: Mapping[str, str]) -> None:
        if isinstance(node, View):
            (gradient_value,) = given.values()
            new = self._value(f"d{node.input}", self._graph.values[node.input])
            self._nodes.append(View(self._name(node.name), gradient_value, new, node.origin))
            self._parts.setdefault(node.input, []).append(new)
        elif isinstance(node, Call):
            self._reverse_call(node, given)
        else:
            raise GradientError(
                f"{node.origin or node.name} has no gradient: it is no comprehension"
            )

    def _reverse_call(self, call: Call, given: Mapping[str, str]) -> None:
        program = call.program
        bound = zip(program.inputs, call.inputs, strict=True)
        wrt = tuple(t.name for t, v in bound if v in self._active)
        results = dict(zip((t.name for t in program.outputs), call.outputs, strict=True))
        of = tuple(n for n, v in results.items() if v in given)
        part = self._part(program, wrt, of, call.title)
        if part is None:
            return
        values = dict(zip((t.name for t in program.inputs), call.inputs, strict=True))
        new = []
        for name in part.wrt:
            made = self._value(f"d{values[name]}", self._graph.values[values[name]])
            self._parts.setdefault(values[name], []).append(made)
            new.append(made)
        seeds = tuple(given[results[n]] for n in part.of)
        self._nodes.append(
            Call(self._name(call.name), part.program, (*call.inputs, *seeds), tuple(new),
                 f"gradient of {call.title}")
        )  # fmt: skip

    def _part(
        self, program: Program, wrt: tuple[str, ...], of: tuple[str, ...], title: str
    ) -> _Part | None:
        """The gradient of a program, made once."""
        key = program, wrt, of
        if key not in self._known:
            inputs, outputs = dependent(program, wrt, of)
            try:
                made = gradient(program, inputs, outputs, unit=False) if inputs else None
            except GradientError as error:
                raise GradientError(f"{title}: {error}") from None
            self._known[key] = None if made is None else _Part(made, inputs, outputs)
        return self._known[key]

    def _sum(self, value: str) -> str:
        """The gradient with respect to a value: the sum of what flows to it."""
        parts = self._parts[value]
        while len(parts) > 1:
            a, b = parts.pop(), parts.pop()
            tensor = self._graph.values[value]
            made = self._value(f"d{value}", tensor)
            self._nodes.append(
                Call(self._name("add"), _sum_of(tensor), (b, a), (made,), "gradient")
            )
            parts.append(made)
        return parts[0]

    def _value(self, name: str, like: Tensor) -> str:
        made = fresh_name(name, self._taken)
        self._values[made] = replace(like, name=made)
        return made

    def _name(self, name: str) -> str:
        return fresh_name(f"{name}_gradient", self._taken)


@dataclass(frozen=True)
class _Part:
    """The gradient of a program, with respect to which inputs, of which outputs."""

    program: Program
    wrt: tuple[str, ...]
    of: tuple[str, ...]


def _reached(graph: Graph, wrt: Iterable[str]) -> frozenset[str]:
    """The float values that depend on some."""
    found = set(wrt)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found |= {o for o in node.outputs if graph.values[o].dtype.is_float}
    return frozenset(found)


def _sum_of(tensor: Tensor) -> Program:
    """``C[i, j] = A[i, j] + B[i, j]``"""
    names = [f"i{k}" for k in range(tensor.rank)]
    at = tuple(map(Index, names))
    ranges = tuple(Range(i, Const(0), e) for i, e in zip(names, tensor.shape, strict=True))
    a, b, c = (Tensor(n, tensor.dtype, tensor.shape) for n in "ABC")
    value: Expr = Op("add", (Read("A", at), Read("B", at)))
    statement = Statement("S0", Read("C", at), "=", False, value, ranges)
    sizes = tuple(dict.fromkeys(n for e in tensor.shape for n in sizes_of(e)))
    return Program("add", sizes, (a, b), (c,), (), (statement,))
