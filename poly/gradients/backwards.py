"""Orders in which the gradient of a recurrence is added up: backwards in time.

A statement that reads what it wrote, and statements of a block, add to gradients that they read.
Some of their loops run from the last iteration to the first, in one nest or step by step; the
first order is taken for which isl shows that every gradient is complete when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations as subsets
from itertools import islice, permutations
from itertools import product as combinations

from poly.deps.lifetimes import is_complete_when_read
from poly.errors import GradientError
from poly.gradients.statements import alone, with_indices
from poly.ir.expr import Const, Expr, Index, Read, add, indices_of, simplify, sub
from poly.ir.program import Program, Range, Statement, Tensor

#: The most orders of what a recurrence adds that are tried.
MOST_ORDERS = 24


@dataclass(frozen=True)
class Contribution:
    """What one statement adds to the gradient of a tensor that it reads."""

    read: Read
    value: Expr
    ranges: tuple[Range, ...]
    guards: tuple[Expr, ...]


@dataclass(frozen=True)
class Backwards:
    """What the statements of a recurrence add to their own gradients.

    group : these statements; block : the number of the block that the result may be
    adding : the statement of a contribution, in a block with a step if there is one
    tensors : by name; program : for sizes and what is known of them
    """

    program: Program
    group: Sequence[Statement]
    adding: Callable[[Contribution, int, str], Statement]
    tensors: Mapping[str, Tensor]
    block: int

    def statements(self, inside: Sequence[tuple[Statement, Contribution]]) -> list[Statement]:
        """The statements in the first order that is in time.

        Raises
        ------
        GradientError : none is.
        """
        loops = tuple(dict.fromkeys(n for s in self.group for n in s.indices))
        for parts in _rearranged(inside):
            for made in self._orders(parts, loops):
                if self._is_in_time(made):
                    return made
        names = ", ".join(s.name for s in self.group)
        raise GradientError(f"no order was found that runs statement {names} backwards")

    def _orders(
        self, parts: Sequence[Contribution], loops: Sequence[str]
    ) -> Iterator[list[Statement]]:
        """Orders to try: one statement along some of its loops, or step by step."""
        first = self.group[0]
        if len(parts) == 1 and not first.block:
            for turned in _some(loops):
                yield [_turned(self.adding(parts[0], 0, ""), turned)]
        for step in [first.step] if first.block else loops:
            for turned in _some(loops):
                if step in turned:
                    yield self._in_steps(parts, step, turned)

    def _in_steps(
        self, parts: Sequence[Contribution], step: str, turned: set[str]
    ) -> list[Statement]:
        if any(step not in {i for e in c.read.indices for i in indices_of(e)} for c in parts):
            return []
        return [_turned(self.adding(c, self.block, step), turned) for c in parts]

    def _is_in_time(self, made: Sequence[Statement]) -> bool:
        """Whether every gradient is complete when it is read."""
        if not made:
            return False
        return is_complete_when_read(alone(self.program, self.tensors, made))


def _turned(s: Statement, loops: set[str]) -> Statement:
    """A statement with some loops run from the last iteration to the first."""
    new: dict[str, Expr] = {
        r.index: simplify(sub(add(r.lo, sub(r.hi, Const(1))), Index(r.index)))
        for r in s.ranges
        if r.index in loops
    }
    return with_indices(s, new)


def _rearranged(
    parts: Sequence[tuple[Statement, Contribution]],
) -> Iterator[list[Contribution]]:
    """The contributions of each statement in some orders, those of the last statement first."""
    by_statement = {s.name: [c for t, c in parts if t is s] for s, _ in parts}
    ways = combinations(*(permutations(own) for own in by_statement.values()))
    for way in islice(ways, MOST_ORDERS):
        yield [c for own in way for c in own]


def _some(loops: Sequence[str]) -> Iterator[set[str]]:
    """Loops that may run from the last iteration to the first: one, two, or all."""
    for count in (1, 2):
        yield from map(set, subsets(loops, count))
    if len(loops) > 2:
        yield set(loops)
