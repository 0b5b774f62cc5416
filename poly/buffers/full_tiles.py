"""Tiles of which an instruction runs all iterations, as `tensorize` asks for them."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from poly.deps.footprint import prefix_map
from poly.deps.scop import Scop, ScopStatement
from poly.errors import ScheduleError
from poly.ir.intrinsics import Intrinsic
from poly.tree.nodes import Member


def with_loops(outer: isl.Set, limits: Sequence[tuple[int, int]]) -> isl.Set:
    """``{ [p, t] }``: these iterations p, each with all t between the limits."""
    start = outer.dim(isl.dim_type.set)
    box = outer.add_dims(isl.dim_type.set, len(limits))
    for n, (low, high) in enumerate(limits, start):
        box = box.lower_bound_val(isl.dim_type.set, n, isl.Val(low))
        box = box.upper_bound_val(isl.dim_type.set, n, isl.Val(high))
    return box


def are_full(
    scop: Scop, s: ScopStatement, around: Sequence[Member], chosen: Sequence[Member],
    extents: Sequence[int], what: str,
) -> bool:  # fmt: skip
    """Whether every tile has all iterations of the chosen loops.

    Raises
    ------
    ScheduleError : several instances run at one time.
    """
    times = prefix_map(s, [*around, *chosen]).intersect_params(scop.context)
    if not times.is_injective():
        raise ScheduleError(f"{what}: several instances of {s.name} run at the same time")
    image = times.range()
    outer = image.project_out(isl.dim_type.set, len(around), len(chosen))
    return bool(with_loops(outer, [(0, n - 1) for n in extents]).is_subset(image))


def other_extent(
    m: Member, limits: tuple[int, int] | None, extent: int, intrinsic: Intrinsic, what: str
) -> ScheduleError:
    """The error for a loop of another extent than that of the instruction."""
    has = "an unknown number of" if limits is None else f"{limits[1] - limits[0] + 1}"
    return ScheduleError(
        f"{what}: {m.name} has {has} iterations, and {intrinsic.name} {extent} from 0; "
        f"split the loop by {extent} and take the inner one"
    )
