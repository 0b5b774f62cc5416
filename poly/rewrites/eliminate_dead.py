"""Removal of statements whose results are never read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poly.ir.program import Program, Statement


def eliminate_dead(program: Program) -> Program:
    """Remove statements on which no output depends, and the temporaries that they fill.

    Inputs that only these read are kept: callers pass them.
    """
    needed = {t.name for t in program.outputs}
    kept = []
    for group in reversed(program.groups):
        if group[0].block:
            needed = _needed_by_steps(group, needed)
        for s in reversed(group):
            if s.target.tensor in needed:
                kept.append(s)
                needed |= {r.tensor for r in s.reads}
    if len(kept) == len(program.statements):
        return program
    temps = tuple(t for t in program.temps if t.name in needed)
    return replace(program, temps=temps, statements=tuple(reversed(kept)))


def _needed_by_steps(group: Sequence[Statement], needed: set[str]) -> set[str]:
    """The tensors that a block needs: an earlier statement may read what a later one wrote."""
    while True:
        more = {r.tensor for s in group if s.target.tensor in needed for r in s.reads}
        if more <= needed:
            return needed
        needed = needed | more
