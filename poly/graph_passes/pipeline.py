"""Transformations of graphs: functions from a `Graph` to a `Graph` that computes the same.

`optimise_graph` is what compiling a model begins with:

* constants: calls of constants alone are computed, and so are parts of calls;
* views are composed, copies that change nothing become views, equal calls are made once;
* calls are merged where that saves a pass over memory (`poly.graph_passes.fuse_calls`);
* what is left of normalisations moves into the constants that they scale
  (`poly.rewrites.fold_constants`);
* products of many tensors are contracted two at a time (`poly.rewrites.contraction_path`);
* sums that see every s-th tap become dense ones, for each remainder of s
  (`poly.rewrites.polyphase`);
* values between convolutions are kept in blocks of channels (`poly.graph_passes.block_layouts`);
* dimensions that two loops share are split in two (`poly.rewrites.split_dimensions`);
* dimensions that loops run through together are joined (`poly.rewrites.join_dimensions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from poly.graph_passes.block_layouts import block_values
from poly.graph_passes.fuse_calls import merge_calls
from poly.ir.expr import Const, Index, Read
from poly.ir.graph import Call, Graph, View, same_shape, static_shape, verify_graph
from poly.ir.linear_form import Linear, constant, linear_form
from poly.ir.program import Program, Statement, Tensor
from poly.machine.cpu import Machine
from poly.rewrites.fold_constants import (
    Computed,
    Folded,
    Recipe,
    fold_affine,
    fold_scale,
    fold_statements,
)
from poly.rewrites.join_dimensions import join_in_graph
from poly.rewrites.merge_programs import count, covers, extents, instances
from poly.rewrites.polyphase import split_sums
from poly.rewrites.split_dimensions import split_in_graph

Pass = Callable[[Graph], Graph]
#: Gives a program's outputs for its inputs, by name.
Evaluate = Callable[[Program, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]

#: A call of constants is computed when its result has at most so many times their elements …
GROWTH = 2
#: … or this many in any case, and it has at most so many instances.
SMALL, INSTANCES = 1 << 14, 1 << 22


def apply_passes(graph: Graph, passes: Sequence[Pass]) -> Graph:
    """The graph after each pass in turn, verified in between."""
    for transform in passes:
        graph = verify_graph(transform(graph))
    return graph


def optimise_graph(graph: Graph, evaluate: Evaluate, machine: Machine | None = None) -> Graph:
    """The graph with fewer calls that do more each; `evaluate` computes constants.

    machine : the CPU whose vectors values are kept in blocks for, narrow products put together in
        pairs, and epilogues run on; None leaves values and products as they are, as for GPUs
    """
    return apply_passes(
        graph,
        [
            lambda g: fold_constants(g, evaluate),
            simplify_views,
            share_equal,
            lambda g: merge_calls(g, lanes=machine is not None),
            simplify_views,
            lambda g: fold_factors(g, evaluate),
            share_equal,
            lambda g: split_calls(g, pairs=machine is not None),
            lambda g: fold_constants(g, evaluate),
            lambda g: block_values(g, machine) if machine else g,
            split_in_graph,
            join_in_graph,
            simplify_views,
            remove_dead,
        ],
    )


def remove_dead(graph: Graph) -> Graph:
    """Without the nodes, constants and values on which no output depends."""
    wanted = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.outputs):
            wanted.update(node.inputs)
            nodes.append(node)
    nodes.reverse()
    kept = wanted | set(graph.inputs) | {o for n in nodes for o in n.outputs}
    return replace(
        graph,
        nodes=tuple(nodes),
        constants={k: v for k, v in graph.constants.items() if k in kept},
        values={k: v for k, v in graph.values.items() if k in kept},
        labels={k: v for k, v in graph.labels.items() if k in kept},
    )


# --- views and equal calls -------------------------------------------------------------------


def simplify_views(graph: Graph) -> Graph:
    """Views of views look at the original; copies in the same order become views."""
    source: dict[str, str] = {}
    nodes: list[Call | View] = []
    for node in graph.nodes:
        if isinstance(node, Call) and len(node.outputs) == 1 and copied_axes(node.program) == ():
            node = View(node.name, node.inputs[0], node.outputs[0], node.origin)
        if isinstance(node, View):
            node = replace(node, input=source.get(node.input, node.input))
            source[node.output] = node.input
        nodes.append(node)
    return _without_identities(replace(graph, nodes=tuple(nodes)))


def _without_identities(graph: Graph) -> Graph:
    """Without views of the same shape, except for outputs."""
    same: dict[str, str] = {}
    nodes: list[Call | View] = []
    for node in graph.nodes:
        node = _with_inputs(node, same)
        if (
            isinstance(node, View)
            and node.output not in graph.outputs
            and same_shape(graph.values[node.input], graph.values[node.output])
        ):
            same[node.output] = node.input
        else:
            nodes.append(node)
    return remove_dead(replace(graph, nodes=tuple(nodes)))


def _with_inputs(node: Call | View, names: Mapping[str, str]) -> Call | View:
    if isinstance(node, View):
        return replace(node, input=names.get(node.input, node.input))
    return replace(node, inputs=tuple(names.get(n, n) for n in node.inputs))


def copied_axes(program: Program) -> tuple[int, ...] | None:
    """The permutation by which a program copies its one input; () for none, None if it does more.

    ``Y[i,j] = X[j,i]`` gives (1, 0): ``Y = numpy.transpose(X, (1, 0))``.
    """
    if len(program.statements) != 1 or len(program.inputs) != 1 or program.sizes:
        return None
    s, source, target = program.statements[0], program.inputs[0], program.outputs[0]
    value = s.value
    if s.op != "=" or not isinstance(value, Read) or source.dtype != target.dtype:
        return None
    if not covers(s, target) or count(source) != count(target) or source.rank != target.rank:
        return None
    axes = []
    for place, extent in zip(s.target.indices, target.shape, strict=True):
        found = [
            d for d, own in enumerate(value.indices)
            if own == place and d not in axes and source.shape[d] == extent
        ]  # fmt: skip
        if not found or not (isinstance(place, Index) or extent == Const(1)):
            return None
        axes.append(found[0])
    moving = [d for d in axes if source.shape[d] != Const(1)]
    return () if moving == sorted(moving) else tuple(axes)


def copied_parts(program: Program) -> tuple[int, ...] | None:
    """At which elements of the output the inputs of a program lie, if all that it does is to put
    one input after the other in memory; None if it does more.

    Concatenation along the first axis of more than one element is such a program.
    """
    if program.sizes or program.temps or len(program.outputs) != 1:
        return None
    output, tensors = program.outputs[0], program.tensors
    starts: dict[str, int] = {}
    for s in program.statements:
        if s.op != "=" or s.guards or not isinstance(s.value, Read):
            return None
        source = tensors[s.value.tensor]
        if source.name in starts or source.dtype != output.dtype or source.name == output.name:
            return None
        place, origin = _address(s.target, output, s), _address(s.value, source, s)
        if (place - origin).terms or not _counts_up(s, origin, count(source)):
            return None
        starts[source.name] = place.constant
    if set(starts) != {t.name for t in program.inputs}:
        return None
    end = 0
    for name in sorted(starts, key=lambda n: starts[n]):
        if starts[name] != end or not count(tensors[name]):
            return None
        end += count(tensors[name])
    return tuple(starts[t.name] for t in program.inputs) if end == count(output) else None


def _address(read: Read, tensor: Tensor, s: Statement) -> Linear:
    """Where an element lies in a row-major array; an index that is always 0 takes no part."""
    address, stride = constant(0), 1
    for index, extent in zip(reversed(read.indices), reversed(static_shape(tensor)), strict=True):
        address += linear_form(index).scale(stride)
        stride *= extent
    for r in s.ranges:
        if (r.lo, r.hi) == (Const(0), Const(1)):
            address = address.without(Index(r.index))
    return address


def _counts_up(s: Statement, address: Linear, length: int) -> bool:
    """Whether the instances of a statement visit each address from 0 to `length` once."""
    if address.constant or any(r.lo != Const(0) for r in s.ranges):
        return False
    steps = {a.name: c for a, c in address.terms if isinstance(a, Index)}
    sizes = {i: n for i, n in extents(s).items() if n != 1}
    if len(steps) != len(address.terms) or any(i not in steps for i in sizes):
        return False
    step = 1
    for i in sorted(sizes, key=lambda i: steps[i]):
        if steps[i] != step:
            return False
        step *= sizes[i]
    return step == length


def share_equal(graph: Graph) -> Graph:
    """Calls of one program with the same inputs are made once."""
    first: dict[object, tuple[str, ...]] = {}
    same: dict[str, str] = {}
    nodes: list[Call | View] = []
    for old in graph.nodes:
        node = _with_inputs(old, same)
        what = node.program if isinstance(node, Call) else graph.values[node.output].shape
        key = (what, node.inputs)
        if key not in first:
            first[key] = node.outputs
            nodes.append(node)
            continue
        for ours, theirs in zip(node.outputs, first[key], strict=True):
            if ours in graph.outputs:
                nodes.append(View(f"{node.name}_{ours}", theirs, ours, node.origin))
            else:
                same[ours] = theirs
    return remove_dead(replace(graph, nodes=tuple(nodes)))


# --- constants -------------------------------------------------------------------------------


def fold_constants(graph: Graph, evaluate: Evaluate) -> Graph:
    """Calls and parts of calls that only see constants are computed now."""
    builder = _Builder(graph, evaluate)
    nodes: list[Call | View] = []
    for node in graph.nodes:
        if isinstance(node, View) and node.input in builder.constants:
            array = builder.constants[node.input]
            builder.define(node.output, array.reshape(graph.shape(node.output)))
        elif isinstance(node, Call) and builder.is_small(node):
            arrays = [builder.constants[v] for v in node.inputs]
            for name, array in zip(node.outputs, builder.run(node.program, arrays), strict=True):
                builder.define(name, array)
        elif isinstance(node, Call):
            nodes.append(builder.applied(node, fold_statements))
        else:
            nodes.append(node)
    return builder.graph(nodes)


def split_calls(graph: Graph, pairs: bool) -> Graph:
    """Products of three tensors or more as pairwise contractions, strided sums phase by phase.

    pairs : see `poly.rewrites.polyphase.split_sums`
    """
    nodes = [
        replace(n, program=split_sums(n.program, pairs)) if isinstance(n, Call) else n
        for n in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def fold_factors(graph: Graph, evaluate: Evaluate) -> Graph:
    """Factors and terms that are constant are computed, and moved into constants they scale."""
    builder = _Builder(graph, evaluate)
    nodes: list[Call | View] = []
    for node in graph.nodes:
        if isinstance(node, Call):
            for fold in (fold_affine, fold_scale):
                node = builder.applied(node, fold)
        nodes.append(node)
    return builder.graph(nodes)


class _Builder:
    """A graph whose constants are being added to."""

    def __init__(self, graph: Graph, evaluate: Evaluate) -> None:
        self.old, self.evaluate = graph, evaluate
        self.values, self.constants = dict(graph.values), dict(graph.constants)

    def graph(self, nodes: list[Call | View]) -> Graph:
        return remove_dead(
            replace(self.old, nodes=tuple(nodes), values=self.values, constants=self.constants)
        )

    def define(self, name: str, array: np.ndarray) -> None:
        self.constants[name] = np.ascontiguousarray(array).reshape(array.shape)

    def is_small(self, call: Call) -> bool:
        """Whether a call of constants alone is worth computing now."""
        if call.program.sizes or any(v not in self.constants for v in call.inputs):
            return False
        given = sum(self.constants[v].size for v in call.inputs)
        made = sum(map(count, call.program.outputs))
        if made > max(SMALL, GROWTH * given):
            return False
        if copied_axes(call.program) is not None:
            return True
        return sum(map(instances, call.program.statements)) <= INSTANCES

    def run(self, program: Program, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        axes = copied_axes(program)
        if axes:
            return [np.transpose(arrays[0], axes)]
        given = {t.name: a for t, a in zip(program.inputs, arrays, strict=True)}
        results = self.evaluate(program, given)
        return [np.asarray(results[t.name]) for t in program.outputs]

    def applied(self, call: Call, fold: Callable[[Program, frozenset[str]], Folded]) -> Call:
        """The call with the program that `fold` makes of it, if its constants are finite."""
        values = dict(zip((t.name for t in call.program.inputs), call.inputs, strict=True))
        known = frozenset(t for t, v in values.items() if v in self.constants)
        if not known:
            return call
        folded = fold(call.program, known)
        if folded.program is call.program:
            return call
        arrays = {t: self.constants[values[t]] for t in known}
        for recipe in folded.recipes:
            array = self.follow(recipe, arrays)
            if fold is not fold_statements and not np.isfinite(array).all():
                return call
            arrays[recipe.name] = array
        for recipe in folded.recipes:
            name = self.fresh(f"{call.name}_{recipe.name}")
            array = arrays[recipe.name]
            shape = tuple(Const(n) for n in array.shape)
            dtype = folded.program.tensors.get(recipe.name)
            if dtype is None:
                continue  # only other recipes needed it
            self.values[name] = Tensor(name, dtype.dtype, shape)
            self.define(name, array)
            values[recipe.name] = name
        inputs = tuple(values[t.name] for t in folded.program.inputs)
        return replace(call, program=folded.program, inputs=inputs)

    def follow(self, recipe: Recipe, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The constant that a recipe describes."""
        if isinstance(recipe, Computed):
            return self.run(recipe.program, [arrays[t.name] for t in recipe.program.inputs])[0]
        source = arrays[recipe.source]
        if isinstance(recipe.factor, float):
            return np.asarray(source * source.dtype.type(recipe.factor))
        factor = arrays[recipe.factor]
        kept = [a for a in recipe.axes if a >= 0]
        plain = factor.reshape(
            [e for e, a in zip(factor.shape, recipe.axes, strict=True) if a >= 0]
        )
        shape = [1] * source.ndim
        for axis in kept:
            shape[axis] = source.shape[axis]
        ordered = np.transpose(plain, np.argsort(kept)) if kept else plain
        with np.errstate(all="ignore"):
            return np.asarray(source * ordered.reshape(shape))

    def fresh(self, name: str) -> str:
        unique, number = name, 2
        while unique in self.values:
            unique, number = f"{name}_{number}", number + 1
        return unique
