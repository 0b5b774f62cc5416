"""`load_intrinsics`: instructions from a TOML file.

    [[intrinsic]]
    meaning = "def add8(float32 x[8], float32 y[8]) -> (float32 z[8]) { z[i] = x[i] + y[i] }"
    template = "_mm256_storeu_ps({z}, _mm256_add_ps(_mm256_loadu_ps({x}), _mm256_loadu_ps({y})));"
    headers = ["immintrin.h"]
    feature = "avx"

Keys are the parameters of `farkas.intrinsics.declare.intrinsic`; the first two are needed.
"""

from __future__ import annotations

import tomllib
from os import PathLike, fspath
from typing import Any

from farkas.console.files import read_text_file
from farkas.intrinsics.declare import check_here, declare, read_intrinsic
from farkas.targets.find_target import CacheLike, CompilerLike
from poly.errors import ArgumentError, FarkasError
from poly.ir.intrinsics import VectorIntrinsic
from runtime.intrinsics.check import Verdict, refusal

_NEEDED = ("meaning", "template")
_KEYS = (*_NEEDED, "setup", "headers", "feature", "reorders")


def load_intrinsics(
    path: str | PathLike[str], *, cc: CompilerLike = None, cache: CacheLike = None
) -> tuple[VectorIntrinsic, ...]:
    """Declare all instructions of a TOML file, as `intrinsic` does; none if one is refused.

    A file has a table ``[[intrinsic]]`` for each, whose keys are the parameters of `intrinsic`:
    ``meaning``, ``template``, ``setup``, ``headers``, ``feature``, ``reorders``.

    Raises
    ------
    ArgumentError : the file cannot be read, or is not such a file.
    LanguageError, IntrinsicError, ToolchainError : see `intrinsic`.
    """
    verdicts = check_file(path, cc, cache)
    for verdict in verdicts:
        if verdict.refused:
            raise refusal(verdict)
    return tuple(map(declare, verdicts))


def check_file(
    path: str | PathLike[str], cc: CompilerLike = None, cache: CacheLike = None
) -> list[Verdict]:
    """What is known of each instruction of a file; none is declared.

    Raises
    ------
    ArgumentError, LanguageError, ToolchainError : see `load_intrinsics`.
    """
    return check_here(read_file(path), cc, cache)


def read_file(path: str | PathLike[str]) -> list[VectorIntrinsic]:
    """The instructions of a file, not compared with their meaning yet.

    Raises
    ------
    ArgumentError : the file cannot be read, or is not such a file.
    LanguageError : a mistake in a meaning or template; a note says in which.
    """
    name = fspath(path)
    try:
        data = tomllib.loads(read_text_file(name))
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{name} is not valid TOML: {error}") from None
    unknown = [key for key in data if key != "intrinsic"]
    rows = data.get("intrinsic", [])
    if unknown or not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        what = f"has {unknown[0]!r}" if unknown else "has an `intrinsic` that is no list of tables"
        raise ArgumentError(f"{name} {what}; each instruction is a table [[intrinsic]]")
    if not rows:
        raise ArgumentError(f"{name} has no table [[intrinsic]]")
    found: dict[str, VectorIntrinsic] = {}
    for n, row in enumerate(rows, 1):
        try:
            made = _read(row)
            if made.name in found:
                raise ArgumentError(f"{made.name} is declared twice")
        except FarkasError as error:
            error.add_note(f"in {name}, intrinsic {n}")
            raise
        found[made.name] = made
    return [*found.values()]


def _read(row: dict[str, Any]) -> VectorIntrinsic:
    for key in row:
        if key not in _KEYS:
            raise ArgumentError(f"there is no key {key!r}; there are {', '.join(_KEYS)}")
    for key in _NEEDED:
        if key not in row:
            raise ArgumentError(f"{key} is missing")
    return read_intrinsic(**row)
