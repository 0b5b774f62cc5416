"""The suites by name, and which computations each has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.heldout import heldout
from benchmarks.kernel import Kernel
from benchmarks.kernels import suite_k

#: What each suite is.
SUITES = {
    "K": "73 kernels and the cost of a call",
    "E": "whole networks at batch 1",
    "heldout": "40 shapes that nothing was tuned for",
    "symbolic": "comprehensions with open sizes beside the same with fixed ones",
}


@dataclass(frozen=True)
class Item:
    """One computation of a suite; bytes are those of inputs, weights and outputs."""

    suite: str
    name: str
    family: str
    flops: int
    bytes: int


def kernels_of(suite: str) -> Sequence[Kernel]:
    """The kernels of a suite; none for networks."""
    if suite == "K":
        return suite_k()
    if suite == "symbolic":
        return [k for k in suite_k() if k.text is not None]
    return heldout() if suite == "heldout" else ()


def items_of(suite: str, only: str = "") -> list[Item]:
    """What a suite measures, in the order of its table, as far as names match a pattern."""
    if suite == "E":
        from benchmarks.models import bare_model, count, suite_e

        return [
            Item("E", n, "models", *count(bare_model(n))) for n in suite_e() if re.search(only, n)
        ]
    kernels = [k for k in kernels_of(suite) if re.search(only, k.name)]
    return [Item(suite, k.name, k.family, k.flops, k.bytes) for k in kernels]
