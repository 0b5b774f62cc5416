"""How the elements that accesses touch move with loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from poly.deps.footprint import prefix_map
from poly.deps.scop import Scop, ScopStatement, with_domain
from poly.sets.isl_names import dims
from poly.sets.to_isl import least_point
from poly.tree.nodes import Member


def movement(relation: isl.Map, at: int) -> tuple[int, ...] | None:
    """The distance between the elements an access touches in consecutive iterations of a loop.

    None if it is not constant.

    relation : ``{ [t] -> T[e] }``; at : the number of the loop
    """
    here = dims("t", relation.dim(isl.dim_type.in_))
    there = [f"{t} + 1" if k == at else t for k, t in enumerate(here)]
    step = isl.Map(f"{{ [{', '.join(here)}] -> [{', '.join(there)}] }}")
    # { [t] -> [T[e] -> T[e']] }
    both = relation.range_product(step.apply_range(relation))
    deltas = both.range().unwrap().deltas()
    if deltas.is_empty():
        return (0,) * int(relation.dim(isl.dim_type.out))
    point = tuple(least_point(deltas))
    return point if bool(deltas.is_singleton()) else None


def unbounded(scop: Scop, s: ScopStatement) -> ScopStatement:
    """A statement with an instance for all values of its loops."""
    return with_domain(scop.program, s, isl.Set.universe(s.domain.get_space()))


def in_order_of_target(
    scop: Scop, s: ScopStatement, around: Sequence[Member], chosen: Sequence[Member]
) -> list[Member]:
    """Loops as i, j, k: the target moves along its first tiled dimension with i, not with k."""
    every = unbounded(scop, replace(s, reads=()))
    relation = prefix_map(every, [*around, *chosen]).reverse().apply_range(every.write)
    moves = [movement(relation, len(around) + n) or () for n in range(len(chosen))]
    # (1, 0) before (0, 1) before (0, 0)
    order = sorted(range(len(chosen)), key=lambda n: moves[n], reverse=True)
    return [chosen[n] for n in order]
