"""Fold comparisons and literals that are known at compile time.

C compilers warn about them, since in hand-written code they would be mistakes.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.loops.nodes import Buffer, LoopNode, Store, VectorStore
from codegen.loops.traverse import map_children, walk_loops
from poly.ir.dtypes import INT64, DType
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Size,
    dtype_of_expr,
    evaluate_int,
    is_weak,
    operand_dtype,
    rewrite,
    walk,
)
from poly.ir.linear_form import linear_form
from poly.ir.operators import OPS
from poly.ir.program import Program


def fold_comparisons(root: LoopNode, program: Program) -> LoopNode:
    """Fold comparisons and integer overflow that C compilers would warn of.

    Those are comparisons of an integer with itself, with itself plus a constant, or with a value
    its type cannot hold; and overflow, which wraps around.
    """
    buffers = {n.name: n.dtype for n in walk_loops(root) if isinstance(n, Buffer)}
    dtypes = {**program.dtypes, **buffers}

    def visit(e: Expr) -> Expr:
        if isinstance(e, Cast) and isinstance(e.arg, Const):
            return _literal(e, e.dtype)
        if not isinstance(e, Op):
            return e
        if OPS[e.fn].rule == "compare":
            return _decided(e, dtypes)
        if e.fn in _RING and all(isinstance(a, Const) for a in e.args):
            # A weak literal takes the type of the other operand, so one typed literal decides.
            return e if is_weak(e) else _literal(e, dtype_of_expr(e, dtypes))
        return e

    def on_values(node: LoopNode) -> LoopNode:
        node = map_children(node, on_values)
        if isinstance(node, VectorStore):
            store = on_values(node.store)
            assert isinstance(store, Store)
            return replace(node, store=store)
        return replace(node, value=rewrite(node.value, visit)) if isinstance(node, Store) else node

    return on_values(root)


#: Operators whose result modulo 2^n depends only on their arguments modulo 2^n.
_RING = ("add", "sub", "mul", "neg")


def _literal(e: Op | Cast, dtype: DType) -> Expr:
    """The value of integer literals, wrapped to the type."""
    args = e.args if isinstance(e, Op) else (e.arg,)
    if not dtype.is_integer or any(type(a.value) is not int for a in args if isinstance(a, Const)):
        return e
    exact = evaluate_int(e if isinstance(e, Op) else e.arg, {})
    low, _ = _type_range(dtype)
    return Const((exact - low) % (1 << dtype.bits) + low, dtype)


#: Multiples of loop variables and sizes by factors up to this do not overflow.
_PLAIN = 1 << 24


def _is_index_arithmetic(e: Expr) -> bool:
    return all(
        isinstance(x, (Index, Size))
        or (isinstance(x, Const) and x.dtype in (None, INT64) and type(x.value) is int)
        or (isinstance(x, Op) and x.fn in _RING)
        for x in walk(e)
    )


def _type_range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer or truth type."""
    if dtype.kind == "i":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1 if dtype.kind == "u" else 1


def _value_range(e: Expr, dtypes: dict[str, DType]) -> tuple[int, int]:
    """Bounds of an integer, from literals and from the types before casts."""
    if isinstance(e, Const):
        return int(e.value), int(e.value)
    own = _type_range(dtype_of_expr(e, dtypes))
    if isinstance(e, Cast) and not dtype_of_expr(e.arg, dtypes).is_float:
        before = _value_range(e.arg, dtypes)
        if own[0] <= before[0] and before[1] <= own[1]:
            return before
    return own


def _decided(e: Op, dtypes: dict[str, DType]) -> Expr:
    """Decide a comparison of integers whose difference is constant, or whose types decide it."""
    if any(dtype_of_expr(a, dtypes).is_float for a in e.args):
        return e
    if e.args[0] == e.args[1]:
        return Const(e.fn in ("le", "ge", "eq"))
    met = operand_dtype(e, dtypes, None)
    common = _type_range(met)
    args = [_literal(Cast(met, a), met) if isinstance(a, Const) else a for a in e.args]
    (low, high), (other_low, other_high) = ranges = [_value_range(a, dtypes) for a in args]
    if all(common[0] <= x[0] and x[1] <= common[1] for x in ranges):
        if high < other_low or low > other_high:
            return Const(
                e.fn == "ne" or e.fn in (("lt", "le") if high < other_low else ("gt", "ge"))
            )
        if (high == other_low and e.fn in ("le", "gt")) or (
            low == other_high and e.fn in ("ge", "lt")
        ):
            return Const(e.fn in ("le", "ge"))
    if not all(_is_index_arithmetic(a) for a in e.args):
        return e
    forms = [linear_form(a) for a in e.args]
    gap = forms[0] - forms[1]
    if gap.terms or any(
        abs(c) > _PLAIN for f in forms for c in (f.constant, *dict(f.terms).values())
    ):
        return e
    return Const(bool(evaluate_int(Op(e.fn, (Const(gap.constant), Const(0))), {})))
