"""Where ONNX Runtime does not do what ONNX says, and so is no judge: an explicit list."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutation.mutants import Mutant


@dataclass(frozen=True)
class Dispute:
    """What is disputed, recognised by an operator of the mutant and a text of its difference."""

    operator: str
    reason: str


def reason_of(mutant: Mutant, difference: str) -> str:
    """Why ONNX Runtime is no judge of a mutant; empty if it is."""
    return ""
