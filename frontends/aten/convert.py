"""`convert`: nodes of an ATen graph to an ONNX model."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

import frontends.aten.contract
import frontends.aten.embed
import frontends.aten.exponential
import frontends.aten.factor
import frontends.aten.fourier
import frontends.aten.gamma
import frontends.aten.incomplete_gamma
import frontends.aten.index
import frontends.aten.integers
import frontends.aten.jacobi
import frontends.aten.move
import frontends.aten.norms
import frontends.aten.polynomials
import frontends.aten.prims
import frontends.aten.reduce
import frontends.aten.reflect
import frontends.aten.scatter
import frontends.aten.search
import frontends.aten.sort
import frontends.aten.special
import frontends.aten.windows  # noqa: F401 - these fill the registry
from frontends.aten.complex import joined, parts
from frontends.aten.emitter import Check, Emitter
from frontends.aten.layouts import Order
from frontends.aten.registry import find_lowering
from frontends.aten.values import PARTS, Complex, Ref, Unsupported, described
from frontends.onnx.core.own_models import Declared, model_bytes
from poly.ir.program import fresh_name


@dataclass(frozen=True)
class Converted:
    """A model made of ATen nodes.

    model : its bytes
    inputs, outputs : names, in the order of the nodes that they were asked for
    sizes : names of further inputs, which are as long as a size of torch; each with the size
    checks : outputs of one int32 that is positive where something is wrong
    """

    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, Any], ...]
    checks: tuple[Check, ...]


def has_lowering(target: str) -> bool:
    """Whether an operator, which is called as torch prints it, can be converted."""
    return find_lowering(target) is not None or find_lowering(target, True) is not None


def is_getitem(node: Any) -> bool:
    """Whether a node takes one of several results."""
    return node.target is operator.getitem


def why_not(node: Any) -> str | None:
    """Why a node of a graph cannot be converted; None if it can."""
    if node.op != "call_function":
        return f"it is a {node.op}"
    if is_getitem(node):
        return None if isinstance(node.args[0].meta.get("val"), (tuple, list)) else "it indexes"
    if not has_lowering(str(node.target)):
        return "it has no lowering"
    trial = Emitter()
    refs: dict[Any, Any] = {}
    try:
        for given in node.all_input_nodes:
            refs[given] = reference(given)
        lower(trial, node, refs)
    except Unsupported as reason:
        return str(reason)
    return None


def reference(node: Any) -> Any:
    """A node as lowerings see it: a `Ref` or `Complex`, several, or a size of torch."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return [
            None if v is None else described(f"{node.name}.{n}", v) for n, v in enumerate(value)
        ]
    if hasattr(value, "shape"):
        return described(node.name, value)
    return value


def lower(e: Emitter, node: Any, refs: Mapping[Any, Any]) -> Any:
    """The value of a node, of which the operands are in `refs`.  Raises `Unsupported`."""
    if is_getitem(node):
        source, position = node.args
        return refs[source][position]
    e.origin = node.name
    arguments = _arguments(node, refs)
    value = node.meta.get("val")
    several = isinstance(value, (tuple, list))
    outs: list[Any] = [described("", v) for v in (value if several else [value]) if v is not None]
    kind = complex_type([*arguments.values(), outs])
    found = find_lowering(str(node.target), kind is not None)
    if found is None:
        raise Unsupported("it has no lowering" if kind is None else f"{kind} elements")
    made = found(e, arguments, outs)
    if several:
        return made if isinstance(made, list) else [made]
    return made[0] if isinstance(made, list) else made


def complex_type(values: Iterable[Any]) -> str | None:
    """The type of the first complex value among some, also in lists; None if there is none."""
    for value in values:
        if isinstance(value, Complex):
            return value.dtype
        found = complex_type(value) if isinstance(value, list) else None
        if found is not None:
            return found
    return None


def _arguments(node: Any, refs: Mapping[Any, Any]) -> dict[str, Any]:
    """The arguments of a node by their names in the operator's schema."""

    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return refs[value] if hasattr(value, "all_input_nodes") else value

    schema = node.target._schema.arguments
    found = {a.name: a.default_value for a in schema if a.has_default_value()}
    found |= {a.name: plain(v) for a, v in zip(schema, node.args, strict=False)}
    found |= {name: plain(v) for name, v in node.kwargs.items()}
    found["name"] = str(node.target).removeprefix("aten.")
    if "as_strided" in found["name"]:
        found["memory"] = node.args[0].meta["val"]
    return found


def convert(
    nodes: Iterable[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    orders: Sequence[Order] = (),
    results: Sequence[Order] = (),
    constants: Mapping[Any, np.ndarray] | None = None,
    checked: bool = True,
) -> Converted:
    """The model of some nodes in order.

    inputs : nodes outside whose tensors are read; sizes that come from outside are not among them
    outputs : nodes whose tensors are asked for
    orders, results : in which order the dimensions of inputs and outputs are passed; as they are,
    if left out
    constants : nodes outside whose elements become part of the model
    checked : whether the model says that an index is out of range, in outputs of its own

    Raises
    ------
    Unsupported : a node that cannot be converted.
    """
    nodes, kept = [*nodes], constants or {}
    orders, results = orders or [None] * len(inputs), results or [None] * len(outputs)
    ports = [_passed(n.name, reference(n), o) for n, o in zip(inputs, orders, strict=True)]
    if not checked and complex_type([*map(reference, (*inputs, *outputs, *kept))]):
        raise Unsupported("complex inputs, outputs or weights")
    known: dict[Any, tuple[str, int]] = {}
    for port in ports:
        for axis, extent in enumerate(port.shape):
            if getattr(extent, "is_Symbol", False):
                known.setdefault(extent, (port.name, axis))
    e = Emitter()
    e.symbols = dict(known)
    found = _lowered(e, nodes, inputs, ports, orders, kept)
    # A tensor as long as each size that no input shows, and the same again.
    sizes = [Ref(f"size_{symbol}", "bool", (symbol,)) for symbol in e.missing]
    if sizes:
        e = Emitter()
        e.symbols = known | {r.shape[0]: (r.name, 0) for r in sizes}
        found = _lowered(e, nodes, inputs, ports, orders, kept)
    beyond = [check.message for check in e.checks if check.error is None]
    if beyond and not checked:
        raise Unsupported(f"what torch has to compute for some elements: {beyond[0]}")
    names = _names_of(outputs, {n.name for n in (*inputs, *kept)}, checked)
    for node, name, order in zip(outputs, names, results, strict=True):
        found[node] = _passed_back(e, found[node], node.name, name, order)
    checks = e.checks if checked else []
    outs: list[Declared] = [
        (name, found[n].dtype, None) for n, name in zip(outputs, names, strict=True)
    ]
    outs += [(check.name, "int32", ()) for check in checks]
    declared = [(r.name, r.dtype, _dims(r)) for r in (*ports, *sizes)]
    return Converted(
        model_bytes("aten", e.nodes, declared, outs, e.constants),
        tuple(r.name for r in ports),
        tuple(names),
        tuple((r.name, r.shape[0]) for r in sizes),
        tuple(checks),
    )


def _names_of(outputs: Sequence[Any], taken: set[str], checked: bool) -> list[str]:
    """What outputs are called: a value may be several of them, or an input."""
    return [f"{n.name}.out" if checked else fresh_name(n.name, taken) for n in outputs]


def _passed(name: str, ref: Any, order: Order) -> Ref:
    """An input as it is passed; a complex one with its parts in a last dimension."""
    if isinstance(ref, Complex):
        ref = Ref(name, PARTS[ref.dtype], (*ref.shape, 2))
    assert isinstance(ref, Ref)
    return ref if order is None else Ref(ref.name, ref.dtype, tuple(ref.shape[d] for d in order))


def _passed_back(e: Emitter, value: Any, node: str, name: str, order: Order) -> Ref:
    """Name an output, as it is passed; a complex one with its parts in a last dimension."""
    given = joined(e, value) if isinstance(value, Complex) else value
    extra: dict[str, Any] = {} if order is None else {"perm": order}
    kind = "Identity" if order is None else "Transpose"
    e.nodes.append(helper.make_node(kind, [given.name], [name], name=node, **extra))
    assert isinstance(given, Ref)
    return given


def _lowered(
    e: Emitter,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    ports: Sequence[Ref],
    orders: Sequence[Order],
    constants: Mapping[Any, np.ndarray],
) -> dict[Any, Any]:
    """The values of nodes, which the emitter has afterwards."""
    found: dict[Any, Any] = {}
    for node, array in constants.items():
        ref = reference(node)
        e.constants.append(numpy_helper.from_array(array, ref.name))
        found[node] = ref
    for node, port, order in zip(inputs, ports, orders, strict=True):
        e.origin = node.name
        found[node] = port
        if order is not None:
            found[node] = e.transpose(port, [order.index(axis) for axis in range(port.rank)])
        described_as = reference(node)
        if isinstance(described_as, Complex):
            found[node] = parts(e, found[node], described_as.dtype)
    for node in nodes:
        for given in node.all_input_nodes:
            if given not in found:
                found[given] = reference(given)
        found[node] = lower(e, node, found)
    return found


def _dims(ref: Ref) -> list[int | str]:
    """The dimensions of an input: numbers, names of open sizes, and a name for what is computed."""

    def dim(axis: int, extent: Any) -> int | str:
        if isinstance(extent, int):
            return extent
        return str(extent) if extent.is_Symbol else f"{ref.name}_{axis}"

    return [dim(*place) for place in enumerate(ref.shape)]
