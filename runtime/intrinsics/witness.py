"""Why an instruction is refused: the operands, what was expected, and what came."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from poly.ir.expr import Const, Read, evaluate_int, reads_of
from poly.ir.intrinsics import VectorIntrinsic
from runtime.reference.scalar_semantics import Array

#: How many operands are named.
_MOST = 12


def operands_of(intrinsic: VectorIntrinsic, element: tuple[int, ...]) -> dict[Read, str]:
    """What an element of the target is made from: each read with its name, in order."""
    s = intrinsic.statement
    reads = list(reads_of(s.value))
    if s.is_update:
        reads.insert(0, s.target)
    found: dict[Read, str] = {}
    for at in product(*map(range, intrinsic.extents)):
        env = dict(zip(s.indices, at, strict=True))
        if tuple(evaluate_int(i, env) for i in s.target.indices) != element:
            continue
        for read in reads:
            where = tuple(evaluate_int(i, env) for i in read.indices)
            found[Read(read.tensor, tuple(map(Const, where)))] = named(read.tensor, where)
    return found


def describe(
    intrinsic: VectorIntrinsic,
    case: Mapping[str, Array],
    element: tuple[int, ...],
    wanted: Any,
    got: Any,
    placement: str,
) -> str:
    """One wrong element of the target, on a few lines.

    case : all tensors before the instruction ran
    """
    lines = [
        f"{named(intrinsic.target, element)} is {shown(got)}, expected {shown(wanted)} "
        f"(operands {placement})"
    ]
    reads = operands_of(intrinsic, element)
    parts = [
        f"{name} = {shown(case[read.tensor][tuple(evaluate_int(i, {}) for i in read.indices)])}"
        for read, name in reads.items()
    ]
    if parts:
        more = f", and {len(parts) - _MOST} more" if len(parts) > _MOST else ""
        lines.append(f"  with {', '.join(parts[:_MOST])}{more}")
    return "\n".join(lines)


def named(tensor: str, element: tuple[int, ...]) -> str:
    return f"{tensor}[{', '.join(map(str, element))}]"


def shown(value: Any) -> str:
    """A number, so that different ones look different."""
    return str(np.asarray(value)[()]).removesuffix(".0")
