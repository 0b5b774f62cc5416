"""Sizes that a user gives by name, for a call or for a picture."""

from __future__ import annotations

import operator
import random
from collections.abc import Mapping

from poly.errors import ArgumentError
from poly.expr import evaluate_int, sizes_of
from poly.program import Program
from runtime.arguments import bind, shape_of


def known_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Values for some sizes of a program.

    Raises
    ------
    ArgumentError : an unknown size, or a value that is no number from 0 on.
    """
    values: dict[str, int] = {}
    for name, value in sizes.items():
        if name not in program.sizes:
            known = ", ".join(program.sizes) or "none"
            raise ArgumentError(f"{program.name} has no size {name!r}; it has {known}")
        try:
            values[name] = operator.index(value)
        except TypeError:
            raise ArgumentError(f"size {name} must be an integer, not {value!r}") from None
        if isinstance(value, bool) or not 0 <= values[name] < 2**62:
            raise ArgumentError(f"size {name} = {value} is not in the range 0 to 2**62 - 1")
    return values


def all_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """A value for every size of a program, in its order; products of others need none.

    Raises
    ------
    ArgumentError : as `known_sizes`, and where one is missing.
    """
    values = known_sizes(program, sizes)
    for name, e in program.products.items():
        if name not in values and set(sizes_of(e)) <= set(values):
            values[name] = evaluate_int(e, values)
    missing = [name for name in program.sizes if name not in values]
    if missing:
        raise ArgumentError(f"no value is given for {', '.join(missing)}")
    return {name: values[name] for name in program.sizes}


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
