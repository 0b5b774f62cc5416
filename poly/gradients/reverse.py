"""Gradients of programs: reverse-mode differentiation, statement by statement.

For every tensor T on the way from what is differentiated to what it is differentiated by there is
a tensor dT of the same shape, the gradient with respect to T.  A statement

    T[f(x)] += v(A[g(x)], …)         over the domain D

turns into one for each of its reads, over the same domain:

    dA[g(x)] += dT[f(x)] * ∂v/∂A[g(x)]

in reverse order: when dT[f(x)] is read, whatever read T[f(x)] has contributed to it.  Statements
that read what they wrote, and those of a block, run backwards in time; isl shows that every
element is complete when it is read, or the order is refused.

After Speelpenning, "Compiling Fast Partial Derivatives of Functions Given by Algorithms", 1980;
the gather of scattered sums is that of `poly.rewrites.scatter_to_gather`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poly.gradients.adjoints import Adjoints
from poly.gradients.apart import separate, without_updates
from poly.gradients.backwards import Contribution
from poly.gradients.derivatives import ONE
from poly.gradients.recompute import recomputed
from poly.gradients.request import active_tensors, blocks_of, check_active, check_request
from poly.gradients.segments import Segments, in_segments
from poly.gradients.statements import Names, over_all
from poly.gradients.tidy import tidied
from poly.ir.expr import Expr, Read
from poly.ir.program import Program, Tensor, verify_program
from poly.sets.check_bounds import check_bounds


def gradient(
    program: Program, wrt: Sequence[str], of: Sequence[str], with_values: bool = False,
    unit: bool = True, recompute: Mapping[str, int | None] | None = None,
) -> Program:  # fmt: skip
    """The program of the gradients of outputs with respect to inputs.

    wrt : inputs; the result has a tensor ``dA`` for each A of them, in this order
    of : outputs; for each Y of them, the result has an input ``dY`` of its shape, the gradient of
        what follows with respect to Y
    with_values : whether the outputs themselves come first
    unit : whether a scalar's gradient is 1, and not passed
    recompute : tensors of blocks whose states are computed again, and the steps of a segment, see
        `poly.gradients.segments`

    Raises
    ------
    GradientError : a tensor that has no gradient, or an order that cannot be reversed.
    """
    made = _Reverse(program, tuple(wrt), tuple(of), unit, recompute).program(with_values)
    return check_bounds(verify_program(tidied(made)))


def gradient_and_values(
    program: Program, wrt: Sequence[str], of: Sequence[str], unit: bool = True,
    recompute: Mapping[str, int | None] | None = None,
) -> tuple[Program, frozenset[str]]:  # fmt: skip
    """`gradient` with values, and which of its tensors hold values, not gradients."""
    reverse = _Reverse(program, tuple(wrt), tuple(of), unit, recompute)
    made = check_bounds(verify_program(tidied(reverse.program(with_values=True))))
    values = reverse.adjoints.values
    own = {*reverse.source.tensors, *(t.name for t in values.temps)}
    return made, frozenset(own & made.tensors.keys())


class _Reverse:
    """A gradient, as it is made."""

    def __init__(
        self, program: Program, wrt: tuple[str, ...], of: tuple[str, ...], unit: bool,
        recompute: Mapping[str, int | None] | None = None,
    ) -> None:  # fmt: skip
        self.unit = unit
        check_request(program, wrt, of)
        blocks = blocks_of(program, recompute or {})
        self.names = names = Names(program)
        source, new = without_updates(program, names)
        source = separate(source, names)
        self.segments: dict[int, Segments] = {}
        for block, length in blocks.items():
            source, self.segments[block] = in_segments(source, block, length, names)
        self.source = source
        self.wrt, self.of = wrt, tuple(new.get(n, n) for n in of)
        #: Outputs by the names that the user gave them.
        self.labels = {b: a for a, b in new.items()}
        active = active_tensors(source, wrt, self.of)
        check_active(wrt, of, active, new)
        self.adjoints = Adjoints(source, names, active)

    def program(self, with_values: bool) -> Program:
        """The program, before it is tidied."""
        found = self.adjoints
        for name in self.of:
            self._seed(found.tensors[name])
        self._groups()
        results = [found.gradient_of(found.tensors[name]) for name in self.wrt]
        outputs = self.source.outputs if with_values else ()
        kept = {t.name for t in (*outputs, *results)}
        inputs = (*self.source.inputs, *found.seeds)
        temps = [
            *self.source.temps, *found.temps, *found.values.temps, *found.gradients.values(),
            *self.source.outputs,
        ]  # fmt: skip
        given = kept | {t.name for t in inputs}
        return Program(
            self.source.name, self.source.sizes, inputs, (*outputs, *results),
            tuple(t for t in dict.fromkeys(temps) if t.name not in given),
            (*found.values.statements, *found.backward), self.source.constraints,
        )  # fmt: skip

    def _groups(self) -> None:
        found = self.adjoints
        moved = {n for s in self.segments.values() for n in s.own}
        for group in reversed(self.source.groups):
            used = [s for s in group if s.target.tensor in found.active and s.name not in moved]
            if used and used[0].block in self.segments:
                recomputed(found, self.segments[used[0].block])
            elif used:
                found.group(used)

    def _seed(self, t: Tensor) -> None:
        """Begin with the gradient with respect to an output."""
        indices, ranges = over_all(self.names, t)
        value: Expr = ONE
        if t.shape or not self.unit:
            name = self.labels.get(t.name, t.name)
            seed = Tensor(self.names.tensor(f"d{name}"), t.dtype, t.shape)
            self.adjoints.seeds.append(seed)
            value = Read(seed.name, indices)
        self.adjoints.contribute(Contribution(Read(t.name, indices), value, ranges, ()))
