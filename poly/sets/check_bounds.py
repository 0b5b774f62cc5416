"""Proofs that a program stays inside its arrays, and writes every element of its results.

For every statement and access, isl shows for all sizes at once that ``0 <= index < extent``.
A condition on sizes that this needs becomes a precondition in the program's `constraints`, which
is checked at every call; one that no size, or no size above a constant, satisfies is a mistake.

A data-dependent index, as in ``X[I[i]]``, cannot be shown to be inside.  Out of bounds it has a
meaning, too: it reads the nearest element, so that no array of indices can make a kernel crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import islpy as isl

from poly.errors import ProgramError
from poly.ir.dtypes import INT64
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    evaluate_int,
    indices_of,
    reads_of,
    simplify,
    sizes_of,
    walk,
)
from poly.ir.intervals import (
    LARGEST_SIZE,
    MOST_BYTES,
    Beyond64BitsError,
    Interval,
    interval,
    size_intervals,
)
from poly.ir.program import Program, Range, Statement, Tensor, verify_program
from poly.sets.from_isl import conditions_of, witness
from poly.sets.isl_names import dims
from poly.sets.prove import limited
from poly.sets.to_isl import (
    access_map,
    context_set,
    domain_set,
    init_domain_set,
    isl_condition,
    isl_expr,
    parameters,
)

#: isl operations for all proofs of one program, and more for each of its statements.  Real programs
#: take a twentieth of it, in milliseconds; the hardest spend it in under ten seconds.
BUDGET, BUDGET_OF_STATEMENT = 2_500_000, 500_000

#: A bound of sizes below this is not one that a program could be meant to have.
LEAST_CEILING = 1 << 20
#: Larger literals in indices and sizes are refused: sums of a few still fit 64 bits.
LARGEST = 1 << 60


class BoundsError(ProgramError):
    """An access that cannot be in bounds, or an element that is never written.

    Attributes
    ----------
    statement : str | None    the statement at fault
    access : Read | None      the access at fault, as written in the program
    sizes : dict              the smallest sizes at which it goes wrong
    hint : str                what to do about it
    """

    def __init__(
        self,
        message: str,
        statement: str | None = None,
        access: Read | None = None,
        sizes: dict[str, int] | None = None,
        hint: str = "",
    ) -> None:
        self.statement, self.access, self.sizes = statement, access, dict(sizes or {})
        self.hint = hint
        super().__init__(message)


def check_bounds(program: Program) -> Program:
    """Prove a verified program in bounds; returns it with the preconditions that the proof needs.

    Raises
    ------
    BoundsError : an access leaves its array or reads an unwritten element, or an output keeps an
        unset element; it names the access, the smallest sizes and an instance.  Also raised when
        isl cannot decide it within its budget.
    """
    for s in program.statements:
        _check_affine(program, s)
    program = _with_ceilings(program)
    budget = BUDGET + BUDGET_OF_STATEMENT * len(program.statements)
    try:
        with limited(budget):
            return _Checker(program).check()
    except isl.Error as error:
        # Which access isl gives up on is arbitrary, so every refusal has the same message.
        raise BoundsError(
            f"it could not be decided within {budget} isl operations "
            f"whether {program.name} stays in bounds",
            hint="simplify the guards, or give sizes as numbers",
        ) from error


def if_proved(rewritten: Program, program: Program) -> Program:
    """A rewritten program; the original one, unless the rewritten one is proved to stay in bounds
    under the same preconditions.
    """
    try:
        checked = check_bounds(verify_program(rewritten))
    except ProgramError:
        return program
    # A part may have instances where the whole has none: then it could need more preconditions.
    return rewritten if checked.constraints == program.constraints else program


def _check_affine(program: Program, s: Statement) -> None:
    where = f"statement {s.name}"
    bounds = [b for r in s.ranges for b in (r.lo, r.hi)]
    indices = [p for access in (s.target, *s.reads) for p in access.indices]
    extents = [e for t in program.tensors.values() for e in t.shape]
    hint = "multiply and divide indices and sizes by literals only"
    every = (*bounds, *indices, *s.guards, *extents)
    if any(isinstance(p, Const) and p.dtype not in (None, INT64) for e in every for p in walk(e)):
        hint = "index arithmetic is in int64: write its numbers without a type"
    for e in every:
        for part in walk(e):
            if isinstance(part, Const) and abs(part.value) > LARGEST:
                raise BoundsError(
                    f"{where}: {part} is too large for an index or a size (64 bits)", s.name
                )
    for r in s.ranges:
        if isl_expr(r.lo) is None or isl_expr(r.hi) is None:
            raise BoundsError(f"{where}: the range {r} is not affine", s.name, hint=hint)
    for g in s.guards:
        if isl_condition(g) is None:
            raise BoundsError(f"{where}: the guard {g} is not affine", s.name, hint=hint)
    for access in (s.target, *s.reads):
        shape = program.tensors[access.tensor].shape
        for index, extent in zip(access.indices, shape, strict=True):
            if isl_expr(index) is None and not reads_of(index):
                raise BoundsError(
                    f"{where}: {index} in {access} is not affine", s.name, access, hint=hint
                )
            if isl_expr(extent) is None:
                raise BoundsError(
                    f"{where}: {access} has the extent {extent}, which is not affine",
                    s.name,
                    access,
                    hint=hint,
                )


def _with_ceilings(program: Program) -> Program:
    """The program with preconditions under which its index arithmetic fits 64 bits: bounds on
    sizes that are multiplied by large factors.

    Raises
    ------
    BoundsError : there are none, or only unusably small ones.
    """
    known = size_intervals(program)
    ceilings: dict[str, int] = {}
    shapes = [e for t in program.tensors.values() for e in t.shape]
    for s in program.statements:
        ranges = {r.index: r for r in s.ranges}
        indices = [p for access in (s.target, *s.reads) for p in access.indices]
        for e in (*shapes, *s.guards, *(p for p in indices if not reads_of(p))):
            own = [ranges[i] for i in indices_of(e)]
            try:
                for name, most in _ceilings(e, own, known).items():
                    ceilings[name] = min(most, ceilings.get(name, most))
            except Beyond64BitsError as error:
                raise BoundsError(f"statement {s.name}: {error}", s.name) from None
    more = tuple(Op("le", (Size(n), Const(most))) for n, most in ceilings.items())
    return replace(program, constraints=(*program.constraints, *more)) if more else program


def _ceilings(e: Expr, ranges: Sequence[Range], known: Mapping[str, Interval]) -> Mapping[str, int]:
    """Bounds on sizes under which an expression fits 64 bits, besides the known ones.

    ranges : of its indices; raises `Beyond64BitsError` if there are no usable bounds
    """
    most = LARGEST_SIZE
    while True:
        at = {n: (low, min(high, most)) for n, (low, high) in known.items()}
        try:
            interval(e, at | {r.index: _span(r, at) for r in ranges})
            break
        except Beyond64BitsError:
            if most == LEAST_CEILING:
                raise
            most //= 2
    if most == LARGEST_SIZE:
        return {}
    involved = {n for x in (e, *(b for r in ranges for b in (r.lo, r.hi))) for n in sizes_of(x)}
    return {n: most for n in known if n in involved and known[n][1] > most}


def _span(r: Range, known: Mapping[str, Interval]) -> Interval:
    """The least and the greatest value of an index."""
    low, high = interval(r.lo, known)[0], interval(r.hi, known)[1]
    return low, max(low, high - 1)


@dataclass(frozen=True)
class _Write:
    """One set of instances that stores to a tensor, in the order of the program."""

    statement: Statement
    domain: isl.Set
    relation: isl.Map


class _Checker:
    """One check, with the context as it grows."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.given = context_set(program)
        self.context = self.given
        self.inputs = {t.name for t in program.inputs}
        #: Tensors that have been written as a whole.
        self.whole = set[str]()

    def check(self) -> Program:
        for t in self.program.tensors.values():
            self._check_extents(t)
        for s in self.program.statements:
            if s.init and not self._is_inside(s, s.target):
                self._check_access(s, s.target, init_domain_set(self.program, s), s.free)
            open_ones = [
                a for a in dict.fromkeys((s.target, *s.reads)) if not self._is_inside(s, a)
            ]
            domain = domain_set(self.program, s) if open_ones else None
            for access in open_ones:
                self._check_access(s, access, domain, s.indices)
        self._check_coverage()
        if self.context.is_equal(self.given):
            return self.program
        found = conditions_of(self.context, self.given)
        if found is None:
            raise BoundsError(
                f"{self.program.name} is in bounds only for sizes too complicated to state",
                hint="give ranges with where i in lo:hi, or state conditions on the sizes",
            )
        return replace(self.program, constraints=(*self.program.constraints, *found))

    def _set(self, condition: str) -> isl.Set:
        return isl.Set(f"{parameters(self.program)} {{ : {condition} }}")

    def _check_extents(self, t: Tensor) -> None:
        extents = [e.value for e in t.shape if isinstance(e, Const)]
        if prod(max(1, int(e)) for e in extents) * t.dtype.bytes >= MOST_BYTES:
            raise BoundsError(f"{t} is too large to be addressed", hint="declare a smaller one")
        for extent in t.shape:
            text = isl_expr(extent)
            if text is None or isinstance(extent, Const):
                continue
            negative = self.context.intersect(self._set(f"{text} < 0"))
            if negative.is_empty():
                continue

            def explain(sizes: dict[str, int], _: tuple[int, ...], e: Expr = extent) -> str:
                used = {k: v for k, v in sizes.items() if k in sizes_of(e)}
                return f"the extent {e} of {t.name} is negative{_at(used)}"

            self._require(negative, self.context, explain, None, None, "")

    def _check_access(
        self, s: Statement, access: Read, domain: isl.Set, indices: Sequence[str]
    ) -> None:
        shape = self.program.tensors[access.tensor].shape
        outside = [
            # A data-dependent index is clamped, which needs an element to clamp to.
            f"{isl_expr(e)} <= 0"
            if reads_of(p)
            else f"{isl_expr(p)} < 0 or {isl_expr(p)} >= {isl_expr(e)}"
            for p, e in zip(access.indices, shape, strict=True)
        ]
        if not outside:
            return
        domain = domain.intersect_params(self.context)
        text = f"{domain.get_tuple_name()}[{', '.join(indices)}] : {' or '.join(outside)}"
        bad = isl.Set(f"{parameters(self.program)} {{ {text} }}").intersect(domain)
        if bad.is_empty():
            return

        def explain(sizes: dict[str, int], instance: tuple[int, ...]) -> str:
            env = {**sizes, **dict(zip(indices, instance, strict=True))}
            return _outside(access, shape, env, indices, sizes)

        hint = "bound the index with where, or correct the access"
        if any(access in reads_of(e) for e in _selects(s.value)):
            hint = (
                "both sides of select are read regardless of its condition: "
                "write two statements with where, or clamp the index with min and max"
            )
        self._require(bad, domain, explain, s, access, hint)

    def _require(
        self,
        bad: isl.Set,
        domain: isl.Set,
        explain: Callable[[dict[str, int], tuple[int, ...]], str],
        s: Statement | None,
        access: Read | None,
        hint: str,
    ) -> None:
        """Add to the context that `bad` is empty, if that leaves sizes worth having.

        `domain` is where it would go wrong: sizes at which that is empty do not count.  A
        precondition that puts a fixed ceiling on a size that had none is a mistake, not a
        precondition: an access that is one off is in bounds for arrays of no elements, too.
        """
        allowed = self.context.subtract(bad.params()).coalesce()
        before = domain.params().intersect(self.context)
        after = before.intersect(allowed)
        capped = any(
            not _has_ceiling(before, n) and _has_ceiling(after, n)
            for n in range(len(self.program.sizes))
        )
        if after.is_empty() or capped:
            sizes, instance = witness(bad, self.program.sizes)
            message = explain(sizes, instance)
            if not after.is_empty():
                wanted = conditions_of(allowed, self.context)
                if wanted:
                    text = ", ".join(map(str, wanted))
                    hint = f"{hint}; or, if it is meant, state: where {text}".lstrip("; ")
            raise BoundsError(message, s.name if s else None, access, sizes, hint)
        self.context = allowed

    # --- every read element is written first --------------------------------------------

    def _check_coverage(self) -> None:
        written: dict[str, isl.Set] = {}
        for group in self.program.groups:
            # For the statements of a block, writes of earlier steps count, too.
            steps = [w for s in group if s.block for w in self._writes(s)]
            for s in group:
                if s.init and not s.block:
                    self._add(written, s, True)
                for access in (*((s.target,) if s.is_update else ()), *s.reads):
                    if access.tensor not in self.inputs | self.whole:
                        self._check_read(s, access, written, self._writes(s)[-1], steps)
                if not s.block:
                    self._add(written, s, False)
            for write in steps:
                _add(written, write.statement.target.tensor, write)
        for t in self.program.outputs:
            if t.name not in self.inputs | self.whole:
                self._check_output(t, written[t.name])

    def _add(self, written: dict[str, isl.Set], s: Statement, init: bool) -> None:
        """Add what a statement or its initialisation writes."""
        tensor = s.target.tensor
        if tensor in self.whole:
            return
        if self._sets_whole(s, init):
            self.whole.add(tensor)
        else:
            _add(written, tensor, self._writes(s)[0 if init else -1])

    def _sets_whole(self, s: Statement, init: bool) -> bool:
        """Whether a statement is seen to write each element: ``T[i, j]``, i in 0:N, j in 0:M."""
        shape = self.program.tensors[s.target.tensor].shape
        names = [i.name for i in s.target.indices if isinstance(i, Index)]
        return (
            len(names) == len(shape)
            and sorted(names) == sorted(s.free if init else s.indices)
            and not (s.free_guards if init else s.guards)
            and all(_runs_over(s, n, e) for n, e in zip(names, shape, strict=True))
        )

    def _is_inside(self, s: Statement, access: Read) -> bool:
        """Whether indices are seen to be inside: ``i`` of ``i in 0:N`` in an extent of N."""
        shape = self.program.tensors[access.tensor].shape
        known = {
            r.index: (int(r.lo.value), int(r.hi.value) - 1)
            for r in s.ranges
            if isinstance(r.lo, Const) and isinstance(r.hi, Const)
        }
        return all(
            (isinstance(p, Index) and _runs_over(s, p.name, e)) or _is_between(p, e, known)
            for p, e in zip(access.indices, shape, strict=True)
        )

    def _writes(self, s: Statement) -> list[_Write]:
        """The stores of a statement: those of its initialisation, if it has one, and its own."""
        first = [self._write(s, init_domain_set(self.program, s), s.free)] if s.init else []
        return [*first, self._write(s, domain_set(self.program, s), s.indices)]

    def _write(self, s: Statement, domain: isl.Set, indices: Sequence[str]) -> _Write:
        domain = domain.intersect_params(self.context)
        relation = access_map(self.program, domain, indices, s.target)
        if relation is None:  # data says which elements are written: none for sure
            elements = self._whole(self.program.tensors[s.target.tensor])
            relation = isl.Map.from_domain_and_range(domain, elements.subtract(elements))
        return _Write(s, domain, relation)

    def _whole(self, t: Tensor) -> isl.Set:
        d = dims("d", t.rank)
        box = " and ".join(f"0 <= {k} < {isl_expr(e)}" for k, e in zip(d, t.shape, strict=True))
        text = f"{parameters(self.program)} {{ {t.name}[{', '.join(d)}] : {box or 'true'} }}"
        return isl.Set(text).intersect_params(self.context)

    def _check_read(
        self,
        s: Statement,
        access: Read,
        written: dict[str, isl.Set],
        own: _Write,
        steps: Sequence[_Write] = (),
    ) -> None:
        tensor = self.program.tensors[access.tensor]
        domain = own.domain.intersect_params(self.context)
        before = written.get(access.tensor)
        relation = access_map(self.program, domain, s.indices, access)
        if relation is None:
            # A data-dependent read may touch any element as soon as there is an instance.
            relation = isl.Map.from_domain_and_range(
                domain, self._whole(tensor).intersect_params(domain.params())
            )
        if before is not None:
            relation = relation.subtract_range(before)
        if relation.is_empty():
            return
        if own.statement.target.tensor == access.tensor:
            # Earlier instances of the same statement write, too.
            earlier = isl.Map.lex_gt(domain.get_space()).intersect_domain(domain)
            relation = relation.subtract(earlier.apply_range(own.relation)).coalesce()
            if relation.is_empty():
                return
        before_it = True
        for write in steps:
            before_it = before_it and write.relation.get_tuple_name(isl.dim_type.in_) != s.name
            if write.statement.target.tensor == access.tensor:
                earlier = _in_steps(domain, write.domain, before_it)
                relation = relation.subtract(earlier.apply_range(write.relation)).coalesce()
            if relation.is_empty():
                return

        def explain(sizes: dict[str, int], element: tuple[int, ...]) -> str:
            return f"{_element(tensor, element)} is read before it is written{_at(sizes)}"

        hint = f"write {tensor.name} in an earlier statement"
        if s.is_update and not s.init and access == s.target:
            hint = f"start it with {s.op}!, which sets it to the identity first"
            if all(t.name != access.tensor for t in self.program.temps):
                hint += f", or declare {tensor.name} as an input, too, to update it"
        self._require(relation.range(), domain, explain, s, access, hint)

    def _check_output(self, t: Tensor, written: isl.Set) -> None:
        whole = self._whole(t)
        missing = whole.subtract(written)
        if missing.is_empty():
            return
        writers = [s for s in self.program.statements if s.target.tensor == t.name]

        def explain(sizes: dict[str, int], element: tuple[int, ...]) -> str:
            return (
                f"{_element(t, element)} is never written{_at(sizes)}; "
                f"{t.name} has the shape [{', '.join(map(str, t.shape))}]"
            )

        hint = "write the rest in another statement, or declare a smaller output"
        self._require(missing, whole, explain, writers[-1], None, hint)


def _runs_over(s: Statement, index: str, extent: Expr) -> bool:
    return any(r.index == index and r.lo == Const(0) and r.hi == extent for r in s.ranges)


def _is_between(place: Expr, extent: Expr, known: Mapping[str, Interval]) -> bool:
    """Whether interval arithmetic shows an index to be inside an extent."""
    if not isinstance(extent, Const) or reads_of(place) or sizes_of(place):
        return False
    if not set(indices_of(place)) <= known.keys():
        return False
    try:
        low, high = interval(place, known)
    except Beyond64BitsError:
        return False
    return low >= 0 and high < int(extent.value)


def _in_steps(reader: isl.Set, writer: isl.Set, before_it: bool) -> isl.Map:
    """``{ R[t, …] -> W[u, …] : u < t }``, and u = t where the writer comes before the reader."""
    pairs = isl.Map.from_domain_and_range(reader, writer)
    earlier = pairs.order_gt(isl.dim_type.in_, 0, isl.dim_type.out, 0)
    if not before_it:
        return earlier
    return earlier.union(pairs.equate(isl.dim_type.in_, 0, isl.dim_type.out, 0)).coalesce()


def _has_ceiling(params: isl.Set, size: int) -> bool:
    """Whether a size is bounded by a number for all values of the other sizes."""
    alone = params.project_out(
        isl.dim_type.param, size + 1, params.dim(isl.dim_type.param) - size - 1
    ).project_out(isl.dim_type.param, 0, size)
    return bool(alone.dim_has_upper_bound(isl.dim_type.param, 0))


def _add(written: dict[str, isl.Set], tensor: str, write: _Write) -> None:
    new = write.relation.range()
    old = written.get(tensor)
    written[tensor] = new if old is None else old.union(new).coalesce()


def _selects(value: Expr) -> list[Expr]:
    """The arguments of every select, which its condition chooses between."""
    if isinstance(value, Op):
        own = list(value.args[1:]) if value.fn == "select" else []
        return own + [e for a in value.args for e in _selects(a)]
    return []


def _at(sizes: dict[str, int]) -> str:
    return f" at {', '.join(f'{k} = {v}' for k, v in sizes.items())}" if sizes else ""


def _element(t: Tensor, element: tuple[int, ...]) -> str:
    return f"{t.name}[{', '.join(map(str, element))}]"


def _outside(
    access: Read,
    shape: tuple[Expr, ...],
    env: dict[str, int],
    indices: Sequence[str],
    sizes: dict[str, int],
) -> str:
    """``X[i + 1] is out of bounds: at i = 3, N = 4 it is X[4], but …``"""
    for n, (index, extent) in enumerate(zip(access.indices, shape, strict=True)):
        size = evaluate_int(extent, env)
        if reads_of(index):
            if size <= 0:
                return f"{access} reads dimension {n}, which is empty: {extent} = {size}"
            continue
        value = evaluate_int(index, env)
        if 0 <= value < size:
            continue
        used = [i for i in indices if i in indices_of(index)]
        involved = {*sizes_of(index), *sizes_of(extent)}
        point = [f"{i} = {env[i]}" for i in used]
        point += [f"{k} = {v}" for k, v in sizes.items() if v or k in involved]
        shown = f"{extent} = {size}" if not isinstance(simplify(extent), Const) else f"{size}"
        at = f" at {', '.join(point)}" if point else ""
        return (
            f"{access} is out of bounds: dimension {n} has extent {shown}, "
            f"but the index {index} is {value}{at}"
        )
    return f"{access} is out of bounds"
