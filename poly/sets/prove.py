"""Small proofs over sizes and indices with isl, bounded in effort."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import islpy as isl

from poly.ir.expr import Const, Expr, Op
from poly.sets.to_isl import isl_condition

#: isl operations that one question may take; a hundred times what typical ones need.
BUDGET = 100_000


@contextmanager
def limited(operations: int = BUDGET) -> Iterator[None]:
    """Bound isl's work inside the block; beyond it `isl.Error` is raised.

    Inside another bounded block the outer bound holds.
    """
    ctx = isl.DEFAULT_CONTEXT
    if ctx.get_max_operations():
        yield
        return
    ctx.reset_operations()
    ctx.set_max_operations(operations)
    try:
        yield
    finally:
        ctx.set_max_operations(0)
        ctx.reset_operations()


def proves(
    sizes: Sequence[str], indices: Sequence[str], assumptions: Sequence[Expr], goal: Expr
) -> bool:
    """Whether `goal` holds wherever the assumptions do, for all sizes >= 0.

    Assumptions that are not affine are dropped; a goal that is not affine, or takes too long,
    counts as not proved.
    """
    negated = isl_condition(Op("not", (goal,)))
    if negated is None:
        return False
    if isinstance(goal, Op) and all(isinstance(a, Const) for a in goal.args):
        # Literals need no isl, and are the commonest question of importers.
        left, right = (a.value for a in goal.args if isinstance(a, Const))
        known = {"le": left <= right, "lt": left < right, "ge": left >= right, "gt": left > right}
        if goal.fn in known:
            return known[goal.fn]
    conditions = [f"{s} >= 0" for s in sizes]
    conditions += [text for a in assumptions if (text := isl_condition(a)) is not None]
    text = f"[{', '.join(sizes)}] -> {{ [{', '.join(indices)}] : "
    try:
        with limited():
            return bool(isl.Set(text + " and ".join([*conditions, negated]) + " }").is_empty())
    except isl.Error:
        return False
