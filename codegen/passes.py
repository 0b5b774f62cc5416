"""Passes over the loop IR: pure functions from tree to tree, in the order of `optimise`."""

from __future__ import annotations

from codegen.decide import decide
from codegen.lanes import vectorise
from codegen.loopir import (
    LoopNode,
    verify_loops,
)
from codegen.masks import settle_masks
from codegen.places import simplify_indices
from codegen.rounds import fence_rounds
from codegen.transposed import transpose
from codegen.unread import drop_unread
from codegen.unroll import unroll
from codegen.unswitch import unswitch
from codegen.workshare import workshare
from poly.program import Program


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
