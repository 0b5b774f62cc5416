"""Constant folding of graphs: values known at compile time are computed and stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from poly.graph_passes.simplify_graph import copied_axes, eliminate_dead_calls
from poly.ir.expr import Const
from poly.ir.graph import Call, Graph, GraphNode, View
from poly.ir.program import Program, Tensor
from poly.rewrites.fold_constants import (
    CANCELLED,
    Computed,
    Folded,
    Recipe,
    fold_affine,
    fold_scale,
    fold_statements,
    magnitudes,
)
from poly.rewrites.merge_programs import count, instances

#: Computes a program's outputs from its inputs, by name.
Evaluate = Callable[[Program, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]

#: A call of constants is computed if its result has at most this many times their elements …
GROWTH = 2
#: … or this many in any case, and it has at most this many instances.
SMALL, INSTANCES = 1 << 14, 1 << 22


def fold_constants(graph: Graph, evaluate: Evaluate) -> Graph:
    """Compute calls, and parts of calls, whose inputs are all constants."""
    builder = _Builder(graph, evaluate)
    nodes: list[GraphNode] = []
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


def fold_factors(graph: Graph, evaluate: Evaluate) -> Graph:
    """Fold constant factors and terms into the constants that they scale."""
    builder = _Builder(graph, evaluate)
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        if isinstance(node, Call):
            for fold in (fold_affine, fold_scale):
                node = builder.applied(node, fold)
        nodes.append(node)
    return builder.graph(nodes)


class _Builder:
    """A graph under construction, to which constants are added."""

    def __init__(self, graph: Graph, evaluate: Evaluate) -> None:
        self.old, self.evaluate = graph, evaluate
        self.values, self.constants = dict(graph.values), dict(graph.constants)

    def graph(self, nodes: list[GraphNode]) -> Graph:
        return eliminate_dead_calls(
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
        """The call with the program that `fold` returns, unless its constants are not safe."""
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
            if fold is not fold_statements and not self.is_safe(recipe, array, arrays):
                return call
            arrays[recipe.name] = array
        for recipe in folded.recipes:
            name = self.fresh(f"{call.name}_{recipe.name}")
            array = arrays[recipe.name]
            shape = tuple(Const(n) for n in array.shape)
            dtype = folded.program.tensors.get(recipe.name)
            if dtype is None:
                continue  # used only by other recipes
            self.values[name] = Tensor(name, dtype.dtype, shape)
            self.define(name, array)
            values[recipe.name] = name
        inputs = tuple(values[t.name] for t in folded.program.inputs)
        return replace(call, program=folded.program, inputs=inputs)

    def is_safe(self, recipe: Recipe, array: np.ndarray, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether a constant is finite, and no remainder of terms that cancel everywhere."""
        if not np.isfinite(array).all():
            return False
        summed = magnitudes(recipe) if isinstance(recipe, Computed) else None
        if summed is None:
            return True
        (size,) = self.run(summed, [arrays[t.name] for t in summed.inputs])
        return bool((np.abs(array) >= CANCELLED * size).any())

    def follow(self, recipe: Recipe, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the constant that a recipe describes."""
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
