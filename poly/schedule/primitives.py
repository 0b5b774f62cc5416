"""Every step of a schedule, by name."""

from __future__ import annotations

from collections.abc import Callable

from poly.buffers.tensorize import tensorize
from poly.deps.scop import Scop
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
from poly.tree.steps import Step

#: Every primitive by name.
PRIMITIVES: dict[str, Callable[[Node, Scop, Step], Node]] = {
    "tile": tile,
    "split": split,
    "interchange": interchange,
    "reorder": reorder,
    "fuse": fuse,
    "distribute": distribute,
    "sink": sink,
    "skew": skew,
    "shift": shift,
    "reverse": reverse,
    "parallelize": parallelize,
    "vectorize": vectorize,
    "unroll": unroll,
    "isolate": isolate,
    "promote": promote,
    "map_blocks": map_blocks,
    "map_threads": map_threads,
    "reduce_threads": reduce_threads,
    "tensorize": tensorize,
}
