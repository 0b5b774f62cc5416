"""A gradient in two programs: forward, which keeps what it computed, and backward, which reads it.

What is cheap to compute again is not kept, nor is what is larger than everything that comes in and
goes out, as the scores of attention: it is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

from poly.gradients.reverse import gradient_and_values
from poly.gradients.tidy import numbered, without_unused
from poly.ir.expr import evaluate_int, sizes_of
from poly.ir.program import Program, Statement, Tensor, verify_program
from poly.rewrites.eliminate_dead import eliminate_dead
from poly.sets.check_bounds import check_bounds

#: What a size that is not known is taken as.
USUAL = 64


@dataclass(frozen=True)
class Halves:
    """The two halves of a gradient.

    forward : the program, with what is kept after its outputs
    backward : the gradient; its inputs are those of the program, then `kept`, then the gradients of
        outputs
    kept : tensors of the program, which may be outputs
    """

    forward: Program
    backward: Program
    kept: tuple[str, ...]


def halves(
    program: Program, wrt: Sequence[str], of: Sequence[str], keep: Collection[str] | None = None,
    unit: bool = True,
) -> Halves:  # fmt: skip
    """A gradient in two programs.

    keep : the tensors to keep if they are there, None: those that are worth it; others as for
        `gradient`

    Raises
    ------
    GradientError : see `gradient`.
    """
    whole, own = gradient_and_values(program, wrt, of, unit)
    if keep is None:
        kept = _worth_keeping(program, whole, own)
    else:
        kept = tuple(t.name for t in (*whole.temps, *whole.outputs) if t.name in own and t.name in keep)
    tensors = whole.tensors
    outputs = tuple(t for t in whole.outputs if t.name in own)
    results = tuple(t for t in whole.outputs if t.name not in own)
    more = tuple(tensors[n] for n in kept if tensors[n] not in outputs)
    first = _part(
        whole, program.inputs, (*outputs, *more),
        [s for s in whole.statements if s.target.tensor in own],
    )  # fmt: skip
    seeds = whole.inputs[len(program.inputs) :]
    second = _part(
        whole, (*program.inputs, *(tensors[n] for n in kept), *seeds), results,
        [s for s in whole.statements if s.target.tensor not in kept],
    )  # fmt: skip
    return Halves(first, second, kept)


def _part(
    whole: Program, inputs: Sequence[Tensor], outputs: Sequence[Tensor],
    statements: Sequence[Statement],
) -> Program:  # fmt: skip
    given = {t.name for t in (*inputs, *outputs)}
    temps = tuple(t for t in (*whole.temps, *whole.outputs) if t.name not in given)
    made = replace(
        whole, inputs=tuple(inputs), outputs=tuple(outputs), temps=temps,
        statements=tuple(statements), text=None,
    )  # fmt: skip
    return check_bounds(verify_program(numbered(without_unused(eliminate_dead(made)))))


def _worth_keeping(program: Program, whole: Program, own: Collection[str]) -> tuple[str, ...]:
    """The tensors that the backward half reads and that are dear to compute again."""
    needed = {
        r.tensor
        for s in whole.statements
        if s.target.tensor not in own
        for r in s.reads
        if r.tensor in own
    }
    most = max(_elements(t) for t in (*program.inputs, *program.outputs))
    known = {t.name for t in whole.inputs}
    kept: list[str] = []
    outputs = {t.name for t in whole.outputs}
    for t in (*whole.temps, *whole.outputs):
        if t.name not in needed:
            continue
        small = _elements(t) <= most
        if t.name in outputs or (small and not _is_cheap(whole, t.name, {*known, *kept})):
            kept.append(t.name)
    return tuple(kept)


def _is_cheap(whole: Program, name: str, known: Collection[str]) -> bool:
    """Whether each element of a tensor is computed from a few known ones."""
    writers = [s for s in whole.statements if s.target.tensor == name]
    return all(
        not s.reductions and not s.block and all(r.tensor in known for r in s.reads)
        for s in writers
    )


def _elements(t: Tensor) -> int:
    usual = {n: USUAL for e in t.shape for n in sizes_of(e)}
    return prod(max(1, evaluate_int(e, usual)) for e in t.shape)
