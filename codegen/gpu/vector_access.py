"""Wide accesses of a GPU thread to adjacent elements in global memory, see `Copy.together`.

A part of a kernel with short loops and no barriers, in which registers are copied from or to
adjacent elements in memory, is versioned.  Where all its loops run all their iterations, rows are
whole numbers of such groups of elements, and tensors are aligned to the bytes of a group (which no
type guarantees: a user's array may begin anywhere), each group is one access.  Elsewhere, elements
are read and written one by one, without registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from codegen.gpu.conditions import plain_parts
from codegen.loops.conditions import all_of
from codegen.loops.eliminate_dead import without
from codegen.loops.index_ranges import depends_on
from codegen.loops.nodes import Block, Buffer, For, If, IfAligned, LoopNode, Store, Together
from codegen.loops.substitute import substitute_var
from codegen.loops.traverse import map_children, map_exprs, own_variables, reads_in, walk_loops
from codegen.vector.vectorise import lane_stride
from poly.buffers.copies import LEAST_TOGETHER, TOGETHER
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr, Index, Op, Read, add, indices_of, rewrite, sub
from poly.ir.linear_form import linear_form, normal
from poly.ir.program import Program
from poly.tree.kinds import Mark, Scope

#: The most iterations of inner loops whose conditions are tested together.
MOST_ASKED = 16


@dataclass(frozen=True)
class _Copied:
    """A loop that copies adjacent elements.

    register, memory : the elements, as functions of the loop; count : how many
    """

    register: Read
    memory: Read
    dtype: DType
    count: int

    @property
    def bytes(self) -> int:
        return self.count * self.dtype.bytes


def vectorise_accesses(root: LoopNode, program: Program) -> LoopNode:
    """Turn copies between registers and adjacent elements into wide accesses, where aligned."""

    def visit(node: LoopNode, buffers: Mapping[str, Buffer]) -> LoopNode:
        if isinstance(node, (For, If, Buffer)) and _is_straight(node):
            found = _in_two_forms(node, program, buffers)
            if found is not None:
                return found
        if isinstance(node, Buffer):
            buffers = {**buffers, node.name: node}
        node = map_children(node, lambda c: visit(c, buffers))
        if isinstance(node, For) and node.mark == Mark.WIDE and _in_registers(node, buffers):
            return replace(node, mark=Mark.UNROLL)
        return node

    return visit(root, {})


def _is_straight(node: LoopNode) -> bool:
    """Whether all loops of a tree are short, some do wide copies, and nothing waits."""
    inside = list(walk_loops(node))
    plain = all(
        n.mark in (Mark.UNROLL, Mark.WIDE) and n.step == 1
        if isinstance(n, For)
        else n.scope == Scope.REGISTER
        if isinstance(n, Buffer)
        else n.other is None
        if isinstance(n, If)
        else isinstance(n, (Block, Store))
        for n in inside
    )
    return plain and any(isinstance(n, For) and n.mark == Mark.WIDE for n in inside)


def _in_registers(node: For, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a loop copies from or to registers."""
    names = {r.tensor for r in reads_in(node)}
    return any(name in names and b.scope == Scope.REGISTER for name, b in buffers.items())


def _in_two_forms(node: LoopNode, program: Program, outer: Mapping[str, Buffer]) -> LoopNode | None:
    """A part with wide accesses, and without; None if that is not known to be correct."""
    own = {n.name: n for n in walk_loops(node) if isinstance(n, Buffer)}
    buffers = {**outer, **own}
    copied: list[_Copied] = []
    for n in walk_loops(node):
        if isinstance(n, For) and n.mark == Mark.WIDE:
            found = _copied(n, program, buffers)
            if found is None:
                return None
            copied.append(found)
    conditions = _conditions(node)
    if conditions is None:
        return None
    rows: dict[Expr, None] = {}
    for c in copied:
        shape = program.tensors[c.memory.tensor].shape
        form = linear_form(shape[-1])
        if not form.is_multiple_of(c.count) and any(e != Const(1) for e in shape[:-1]):
            rows[Op("eq", (Op("fmod", (shape[-1], Const(c.count))), Const(0)))] = None
    parts = [*dict.fromkeys(p for c in conditions for p in plain_parts(c)), *rows]
    tensors: dict[str, int] = {}
    for c in copied:
        tensors[c.memory.tensor] = max(c.bytes, tensors.get(c.memory.tensor, 0))
    cond = all_of(parts) if parts else Const(1)
    narrow = _one_by_one(node, own, outer)
    return IfAligned(tuple(tensors.items()), cond, _at_once(node), narrow)


def _copied(node: For, program: Program, buffers: Mapping[str, Buffer]) -> _Copied | None:
    """The copy that a loop makes; None if it is not one, or may begin at another multiple."""
    store, count = node.body, _count(node)
    if not isinstance(store, Store) or not isinstance(store.value, Read) or store.op != "=":
        return None
    register, memory = store.target, store.value
    if register.tensor not in buffers:
        register, memory = memory, register
    buffer = buffers.get(register.tensor)
    tensor = program.tensors.get(memory.tensor)
    if (
        buffer is None
        or buffer.scope != Scope.REGISTER
        or tensor is None
        or memory.tensor in buffers
    ):
        return None
    if buffer.dtype != tensor.dtype or count is None or not _is_access(count, tensor.dtype):
        return None
    if any(lane_stride(r, node.var) != 1 for r in (register, memory)):
        return None
    first = linear_form(memory.indices[-1]).without(Index(node.var))
    if not first.is_multiple_of(count):
        return None
    return _Copied(register, memory, tensor.dtype, count)


def _is_access(count: int, dtype: DType) -> bool:
    size = count * dtype.bytes
    return count > 1 and size.bit_count() == 1 and LEAST_TOGETHER <= size <= TOGETHER


def _bounds(node: For) -> tuple[int, int] | None:
    """The least and the greatest value of a loop's variable."""
    if isinstance(node.lower, Const) and isinstance(node.upper, Const):
        return int(node.lower.value), int(node.upper.value) - 1
    return node.limits


def _count(node: For) -> int | None:
    bounds = _bounds(node)
    return bounds[1] + 1 if bounds is not None and bounds[0] == 0 else None


# --- when all iterations run ---------------------------------------------------------------------


def _conditions(node: LoopNode) -> list[Expr] | None:
    """Conditions, outside of the node, under which all its loops run all iterations and its
    conditions hold; None if they are not known.
    """
    found: dict[Expr, None] = {}

    def visit(n: LoopNode, inner: dict[str, tuple[int, int]]) -> bool:
        own: list[Expr] = []
        if isinstance(n, If):
            own = [n.cond]
        elif isinstance(n, For):
            bounds = _bounds(n)
            if bounds is None or bounds[1] < bounds[0]:
                return False
            low, high = (Const(b) for b in bounds)
            own = [*_at_most(n.lower, low), Op("lt", (high, n.upper))]
            inner = {**inner, n.var: bounds}
        for c in own:
            moving = [v for v in dict.fromkeys(indices_of(c)) if v in inner]
            points = list(product(*(range(inner[v][0], inner[v][1] + 1) for v in moving)))
            if len(points) > MOST_ASKED:
                return False
            for point in points:
                env = dict(zip(moving, map(Const, point), strict=True))
                found[_with(c, env)] = None
        return all(visit(c, inner) for c in _children(n))

    return [*found] if visit(node, {}) else None


def _at_most(value: Expr, bound: Const) -> list[Expr]:
    """``value <= bound`` in parts."""
    if isinstance(value, Op) and value.fn == "max":
        return [c for arg in value.args for c in _at_most(arg, bound)]
    return [Op("lt", (value, add(bound, Const(1))))]


def _with(cond: Expr, env: Mapping[str, Const]) -> Expr:
    def put(e: Expr) -> Expr:
        return env[e.name] if isinstance(e, Index) and e.name in env else e

    return rewrite(cond, put)


def _children(node: LoopNode) -> Iterator[LoopNode]:
    if isinstance(node, Block):
        yield from node.children
    elif isinstance(node, (For, Buffer)):
        yield node.body
    elif isinstance(node, If):
        yield node.then


def _at_once(node: LoopNode) -> LoopNode:
    """The part where all iterations run: loops of a fixed length, and no conditions."""
    if isinstance(node, If):
        return _at_once(node.then)
    if isinstance(node, For):
        bounds = _bounds(node)
        assert bounds is not None
        if node.mark == Mark.WIDE:
            iterations = range(bounds[0], bounds[1] + 1)
            return Together(
                tuple(substitute_var(node.body, node.var, Const(k)) for k in iterations)
            )
        low, high = bounds
        node = replace(node, lower=Const(low), upper=Const(high + 1), limits=None)
    return map_children(node, _at_once)


# --- when some do not ----------------------------------------------------------------------------


def _one_by_one(node: LoopNode, own: Mapping[str, Buffer], outer: Mapping[str, Buffer]) -> LoopNode:
    """The part element by element, in loops where registers are not needed."""
    origins = _origins(node, own)
    made = node if origins is None else _without_registers(node, own, origins)

    def visit(n: LoopNode) -> LoopNode:
        n = map_children(n, visit)
        if isinstance(n, For):
            return replace(n, mark=Mark.SEQ if _rolls(n, {*own, *outer}) else Mark.UNROLL)
        return n

    return visit(made)


def _rolls(node: For, buffers: set[str]) -> bool:
    """Whether no register is indexed by the loop's variable."""
    return not any(
        depends_on(i, node.var) for r in reads_in(node) if r.tensor in buffers for i in r.indices
    )


def _origins(
    node: LoopNode, own: Mapping[str, Buffer]
) -> dict[str, tuple[str, tuple[Expr, ...]]] | None:
    """For each copied buffer, its tensor and where in it the buffer begins; None if unknown.

    A copy pairs element e of the buffer with element begin + e of the tensor.  It determines the
    begin only below its own conditions: where only some elements are copied, ``k`` may be the index
    for ``(i - j)/2``, and other uses of the buffer need not be below ``i == j + 2*k``.
    """
    found: dict[str, tuple[str, tuple[Expr, ...]]] = {}
    asked: dict[str, list[frozenset[Expr]]] = {}
    used: dict[str, list[frozenset[Expr]]] = {}
    for n, above in _below_conditions(node, frozenset()):
        pair = (n.target, n.value) if isinstance(n.value, Read) and n.op == "=" else ()
        register = next((r for r in pair if r.tensor in own), None)
        memory = next(
            (r for r in pair if register and r.tensor == own[register.tensor].tensor), None
        )
        for r in reads_in(n):
            if r.tensor in own and (memory is None or r != register):
                used.setdefault(r.tensor, []).append(above)
        if register is None or memory is None:
            continue
        begin = tuple(
            normal(sub(m, r)) for m, r in zip(memory.indices, register.indices, strict=True)
        )
        if any(set(indices_of(b)) & own_variables(node) for b in begin):
            return None
        if found.setdefault(register.tensor, (memory.tensor, begin)) != (memory.tensor, begin):
            return None
        asked.setdefault(register.tensor, []).append(above)
    if any(not _tells(asked[name], used.get(name, ())) for name in found):
        return None
    return found


def _below_conditions(
    node: LoopNode, above: frozenset[Expr]
) -> Iterator[tuple[Store, frozenset[Expr]]]:
    """All stores, and the parts of the conditions around each; for a loop, that it has any
    iteration.
    """
    if isinstance(node, Store):
        yield node, above
    if isinstance(node, If):
        above |= {*plain_parts(node.cond)}
    if isinstance(node, For) and not _runs(node):
        above |= {Op("lt", (node.lower, node.upper))}
    for child in _children(node):
        yield from _below_conditions(child, above)


def _runs(node: For) -> bool:
    """Whether a loop is known to have an iteration."""
    low, high = node.lower, node.upper
    return isinstance(low, Const) and isinstance(high, Const) and low.value < high.value


def _tells(copies: Sequence[frozenset[Expr]], uses: Sequence[frozenset[Expr]]) -> bool:
    """Whether the conditions of some copy are all conditions of every use as well."""
    return any(all(copy <= use for use in uses) for copy in copies)


def _without_registers(
    node: LoopNode,
    own: Mapping[str, Buffer],
    origins: Mapping[str, tuple[str, tuple[Expr, ...]]],
) -> LoopNode:
    """The part with registers replaced by the tensor elements that they are copied from or to."""

    def moved(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.tensor not in origins:
            return e
        tensor, begin = origins[e.tensor]
        indices = (normal(add(b, i)) for b, i in zip(begin, e.indices, strict=True))
        return Read(tensor, tuple(indices))

    def visit(n: LoopNode) -> LoopNode:
        n = map_children(n, visit)
        return n.body if isinstance(n, Buffer) and n.name in origins else n

    moves = {
        id(n)
        for n in walk_loops(node)
        if isinstance(n, Store)
        and isinstance(n.value, Read)
        and n.op == "="
        and any(r.tensor in origins and other.tensor == origins[r.tensor][0]
                for r, other in ((n.target, n.value), (n.value, n.target)))
    }  # fmt: skip
    return map_exprs(visit(without(node, moves)), lambda e: rewrite(e, moved))
