"""The values of the names of a model while it is imported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from frontends.onnx.core.comprehension_text import elements
from frontends.onnx.core.graph_names import used_names
from frontends.onnx.core.identifiers import Mangler, printable
from frontends.onnx.core.narrow_types import NARROW_TYPES, narrow_array
from frontends.onnx.core.node import (
    Unsupported,
    Value,
)
from frontends.onnx.core.stages import NO_TENSOR, TEXT, Given, type_of
from frontends.onnx.core.symbolic_dims import Extent, Sizes, extent_expr, holds_sizes
from frontends.onnx.core.tensors import ELEMENT_TYPES, string_array, tensor_array, type_name
from frontends.onnx.core.value_types import (
    claim_of,
    kind_of,
)
from frontends.onnx.model.loading import (
    opset_versions,
)
from frontends.onnx.model.source import (
    Source,
)
from poly.errors import (
    ModelError,
    UnsupportedNode,
)
from poly.graph_passes.simplify_graph import eliminate_dead_calls
from poly.ir.dtypes import DType, dtype_of
from poly.ir.expr import Expr, sizes_of, substitute
from poly.ir.graph import Call, Graph, GraphNode, verify_graph
from poly.ir.program import Tensor
from poly.sets.prove import proves


class CloseError(Exception):
    """Comprehensions over these sizes cannot be written, or cannot be proved in bounds.

    proto : the node; refused : why, if it was refused before anything was asked about sizes: other
        sizes may not help then
    """

    def __init__(self, names: frozenset[str], proto: NodeProto, refused: str = "") -> None:
        super().__init__(", ".join(sorted(names)))
        self.names, self.proto, self.refused = names, proto, refused


class Environment:
    """The state of one import: the values that names of the model have so far.

    env : the value of a name, or a text that says why there is none
    tainted : names whose types are unverified; hosted : names of values that are not tensors
    used : names that were looked up; shapes : of the inputs of the import
    values, constants, nodes, labels : of the graph that is being built
    sizes : the open sizes; size_origins : for each of them, the name of its axis
    """

    def __init__(self, source: Source, given: Mapping[str, Given], is_first: bool) -> None:
        self.source, self.given, self.is_first = source, given, is_first
        self.model, self.folder = source.model, source.loaded.folder
        self.mangle, self.mangle_node = Mangler(), Mangler()
        self.sizes, self.size_names = Sizes(), Mangler()
        self.size_origins: dict[str, str] = {}
        self.shapes: dict[str, tuple[int | str, ...]] = {}
        self.used: set[str] = set()
        self.env: dict[str, Value | str] = {}
        self.tainted: set[str] = set()
        self.hosted: set[str] = set()
        self.inputs: list[str] = []
        self.values: dict[str, Tensor] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.labels: dict[str, str] = {}
        self.nodes: list[GraphNode] = []
        self.unsupported: list[UnsupportedNode] = []

    def by_origin(self, text: str) -> str:
        """A text with the names of axes in place of those of sizes."""
        return re.sub(r"\bs_\w+", lambda m: self.size_origins.get(m[0], m[0]), text)

    def _validity(self, graph: Graph | None) -> dict[str, Any]:
        """The inputs, sizes and conditions for which a stage is valid."""
        inputs = {
            name: (given.dtype, self.shapes[name])
            for name, given in self.given.items()
            if name in self.used and given.array is None and given.dtype != NO_TENSOR
        }
        shown = {e for _, shape in inputs.values() for e in shape if isinstance(e, str)}
        found = dict.fromkeys(self.sizes.exprs())
        derived = self.sizes.derived()
        for node in graph.nodes if graph is not None else ():
            if isinstance(node, Call):
                found |= dict.fromkeys(
                    substitute(c, sizes=derived) for c in node.program.constraints
                )
        conditions: list[Expr] = []
        for c in found:
            if shown.issuperset(sizes_of(c)) and not proves(sorted(shown), (), conditions, c):
                conditions.append(c)
        return {"inputs": inputs, "sizes": self.size_origins, "conditions": tuple(conditions)}

    def _graph(self, inputs: Sequence[str], outputs: Sequence[str], keep: bool) -> Graph:
        """The graph of what was imported; `keep` says to keep unused inputs."""
        result = Graph(
            name=Mangler().fresh(self.model.graph.name or "model"),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            values=self.values,
            constants=self.constants,
            nodes=tuple(self.nodes),
            labels=self.labels,
            sizes=self.sizes.names,
            derived=self.sizes.derived(),
        )
        result = verify_graph(eliminate_dead_calls(result))
        if not keep:
            used = {name for node in result.nodes for name in node.inputs} | set(outputs)
            kept = tuple(n for n in inputs if n in used or self._shows(n))
            result = replace(result, inputs=kept)
        shown = {s for n in result.inputs for e in result.values[n].shape for s in sizes_of(e)}
        return replace(
            result,
            sizes=tuple(s for s in result.sizes if s in shown),
            derived={n: e for n, e in result.derived.items() if shown.issuperset(sizes_of(e))},
        )

    def _shows(self, name: str) -> bool:
        """Whether an input of the import was looked up and has open sizes."""
        return self.labels[name] in self.used and bool(
            {s for e in self.values[name].shape for s in sizes_of(e)}
        )

    # --- values ---

    def _declare_inputs(self) -> None:
        """Declare the inputs of the import; those with known elements become constants."""
        for name, given in self.given.items():
            if given.array is not None:
                self.env[name] = self._known(name, given.array, given.dtype)
                continue
            if given.dtype == NO_TENSOR:
                self._host(name)
                continue
            if given.dtype == TEXT:
                self.env[name] = Value(self._name(name), TEXT, given.shape)
                self.shapes[name] = given.shape
                continue
            shape = self._shape(name, given)
            value = self._declare(Value(self._name(name), given.dtype, shape))
            self.env[name] = value
            self.inputs.append(value.name)
        for sparse in self.model.graph.sparse_initializer:
            self.env.setdefault(sparse.values.name, "is a sparse tensor")
        if not self.is_first:
            return
        used = {name for p in self.source.nodes for name in used_names(p.node)} | set(
            self.source.outputs
        )
        for info in self.source.inputs:
            if info.name not in self.given:
                claim = claim_of(info)
                kind = type_name(claim.element_type) if claim else kind_of(info.type)
                self.env[info.name] = f"is a {kind}"
                if info.name not in used:  # otherwise its uses are reported
                    reason = f"an argument of type {kind} cannot be passed"
                    opset = opset_versions(self.model).get("", 0)
                    self.unsupported.append(
                        UnsupportedNode(printable(info.name), "input", opset, reason)
                    )

    def _shape(self, label: str, given: Given) -> tuple[Extent, ...]:
        """The shape of an input of the import; extents of 0 and 1 are fixed."""
        names = given.open or (None,) * len(given.shape)
        shape: list[Extent] = []
        shown: list[int | str] = []
        for extent, name in zip(given.shape, names, strict=True):
            if name is None or extent < 2:
                shape.append(extent)
                shown.append(extent)
                continue
            size = f"s_{self.size_names(name)}"
            self.size_origins[size] = name
            shape.append(self.sizes.size(size, extent))
            shown.append(size)
        self.shapes[label] = tuple(shown)
        return tuple(shape)

    def _name(self, label: str) -> str:
        """The identifier of a value of the model."""
        name = self.mangle(label)
        self.labels[name] = label
        return name

    def _declare(self, value: Value) -> Value:
        shape = tuple(extent_expr(e) for e in value.shape)
        self.values[value.name] = Tensor(value.name, value.dtype, shape)
        return value

    def _host(self, name: str) -> None:
        """Define a value that is not a tensor, and so cannot be an operand."""
        self.tainted.discard(name)
        self.hosted.add(name)
        self.env[name] = "is a sequence"

    def _is_text(self, name: str) -> bool:
        value = None if name in self.tainted else self._value(name)
        return isinstance(value, Value) and value.dtype == TEXT

    def _is_stored(self, name: str) -> bool:
        return name in self.source.initializers

    def _value(self, name: str) -> Value | str:
        """The value of a name, or why there is none; initializers are decoded when first used."""
        found = self.env.get(name)
        self.used.add(name)
        if found is None:
            stored = self.source.initializers.get(name)
            if stored is None:
                return "has an unknown type"
            if stored.data_type == TensorProto.STRING:
                what = f"initializer '{printable(name)}'"
                found = self._known(name, string_array(stored, what))
            elif stored.data_type in NARROW_TYPES:
                what = f"initializer '{printable(name)}'"
                array = narrow_array(stored, what, self.folder)
                found = self._known(name, array, NARROW_TYPES[stored.data_type])
            elif stored.data_type not in ELEMENT_TYPES:
                if stored.data_type not in TensorProto.DataType.values() or not stored.data_type:
                    raise ModelError(
                        f"initializer '{printable(name)}' has element type "
                        f"{type_name(stored.data_type)}, which does not exist"
                    )
                found = f"is a {type_name(stored.data_type)} tensor"
            else:
                what = f"initializer '{printable(name)}'"
                array = tensor_array(stored, what, self.folder)
                found = self._known(name, array)
            self.env[name] = found
        return found

    def _lookup(self, name: str) -> Value:
        """The value of a name that a subgraph captures.

        Raises
        ------
        Unsupported : if it has none.
        ModelError : if only a later stage knows what it is, so that its reader has to wait.
        """
        value = self._value(name)
        if isinstance(value, str):
            if name in self.tainted:
                raise ModelError(f"'{printable(name)}' {value} yet")
            raise Unsupported(f"'{printable(name)}' {value}")
        return value

    def _known(self, label: str, array: np.ndarray, dtype: DType | None = None) -> Value:
        """A value with these elements; extents that turned out to be numbers are stored as such."""
        if dtype is not None and dtype != TEXT and array.dtype == object and not holds_sizes(array):
            array = array.astype(dtype.numpy)
        return Value(self._name(label), dtype or type_of(array), array.shape, array)

    def _operand(self, operand: Value | np.ndarray, hint: str) -> str:
        """The graph value for an operand of a call; arrays become constants."""
        if isinstance(operand, np.ndarray):
            dtype = dtype_of(operand.dtype)
            operand = Value(self.mangle.fresh(hint), dtype, operand.shape, operand)
        if operand.array is not None and holds_sizes(operand.array):
            if operand.name not in self.values:
                self._declare(operand)
                program = elements(operand.array, operand.dtype)
                name = self.mangle_node.fresh(hint)
                self.nodes.append(Call(name, program, (), (operand.name,), "Shape"))
        elif operand.array is not None and operand.name not in self.constants:
            self._declare(operand)
            self.constants[operand.name] = operand.array
        return operand.name

    def _output(self, name: str) -> str:
        """The graph value for an output of the model."""
        value = self._value(name)
        assert isinstance(value, Value)
        return self._operand(value, name)
