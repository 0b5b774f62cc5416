"""A gradient in two programs: forward, which keeps what it computed, and backward, which reads it.

What is cheap to compute again is not kept, nor is what is larger than everything that comes in and
goes out, as the scores of attention: it is computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod

from poly.deps.lifetimes import lifetimes
from poly.gradients.reverse import gradient_and_values
from poly.gradients.tidy import numbered, without_unused
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    evaluate_int,
    rewrite,
    sizes_of,
    substitute_value,
)  # fmt: skip
from poly.ir.program import Program, Statement, Tensor, verify_program
from poly.rewrites.eliminate_dead import eliminate_dead
from poly.sets.check_bounds import check_bounds

#: What a size that is not known is taken as.
USUAL = 64
#: A tensor is much smaller than another that has so many times its elements.
FEW = 8


@dataclass(frozen=True)
class Halves:
    """The two halves of a gradient.

    forward : the program, with what is kept after its outputs
    backward : the gradient; its inputs are those of the program, then `kept`, then the gradients of
        outputs
    kept : tensors of the program, which may be outputs
    wrt, of : as asked for: the inputs with respect to which it is, of which outputs, in order
    """

    forward: Program
    backward: Program
    kept: tuple[str, ...]
    wrt: tuple[str, ...]
    of: tuple[str, ...]


def halves(
    program: Program, wrt: Sequence[str], of: Sequence[str], keep: Collection[str] | None = None,
    unit: bool = True, recompute: Mapping[str, int | None] | None = None,
) -> Halves:  # fmt: skip
    """A gradient in two programs.

    keep : the tensors to keep if they are there, None: those that are worth it; others as for
        `gradient`

    Raises
    ------
    GradientError : see `gradient`.
    """
    whole, own = gradient_and_values(program, wrt, of, unit, recompute)
    whole = _from_quotients(whole, own)
    if keep is None:
        kept = _worth_keeping(program, whole, own)
    else:
        kept = tuple(
            t.name for t in (*whole.temps, *whole.outputs) if t.name in own and t.name in keep
        )
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
    return Halves(first, second, kept, tuple(wrt), tuple(of))


def _from_quotients(whole: Program, own: Set[str]) -> Program:
    """Dividends that gradients read, as products of quotients that are outputs: with
    ``Y[i,j] = E[i,j] / t[i]``, ``E[i,j]`` is ``Y[i,j] * t[i]``.
    """
    outputs = {t.name for t in whole.outputs}
    written = Counter(s.target.tensor for s in whole.statements)
    known: dict[str, Statement] = {}
    for s in whole.statements:
        e = s.value
        plain = s.op == "=" and not s.guards and s.target.tensor in outputs & own
        # What is read and written there stays as it is, and the quotient is whole.
        used = {s.target.tensor, *(r.tensor for r in s.reads)}
        plain = plain and not s.block and all(written[t] <= 1 for t in used)
        plain = plain and _is_whole(s, whole.tensors[s.target.tensor])
        if plain and isinstance(e, Op) and e.fn == "div" and isinstance(e.args[0], Read):
            same = e.args[0].indices == s.target.indices == tuple(map(Index, s.free))
            if same and isinstance(e.args[1], Read) and e.args[0].tensor not in outputs:
                known[e.args[0].tensor] = s

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.tensor not in known:
            return e
        s = known[e.tensor]
        assert isinstance(s.value, Op)
        at = dict(zip(s.free, e.indices, strict=True))
        divisor = substitute_value(s.value.args[1], at)
        return Op("mul", (Read(s.target.tensor, e.indices), divisor))

    made = (
        s if s.target.tensor in own else replace(s, value=rewrite(s.value, visit))
        for s in whole.statements
    )
    return replace(whole, statements=tuple(made), text=None)


def _is_whole(s: Statement, tensor: Tensor) -> bool:
    """Whether the loops of a statement are those over all elements of a tensor."""
    return [(r.lo, r.hi) for r in s.ranges] == [(Const(0), e) for e in tensor.shape]


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


def _worth_keeping(program: Program, whole: Program, own: Set[str]) -> tuple[str, ...]:
    """The tensors that the backward half reads and that are dear to compute again.

    Outputs are there anyway.  A large tensor that is computed element by element from inputs, and
    from what is much smaller, is computed again; then the smaller ones are read.
    """
    outputs = {t.name for t in whole.outputs}
    most = max(_elements(t) for t in (*program.inputs, *program.outputs))
    tensors, inputs = whole.tensors, {t.name for t in whole.inputs}
    needed = _read_by(whole, tensors.keys() - own) & own
    once = outputs | _computed_once(whole)
    kept, seen = set[str](), set[str]()
    left = [n for n in tensors if n in needed]
    while left:
        name = left.pop()
        if name in seen or name in inputs:
            continue
        seen.add(name)
        sources = _read_by(whole, {name})
        large = _elements(tensors[name]) > most
        if name not in once and (large or _is_cheap(whole, name, sources - inputs - needed)):
            left += sources
        else:
            kept.add(name)
    return tuple(n for n in tensors if n in kept)


def _computed_once(whole: Program) -> set[str]:
    """Tensors that are not computed again: states of recurrences, and what is computed from
    something that is overwritten later.
    """
    found = lifetimes(whole)
    return {
        s.target.tensor
        for s in whole.statements
        if s.block
        or any(r.tensor == s.target.tensor or found.is_overwritten(s, r) for r in s.reads)
    }


def _read_by(whole: Program, written: Set[str]) -> set[str]:
    """The tensors that the statements read that write some others."""
    return {r.tensor for s in whole.statements if s.target.tensor in written for r in s.reads}


def _is_cheap(whole: Program, name: str, sources: Collection[str]) -> bool:
    """Whether each element of a tensor is computed from inputs and a few elements of others."""
    writers = [s for s in whole.statements if s.target.tensor == name]
    tensors = whole.tensors
    small = all(FEW * _elements(tensors[n]) <= _elements(tensors[name]) for n in sources)
    return small and not any(s.reductions or s.block for s in writers)


def _elements(t: Tensor) -> int:
    usual = {n: USUAL for e in t.shape for n in sizes_of(e)}
    return prod(max(1, evaluate_int(e, usual)) for e in t.shape)
