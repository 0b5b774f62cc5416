"""`CompileReport`: what compiling a network took and produced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Called with (stage, steps done, steps in all, current item).
Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True)
class CompileReport:
    """What compiling a model took and produced.

    stages : (name, seconds); kernels : distinct compiled functions; calls : kernel calls per run;
    arena_bytes : memory for intermediates, arena_bound : a lower bound for any plan;
    variants : for each stage compiled or loaded so far, the conditions on sizes under which it is
    used again, and the seconds that it took, without its import
    """

    stages: tuple[tuple[str, float], ...]
    kernels: int
    calls: int
    arena_bytes: int
    arena_bound: int
    constant_bytes: int
    from_cache: bool
    variants: tuple[tuple[str, float], ...] = ()
