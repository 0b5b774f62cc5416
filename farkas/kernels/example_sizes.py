"""Sizes with which a program can be called."""

from __future__ import annotations

import random
from collections.abc import Mapping

from poly.errors import ArgumentError
from poly.ir.program import Program
from poly.ir.size_values import all_sizes
from runtime.common.arguments import bind, shape_of


def checked_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """As `all_sizes`, of sizes with which the program can be called.

    Raises
    ------
    ArgumentError : as `all_sizes`, and where the program's conditions do not hold.
    """
    every = all_sizes(program, sizes)
    shapes = {t.name: shape_of(t, every) for t in program.inputs}
    return dict(bind(program, shapes, every).sizes)


def small_sizes(program: Program) -> dict[str, int]:
    """Small, mostly different sizes that the program accepts.

    Raises
    ------
    ArgumentError : if none were found.
    """
    rng = random.Random(0)
    for attempt in range(1000):
        low, high = (5, 17) if attempt < 100 else (0, 70)
        sizes = {name: rng.randint(low, high) for name in program.sizes}
        try:
            return checked_sizes(program, sizes)
        except ArgumentError:
            continue
    raise ArgumentError(f"no small sizes fit {program.name}; pass sizes={{…}}")
