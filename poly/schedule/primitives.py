"""Every primitive, in the order of the documentation."""

from __future__ import annotations

from difflib import get_close_matches

from poly.buffers.tensorize import tensorize
from poly.deps.dependences import Dependences
from poly.deps.scop import Scop
from poly.errors import ScheduleError
from poly.schedule.isl_scheduler import isl_schedule
from poly.schedule.loop_kinds import (
    isolate,
    map_blocks,
    map_threads,
    parallelize,
    reduce_threads,
    unroll,
    vectorize,
)
from poly.schedule.loop_transforms import (
    distribute,
    fuse,
    interchange,
    promote,
    reorder,
    reverse,
    shift,
    sink,
    skew,
    split,
    tile,
)
from poly.tree.nodes import Node
from poly.tree.primitive import Primitive, primitive
from poly.tree.steps import Step


@primitive("reschedule", statements=0, loops=False, of_dependences=True)
def reschedule(tree: Node, scop: Scop, step: Step, dependences: Dependences) -> Node:
    """The tree that isl's scheduler finds, regardless of the current one."""
    return isl_schedule(scop, dependences)


#: Every primitive by name.
PRIMITIVES: dict[str, Primitive] = {
    p.name: p
    for p in (
        tile, split, interchange, reorder, fuse, distribute, sink, skew, shift, reverse,
        parallelize, vectorize, unroll, isolate, promote, map_blocks, map_threads, reduce_threads,
        tensorize, reschedule,
    )
}  # fmt: skip


def find_primitive(name: str) -> Primitive:
    """The primitive of a name.

    Raises
    ------
    ScheduleError : unknown; the message suggests the primitive that may have been meant.
    """
    if name in PRIMITIVES:
        return PRIMITIVES[name]
    near = get_close_matches(name, PRIMITIVES, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise ScheduleError(f"there is no primitive {name!r}; {meant}there are {', '.join(PRIMITIVES)}")
