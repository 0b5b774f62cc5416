"""Import of ONNX models: nodes in order become calls of programs, views and constants.

Shapes are static here.  Operators (`frontends.onnx.operators`) infer the shapes as they go: the
outputs of a node have the shapes of its program's outputs, and these are checked against what
the model claims.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto

import frontends.onnx.operators  # noqa: F401 - fills the registry
from frontends.onnx.attributes import check_operands, decode_attributes, schema_of
from frontends.onnx.folding import fold, foldable
from frontends.onnx.limits import MAX_GENERATED_BYTES
from frontends.onnx.loading import (
    Loaded,
    check_structure,
    check_text,
    live_nodes,
    load,
    opset_versions,
    used_names,
)
from frontends.onnx.names import Mangler, printable
from frontends.onnx.node import (
    Compute,
    Known,
    Node,
    NotKnownError,
    Reshaped,
    Result,
    Same,
    Unsupported,
    Value,
    find_operator,
)
from frontends.onnx.tensors import ELEMENT_TYPES, tensor_array, type_name
from frontends.onnx.typing_info import (
    Shapes,
    check_shapes,
    claim_of,
    claims,
    input_shape,
    kind_of,
)
from poly.dtypes import DType, dtype_of
from poly.errors import ArgumentError, ModelError, UnsupportedModelError, UnsupportedNode
from poly.expr import Const
from poly.graph import Call, Graph, View, static_shape, verify_graph
from poly.graph_passes import remove_dead
from poly.program import Tensor

__all__ = ["import_model"]


def import_model(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    shapes: Shapes | None = None,
) -> Graph:
    """The graph of a model, every value of which has a concrete shape.

    Parameters
    ----------
    source : a path, the bytes of a file, or a message (which is not changed)
    shapes : sizes of dynamic dimensions: the shape of an input by the input's name, or the
        size of a dimension by the dimension's name

    Raises
    ------
    ModelError : a file that is broken, hostile or inconsistent, or a dynamic dimension that
        `shapes` does not give.
    UnsupportedModelError : a sound model with nodes that cannot be compiled, all of them named.
    ArgumentError : `shapes` that do not fit the model.
    """
    try:
        loaded = load(source)
        return _Importer(loaded, dict(shapes or {})).run()
    except (ModelError, ArgumentError):
        raise
    except UnicodeDecodeError as error:
        raise ModelError("the model is broken: a name in it is not text") from error
    except MemoryError as error:
        raise ModelError("the model needs more memory than there is") from error
    except Exception as error:  # a defect, but a user of a broken file should still read a message
        raise ModelError(
            f"the model cannot be imported; this is a defect of Farkas, please report it: "
            f"{type(error).__name__}: {printable(str(error), 200)}"
        ) from error


class _Importer:
    """The state of one import: what each name of the model has become so far."""

    def __init__(self, loaded: Loaded, shapes: dict[str, Sequence[int] | int]) -> None:
        self.model: ModelProto = loaded.model
        self.folder: Path | None = loaded.folder
        self.shapes = shapes
        self.mangle, self.mangle_node = Mangler(), Mangler()
        self.env: dict[str, Value | str] = {}  # a string says why there is no value
        self.tainted: set[str] = set()  # names whose types are hearsay
        self.initializers: dict[str, TensorProto] = {}
        self.values: dict[str, Tensor] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.labels: dict[str, str] = {}
        self.nodes: list[Call | View] = []
        self.unsupported: list[UnsupportedNode] = []
        self.inferred: dict[str, tuple[DType, tuple[int, ...]]] | None = None
        self.generated = 0

    def run(self) -> Graph:
        """Import the whole model."""
        check_text(self.model)
        self.versions = opset_versions(self.model)
        ordered = check_structure(self.model)
        graph = self.model.graph
        outputs = [v.name for v in graph.output]
        self.claims = claims(self.model)
        self.outputs = frozenset(outputs)
        self.initializers = {t.name: t for t in graph.initializer}
        for sparse in graph.sparse_initializer:
            self.env[sparse.values.name] = "is a sparse tensor"
        live = live_nodes(ordered, outputs)
        used = {name for node in live for name in used_names(node)} | self.outputs
        inputs = self._declare_inputs(used)
        for node in live:
            self._import_node(node)
        for name in outputs:
            if isinstance(self._value(name), str) and not self.unsupported:
                raise ModelError(f"output '{printable(name)}' {self._value(name)}")
        if self.unsupported:
            raise UnsupportedModelError(tuple(self.unsupported))
        result = Graph(
            name=Mangler().fresh(graph.name or "model"),
            inputs=tuple(inputs),
            outputs=tuple(self._output(name) for name in outputs),
            values=self.values,
            constants=self.constants,
            nodes=tuple(self.nodes),
            labels=self.labels,
        )
        return verify_graph(remove_dead(result))

    # --- values ---

    def _declare_inputs(self, used: set[str]) -> list[str]:
        """Declare the graph inputs; those with an initializer are constants."""
        names = []
        free = [i for i in self.model.graph.input if i.name not in self.initializers]
        check_shapes(self.shapes, free)
        for info in free:
            claim = claim_of(info)
            shown = printable(info.name)
            if claim is None or claim.element_type not in ELEMENT_TYPES:
                kind = type_name(claim.element_type) if claim else kind_of(info.type)
                if claim is not None and not claim.element_type:
                    raise ModelError(f"input '{shown}' has no element type")
                if info.name not in used:  # otherwise its uses are reported
                    reason = f"an argument of type {kind} cannot be passed"
                    opset = self.versions.get("", 0)
                    self.unsupported.append(UnsupportedNode(shown, "input", opset, reason))
                self.env[info.name] = f"is a {kind}"
                continue
            dtype = ELEMENT_TYPES[claim.element_type]
            shape = input_shape(info, claim, dtype, self.shapes)
            value = Value(self._name(info.name), dtype, shape)
            self._declare(value)
            self.env[info.name] = value
            names.append(value.name)
        return names

    def _name(self, label: str) -> str:
        """The identifier of a value of the model."""
        name = self.mangle(label)
        self.labels[name] = label
        return name

    def _declare(self, value: Value) -> Value:
        shape = tuple(Const(e) for e in value.shape)
        self.values[value.name] = Tensor(value.name, value.dtype, shape)
        return value

    def _value(self, name: str) -> Value | str:
        """The value of a name, or why there is none; initializers are decoded when first used."""
        found = self.env.get(name)
        if found is None:
            stored = self.initializers.get(name)
            if stored is None:
                return "has an unknown type"
            if stored.data_type not in ELEMENT_TYPES:
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

    def _known(self, label: str, array: np.ndarray) -> Value:
        return Value(self._name(label), dtype_of(array.dtype), array.shape, array)

    def _operand(self, operand: Value | np.ndarray, hint: str) -> str:
        """The graph value for an operand of a call; arrays become constants."""
        if isinstance(operand, np.ndarray):
            dtype = dtype_of(operand.dtype)
            operand = Value(self.mangle.fresh(hint), dtype, operand.shape, operand)
        if operand.array is not None and operand.name not in self.constants:
            self._declare(operand)
            self.constants[operand.name] = operand.array
        return operand.name

    def _output(self, name: str) -> str:
        """The graph value for an output of the model."""
        value = self._value(name)
        assert isinstance(value, Value)
        return self._operand(value, name)

    # --- nodes ---

    def _import_node(self, proto: NodeProto) -> None:
        try:
            node = self._node(proto)
            if node is None:
                self._skip(proto)
                return
            function = find_operator(node.operator, node.opset)
            if function is None:
                raise Unsupported("there is no comprehension for this operator yet")
            results = function(node)
            self._define(proto, node, results)
        except Unsupported as reason:
            hearsay = any(n in self.tainted for n in proto.input)
            if not (hearsay and isinstance(reason, NotKnownError)):
                self._report(proto, str(reason))
            self._skip(proto)
        except ModelError:
            if not any(n in self.tainted for n in proto.input):
                raise
            self._skip(proto)  # what is known of its operands is only hearsay

    def _report(self, proto: NodeProto, reason: str) -> None:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        name = proto.name or next((o for o in proto.output if o), "")
        operator = f"{domain}.{proto.op_type}" if domain else proto.op_type
        self.unsupported.append(
            UnsupportedNode(
                printable(name), printable(operator), self.versions.get(domain, 0), reason
            )
        )

    def _node(self, proto: NodeProto) -> Node | None:
        """The node as operators see it; None if an operand has no value because of an error."""
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        functions = {(f.domain, f.name) for f in self.model.functions}
        if (proto.domain, proto.op_type) in functions:
            raise Unsupported("functions that a model defines itself are not expanded yet")
        if domain:
            raise Unsupported(f"operators of domain '{printable(domain)}' are not known")
        if "" not in self.versions:
            raise ModelError("the model imports no opset of the default domain")
        opset = self.versions[""]
        schema = schema_of(proto.op_type, opset)
        if schema is None:
            raise Unsupported(f"there is no such operator in opset {opset}")
        if schema.deprecated and _withdrawn(proto.op_type):
            raise Unsupported(f"the operator was withdrawn by opset {schema.since_version}")
        if find_operator(proto.op_type, opset) is None:
            raise Unsupported("there is no comprehension for this operator yet")
        attributes = decode_attributes(proto, schema, self.folder)
        operands: list[Value | None] = []
        missing = False
        for name in proto.input:
            value = self._value(name) if name else None
            if isinstance(value, str):
                if name not in self.tainted:
                    raise Unsupported(f"input '{printable(name)}' {value}")
                missing = True
                value = None
            operands.append(value)
        if missing:
            return None
        while operands and operands[-1] is None:
            operands.pop()
        outputs = [bool(name) for name in proto.output]
        while outputs and not outputs[-1]:
            outputs.pop()
        shown = proto.name or next((o for o in proto.output if o), "")
        node = Node(proto.op_type, shown, opset, tuple(operands), tuple(outputs), attributes)
        check_operands(node, schema)
        return node

    def _skip(self, proto: NodeProto) -> None:
        """Define the outputs of a node that was not imported, as far as their types are known."""
        if self.inferred is None:
            self.inferred = infer_types(self.model)
        for name in filter(None, proto.output):
            self.tainted.add(name)
            known = self.inferred.get(name)
            if known is None:
                self.env[name] = "has an unknown type"
            else:
                self.env[name] = self._declare(Value(self._name(name), *known))

    def _define(self, proto: NodeProto, node: Node, results: Sequence[Result]) -> None:
        """Define the outputs of a node from what its operator gave."""
        names = iter(proto.output)
        hearsay = any(n in self.tainted for n in proto.input)
        for result in results:
            if isinstance(result, Compute):
                self._compute(node, result, names, hearsay)
                continue
            name = next(names, "")
            if name:
                self._bind(name, self._plain(node, result, name), hearsay)
        for name in names:
            if name:
                raise Unsupported(f"its output '{printable(name)}' is not computed")

    def _bind(self, name: str, value: Value, hearsay: bool) -> None:
        claim = self.claims.get(name)
        if claim is not None and not hearsay:
            claim.check(value.dtype, value.shape, f"value '{printable(name)}'")
        if hearsay:
            self.tainted.add(name)
        self.env[name] = value

    def _plain(self, node: Node, result: Reshaped | Same | Known, name: str) -> Value:
        """The value of a result that computes nothing."""
        if isinstance(result, Known):
            self._count(node, result.array)
            return self._known(name, result.array)
        source = result.value
        if isinstance(result, Same):
            if name not in self.outputs:
                return source
            shape = source.shape
        else:
            shape = result.shape
        if source.array is not None:
            return self._known(name, source.array.reshape(shape))
        value = self._declare(Value(self._name(name), source.dtype, shape))
        view = View(self._node_name(node), source.name, value.name, node.origin)
        self.nodes.append(view)
        return value

    def _compute(self, node: Node, result: Compute, names: Iterator[str], hearsay: bool) -> None:
        program = result.program
        arrays = [i if isinstance(i, np.ndarray) else i.array for i in result.inputs]
        labels = [next(names, "") for _ in program.outputs]
        if foldable(program, arrays):
            outputs = fold(program, [a for a in arrays if a is not None])
            for label, array in zip(labels, outputs, strict=True):
                if label:
                    self._bind(label, self._known(label, array), hearsay)
            return
        call_name = self._node_name(node)
        inputs = tuple(
            self._operand(operand, f"{call_name}_{tensor.name}")
            for operand, tensor in zip(result.inputs, program.inputs, strict=True)
        )
        outputs_: list[str] = []
        for label, tensor in zip(labels, program.outputs, strict=True):
            name = self._name(label) if label else self.mangle.fresh(f"{call_name}_unused")
            value = self._declare(Value(name, tensor.dtype, static_shape(tensor)))
            outputs_.append(name)
            if label:
                self._bind(label, value, hearsay)
        self.nodes.append(Call(call_name, program, inputs, tuple(outputs_), node.origin))

    def _node_name(self, node: Node) -> str:
        return self.mangle_node.fresh(node.name or node.operator)

    def _count(self, node: Node, array: np.ndarray) -> None:
        """Keep account of constants that the file describes without containing them."""
        self.generated += array.nbytes
        if self.generated > MAX_GENERATED_BYTES:
            raise node.fail(
                f"the model generates more than {MAX_GENERATED_BYTES >> 30} GiB of constants"
            )


def _withdrawn(operator: str) -> bool:
    """Whether an operator is gone for good, and not merely replaced by a better version."""
    newest = schema_of(operator, onnx.defs.onnx_opset_version())
    return newest is None or bool(newest.deprecated)


def infer_types(model: ModelProto) -> dict[str, tuple[DType, tuple[int, ...]]]:
    """What onnx's own shape inference knows for certain, so that a report can go on."""
    slim = ModelProto()
    slim.CopyFrom(model)
    for tensor in slim.graph.initializer:
        if len(tensor.raw_data) > 1 << 16:
            tensor.raw_data = b""
    try:
        inferred = onnx.shape_inference.infer_shapes(slim, data_prop=True)
    except Exception:  # whatever it is, the report only becomes shorter
        return {}
    result = {}
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        try:
            claim = claim_of(info)
        except ModelError:
            continue
        if claim is None or claim.extents is None or claim.element_type not in ELEMENT_TYPES:
            continue
        extents = [e for e in claim.extents if e is not None]
        if len(extents) == len(claim.extents):
            result[info.name] = (ELEMENT_TYPES[claim.element_type], tuple(extents))
    return result
