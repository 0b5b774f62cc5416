"""The error for temporaries that do not fit into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt, prod

from poly.errors import ArgumentError
from poly.ir.cost import extent_of
from poly.ir.expr import evaluate_int, indices_of
from poly.ir.program import Program, Tensor

#: Tensors that are named.
SHOWN = 3


def no_room(
    program: Program, workspace: Sequence[Tensor], sizes: Mapping[str, int]
) -> ArgumentError:
    """What the temporaries of a kernel need, and what computing states again would save."""
    needed = {
        t.name: t.dtype.bytes * prod(evaluate_int(e, sizes) for e in t.shape) for t in workspace
    }
    largest = sorted(needed, key=lambda n: -needed[n])[:SHOWN]
    named = ", ".join(f"{n} {_bytes(needed[n])}" for n in largest)
    total = sum(needed.values())
    message = f"there is not enough memory for temporaries of {_bytes(total)} ({named})"
    fewer = sum(count * _share(program, n, sizes) for n, count in needed.items())
    if fewer < total / 2:
        message += f"; for a gradient, recompute= of fk.grad would need about {_bytes(int(fewer))}"
    return ArgumentError(message)


def _share(program: Program, name: str, sizes: Mapping[str, int]) -> float:
    """The part of a tensor that is there if only the root of a block's steps is kept, twice."""
    for s in program.statements:
        along = {i for e in s.target.indices for i in indices_of(e)}
        if s.target.tensor == name and s.block and s.step in along:
            steps = max(1, extent_of(s.ranges[0], sizes))
            return min(1.0, 2 * isqrt(steps) / steps)
    return 1.0


def _bytes(count: int) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 10_000:
            return f"{count} {unit}"
        count //= 1000
    return f"{count} TB"
