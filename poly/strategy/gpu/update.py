"""Updates with reuse of two operands, around which groups of statements are tiled on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from poly.deps.scop import Role, ScopStatement
from poly.ir.accesses import loops_of_read
from poly.machine.gpu import GpuMachine
from poly.strategy.common.tactic import Group


@dataclass(frozen=True)
class UpdateWithReuse:
    """An update ``C[..] += A[..] * B[..]``, and its free loops."""

    statement: str
    free: tuple[str, ...]


@lru_cache(maxsize=64)
def core_of(group: Group[GpuMachine]) -> UpdateWithReuse | None:
    """The first update of a group with reuse of both operands.

    Each operand is invariant in some free loop that moves the other one.
    """
    for name in group.names:
        s = group.schedule.scop.statement(name)
        if s.role == Role.UPDATE and not s.may_reads and _has_reuse(s):
            return UpdateWithReuse(name, s.free)
    return None


def _has_reuse(s: ScopStatement) -> bool:
    moved = [{r for r in s.source.reads if x in loops_of_read(r)} for x in s.free]
    return any(a and b and not a & b for a in moved for b in moved)
