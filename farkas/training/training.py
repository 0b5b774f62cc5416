"""`Training`: what a network is trained for, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from farkas.training.optimisers import SGD, Optimiser
from poly.errors import ArgumentError


@dataclass(frozen=True)
class Training:
    """What a network is trained for, and how.

    loss : the text of a comprehension with one scalar result, or ``"cross_entropy"``, ``"mse"``,
        ``"l1"`` or ``"binary_cross_entropy"``.  Its tensors that are called like outputs of the
        network are these; if none is, the first is the first output.  All others are passed to
        each step
    optimiser : how weights change
    of : the initializers that change; by default all floats on which the loss depends
    clip : the most that all gradients together may be long, as Euclid measures; None: any length
    accumulate : batches, after whose mean gradient weights change
    seed : of what is random, as Dropout
    """

    loss: str
    optimiser: Optimiser = field(default_factory=SGD)
    of: Sequence[str] | None = None
    clip: float | None = None
    accumulate: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise ArgumentError(f"accumulate={self.accumulate}: expected a number from 1 on")
        if self.clip is not None and not self.clip > 0:
            raise ArgumentError(f"clip={self.clip}: expected a positive number")
