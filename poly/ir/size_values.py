"""Values given for sizes by name: which are valid, and which are needed."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from poly.errors import ArgumentError
from poly.ir.expr import evaluate_int, sizes_of
from poly.ir.intervals import LARGEST_SIZE, MOST
from poly.ir.program import Program


def whole_number(what: str, value: Any) -> int:
    """An integer.  Raises `ArgumentError` that names `what` for anything else, including a bool."""
    if isinstance(value, (bool, np.bool_)):
        raise ArgumentError(f"{what} must be an integer, not {value}")
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} must be an integer, not {value!r}") from None


def given_sizes(sizes: Any) -> dict[str, int]:
    """Sizes by name as Python's integers.

    Raises
    ------
    ArgumentError : not a mapping, or an invalid value.
    """
    return {name: check_size(name, value) for name, value in by_name("sizes", sizes).items()}


def check_size(name: str, value: Any) -> int:
    """A value for a size.  Raises `ArgumentError` unless it is an integer in the range of sizes."""
    number = whole_number(f"size {name}", value)
    if not 0 <= number <= LARGEST_SIZE:
        raise ArgumentError(f"size {name} = {shown(number)} is not in the range 0 to {MOST}")
    return number


def shown(number: int) -> str:
    """A number in a message; Python refuses to print some thousand digits."""
    return str(number) if number.bit_length() < 200 else f"a number of {number.bit_length()} bits"


def by_name(what: str, given: Any) -> Mapping[str, Any]:
    """Values given by name, none if `given` is None.  Raises `ArgumentError` if not a mapping."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"{what} are given by name, as in {{'name': …}}, not as {type(given).__name__}"
        )
    return given


def known_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Values for some sizes of a program.

    Raises
    ------
    ArgumentError : not a mapping, an unknown size, or an invalid value.
    """
    for name in by_name("sizes", sizes):
        if name not in program.sizes:
            known = ", ".join(program.sizes) or "none"
            raise ArgumentError(f"{program.name} has no size {name!r}; it has {known}")
    return {name: check_size(name, value) for name, value in sizes.items()}


def all_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """A value for every size of the program, in its order; products of others need not be given.

    Raises
    ------
    ArgumentError : see `known_sizes`; or a size is missing.
    """
    values = known_sizes(program, sizes)
    for name, e in program.products.items():
        if name not in values and set(sizes_of(e)) <= set(values):
            values[name] = check_size(name, evaluate_int(e, values))
    missing = [name for name in program.sizes if name not in values]
    if missing:
        raise ArgumentError(f"no value is given for {', '.join(missing)}")
    return {name: values[name] for name in program.sizes}
