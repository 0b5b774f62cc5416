"""The information that passes over graphs may use besides the graph itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from poly.graph_passes.fold_calls import Evaluate
from poly.ir.program import Program
from poly.passes import Pass

M = TypeVar("M")


@dataclass(frozen=True)
class GraphContext(Generic[M]):
    """The target that a graph is compiled for.

    machine : its instructions and caches
    lanes : whether sums are kept in registers with several lanes of one type, as on CPUs
    rewrites : of the programs of its calls
    evaluate : computes constants
    """

    machine: M
    lanes: bool
    rewrites: tuple[Pass[Program], ...]
    evaluate: Evaluate
