"""Optimisers: rules by which a weight changes, as comprehensions over its elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from poly.errors import ArgumentError
from poly.ir.dtypes import DTYPES

#: A number, or one for each step, counted from 1.
Scheduled = float | Callable[[int], float]


@dataclass(frozen=True)
class Optimiser:
    """A rule by which a weight changes at each step.

    >>> fk.Optimiser("W[i] = W[i] - rate[] * sign(G[i])", scalars={"rate": 1e-4})

    rule : statements over W, the weight, G, its gradient, and what is kept, all with one index; a
        scalar is read as ``rate[]``
    kept : what is kept from step to step, by its name, with the value that it begins with
    scalars : numbers, or functions from the number of the step, which is 1 for the first
    """

    rule: str
    kept: Mapping[str, float] = field(default_factory=dict)
    scalars: Mapping[str, Scheduled] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.kept, *self.scalars):
            if name in ("W", "G") or not name.isidentifier():
                raise ArgumentError(f"{name!r} cannot name what an optimiser keeps")

    def at(self, step: int) -> dict[str, float]:
        """The scalars of a step.

        Raises
        ------
        ArgumentError : one is not a finite number.
        """
        found = {}
        for name, value in self.scalars.items():
            number = value(step) if callable(value) else value
            if not math.isfinite(number):
                raise ArgumentError(f"{name} is {number} at step {step}")
            found[name] = float(number)
        return found

    def text(self, dtype: str, gradient: str = "") -> str:
        """The program of the rule for weights of an element type; scalars and what is kept have the
        type in which weights are computed.

        gradient : the type of the gradient, that of the weights if left out
        """
        wide = DTYPES[dtype].compute
        kept = "".join(f", {wide} {n}[N]" for n in self.kept)
        scalars = "".join(f", {wide} {n}[]" for n in self.scalars)
        results = ", ".join(("W", *self.kept))
        given = f"{dtype} W[N], {gradient or dtype} G[N]{kept}{scalars}"
        return f"def update({given}) -> ({results}) {{\n{self.rule}\n}}"


def SGD(  # noqa: N802
    rate: Scheduled = 1e-2, momentum: float = 0.0, decay: float = 0.0, nesterov: bool = False
) -> Optimiser:
    """Stochastic gradient descent, as `torch.optim.SGD`.

    rate : the learning rate, or a function from the number of the step
    decay : of weights, as part of the gradient
    """
    momentum, decay = float(momentum), float(decay)  # numpy's have another text
    gradient = f"(G[i] + {decay!r} * W[i])" if decay else "G[i]"
    if not momentum:
        return Optimiser(f"W[i] = W[i] - rate[] * {gradient}", scalars={"rate": rate})
    moved = f"({gradient} + {momentum!r} * M[i])" if nesterov else "M[i]"
    rule = f"M[i] = {momentum!r} * M[i] + {gradient}\nW[i] = W[i] - rate[] * {moved}"
    return Optimiser(rule, {"M": 0.0}, {"rate": rate})


def Adam(  # noqa: N802
    rate: Scheduled = 1e-3, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
    decay: float = 0.0,
) -> Optimiser:  # fmt: skip
    """Adam, as `torch.optim.Adam` (Kingma and Ba, 2015); `decay` is part of the gradient."""
    gradient = f"(G[i] + {float(decay)!r} * W[i])" if decay else "G[i]"
    return _adam(rate, betas, epsilon, gradient, "W[i]")


def AdamW(  # noqa: N802
    rate: Scheduled = 1e-3, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
    decay: float = 1e-2,
) -> Optimiser:  # fmt: skip
    """Adam with decoupled decay, as `torch.optim.AdamW` (Loshchilov and Hutter, 2019)."""
    return _adam(rate, betas, epsilon, "G[i]", f"W[i] * (1 - rate[] * {float(decay)!r})")


def _adam(
    rate: Scheduled, betas: tuple[float, float], epsilon: float, gradient: str, weight: str
) -> Optimiser:
    (b, c), epsilon = map(float, betas), float(epsilon)
    rule = (
        f"M[i] = {b!r} * M[i] + {1 - b!r} * {gradient}\n"
        f"V[i] = {c!r} * V[i] + {1 - c!r} * {gradient} * {gradient}\n"
        f"W[i] = {weight} - rate[] * (M[i] / first[]) / (sqrt(V[i] / second[]) + {epsilon!r})"
    )
    # What moments that begin with 0 lack of their means.
    scalars: dict[str, Scheduled] = {
        "rate": rate,
        "first": lambda step: 1 - b**step,
        "second": lambda step: 1 - c**step,
    }
    return Optimiser(rule, {"M": 0.0, "V": 0.0}, scalars)
