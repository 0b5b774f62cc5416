"""Merging programs: a producer and its consumer become one program, which schedules fuse.

`merge` appends the consumer's statements to the producer's; the values passed between them become
temporaries.  `align` lets statements that read the results of a reduction element by element run
over the reduction's own free indices, so that loops can be shared; `inline` substitutes the value
of a pointwise temporary for its reads, so that it needs no memory at all.  None of them changes any
value: the rounding of a 16-bit temporary is kept by a cast.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache

from poly.errors import ProgramError
from poly.ir.dtypes import DType
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    computed,
    dtype_of_expr,
    evaluate_int,
    indices_of,
    is_weak,
    reads_of,
    rewrite,
    sizes_of,
    substitute,
    substitute_value,
    walk,
)
from poly.ir.graph import same_shape
from poly.ir.linear_form import constant, linear_form
from poly.ir.program import Program, Statement, Tensor, default_name, verify_program

#: The longest name of a merged program; it becomes part of a C identifier.
NAME_LIMIT = 48
#: How often an element may be recomputed, and the cost of that, in simple operations.
REPEAT_LIMIT, REPEAT_COST = 4.0, 8
#: The largest value that inlining makes, in nodes of its expression.
VALUE_LIMIT = 160

#: The assumed value of sizes in cost estimates; it divides nothing and equals no extent.
ASSUMED = 127

#: The cost of calling a function, in simple operations; other functions cost one.
COSTS = {"div": 4, "mod": 8, "fmod": 8, "floordiv": 8, "sqrt": 6, "rsqrt": 6, "pow": 40} | {
    name: 20
    for name in (
        "exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid atan2"
    ).split()
}


def merge(
    first: Program,
    second: Program,
    bindings: Mapping[str, str],
    shared: Mapping[str, str] | None = None,
    keep: Collection[str] = (),
) -> Program:
    """One program that does what `second` does after `first`.

    Parameters
    ----------
    bindings : inputs of `second` that are outputs of `first`, by the latter's names
    shared : inputs of `second` that are inputs of `first`
    keep : outputs of `first` that stay outputs although they are bound

    The tensors of `first` keep their names; `renamed` gives those of `second`.

    Raises
    ------
    ProgramError : the programs have updated tensors, or a binding does not match.  Sizes of the
        same name are one.
    """
    _check_bindings(first, second, bindings, shared or {})
    names = renamed(first, second, bindings, shared)
    taken = {*first.tensors, *names.values()}
    statements = [
        *first.statements,
        *(_renamed_statement(s, names, taken) for s in second.statements),
    ]
    statements = [_with_free_indices(s, taken) for s in statements]
    hidden = set(bindings.values()) - set(keep)
    new_inputs = [t for t in second.inputs if t.name not in {**bindings, **(shared or {})}]

    def tensors(ts: Collection[Tensor]) -> tuple[Tensor, ...]:
        return tuple(replace(t, name=names[t.name]) for t in ts)

    return verify_program(
        Program(
            name=_joined_name(first.name, second.name),
            sizes=tuple(dict.fromkeys((*first.sizes, *second.sizes))),
            inputs=(*first.inputs, *tensors(new_inputs)),
            outputs=(
                *(t for t in first.outputs if t.name not in hidden),
                *tensors(second.outputs),
            ),
            temps=(
                *first.temps,
                *(t for t in first.outputs if t.name in hidden),
                *tensors(second.temps),
            ),
            statements=tuple(_numbered(statements)),
            constraints=tuple(dict.fromkeys((*first.constraints, *second.constraints))),
        )
    )


def _check_bindings(
    first: Program, second: Program, bindings: Mapping[str, str], shared: Mapping[str, str]
) -> None:
    """Refuse programs that have updated tensors, and bindings of tensors that differ."""
    for p in (first, second):
        if p.updated:
            raise ProgramError(f"{p.name} is not purely functional")
    inputs = {t.name: t for t in second.inputs}
    for mapping, legal in ((bindings, first.outputs), (shared, first.inputs)):
        known = {t.name: t for t in legal}
        for own, other in mapping.items():
            mine, theirs = inputs.get(own), known.get(other)
            if mine is None or theirs is None or (mine.dtype != theirs.dtype) or (
                not same_shape(mine, theirs)):  # fmt: skip
                raise ProgramError(f"{own} of {second.name} cannot be {other} of {first.name}")


def renamed(
    first: Program,
    second: Program,
    bindings: Mapping[str, str],
    shared: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The names that the tensors of `second` get in `merge`."""
    names = {**bindings, **(shared or {})}
    indices = {i for p in (first, second) for s in p.statements for i in s.indices}
    taken = {*first.tensors, *indices}
    for t in second.tensors.values():
        if t.name not in names:
            names[t.name] = fresh_name(t.name, taken)
            taken.add(names[t.name])
    return names


def fresh_name(name: str, taken: Collection[str]) -> str:
    """`name`, with the first number that makes it new."""
    if name not in taken:
        return name
    stem = name.rstrip("0123456789") or name
    number = 1
    while f"{stem}{number}" in taken:
        number += 1
    return f"{stem}{number}"


def _joined_name(first: str, second: str) -> str:
    name = f"{first}_{second}"
    return name if len(name) <= NAME_LIMIT else name[:NAME_LIMIT].rpartition("_")[0] or "merged"


def _numbered(statements: list[Statement]) -> list[Statement]:
    return [replace(s, name=default_name(n)) for n, s in enumerate(statements)]


def _renamed_statement(s: Statement, names: Mapping[str, str], taken: Collection[str]) -> Statement:
    def visit(e: Expr) -> Expr:
        return replace(e, tensor=names[e.tensor]) if isinstance(e, Read) else e

    target = rewrite(s.target, visit)
    assert isinstance(target, Read)
    return replace(s, target=target, value=rewrite(s.value, visit), span=None)


def _with_free_indices(s: Statement, taken: Collection[str]) -> Statement:
    """The statement with indices that are not names of tensors."""
    clash = [i for i in s.indices if i in taken]
    if not clash:
        return s
    used = {*taken, *s.indices}
    names: dict[str, str] = {}
    for i in clash:
        names[i] = fresh_name(f"{i}_", used)
        used.add(names[i])
    return _with_indices(s, names)


def _with_indices(s: Statement, names: Mapping[str, str]) -> Statement:
    env: dict[str, Expr] = {old: Index(new) for old, new in names.items()}
    target = substitute(s.target, env)
    assert isinstance(target, Read)
    return replace(
        s,
        target=target,
        value=substitute(s.value, env),
        guards=tuple(substitute(g, env) for g in s.guards),
        ranges=tuple(replace(r, index=names.get(r.index, r.index)) for r in s.ranges),
        reductions=tuple(names.get(i, i) for i in s.reductions),
    )


# --- properties of statements ----------------------------------------------------------------


def extents(s: Statement) -> dict[str, int]:
    """The extent of each index of a statement, where sizes are as `ASSUMED`."""
    return {r.index: _int(r.hi) - _int(r.lo) for r in s.ranges}


def instances(s: Statement, indices: Collection[str] | None = None) -> int:
    """The number of points in the box of a statement (in some of its dimensions)."""
    return math.prod(max(0, n) for i, n in extents(s).items() if indices is None or i in indices)


def count(tensor: Tensor) -> int:
    """The number of elements of a tensor of known shape."""
    return math.prod(_int(e) for e in tensor.shape)


def _int(e: Expr) -> int:
    """A number; for an expression over sizes, one that no other extent is likely to have."""
    return evaluate_int(e, {name: ASSUMED for name in sizes_of(e)})


def _is_extent(s: Statement, index: str, extent: Expr) -> bool:
    """Whether an index counts from 0 up to an extent, for all sizes."""
    (r,) = (r for r in s.ranges if r.index == index)
    return r.lo == Const(0) and linear_form(r.hi) - linear_form(extent) == constant(0)


def writers(program: Program, tensor: str) -> list[int]:
    """The positions of the statements that write a tensor."""
    return [n for n, s in enumerate(program.statements) if s.target.tensor == tensor]


def readers(program: Program, tensor: str) -> list[int]:
    """The positions of the statements whose values read a tensor."""
    return [n for n, s in enumerate(program.statements) if any(r.tensor == tensor for r in s.reads)]


def covers(s: Statement, tensor: Tensor) -> bool:
    """Whether a statement writes every element of its target exactly once.

    For a reduction, the elements of its free indices.  Without guards, each dimension must have
    indices of its own, which count through it like the digits of a number.
    """
    if s.free_guards if s.is_update else s.guards:
        return False
    sizes = extents(s)
    if any(_int(r.lo) for r in s.ranges if r.index not in s.reductions):
        return False
    seen: set[str] = set()
    for index, extent in zip(s.target.indices, tensor.shape, strict=True):
        form = linear_form(index)
        if form.constant:
            return False
        if not isinstance(extent, Const) or any(
            not isinstance(r.hi, Const) for r in s.ranges if Index(r.index) in dict(form.terms)
        ):
            # For open sizes, only one index that counts through the dimension.
            if not isinstance(index, Index) or index.name in seen:
                return False
            if not _is_extent(s, index.name, extent):
                return False
            seen.add(index.name)
            continue
        step = 1
        for a, c in sorted(form.terms, key=lambda term: term[1]):
            if not isinstance(a, Index) or a.name in seen or (c != step and sizes[a.name] != 1):
                return False
            seen.add(a.name)
            step *= sizes[a.name]
        if step != _int(extent):
            return False
    return all(i in seen or sizes[i] == 1 for i in s.free)


def is_plain(s: Statement) -> bool:
    """Whether a statement's target has one index, or a 0, in each dimension."""
    return all(isinstance(i, Index) or i == Const(0) for i in s.target.indices)


def follows(s: Statement, source: Statement) -> bool:
    """Whether a statement reads the result of `source` at the same indices, in the same loops."""
    free = tuple(r for r in source.ranges if r.index not in source.reductions)
    elements = {r for r in reads_of(s.value) if r.tensor == source.target.tensor}
    return s.op == "=" and not s.guards and s.ranges == free and elements == {source.target}


def cost(value: Expr) -> int:
    """The cost of computing a value, in simple operations; reading costs nothing."""
    return sum(COSTS.get(e.fn, 1) for e in computed(value) if isinstance(e, Op))


def size_of(value: Expr) -> int:
    """The number of nodes of an expression."""
    return sum(1 for _ in walk(value))


# --- alignment -----------------------------------------------------------------------------


def align(program: Program) -> Program:
    """Run statements that visit a reduction's result element by element in its free indices, and
    those after them.

    ``T[8*g + k] +=! …;  Y[i] = max(T[i], 0)`` becomes ``Y[8*g + k] = max(T[8*g + k], 0)``.
    """
    statements = list(program.statements)
    for n, s in enumerate(statements):
        for r in reads_of(s.value):
            made = [m for m in writers(program, r.tensor) if m < n]
            if len(made) != 1 or len(writers(program, r.tensor)) != 1:
                continue
            source = statements[made[0]]
            led = source.reductions or not is_plain(source)
            if led and covers(source, program.tensors[r.tensor]):
                moved = _over(s, r, source, program.tensors[r.tensor])
                if moved is not None:
                    statements[n] = moved
                    break
    return replace(program, statements=tuple(statements))


def _over(s: Statement, read: Read, source: Statement, tensor: Tensor) -> Statement | None:
    """`s` in the free indices of `source`, if it reads each element of its target just once."""
    if s.op != "=" or s.guards:
        return None
    sizes = extents(s)
    if any(not isinstance(r.lo, Const) for r in s.ranges):
        return None
    env: dict[str, Expr] = {}
    for index, origin, extent in zip(
        read.indices, source.target.indices, tensor.shape, strict=True
    ):
        if isinstance(index, Index) and index.name not in env:
            if sizes[index.name] != _int(extent) or not _is_extent(s, index.name, extent):
                return None
            env[index.name] = origin
        elif index != Const(0) or extent != Const(1):
            return None
    if set(env) != set(s.indices) or any(_int(r.lo) for r in s.ranges):
        return None
    free = tuple(r for r in source.ranges if r.index not in source.reductions)
    target = Read(s.target.tensor, tuple(_reindex(i, env) for i in s.target.indices))
    return replace(s, target=target, value=substitute_value(s.value, env), ranges=free)


def _reindex(e: Expr, env: Mapping[str, Expr]) -> Expr:
    value = substitute_value(Read("_", (e,)), env)
    assert isinstance(value, Read)
    return value.indices[0]


# --- inlining ------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def simplified(
    program: Program, kept: frozenset[str] = frozenset(), wanted: frozenset[str] = frozenset()
) -> Program:
    """`inline` and `align` until nothing changes, without temporaries that are never read.

    kept, wanted : temporaries that are not inlined, and that are, although it takes more operations
    """
    while True:
        changed = align(inline(program, kept, wanted))
        if changed == program:
            return verify_program(program)
        program = changed


def inline(
    program: Program, kept: frozenset[str] = frozenset(), wanted: frozenset[str] = frozenset()
) -> Program:
    """Inline pointwise temporaries that may as well be computed where they are read, or have to."""
    for tensor in (t for t in program.temps if t.name not in kept):
        made = writers(program, tensor.name)
        if len(made) != 1:
            continue
        used = readers(program, tensor.name)
        if not used:
            return inline(_without(program, made[0], tensor), kept, wanted)
        value = _pointwise(program, made[0], used, tensor)
        if value is not None and (
            tensor.name in wanted or _pays(program, program.statements[made[0]], used, tensor)
        ):
            return inline(_inlined(program, made[0], used, tensor, value), kept, wanted)
    return program


def _without(program: Program, statement: int, tensor: Tensor) -> Program:
    rest = [s for n, s in enumerate(program.statements) if n != statement]
    return replace(
        program,
        temps=tuple(t for t in program.temps if t != tensor),
        statements=tuple(_numbered(rest)),
    )


def _pointwise(program: Program, made: int, used: list[int], tensor: Tensor) -> Expr | None:
    """The value that may replace a read, in the indices of statement `made`; None if illegal."""
    s = program.statements[made]
    if s.op != "=" or not covers(s, tensor) or min(used) <= made:
        return None
    if not is_plain(s) and not all(follows(program.statements[n], s) for n in used):
        return None
    sources = {r.tensor for r in reads_of(s.value)}
    between = program.statements[made + 1 : max(used) + 1]
    if any(t.target.tensor in sources for t in between):
        return None
    if any(_is_overtaken(program, s, program.statements[n], sources) for n in used):
        return None
    for n in used:
        places = program.statements[n].target.indices
        if any(r.tensor == tensor.name for i in places for r in reads_of(i)):
            return None
        for r in reads_of(program.statements[n].value):
            if r.tensor == tensor.name and any(reads_of(i) for i in r.indices):
                return None  # a data-dependent index is clamped
    return stored(s.value, tensor.dtype, program.dtypes)


def _is_overtaken(program: Program, s: Statement, user: Statement, sources: set[str]) -> bool:
    """Whether a block may change what a value is made of before the value is read there, or after:
    its statements run again and again, those before others, too.
    """
    blocks = {s.block, user.block} - {0}
    if not any(t.block in blocks and t.target.tensor in sources for t in program.statements):
        return False
    reads = [r for r in reads_of(user.value) if r.tensor == s.target.tensor]
    same_step = all(
        i == substitute(e, {s.step: Index(user.step)})
        for r in reads
        for e, i in zip(s.target.indices, r.indices, strict=True)
        if s.step in indices_of(e)
    )
    return s.block != user.block or not same_step


def stored(value: Expr, dtype: DType, dtypes: Mapping[str, DType]) -> Expr | None:
    """The value of an element after `value` was stored there; None if it cannot be expressed."""
    if isinstance(value, Op) and value.fn == "select" and is_weak(value):
        first, second = (stored(a, dtype, dtypes) for a in value.args[1:])
        if first is None or second is None:
            return None
        return replace(value, args=(value.args[0], first, second))
    if is_weak(value):
        return _literal(value, dtype) if isinstance(value, Const) else None
    own = dtype_of_expr(value, dtypes)
    if own.compute == dtype or (own == dtype and isinstance(value, (Read, Cast))):
        return value
    return Cast(dtype, value)


def _literal(value: Const, dtype: DType) -> Const | None:
    """A weak literal as an element of a type, if the type can represent it exactly."""
    if dtype.kind == "b":
        return replace(value, dtype=dtype) if isinstance(value.value, bool) else None
    if isinstance(value.value, bool) or (isinstance(value.value, float) and not dtype.is_float):
        return None
    if dtype.is_integer:
        least = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
        inside = least <= value.value < least + (1 << dtype.bits)
        return replace(value, dtype=dtype) if inside else None
    number = float(value.value)
    exact = float(dtype.numpy.type(number)) == number and number == value.value
    return Const(number, dtype) if exact else None


def _pays(program: Program, s: Statement, used: list[int], tensor: Tensor) -> bool:
    """Whether computing a value where it is read beats keeping it."""
    work, elements = cost(s.value), max(1, count(tensor))
    evaluations = 0.0
    for n in used:
        user = program.statements[n]
        times = sum(isinstance(e, Read) and e.tensor == tensor.name for e in computed(user.value))
        evaluations += times * instances(user) / elements
        if size_of(user.value) + times * size_of(s.value) > VALUE_LIMIT:
            return False
    if not work or evaluations <= 1:
        return True
    return evaluations <= REPEAT_LIMIT and work <= REPEAT_COST


def _inlined(program: Program, made: int, used: list[int], tensor: Tensor, value: Expr) -> Program:
    s = program.statements[made]

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.tensor != tensor.name:
            return e
        if e == s.target:
            return value
        env = {
            i.name: index
            for i, index in zip(s.target.indices, e.indices, strict=True)
            if isinstance(i, Index)
        }
        env |= {i: Const(0) for i in s.indices if i not in env}
        return substitute_value(value, env)

    statements = [
        replace(t, value=rewrite(t.value, visit)) if n in used else t
        for n, t in enumerate(program.statements)
    ]
    return _without(replace(program, statements=tuple(statements)), made, tensor)
