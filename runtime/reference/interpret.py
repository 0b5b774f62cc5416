"""Run programs one statement instance at a time, in any order.

It shows the effect of a wrong order: the tests of the legality check replay each refused schedule
here, in the illegal order, and see the result change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from poly.errors import ProgramError
from poly.ir.dtypes import identity
from poly.ir.expr import Expr
from poly.ir.program import Program, Statement
from runtime.reference.evaluate import box_of, make_scope
from runtime.reference.scalar_semantics import (
    Array,
    Points,
    Scope,
    convert,
    lower,
    lower_guard,
    places_of,
    store,
    update,
)

INIT_SUFFIX = "_init"


@dataclass(frozen=True)
class Instance:
    """One execution of a statement: its name and the values of its indices, in their order.

    The initialisation of a statement ``S`` written with ``!`` has instances of its own, named
    ``S_init``, over the free indices.
    """

    statement: str
    point: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.statement}[{', '.join(map(str, self.point))}]"


def instances(program: Program, sizes: Mapping[str, int]) -> list[Instance]:
    """All instances in the written order."""
    found: list[Instance] = []
    scope = Scope(program.dtypes, {}, sizes)
    for group in program.groups:
        own: list[Instance] = []
        for s in group:
            if s.init:
                points = _points(s, s.free, s.free_guards, scope)
                own += [Instance(s.name + INIT_SUFFIX, p) for p in points]
            own += [Instance(s.name, p) for p in _points(s, s.indices, s.guards, scope)]
        if group[0].block:
            own.sort(key=lambda i: i.point[0])
        found += own
    return found


def _points(
    s: Statement, names: tuple[str, ...], guards: tuple[Expr, ...], scope: Scope
) -> list[tuple[int, ...]]:
    """The points over some indices at which some guards hold, in lexicographic order."""
    box = box_of(tuple(r for r in s.ranges if r.index in names), scope.sizes)
    if box is None:
        return []
    grids = box.grids()
    mask = np.ones(box.shape, bool)
    with np.errstate(all="ignore"):
        for guard in guards:
            mask &= lower_guard(guard, scope)(Points(grids))
    full = [np.broadcast_to(grid, box.shape)[mask].tolist() for grid in grids.values()]
    return list(zip(*full, strict=True)) if full else [()] * int(mask.sum())


def run_instances(
    program: Program,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int] | None,
    order: Iterable[Instance],
    together: Iterable[tuple[Instance, Instance]] = (),
) -> dict[str, Array]:
    """Execute instances one after the other in the given order; returns the outputs.

    Parameters
    ----------
    arrays, sizes : as for `runtime.reference.evaluate.evaluate`
    order : the instances to run; not checked to be complete or legal
    together : pairs that run at the same time, at the position of the first of the two: both read
        before either writes, and the pair's second writes last

    Raises
    ------
    ArgumentError : arrays or sizes that do not match the program.
    ProgramError : an unknown instance, or an index out of range.
    """
    scope = make_scope(program, arrays, sizes)
    runners = _runners(program, scope)
    partner: dict[Instance, tuple[Instance, Instance]] = {}
    for pair in together:
        partner[pair[0]] = partner[pair[1]] = pair
    done: set[Instance] = set()
    with np.errstate(all="ignore"):
        for instance in order:
            if instance in done:
                continue
            group = partner.get(instance, (instance,))
            writes = [_runner(runners, member).compute(member.point) for member in group]
            for array, index, value in writes:
                array[index] = value
            if len(group) > 1:
                done.update(group)
    return {t.name: scope.arrays[t.name] for t in program.outputs}


_Write = tuple[Array, tuple[int, ...], Array]


class _Stepper:
    """One statement, or its initialisation, instance by instance."""

    def __init__(self, statement: Statement, scope: Scope, initialises: bool) -> None:
        self.statement, self.initialises = statement, initialises
        self.names = statement.free if initialises else statement.indices
        self.array = scope.arrays[statement.target.tensor]
        self.dtype = scope.dtypes[statement.target.tensor]
        self.index = places_of(statement.target.indices, self.array.shape, scope)
        self.value = lower(statement.value, scope, self.dtype)

    def compute(self, point: tuple[int, ...]) -> _Write:
        """The array, index and value that this instance would write, given the arrays' contents."""
        s = self.statement
        if len(point) != len(self.names):
            raise ProgramError(f"{s.name} has {len(self.names)} indices, not {len(point)}")
        values = {n: np.asarray(v, np.int64) for n, v in zip(self.names, point, strict=True)}
        points = Points(values)
        index = tuple(int(i(points)) for i in self.index)
        if any(not 0 <= i < n for i, n in zip(index, self.array.shape, strict=True)):
            raise ProgramError(f"{Instance(s.name, point)} writes outside of {s.target.tensor}")
        if self.initialises:
            value = np.asarray(identity(s.op, self.dtype)).astype(self.dtype.numpy)
            return self.array, index, value
        result = self.value(points)
        if s.op == "=":
            return self.array, index, store(result, self.value.dtype, self.dtype)
        held = np.asarray(self.array[index]).astype(self.dtype.compute.numpy)
        new = update(s.op, held, convert(result, self.value.dtype, self.dtype))
        return self.array, index, new.astype(self.dtype.numpy)


def _runners(program: Program, scope: Scope) -> dict[str, _Stepper]:
    found = {}
    for s in program.statements:
        found[s.name] = _Stepper(s, scope, False)
        if s.init:
            found.setdefault(s.name + INIT_SUFFIX, _Stepper(s, scope, True))
    return found


def _runner(runners: Mapping[str, _Stepper], instance: Instance) -> _Stepper:
    found = runners.get(instance.statement)
    if found is None:
        raise ProgramError(f"there is no statement for the instance {instance}")
    return found
