"""From isl back to expressions: parameter sets as conditions over sizes, and witnesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl

from poly.ir.expr import Const, Expr, Op, Size, add, floordiv, mul
from poly.ir.program import Program
from poly.sets.prove import limited
from poly.sets.to_isl import context_set, least_point, parameters

#: A condition with more alternatives than this helps nobody.
MAX_ALTERNATIVES = 8


def conditions_of(params: isl.Set, context: isl.Set) -> tuple[Expr, ...] | None:
    """Conditions over sizes that hold, within `context`, exactly on `params`.

    None if there would be too many alternatives to read.  Raises `isl.Error` if the work
    exceeds a budget set by the caller.
    """
    wanted = params.intersect(context).coalesce()
    hull = isl.Set.from_basic_set(wanted.gist(context).unshifted_simple_hull())
    if hull.intersect(context).is_equal(wanted):
        return _conjunction(hull.get_basic_sets()[0]) if not hull.is_empty() else (Const(False),)
    alternatives = _relaxed(wanted.gist(context).coalesce(), wanted, context)
    if len(alternatives) > MAX_ALTERNATIVES:
        return None
    if len(alternatives) == 1:
        return _conjunction(alternatives[0])
    result: Expr | None = None
    for b in alternatives:
        both = _join("and", _conjunction(b))
        result = both if result is None else Op("or", (result, both))
    return (Const(False),) if result is None else (result,)


def _relaxed(union: isl.Set, wanted: isl.Set, context: isl.Set) -> list[isl.BasicSet]:
    """The alternatives, without redundant conditions and without redundant alternatives."""
    kept: list[isl.BasicSet] = []
    for b in union.get_basic_sets():
        constraints = list(b.get_constraints())
        for c in list(constraints):
            rest = [x for x in constraints if x is not c]
            wider = isl.BasicSet.universe(b.get_space()).add_constraints(rest)
            if isl.Set.from_basic_set(wider).intersect(context).is_subset(wanted):
                constraints = rest
        kept.append(isl.BasicSet.universe(b.get_space()).add_constraints(constraints))
    for b in list(kept):
        others = [o for o in kept if o is not b]
        if others and isl.Set.from_basic_set(b).intersect(context).is_subset(_union(others)):
            kept = others
    return kept


def _union(parts: Sequence[isl.BasicSet]) -> isl.Set:
    result = isl.Set.from_basic_set(parts[0])
    for p in parts[1:]:
        result = result.union(isl.Set.from_basic_set(p))
    return result


def _join(fn: str, parts: Sequence[Expr]) -> Expr:
    if not parts:
        return Const(True)
    result = parts[0]
    for p in parts[1:]:
        result = Op(fn, (result, p))
    return result


def _conjunction(b: isl.BasicSet) -> tuple[Expr, ...]:
    # Existentially quantified dimensions become floors of affine expressions.
    b = b.compute_divs().get_basic_sets()[0]
    return tuple(_condition(c) for c in b.get_constraints() if not c.is_div_constraint())


def _condition(c: isl.Constraint) -> Expr:
    """``Σ c·x + k >= 0`` with negative terms moved to the other side."""
    local = c.get_local_space()
    positive: list[tuple[int, Expr]] = []
    negative: list[tuple[int, Expr]] = []
    for term, k in _terms(c, local):
        (positive if k > 0 else negative).append((abs(k), term))
    free = int(c.get_constant_val().to_python())
    left, right = _sum(positive), _sum(negative)
    if c.is_equality():
        return Op("eq", (add(left, Const(max(free, 0))), add(right, Const(max(-free, 0)))))
    if not positive or (negative and free >= 0):
        # R <= H + 1 reads better than H + 1 >= R.
        return Op("le", (right, add(left, Const(free))))
    return Op("ge", (left, add(right, Const(-free))))


def _terms(c: isl.Constraint | isl.Aff, local: isl.LocalSpace) -> list[tuple[Expr, int]]:
    result: list[tuple[Expr, int]] = []
    for n in range(local.dim(isl.dim_type.param)):
        k = int(c.get_coefficient_val(isl.dim_type.param, n).to_python())
        if k:
            result.append((Size(local.get_dim_name(isl.dim_type.param, n)), k))
    for n in range(local.dim(isl.dim_type.div)):
        k = int(c.get_coefficient_val(isl.dim_type.div, n).to_python())
        if k:
            result.append((_div(local.get_div(n)), k))
    return result


def _div(a: isl.Aff) -> Expr:
    """``floor((Σ c·x + k) / d)``"""
    d = int(a.get_denominator_val().to_python())
    scaled = a.scale_val(isl.Val(d))
    terms = _terms(scaled, scaled.get_domain_local_space())
    free = int(scaled.get_constant_val().to_python())
    return floordiv(add(_sum([(k, t) for t, k in terms]), Const(free)), d)


def _sum(terms: Sequence[tuple[int, Expr]]) -> Expr:
    result: Expr = Const(0)
    for k, term in terms:
        result = add(result, mul(Const(k), term))
    return result


def witness(points: isl.Set, sizes: Sequence[str]) -> tuple[dict[str, int], tuple[int, ...]]:
    """The smallest sizes at which a set has a point, and the first such point."""
    n = points.dim(isl.dim_type.param)
    flat = points.coalesce()
    if flat.is_params():
        flat = flat.add_dims(isl.dim_type.set, 0) if n == 0 else _as_set(flat)
    if n:
        flat = flat.move_dims(isl.dim_type.set, 0, isl.dim_type.param, 0, n)
    values = least_point(flat)
    return dict(zip(sizes, values[:n], strict=True)), tuple(values[n:])


def least_sizes(program: Program, bounds: Mapping[str, int]) -> dict[str, int] | None:
    """The lexicographically least sizes, each at least its bound, that meet the preconditions.

    Preconditions that are not affine are left out.  None if there are none, or it takes too long.
    """
    conditions = " and ".join(f"{name} >= {least}" for name, least in bounds.items())
    try:
        with limited():
            allowed = context_set(program).intersect_params(
                isl.Set(f"{parameters(program)} {{ : {conditions or 'true'} }}")
            )
            return None if allowed.is_empty() else witness(allowed, program.sizes)[0]
    except isl.Error:
        return None


def _as_set(params: isl.Set) -> isl.Set:
    space = params.get_space().set_from_params()
    return isl.Set.universe(space).intersect_params(params)
