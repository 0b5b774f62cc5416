"""Every step of a schedule, by name."""

from __future__ import annotations

from collections.abc import Callable

from poly.marks import (
    isolate,
    map_blocks,
    map_threads,
    parallelize,
    reduce_threads,
    unroll,
    vectorize,
)
from poly.scop import Scop
from poly.steps import Step
from poly.tensorize import tensorize
from poly.transforms import (
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
from poly.tree import Node

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
