"""Graphs: programs connected by named values; models are imported as these.

Every arithmetic node is a call of a `Program`; a `View` renames the same bytes under another
shape.  A `Routine`, in graphs for a processor, is what no program expresses.  Constants are
held once, as arrays, and never become literals in generated code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from poly.errors import ProgramError
from poly.ir.expr import Const, Expr, Size, evaluate_int
from poly.ir.linear_form import Linear, linear_form
from poly.ir.port import Port
from poly.ir.program import Program, Tensor


@dataclass(frozen=True)
class Call:
    """One use of a program.

    `inputs` and `outputs` name graph values, in the order of the program's own inputs and
    outputs.  `origin` names the node of the model, for messages: ``Conv 'conv1' (opset 11)``.
    """

    name: str
    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    origin: str = ""

    @property
    def title(self) -> str:
        """The origin, on one line; the name if the origin is unknown."""
        return _on_one_line(self.origin or self.name)

    def __str__(self) -> str:
        return f"{', '.join(self.outputs)} = {self.name}({', '.join(self.inputs)})  # {self.origin}"


@dataclass(frozen=True)
class View:
    """``output`` is ``input`` under another shape with equally many elements, row-major."""

    name: str
    input: str
    output: str
    origin: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.input,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output,)

    def __str__(self) -> str:
        return f"{self.output} = view({self.input})  # {self.origin}"


#: What a routine is told besides its tensors: a number over the graph's sizes, several of them as
#: an array, or a float.
Argument = Expr | tuple[Expr, ...] | float


@dataclass(frozen=True)
class Routine:
    """A call of a function for which there is no program, and which is written in C by hand.

    kind, mode : which one, and a choice that it has, see `codegen.routines`
    scratch : the width in bytes and the shape of the memory that it needs
    failure : what is wrong if it fails
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    mode: str = ""
    scratch: tuple[int, tuple[Expr, ...]] | None = None
    origin: str = ""
    failure: str = ""

    @property
    def title(self) -> str:
        """The origin, on one line; the name if the origin is unknown."""
        return _on_one_line(self.origin or self.name)

    def __str__(self) -> str:
        kind = f"{self.kind}:{self.mode}" if self.mode else self.kind
        return f"{', '.join(self.outputs)} = {kind}({', '.join(self.inputs)})  # {self.origin}"


GraphNode = Call | View | Routine


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class Graph:
    """A model: values, constants, and nodes in an order in which they can run.

    `values` declares every value (inputs, constants, intermediates, outputs) as a `Tensor`.  Their
    shapes are numbers or, in an open graph, affine in `sizes`, which the shapes of inputs show,
    and in `derived` ones, which are given by expressions over `sizes`.  `labels` maps value names
    back to the names in the model file.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Tensor]
    constants: Mapping[str, np.ndarray]
    nodes: tuple[GraphNode, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[str, ...] = ()
    derived: Mapping[str, Expr] = field(default_factory=dict)

    def label(self, value: str) -> str:
        """The name of a value in the model file."""
        return self.labels.get(value, value)

    def shape(self, value: str) -> tuple[int, ...]:
        """Concrete shape of a value."""
        return static_shape(self.values[value])

    def port(self, value: str) -> Port:
        """An input or output; its sizes are numbers where fixed, and names where they have one."""
        tensor = self.values[value]
        shape = tuple(
            int(e.value) if isinstance(e, Const) else e.name if isinstance(e, Size) else None
            for e in tensor.shape
        )
        return Port(self.label(value), tensor.dtype, shape)

    def environment(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The values of all sizes, derived ones included."""
        env = dict(sizes)
        return env | {name: evaluate_int(e, env) for name, e in self.derived.items()}

    def at_sizes(self, sizes: Mapping[str, int]) -> Graph:
        """The graph with values of concrete shapes; the programs are unchanged."""
        env = self.environment(sizes)

        def fixed(t: Tensor) -> Tensor:
            return replace(t, shape=tuple(Const(evaluate_int(e, env)) for e in t.shape))

        return replace(self, values={k: fixed(t) for k, t in self.values.items()})

    def __str__(self) -> str:
        ins = ", ".join(str(self.values[v]) for v in self.inputs)
        outs = ", ".join(str(self.values[v]) for v in self.outputs)
        return "\n".join(
            [f"graph {self.name}({ins}) -> ({outs}) {{", *(f"    {n}" for n in self.nodes), "}"]
        )


def static_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape as integers.

    Raises
    ------
    ProgramError : if an extent is still symbolic.
    """
    shape = []
    for extent in tensor.shape:
        if not isinstance(extent, Const):
            raise ProgramError(f"{tensor}: extent {extent} is not known")
        shape.append(int(extent.value))
    return tuple(shape)


def verify_graph(graph: Graph) -> Graph:
    """Check that every value is declared, defined once and before its use; returns the graph.

    Views of open sizes are not checked: their element counts depend on the sizes.

    Raises
    ------
    ProgramError : naming the node or value that breaks a rule.
    """
    defined: set[str] = set(graph.inputs) | set(graph.constants)
    for name in (*defined, *graph.outputs):
        if name not in graph.values:
            raise ProgramError(f"value {name} is not declared")
    if len(set(graph.sizes)) < len(graph.sizes):
        raise ProgramError("a size is named twice")
    for name, array in graph.constants.items():
        if array.shape != graph.shape(name) or array.dtype != graph.values[name].dtype.numpy:
            raise ProgramError(f"constant {name} differs from its declaration {graph.values[name]}")
    for node in graph.nodes:
        for name in node.inputs:
            if name not in defined:
                raise ProgramError(f"{node.name} uses {name} before it is defined")
        for name in node.outputs:
            if name not in graph.values:
                raise ProgramError(f"{node.name} defines {name}, which is not declared")
            if name in defined:
                raise ProgramError(f"{name} is defined twice")
            defined.add(name)
        if isinstance(node, Call):
            _verify_call(node, graph)
        elif isinstance(node, View) and not (graph.sizes or _keeps_count(node, graph)):
            raise ProgramError(f"{node.name}: a view must keep the number of elements")
    for name in graph.outputs:
        if name not in defined:
            raise ProgramError(f"output {name} is never defined")
    return graph


def _verify_call(call: Call, graph: Graph) -> None:
    program = call.program
    if program.updated:
        raise ProgramError(f"{call.name}: a graph calls purely functional programs")
    for size in program.sizes:
        if size not in graph.sizes and size not in graph.derived:
            raise ProgramError(f"{call.name}: the graph has no size {size}")
    for names, tensors in ((call.inputs, program.inputs), (call.outputs, program.outputs)):
        if len(names) != len(tensors):
            raise ProgramError(f"{call.name}: {len(names)} values for {len(tensors)} tensors")
        for name, tensor in zip(names, tensors, strict=True):
            value = graph.values[name]
            if value.dtype != tensor.dtype or not same_shape(value, tensor):
                raise ProgramError(f"{call.name}: {value} does not match {tensor}")


def same_shape(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape, for all sizes."""
    return a.rank == b.rank and all(
        e == f or (linear_form(e) - linear_form(f)) == Linear(())
        for e, f in zip(a.shape, b.shape, strict=True)
    )


def _keeps_count(view: View, graph: Graph) -> bool:
    return prod(graph.shape(view.input)) == prod(graph.shape(view.output))
