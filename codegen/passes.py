"""Passes over the loop IR: pure functions from tree to tree, in the order of `optimise`."""

from __future__ import annotations

from dataclasses import replace

from codegen.decide import decide
from codegen.linear import depends_on, extreme, replace_var
from codegen.loopir import (
    Block,
    Buffer,
    For,
    If,
    LoopNode,
    Single,
    Store,
    VectorStore,
    block,
    has_mark,
    map_children,
    map_exprs,
    reads_in,
    verify_loops,
    walk_loops,
)
from codegen.lower import var_range
from poly.dtypes import INT64, DType
from poly.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    evaluate_int,
    reads_of,
    rewrite,
    simplify,
    substitute_value,
    walk,
)
from poly.linear import linear_form, normal
from poly.program import Program

#: Operators that act on vectors lane by lane in generated code.
VECTOR_OPS = frozenset(("add", "sub", "mul", "div", "neg", "min", "max"))
#: The longest vector, in bytes, that is written as one; longer loops are left to the compiler.
VECTOR_LIMIT = 64
#: The most statements that unrolling may write out for one loop nest.
UNROLL_LIMIT = 2048


def optimise(root: LoopNode, program: Program) -> LoopNode:
    """All passes, with the verifier between them."""
    for fn in (
        simplify_indices,
        lambda n: vectorise(n, program),
        unroll,
        lambda n: decide(n, program),
        drop_unread,
        workshare,
    ):
        root = verify_loops(fn(root))
    return root


def simplify_indices(root: LoopNode) -> LoopNode:
    """Bring the places of all accesses into linear normal form."""

    def visit(e: Expr) -> Expr:
        return replace(e, indices=tuple(map(normal, e.indices))) if isinstance(e, Read) else e

    return map_exprs(root, lambda e: rewrite(e, visit))


def drop_unread(root: LoopNode) -> LoopNode:
    """Leave out buffers that are only written, and what is stored there.

    That is what becomes of a temporary which nobody reads when it is promoted.
    """

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if not isinstance(node, Buffer):
            return node
        own = [n for n in walk_loops(node) if isinstance(n, Store) and n.target.tensor == node.name]
        inside = {id(n) for n in own}
        for n in walk_loops(node):
            if isinstance(n, Store):
                read = [n.value] if id(n) in inside else [n.value, n.target]
                if any(
                    isinstance(x, Read) and x.tensor == node.name for e in read for x in walk(e)
                ):
                    return node
        return visit(without(node.body, inside))  # what fed it may now be unread

    return visit(root)


def without(root: LoopNode, stores: set[int]) -> LoopNode:
    """The tree without some stores (by id), and without the loops that then do nothing."""
    if isinstance(root, (Store, VectorStore)):
        store = root.store if isinstance(root, VectorStore) else root
        return Block(()) if id(store) in stores else root
    node = map_children(root, lambda c: without(c, stores))
    empty = Block(())
    if isinstance(node, If):
        other = None if node.other == empty else node.other
        if node.then == empty and other is not None:
            return If(Op("not", (node.cond,)), other)
        return empty if node.then == empty else replace(node, other=other)
    return empty if isinstance(node, (For, Buffer)) and node.body == empty else node


# --- vector lanes ---------------------------------------------------------------------------


def vectorise(root: LoopNode, program: Program) -> LoopNode:
    """Turn full vector loops into `VectorStore`s where every access allows it.

    A vector loop that stays a loop (its bounds are not constant, or its body does not act on
    lanes) is printed as a loop that the C compiler may run in lanes.
    """
    buffers = {n.name: n.dtype for n in walk_loops(root) if isinstance(n, Buffer)}
    dtypes = {**program.dtypes, **buffers}

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if not isinstance(node, For) or node.mark != "vector" or node.trip is None:
            return node
        body = node.body
        stores = body.children if isinstance(body, Block) else (body,)
        lanes = node.trip
        if lanes < 2 or lanes & (lanes - 1) or node.step != 1 or node.lower != Const(0):
            return node
        vectors: list[LoopNode] = []
        for s in stores:
            if not isinstance(s, Store) or not _acts_on_lanes(s, node.var, dtypes):
                return node
            if lanes * s.dtype.bytes > VECTOR_LIMIT:
                return node
            vectors.append(VectorStore(s, node.var, lanes))
        return block(vectors)

    return visit(root)


def lane_stride(read: Read, var: str) -> int | None:
    """How the element moves with the lane: 0 not at all, 1 to the next, None otherwise."""
    for index in read.indices[:-1]:
        if depends_on(index, var):
            return None
    if not read.indices:
        return 0
    form = linear_form(read.indices[-1])
    rest = form.without(Index(var))
    if any(depends_on(a, var) for a, _ in rest.terms):
        return None
    stride = form.coefficient(Index(var))
    return stride if stride in (0, 1) else None


def _acts_on_lanes(s: Store, var: str, dtypes: dict[str, DType]) -> bool:
    if s.dtype.name not in ("float32", "float64") or s.op not in ("=", "+=", "*=", "max=", "min="):
        return False
    stride = lane_stride(s.target, var)
    if stride == 0 or (stride is None and s.op != "="):
        return False
    if stride == 1 and is_gather(s, var):
        return dtypes[_read(s.value).tensor] == s.dtype
    return _lanes(s.value, var, s.dtype, dtypes)


def is_gather(s: Store, var: str) -> bool:
    """Whether a store fills lanes from elements that are no neighbours, and does nothing else."""
    return (
        s.op == "="
        and isinstance(s.value, Read)
        and lane_stride(s.value, var) is None
        and not any(reads_of(i) for i in s.value.indices)
    )


def _read(e: Expr) -> Read:
    assert isinstance(e, Read)
    return e


def _lanes(e: Expr, var: str, dtype: DType, dtypes: dict[str, DType]) -> bool:
    if isinstance(e, Const):
        return not isinstance(e.value, bool) and e.dtype in (None, dtype, INT64)
    if isinstance(e, Read):
        return dtypes[e.tensor] == dtype and lane_stride(e, var) is not None
    if isinstance(e, Op):
        return e.fn in VECTOR_OPS and all(_lanes(a, var, dtype, dtypes) for a in e.args)
    return isinstance(e, Cast) and e.dtype == dtype and _lanes(e.arg, var, dtype, dtypes)


# --- unrolling -----------------------------------------------------------------------------


def unroll(root: LoopNode) -> LoopNode:
    """Write out loops marked so, when few iterations are possible.

    Where the bounds are not constant but bounded, each iteration that may run gets the condition
    under which it does, as far as that is not known.
    """
    return _unroll(root, {})


def _unroll(node: LoopNode, ranges: dict[str, tuple[int, int]]) -> LoopNode:
    if not isinstance(node, For):
        return map_children(node, lambda c: _unroll(c, ranges))
    bound = var_range(node, ranges)
    if bound is not None:
        ranges = {**ranges, node.var: bound}
    if node.mark != "unroll" or node.step != 1:
        return map_children(node, lambda c: _unroll(c, ranges))
    size = sum(isinstance(n, (Store, VectorStore)) for n in walk_loops(node.body))
    if bound is None or (bound[1] - bound[0] + 1) * max(size, 1) > UNROLL_LIMIT:
        return replace(node, mark="seq", body=_unroll(node.body, ranges))
    children: list[LoopNode] = []
    for value in range(bound[0], bound[1] + 1):
        body = _unroll(_at(node.body, node.var, value), ranges)
        conditions = [
            c
            for c in (Op("le", (node.lower, Const(value))), Op("lt", (Const(value), node.upper)))
            if not _holds(c, ranges)
        ]
        for c in conditions:
            body = If(simplify(c), body)
        children.append(body)
    return block(children)


def _holds(condition: Op, ranges: dict[str, tuple[int, int]]) -> bool:
    """Whether ``a < b`` or ``a <= b`` holds for all values of the variables."""
    left, right = condition.args
    gap = extreme(Op("sub", (right, left)), ranges, min)
    return gap is not None and gap >= (1 if condition.fn == "lt" else 0)


def _at(body: LoopNode, var: str, value: int) -> LoopNode:
    number = Const(value)

    def fix(e: Expr) -> Expr:
        return simplify(replace_var(e, var, number)) if depends_on(e, var) else e

    def fix_value(e: Expr) -> Expr:
        return substitute_value(e, {var: number}) if depends_on(e, var) else e

    return fold_conditions(simplify_indices(map_exprs(body, fix, fix_value)))


def fold_conditions(root: LoopNode) -> LoopNode:
    """Decide conditions that have become constant."""

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if isinstance(node, If) and all(isinstance(e, (Op, Const)) for e in walk(node.cond)):
            if evaluate_int(node.cond, {}):
                return node.then
            return node.other if node.other is not None else Block(())
        return node

    return visit(root)


# --- threads -------------------------------------------------------------------------------


def workshare(root: LoopNode) -> LoopNode:
    """Every thread runs the tree; what is not in a parallel loop is left to a single one.

    Loops that contain a parallel loop run on all threads, in step: a parallel loop and a
    `Single` both end in a barrier.
    """
    if not has_mark(root, "parallel"):
        return root

    def visit(node: LoopNode) -> LoopNode:
        if isinstance(node, For) and node.mark == "parallel":
            return node
        if not has_mark(node, "parallel"):
            return Single(node)
        if isinstance(node, Block):
            return block(_join([visit(c) for c in node.children]))
        return map_children(node, visit)

    return visit(root)


def _join(nodes: list[LoopNode]) -> list[LoopNode]:
    """Merge neighbouring singles, so that they share one barrier."""
    result: list[LoopNode] = []
    for node in nodes:
        last = result[-1] if result else None
        if isinstance(node, Single) and isinstance(last, Single):
            result[-1] = Single(block([last.body, node.body]))
        else:
            result.append(node)
    return result


# --- registers -----------------------------------------------------------------------------


def is_scalarisable(buffer: Buffer) -> bool:
    """Whether every access to a buffer has a constant place, up to whole vectors of lanes."""
    lanes = vector_lanes(buffer)
    if lanes is None:
        return False
    vectors = {id(n.store): n.var for n in walk_loops(buffer.body) if isinstance(n, VectorStore)}
    for n in walk_loops(buffer.body):
        if not isinstance(n, Store):
            continue
        var = vectors.get(id(n))
        for read in reads_in(n):
            if read.tensor != buffer.name:
                continue
            for index in read.indices:
                form = linear_form(index)
                if var is not None:
                    form = form.without(Index(var))
                if form.terms:
                    return False
    return True


def vector_lanes(buffer: Buffer) -> int | None:
    """The one number of lanes in which a buffer is accessed (1: scalars), None if it varies."""
    widths: set[int] = set()
    inside: set[int] = set()
    for n in walk_loops(buffer.body):
        if isinstance(n, VectorStore):
            inside.add(id(n.store))
            for read in reads_in(n.store):
                if read.tensor == buffer.name:
                    widths.add(n.lanes if lane_stride(read, n.var) == 1 else 1)
        elif isinstance(n, Store) and id(n) not in inside:
            widths |= {1 for read in reads_in(n) if read.tensor == buffer.name}
    return widths.pop() if len(widths) == 1 else None
