"""Statements whose results nobody reads."""

from __future__ import annotations

from dataclasses import replace

from poly.program import Program


def without_unread(program: Program) -> Program:
    """The program without statements of which no output comes, and the temporaries they fill.

    Inputs that only these read stay: callers pass them.
    """
    needed = {t.name for t in program.outputs}
    kept = []
    for s in reversed(program.statements):
        if s.target.tensor in needed:
            kept.append(s)
            needed |= {r.tensor for r in s.reads}
    if len(kept) == len(program.statements):
        return program
    temps = tuple(t for t in program.temps if t.name in needed)
    return replace(program, temps=temps, statements=tuple(reversed(kept)))
