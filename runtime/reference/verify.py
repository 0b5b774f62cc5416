"""Compare a compiled program with the reference on random arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from poly.errors import ArgumentError
from poly.ir.cost import extent_of
from poly.ir.dtypes import DType
from poly.ir.program import Program
from poly.ir.size_values import all_sizes, by_name
from runtime.common.arguments import check_program, shape_of, undetermined
from runtime.reference.evaluate import run
from runtime.reference.scalar_semantics import Array


@dataclass(frozen=True)
class Difference:
    """How one output differs from the reference, over the elements that the program writes.

    max_abs and max_rel are over finite elements; max_rel is relative to the largest magnitude
    of the reference.  `first` is the first element that differs, None if all bits agree (NaN
    agrees with NaN); `mismatched` counts those where only one side is NaN or infinite.
    """

    output: str
    max_abs: float
    max_rel: float
    mismatched: int
    first: tuple[int, ...] | None
    got: str = ""
    expected: str = ""

    def __str__(self) -> str:
        if self.first is None:
            return f"{self.output}: equal"
        at = ", ".join(map(str, self.first))
        return (
            f"{self.output}: max abs error {self.max_abs:.3g}, max rel error {self.max_rel:.3g}, "
            f"{self.mismatched} not finite on one side only; first at "
            f"{self.output}[{at}]: got {self.got}, expected {self.expected}"
        )


@dataclass(frozen=True)
class Report:
    """The result of `verify`: sizes, seed, and a `Difference` for each output."""

    sizes: Mapping[str, int]
    seed: int
    outputs: tuple[Difference, ...]

    @property
    def exact(self) -> bool:
        """Whether every output equals the reference bit for bit (signed zeros are equal)."""
        return all(d.first is None for d in self.outputs)

    def close(self, relative: float) -> bool:
        """Whether every output is within an error relative to its largest magnitude."""
        return all(d.mismatched == 0 and d.max_rel <= relative for d in self.outputs)

    def __str__(self) -> str:
        at = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        return "\n".join([f"sizes {at or 'fixed'}, seed {self.seed}", *map(str, self.outputs)])


def verify(
    program: Program,
    fn: Callable[..., Any],
    rng_seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> Report:
    """Run a callable and the reference on the same random arrays.

    Parameters
    ----------
    fn : called with the inputs in order, and by name the sizes that no input determines;
        returns the output, or all outputs in order
    sizes : a value for every size of the program

    Raises
    ------
    ArgumentError : sizes that do not match, a wrong number of results, or whatever `fn` raises
        for its arguments.
    """
    check_program(program)
    sizes = all_sizes(program, by_name("sizes", sizes))
    inputs = random_inputs(program, sizes, rng_seed)
    named = {n: sizes[n] for n in undetermined(program) if n in sizes}
    expected = run(program, inputs, sizes)
    result = fn(*(inputs[t.name].copy() for t in program.inputs), **named)
    got = tuple(map(np.asarray, result if isinstance(result, tuple) else (result,)))
    if len(got) != len(program.outputs):
        raise ArgumentError(
            f"{program.name} has {len(program.outputs)} outputs, but {len(got)} arrays came back"
        )
    differences = tuple(
        compare(t.name, array, expected.values[t.name], expected.written[t.name])
        for t, array in zip(program.outputs, got, strict=True)
    )
    return Report(sizes, rng_seed, differences)


def random_inputs(program: Program, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """A random array for each input.

    Floats are in -1 to 1.  Where the steps of a block sum up n terms, they are in ``-n^-1/2`` to
    ``n^-1/2``: with greater weights, a recurrence is chaotic, and its results depend on how each
    step is rounded.  Most integers are small, some are extreme, to exercise wrapping and clamping.
    """
    rng, most = np.random.default_rng(seed), _terms_of_steps(program, sizes) ** -0.5
    return {t.name: _random(t.dtype, shape_of(t, sizes), rng, most) for t in program.inputs}


def _terms_of_steps(program: Program, sizes: Mapping[str, int]) -> int:
    """The most terms that a statement of a block sums up in a step, 1 if there are none."""
    sums = ([r for r in s.ranges if r.index in s.reductions] for s in program.statements if s.block)
    return max((prod(max(1, extent_of(r, sizes)) for r in q) for q in sums), default=1)


def _random(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator, most: float) -> Array:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return np.asarray(rng.uniform(-1, 1, shape) * most).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    small = rng.integers(0 if dtype.kind == "u" else -8, 9, shape)
    wide = rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
    return np.where(rng.random(shape) < 0.1, wide, small.astype(dtype.numpy))


def compare(name: str, got: Array, expected: Array, written: Array | None = None) -> Difference:
    """Compare two arrays of one shape and dtype, only where `written` holds."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        text = f"{got.dtype} {got.shape}", f"{expected.dtype} {expected.shape}"
        return Difference(name, float("inf"), float("inf"), expected.size, (), *text)
    chosen = np.ones(expected.shape, bool) if written is None else written
    same = (got == expected) | ((got != got) & (expected != expected)) | ~chosen
    if same.all():
        return Difference(name, 0.0, 0.0, 0, None)
    first = tuple(int(i) for i in np.argwhere(~same)[0])
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b) & chosen
    error = float(np.max(np.abs(a - b), where=finite, initial=0.0))
    scale = float(np.max(np.abs(b), where=finite, initial=0.0))
    relative = error / scale if scale > 0 else (float("inf") if error else 0.0)
    odd = int((~same & ~finite).sum())
    return Difference(name, error, relative, odd, first, str(got[first]), str(expected[first]))
