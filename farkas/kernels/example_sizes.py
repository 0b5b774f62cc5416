"""Example sizes with which a program can be called."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from math import prod

from poly.errors import ArgumentError
from poly.ir.cost import work_of_program
from poly.ir.expr import evaluate_int
from poly.ir.program import Program
from poly.ir.size_values import all_sizes
from poly.sets.from_isl import least_sizes
from runtime.common.arguments import bind, shape_of

#: The preferred and the largest cost of small sizes, see `_cost`.
FEW, MOST = 1 << 26, 1 << 32


def checked_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """As `all_sizes`, with a check that the program can be called with these sizes.

    Raises
    ------
    ArgumentError : see `all_sizes`; or a condition of the program does not hold.
    """
    every = all_sizes(program, sizes)
    shapes = {t.name: shape_of(t, every) for t in program.inputs}
    return dict(bind(program, shapes, every).sizes)


def small_sizes(program: Program) -> dict[str, int]:
    """Small, mostly different sizes that the program accepts.

    Raises
    ------
    ArgumentError : none were found with which it has little to do.
    """
    if not program.sizes:
        return {}
    least: tuple[int, dict[str, int]] = MOST, {}
    for wanted in _candidates(program):
        try:
            sizes = checked_sizes(program, wanted)
        except ArgumentError:
            continue
        cost = _cost(program, sizes)
        if cost <= FEW:
            return sizes
        least = min(least, (cost, sizes), key=lambda pair: pair[0])
    if least[1]:
        return least[1]
    raise ArgumentError(f"no small sizes fit {program.name}; pass sizes={{…}}")


def _candidates(program: Program) -> Iterator[dict[str, int]]:
    """Sizes to try: any, then the least that meet affine preconditions, then others."""
    rng = random.Random(0)

    def numbers(low: int, high: int) -> dict[str, int]:
        return {n: rng.randint(low, high) for n in program.sizes if n not in program.products}

    for _ in range(100):
        yield numbers(5, 17)
    for low, high in ((5, 17), (2, 6), (1, 3), (0, 2)):
        for _ in range(10):
            found = least_sizes(program, numbers(low, high))
            if found is not None:
                yield found
    for _ in range(900):
        yield numbers(0, 70)


def _cost(program: Program, sizes: Mapping[str, int]) -> int:
    """The approximate cost of the reference, in operations on a number."""
    elements = sum(
        prod(max(0, evaluate_int(e, sizes)) for e in t.shape) for t in program.tensors.values()
    )
    return max(16 * elements, work_of_program(program, sizes))
