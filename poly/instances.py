"""Sets of statement instances, and the values that loops take on them."""

from __future__ import annotations

import islpy as isl

from poly.scop import Scop
from poly.tree import Member


def restrict_to(scop: Scop, statements: tuple[str, ...]) -> isl.UnionSet:
    """All instances of the named statements."""
    result = isl.UnionSet.empty(scop.context.get_space())
    for name in statements:
        result = result.union(isl.UnionSet.from_set(scop.statement(name).domain))
    return result


def end_value(scop: Scop, member: Member, statements: tuple[str, ...], last: bool) -> isl.PwAff:
    """The first or last value of a loop over all of its instances, 0 where it has none."""
    domain = restrict_to(scop, statements)
    values = domain.apply(isl.UnionMap.from_union_pw_aff(member.schedule))
    every = isl.Set.empty(scop.context.get_space().set_from_params().add_dims(isl.dim_type.set, 1))
    for k in range(values.n_set()):
        every = every.union(values.get_set_list().get_at(k))
    every = every.intersect_params(scop.context)
    end = every.dim_max(0) if last else every.dim_min(0)
    none = end.domain().complement()
    return end.union_add(isl.PwAff.val_on_domain(none, isl.Val(0))).coalesce()
