"""Vector stores as C text: to registers or memory, of all lanes or some, contiguous or apart."""

from __future__ import annotations

from typing import Protocol

import cgen

from codegen.c.cgen_blocks import in_order
from codegen.c.expr_text import Names, index_text, literal
from codegen.c.masked_instructions import has_masked
from codegen.c.registers import Registers
from codegen.c.type_names import lane_suffix, suffix, vector_type
from codegen.c.vector_text import ElementPrinter, LaneText
from codegen.loops.nodes import LANE_0, Interleaved, Store, VectorStore
from codegen.vector.vectorise import lane_stride
from poly.ir.dtypes import identity
from poly.ir.expr import Const, Expr, Op, Read

#: The operator that an update applies.
_UPDATES = {"+=": "add", "*=": "mul", "max=": "max", "min=": "min"}
_SIGNS = {"+=": "+", "*=": "*"}


class VectorPrinter(ElementPrinter, Protocol):
    """How a target names registers and vectors in memory, in addition.

    when : the condition under which lanes of the code being printed are active; None: always
    """

    names: Names
    registers: dict[str, Registers]
    when: Expr | None

    def vector_lvalue(self, read: Read, var: str, lanes: int) -> str: ...


def lane_text(printer: ElementPrinter, node: VectorStore) -> LaneText:
    """What prints the values of a store in its active lanes."""
    part = None if node.last is None else (node.first, node.last)
    return LaneText(printer, node.var, node.lanes, part)


def vector_store_text(printer: VectorPrinter, node: VectorStore) -> cgen.Generable:
    """Store a vector, or its active lanes."""
    text, target = lane_text(printer, node), node.store.target
    stride = lane_stride(target, node.var)
    register = printer.register(target, node.var) if stride == 1 else None
    if register is None:
        line = _to_memory(printer, node, text, stride)
    else:
        line = _to_register(printer, node, text, register)
    return in_order([*text.before, line])


def interleaved_text(printer: VectorPrinter, node: Interleaved) -> cgen.Generable:
    """Store vectors between each other's lanes."""
    first, rows = node.rows[0], [(lane_text(printer, row), row.store) for row in node.rows]
    values = [text.stored(store.value, store.dtype) for text, store in rows]
    target = printer.lvalue(rows[0][0].first(first.store.target))
    helper = f"fk_zip{len(rows)}_{lane_suffix(first.store.dtype)}x{first.lanes}"
    before = [line for text, _ in rows for line in text.before]
    return in_order([*before, f"{helper}(&{target}, {', '.join(values)});"])


def _to_register(printer: VectorPrinter, node: VectorStore, text: LaneText, register: str) -> str:
    store, when = node.store, printer.when
    if when is not None or not (node.last is None or node.alone):
        last = Const(node.lanes) if node.last is None else node.last
        end_lane = last if when is None else Op("select", (when, last, node.first))
        begin, end = (index_text(e, printer.names) for e in (node.first, end_lane))
        name = f"{lane_suffix(store.dtype)}x{node.lanes}"
        value = _new_value(store, text)
        return f"{register} = fk_among_{name}({begin}, {end}, {value}, {register});"
    if node.last is None and printer.registers[store.target.tensor].is_accumulator:
        return _accumulated(printer, node, text, register)
    return _assigned(store, text, register)


def _to_memory(
    printer: VectorPrinter, node: VectorStore, text: LaneText, stride: int | None
) -> str:
    store, lanes = node.store, lane_suffix(node.store.dtype)
    whole = stride == 1 if node.last is None else node.alone
    if whole:
        target = printer.vector_lvalue(store.target, node.var, node.lanes)
        return _assigned(store, text, target)
    value = _new_value(store, text)
    if stride == 1 or (stride == 2 and has_masked(lanes)):
        helper = f"fk_put{'' if stride == 1 else '_even'}_{lanes}x{node.lanes}"
        return f"{helper}({text.active_lanes(store.target)}, {value});"
    name = text.named(value, vector_type(store.dtype, node.lanes))
    target = printer.lvalue(store.target)
    return f"{text.each_lane()} {target} = {name}[{printer.names.loops[node.var]}];"


def _assigned(store: Store, text: LaneText, target: str) -> str:
    """All lanes of a store to a C lvalue."""
    if store.op in _SIGNS and store.dtype.compute == store.dtype:
        return f"{target} {store.op} {text.operand(store.value, store.dtype)};"
    return f"{target} = {_new_value(store, text)};"


def _new_value(store: Store, text: LaneText) -> str:
    """What a store leaves in its target, in all lanes."""
    if store.op == "=":
        return text.stored(store.value, store.dtype)
    both = [text.load(store.target), text.vector(store.value, store.dtype)]
    if store.op in _SIGNS:
        combined = f" {_SIGNS[store.op]} ".join(both)
    else:
        combined = text.apply(_UPDATES[store.op], store.dtype, both)
    return text.rounded(combined, store.dtype)


def _accumulated(printer: VectorPrinter, node: VectorStore, text: LaneText, register: str) -> str:
    """Combine one more value into each lane of an accumulator."""
    store = node.store
    value = text.vector(store.value, store.dtype)
    if node.first != LANE_0:
        start = literal(identity(store.op, store.dtype), store.dtype)
        name = f"{suffix(store.dtype)}x{node.lanes}"
        value = f"fk_from_{name}({index_text(node.first, printer.names)}, {value}, {start})"
    if store.op in _SIGNS:
        return f"{register} {store.op} {value};"
    # Value first: whether it is NaN can then be tested without waiting for the previous one.
    return f"{register} = {text.apply(_UPDATES[store.op], store.dtype, [value, register])};"
