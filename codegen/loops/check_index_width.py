"""A verifier of the loop IR: index arithmetic stays within 64 bits for all sizes."""

from __future__ import annotations

from collections.abc import Collection

from codegen.loops.nodes import For, LoopNode, Tile, VectorStore
from codegen.loops.traverse import children_of, own_bounds, own_values
from poly.errors import CapacityError
from poly.ir.expr import reads_of
from poly.ir.intervals import INT64, Beyond64BitsError, Interval, interval, size_intervals
from poly.ir.program import Program

#: Bounds of the host's loop variables, which kernels take in addition to sizes.
NUMBERS_OF_HOST = (-(1 << 50), 1 << 50)


def check_index_width(
    root: LoopNode, program: Program, numbers: Collection[str] = (), loops: Interval = INT64
) -> LoopNode:
    """Check that bounds, conditions and indices fit in 64 bits; returns the loops.

    numbers : host loop variables, which a kernel takes in addition to the program's sizes
    loops : the interval that loop variables have to stay within

    Raises
    ------
    ScheduleError : naming the expression that could overflow, as in the generated code.
    """
    try:
        _check(root, size_intervals(program) | dict.fromkeys(numbers, NUMBERS_OF_HOST), loops)
    except Beyond64BitsError as error:
        raise CapacityError(
            f"the loops of this schedule may overflow 64-bit index arithmetic: {error}; "
            "use smaller factors, or bound the sizes, as in where N <= 1000000"
        ) from None
    return root


def _check(node: LoopNode, known: dict[str, Interval], loops: Interval) -> None:
    bounds = [interval(e, known) for e in own_bounds(node)]
    for value in own_values(node):
        for read in reads_of(value):
            for index in read.indices:
                if not reads_of(index):
                    interval(index, known)
    if isinstance(node, For):
        (low, _), (_, high) = bounds
        # The variable stops at its upper bound, or up to a step beyond.
        for number in (low, high + node.step):
            if not loops[0] <= number <= loops[1]:
                raise Beyond64BitsError(node.upper, number)
        high = max(low, high - 1)
        if node.limits is not None:
            low, high = max(low, node.limits[0]), min(high, node.limits[1])
        known = {**known, node.var: (low, max(low, high))}
    elif isinstance(node, Tile):
        known = {**known, **dict(zip((name for name, _ in node.names), bounds, strict=True))}
    elif isinstance(node, VectorStore):
        known = {**known, node.var: (0, node.lanes - 1)}
    for child in children_of(node):
        _check(child, known, loops)
