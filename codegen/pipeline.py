"""Passes over the loop IR: pure functions from tree to tree, in the order of `optimise`."""

from __future__ import annotations

from codegen.loops.eliminate_dead import drop_unread
from codegen.loops.fold_comparisons import decide
from codegen.loops.nodes import LoopNode, verify_loops
from codegen.loops.substitute import simplify_indices
from codegen.loops.unroll import unroll
from codegen.loops.unswitch import unswitch
from codegen.loops.workshare import workshare
from codegen.vector.mask_lanes import settle_masks
from codegen.vector.register_pressure import fence_rounds
from codegen.vector.transpose import transpose
from codegen.vector.vectorise import vectorise
from poly.ir.program import Program


def optimise(root: LoopNode, program: Program) -> LoopNode:
    """All passes, with the verifier between them."""
    for fn in (
        simplify_indices,
        lambda n: vectorise(n, program),
        unroll,
        settle_masks,
        lambda n: decide(n, program),
        drop_unread,
        unswitch,
        lambda n: transpose(n, program),
        fence_rounds,
        workshare,
    ):
        root = verify_loops(fn(root))
    return root
