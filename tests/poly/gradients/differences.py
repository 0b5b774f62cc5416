"""Gradients and derivatives, compared with differences of the reference in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from poly.ir.expr import evaluate_int
from poly.ir.program import Program
from runtime.reference.evaluate import evaluate

Arrays = dict[str, np.ndarray[Any, Any]]

#: The step of a difference, and what it may differ from a derivative by.
STEP, CLOSE = 1e-6, 1e-6


def inputs_of(program: Program, sizes: Mapping[str, int], seed: int = 0) -> Arrays:
    """Random inputs; integers may be out of range as indices."""
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for t in program.inputs:
        shape = tuple(evaluate_int(e, sizes) for e in t.shape)
        if t.dtype.is_float:
            found[t.name] = np.asarray(rng.standard_normal(shape), t.dtype.numpy)
        else:
            found[t.name] = np.asarray(rng.integers(-2, 8, shape), t.dtype.numpy)
    return found


class Differentiated:
    """A program at some inputs, with a change of these and a gradient of its outputs."""

    def __init__(
        self, program: Program, wrt: Sequence[str], of: Sequence[str], arrays: Arrays,
        sizes: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.program, self.wrt, self.of, self.arrays = program, wrt, of, arrays
        self._sizes = dict(sizes or {})
        rng = np.random.default_rng(1)
        self.values = self.run(program, arrays)
        self.changes = {n: np.asarray(rng.standard_normal(arrays[n].shape)) for n in wrt}
        self.seeds = {
            n: np.asarray(
                rng.standard_normal(self.values[n].shape) if self.values[n].shape else 1.0
            )
            for n in of
        }

    def run(self, program: Program, arrays: Arrays) -> Arrays:
        sizes = {n: v for n, v in self._sizes.items() if n in program.sizes}
        return evaluate(program, arrays, sizes)

    def by_gradient(self, gradient: Program) -> float:
        """``<x, J^T y>`` for a change x and a gradient y."""
        given = [n for n in self.of if self.values[n].shape]
        new = [t.name for t in gradient.inputs if t.name not in self.arrays]
        seeds = {t: self.seeds[n] for t, n in zip(new, given, strict=True)}
        found = self.run(gradient, {**self.arrays, **seeds})
        outputs = [t.name for t in gradient.outputs][-len(self.wrt) :]
        pairs = zip(outputs, self.wrt, strict=True)
        return float(sum((found[t] * self.changes[n]).sum() for t, n in pairs))

    def by_derivative(self, derivative: Program) -> float:
        """``<J x, y>``."""
        return float(sum(terms.sum() for terms in self._terms(derivative)))

    def scale(self, derivative: Program) -> float:
        """The sum of the terms of `by_derivative`, without signs."""
        return float(sum(np.abs(terms).sum() for terms in self._terms(derivative)))

    def _terms(self, derivative: Program) -> list[np.ndarray[Any, Any]]:
        """What each output changes by, times its gradient."""
        new = [t.name for t in derivative.inputs if t.name not in self.arrays]
        changes = {t: self.changes[n] for t, n in zip(new, self.wrt, strict=True)}
        found = self.run(derivative, {**self.arrays, **changes})
        outputs = [t.name for t in derivative.outputs][-len(self.of) :]
        return [found[t] * self.seeds[n] for t, n in zip(outputs, self.of, strict=True)]

    def magnitude(self) -> float:
        """The sum of the outputs' elements, each by its gradient, without signs."""
        return float(sum(np.abs(self.values[n] * self.seeds[n]).sum() for n in self.of))

    def by_differences(self, step: float = STEP) -> float:
        """The same by values on both sides."""
        return (self._at(step) - self._at(-step)) / (2 * step)

    def _at(self, step: float) -> float:
        moved = {n: self.arrays[n] + step * self.changes[n] for n in self.wrt}
        found = self.run(self.program, {**self.arrays, **moved})
        return float(sum((found[n] * self.seeds[n]).sum() for n in self.of))
