"""`Built`: a graph whose kernels are compiled, before it is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from poly.ir.expr import Expr, evaluate_int
from poly.ir.graph import Graph
from runtime.common.cache import Entry
from runtime.network.memory_plan import MemoryPlan, Sharing

#: For each call, the width in bytes and the shape of each of its own temporaries.
Scratch = Mapping[str, Mapping[str, tuple[int, tuple[Expr, ...]]]]


@dataclass(frozen=True, eq=False)
class Built:
    """A graph whose compiled kernels are in the cache, and the compiler's description of it.

    graph : with the layouts that its kernels prefer; scratch : the shape and width in bytes of each
    call's own temporaries; sizes : what the entry point is passed, in order; plan : of memory, None
    for a graph of open sizes, which has one for each combination of them
    """

    graph: Graph
    entry: Entry
    sharing: Sharing
    scratch: Scratch
    sizes: tuple[Expr, ...]
    kernels: int
    from_cache: bool
    plan: MemoryPlan | None


def scratch_bytes(scratch: Scratch, env: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The bytes of each call's temporaries, for given sizes."""
    return {
        call: {
            t: width * math.prod(evaluate_int(e, env) for e in shape)
            for t, (width, shape) in own.items()
        }
        for call, own in scratch.items()
    }
