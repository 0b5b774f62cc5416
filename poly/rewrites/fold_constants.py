"""Constant folding in a program whose inputs are partly constants: values are computed once.

Given which inputs are constants, a program is rewritten into one that is called with new constants
computed from them, each by a small program of its own (`Recipe`):

* statements that read only constants are removed, and their results become inputs;
* a value ``a*x + b`` of a float x, however it is written, is computed with constants a and b;
* a factor a of a sum of products with a constant moves into that constant.

The last two change how results are rounded, and 16-bit floats are left alone.  So are constants
that cancel: ``(x + 12582912) - 12582912`` rounds x to an integer, and is not x.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from poly.errors import ProgramError
from poly.ir.accesses import loops_of_read
from poly.ir.dtypes import DType
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    dtype_of_expr,
    indices_of,
    reads_of,
    rewrite,
    sizes_of,
    walk,
)
from poly.ir.program import Program, Statement, Tensor, default_name, verify_program
from poly.rewrites.merge_programs import count, covers, extents, readers, size_of, writers

#: A constant that replaces others may have this many times the elements of the largest.
GROWTH = 2
#: … or this many elements in any case.
SMALL = 4096
#: Terms cancel if their sum is at most this part of the sum of their magnitudes.
CANCELLED = 2.0**-12


@dataclass(frozen=True)
class Computed:
    """A new constant: the output of `program`, called with the inputs of the same names."""

    name: str
    program: Program


@dataclass(frozen=True)
class Scaled:
    """A new constant: input `source` times `factor`, a number or an input.

    The factor's dimensions are the dimensions `axes` of the source, -1 where it has extent 1.
    """

    name: str
    source: str
    factor: str | float
    axes: tuple[int, ...] = ()


Recipe = Computed | Scaled


def magnitudes(computed: Computed) -> Program | None:
    """What computes the sum of the terms' magnitudes, None if the constant has one term only."""
    (s,) = computed.program.statements
    if not any(isinstance(e, Op) and e.fn in ("add", "sub") for e in walk(s.value)):
        return None
    return replace(computed.program, statements=(replace(s, value=_magnitude(s.value)),))


def _magnitude(e: Expr) -> Expr:
    """``|a| + |b|`` for ``a - b``, and ``|a| * |b|`` for ``a * b``."""
    if isinstance(e, Op) and e.fn == "neg":
        return _magnitude(e.args[0])
    if isinstance(e, Op) and e.fn in ("add", "sub", "mul"):
        fn = "mul" if e.fn == "mul" else "add"
        return Op(fn, tuple(map(_magnitude, e.args)))
    if isinstance(e, Op) and e.fn == "div":
        return Op("div", (_magnitude(e.args[0]), Op("abs", (e.args[1],))))
    return Op("abs", (e,))


@dataclass(frozen=True)
class Folded:
    """A program with new constants among its inputs, and the recipes of those, in order."""

    program: Program
    recipes: tuple[Recipe, ...]


@lru_cache(maxsize=4096)
def fold_statements(program: Program, constants: frozenset[str]) -> Folded:
    """Remove the statements that compute temporaries from constants alone."""
    known = set(constants)
    kept: list[Statement] = []
    recipes: list[Recipe] = []
    tensors = program.tensors
    temps = {t.name for t in program.temps}
    for s in program.statements:
        name = s.target.tensor
        alone = name in temps and len(writers(program, name)) == 1
        whole = alone and (not s.is_update or s.init) and covers(s, tensors[name])
        reads = {r.tensor for r in reads_of(s.value)}
        small = count(tensors[name]) <= _limit(reads, tensors)
        fixed = _is_fixed(s, tensors[name])
        if whole and small and fixed and reads <= known and name not in reads and not s.block:
            recipes.append(Computed(name, _recipe_program(program, s, reads)))
            known.add(name)
            continue
        kept.append(s)
    if not recipes:
        return Folded(program, ())
    made = {r.name for r in recipes}
    return _rebuilt(
        replace(program, statements=tuple(kept)),
        [tensors[r.name] for r in recipes],
        recipes,
        temps - made,
    )


def _is_fixed(s: Statement, target: Tensor) -> bool:
    """Whether a statement computes the same array for all sizes."""
    exprs = (s.value, *s.guards, *s.target.indices, *target.shape)
    return not any(map(sizes_of, (*exprs, *(e for r in s.ranges for e in (r.lo, r.hi)))))


def _limit(reads: Collection[str], tensors: Mapping[str, Tensor]) -> int:
    largest = max((count(tensors[r]) for r in reads), default=0)
    return max(SMALL, GROWTH * largest)


def _recipe_program(program: Program, s: Statement, reads: Collection[str]) -> Program:
    tensors = program.tensors
    return Program(
        name=f"{program.name}_constant"[:48],
        sizes=(),
        inputs=tuple(tensors[r] for r in tensors if r in reads),
        outputs=(tensors[s.target.tensor],),
        temps=(),
        statements=(replace(s, name=default_name(0), span=None),),
    )


def _rebuilt(
    program: Program, new: Sequence[Tensor], recipes: Sequence[Recipe], temps: Collection[str]
) -> Folded:
    """The program with new inputs, without those that it no longer reads."""
    used = {r.tensor for s in program.statements for r in s.reads}
    inputs = tuple(t for t in (*program.inputs, *new) if t.name in used)
    statements = tuple(replace(s, name=default_name(n)) for n, s in enumerate(program.statements))
    made = replace(
        program,
        inputs=inputs,
        temps=tuple(t for t in program.temps if t.name in temps),
        statements=statements,
        text=None,
    )
    return Folded(verify_program(made), tuple(recipes))


# --- affine values ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Affine:
    """``scale * atom + shift``; if atom is None, the value is `shift` alone, a constant."""

    atom: Expr | None
    scale: Expr | None = None
    shift: Expr | None = None


@lru_cache(maxsize=4096)
def fold_affine(program: Program, constants: frozenset[str]) -> Folded:
    """Fold values that are affine in one of their parts into a constant factor and term."""
    folder = _Folder(program, constants)
    statements = tuple(
        replace(s, value=folder.value(s)) if _is_box(s) else s for s in program.statements
    )
    if not folder.recipes:
        return Folded(program, ())
    temps = {t.name for t in program.temps}
    return _rebuilt(replace(program, statements=statements), folder.tensors, folder.recipes, temps)


def _is_box(s: Statement) -> bool:
    """Whether a statement assigns over a whole box that begins at 0."""
    return s.op == "=" and not s.guards and all(r.lo == Const(0) for r in s.ranges)


class _Folder:
    """Rewrites the values of one program."""

    def __init__(self, program: Program, constants: frozenset[str]) -> None:
        self.program, self.constants = program, constants
        self.recipes: list[Recipe] = []
        self.tensors: list[Tensor] = []
        self.taken = {*program.tensors, *(i for s in program.statements for i in s.indices)}
        self.made: dict[tuple[Expr, DType], Read] = {}

    def value(self, s: Statement) -> Expr:
        dtype = dtype_of_expr(s.value, self.program.dtypes)
        if dtype.name not in ("float32", "float64"):
            return self.inside(s.value, s)
        return self.rebuilt(self.parts(s.value, s, dtype), s, dtype)

    def is_known(self, e: Expr, s: Statement, dtype: DType) -> bool:
        """Whether an expression consists of constants of one type and literals.

        Its indices must have known extents.
        """
        if sizes_of(e) or any(sizes_of(r.hi) for r in s.ranges if r.index in indices_of(e)):
            return False
        for x in walk(e):
            if isinstance(x, Read):
                own = x.tensor in self.constants and self.program.dtypes[x.tensor] == dtype
                if not own or any(reads_of(i) for i in x.indices):
                    return False
            elif isinstance(x, Const):
                if x.dtype not in (None, dtype) or isinstance(x.value, bool):
                    return False
            elif isinstance(x, Cast) and x.dtype != dtype:
                return False
        return not _bare_indices(e)

    def parts(self, e: Expr, s: Statement, dtype: DType) -> _Affine:
        """The affine form of a float value."""
        if self.is_known(e, s, dtype):
            return _Affine(None, None, Const(float(e.value)) if isinstance(e, Const) else e)
        if (
            isinstance(e, Cast)
            and e.dtype == dtype
            and dtype_of_expr(e.arg, self.program.dtypes) == dtype
        ):
            return self.parts(e.arg, s, dtype)
        if not isinstance(e, Op) or not self.is_float(e, dtype):
            return _Affine(self.inside(e, s))
        if e.fn == "neg":
            return self.checked(_scaled(self.parts(e.args[0], s, dtype), Const(-1.0)), e, s, dtype)
        if e.fn in ("add", "sub", "mul", "div"):
            left, right = (self.parts(a, s, dtype) for a in e.args)
            joined = _joined(e.fn, left, right)
            if joined is not None:
                return self.checked(joined, e, s, dtype, left, right)
            return _Affine(replace(e, args=tuple(self.rebuilt(p, s, dtype) for p in (left, right))))
        return _Affine(self.inside(e, s))

    def is_float(self, e: Op, dtype: DType) -> bool:
        if e.fn not in ("add", "sub", "mul", "div", "neg", "max", "min"):
            return False
        return all(
            dtype_of_expr(a, self.program.dtypes) == dtype or isinstance(a, Const) for a in e.args
        )

    def inside(self, e: Expr, s: Statement) -> Expr:
        """The expression with its operands folded."""
        if isinstance(e, Cast):
            dtype = dtype_of_expr(e.arg, self.program.dtypes)
            if dtype.name in ("float32", "float64") and not isinstance(e.arg, Const):
                return replace(e, arg=self.rebuilt(self.parts(e.arg, s, dtype), s, dtype))
            return replace(e, arg=self.inside(e.arg, s))
        if isinstance(e, Op):
            args = []
            for a in e.args:
                try:
                    dtype = dtype_of_expr(a, self.program.dtypes)
                except ProgramError:
                    return e
                folds = dtype.name in ("float32", "float64") and not isinstance(a, Const)
                whole = self.rebuilt(self.parts(a, s, dtype), s, dtype) if folds else None
                args.append(self.inside(a, s) if whole is None else whole)
            return replace(e, args=tuple(args))
        return e

    def checked(
        self, form: _Affine, e: Op, s: Statement, dtype: DType, *operands: _Affine
    ) -> _Affine:
        """The form, unless its constants would be larger than those that they replace."""
        for c in (form.scale, form.shift):
            if c is None or isinstance(c, (Read, Const)):
                continue
            reads = {r.tensor for r in reads_of(c)}
            indices = indices_of(c)
            sizes = extents(s)
            elements = math.prod(sizes[i] for i in indices)
            if elements > _limit(reads, self.program.tensors) or size_of(c) > 200:
                return _Affine(
                    replace(e, args=tuple(self.rebuilt(p, s, dtype) for p in operands))
                    if operands
                    else e
                )
        return form

    def rebuilt(self, form: _Affine, s: Statement, dtype: DType) -> Expr:
        """The expression of an affine form."""
        shift = None if form.shift is None else self.constant(form.shift, s, dtype)
        if form.atom is None:
            assert shift is not None
            return shift
        value = form.atom
        divisor = _divisor(form.scale)
        if divisor is not None:
            value = Op("div", (value, self.constant(divisor, s, dtype)))
        elif form.scale is not None and form.scale != Const(1.0):
            factor = self.constant(form.scale, s, dtype)
            value = Op("neg", (value,)) if factor == Const(-1.0) else Op("mul", (value, factor))
        return value if shift is None else Op("add", (value, shift))

    def constant(self, e: Expr, s: Statement, dtype: DType) -> Expr:
        """A read of the constant that an expression is, added if it is not one already."""
        if isinstance(e, (Read, Const)) or not reads_of(e):
            return e
        key = (_in_order(e), dtype)
        indices = tuple(Index(i) for i in indices_of(e))
        if key not in self.made:
            number = len(self.recipes)
            name = f"K{number}"
            while name in self.taken:
                number += 1
                name = f"K{number}"
            self.taken.add(name)
            sizes = extents(s)
            shape = tuple(Const(sizes[i.name]) for i in indices)
            tensor = Tensor(name, dtype, shape)
            statement = Statement(
                default_name(0),
                Read(name, indices),
                "=",
                False,
                e,
                tuple(r for i in indices for r in s.ranges if r.index == i.name),
            )
            reads = {r.tensor for r in reads_of(e)}
            tensors = self.program.tensors
            program = Program(
                f"{self.program.name}_constant"[:48],
                (),
                tuple(t for n, t in tensors.items() if n in reads),
                (tensor,),
                (),
                (statement,),
            )
            self.recipes.append(Computed(name, program))
            self.tensors.append(tensor)
            self.made[key] = Read(name, indices)
        return replace(self.made[key], indices=indices)


def _in_order(e: Expr) -> Expr:
    """The expression with its indices named by their order of appearance."""
    names = {i: f"i{n}" for n, i in enumerate(indices_of(e))}
    return rewrite(e, lambda x: Index(names[x.name]) if isinstance(x, Index) else x)


def _bare_indices(e: Expr) -> bool:
    """Whether an index is part of the value itself, not only of the indices of reads."""
    if isinstance(e, Index):
        return True
    if isinstance(e, Read):
        return False
    inner = e.args if isinstance(e, Op) else (e.arg,) if isinstance(e, Cast) else ()
    return any(_bare_indices(a) for a in inner)


def _joined(fn: str, left: _Affine, right: _Affine) -> _Affine | None:
    """The affine form of ``left fn right``, if exactly one of the two is constant."""
    if (left.atom is None) == (right.atom is None):
        return None
    if fn in ("add", "sub"):
        if _cancel(left.shift, right.shift, fn):
            return None
        if left.atom is not None:
            return replace(left, shift=_plus(left.shift, right.shift, fn))
        if fn == "sub":
            right = _scaled(right, Const(-1.0))
        return replace(right, shift=_plus(right.shift, left.shift, "add"))
    form, factor = (left, right.shift) if right.atom is None else (right, left.shift)
    assert factor is not None
    if fn == "div" and (form is right or (isinstance(factor, Const) and not factor.value)):
        return None
    return _scaled(form, factor, fn)


def _cancel(a: Expr | None, b: Expr | None, fn: str) -> bool:
    """Whether two literals cancel."""
    if not isinstance(a, Const) or not isinstance(b, Const):
        return False
    terms = float(a.value), float(b.value) if fn == "add" else -float(b.value)
    return abs(sum(terms)) < CANCELLED * sum(map(abs, terms))


def _plus(a: Expr | None, b: Expr | None, fn: str) -> Expr | None:
    if b is None:
        return a
    if a is None:
        return b if fn == "add" else _times(b, Const(-1.0))
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(float(a.value) + (float(b.value) if fn == "add" else -float(b.value)))
    return Op(fn, (a, b))


def _scaled(form: _Affine, factor: Expr, fn: str = "mul") -> _Affine:
    """The form times, or divided by, a constant."""
    shift = None if form.shift is None else _times(form.shift, factor, fn)
    return _Affine(form.atom, _times(form.scale or Const(1.0), factor, fn), shift)


def _divisor(scale: Expr | None) -> Expr | None:
    """c, if the scale is 1 / c: x * (1 / c) is not x / c, which matters before a floor."""
    if isinstance(scale, Op) and scale.fn == "div" and scale.args[0] == Const(1.0):
        return scale.args[1]
    return None


def _times(e: Expr, factor: Expr, fn: str = "mul") -> Expr:
    if isinstance(e, Const) and isinstance(factor, Const):
        a, b = float(e.value), float(factor.value)
        # A division by nothing but this stays one, unless its reciprocal is exact.
        if fn == "mul" or e != Const(1.0) or abs(math.frexp(b)[0]) == 0.5:
            return Const(a * b if fn == "mul" else a / b)
    if fn == "mul" and e == Const(1.0):
        return factor
    if factor == Const(-1.0):
        return Op("neg", (e,))
    return Op(fn, (e, factor))


# --- factors that move into a product -------------------------------------------------------


@lru_cache(maxsize=4096)
def fold_scale(program: Program, constants: frozenset[str]) -> Folded:
    """``T += X*W;  Y = T*a + b`` becomes ``T += X*W'`` with ``W' = W*a``; ``Y = T + b``.

    Applies where W is a constant with one a for each element, and nothing else uses T.
    """
    dtypes = program.dtypes
    temps = {t.name for t in program.temps}
    for m, s in enumerate(program.statements):
        name = s.target.tensor
        if s.op != "+=" or not s.init or name not in temps or len(writers(program, name)) != 1:
            continue
        if not covers(s, program.tensors[name]):
            continue
        used = readers(program, name)
        if len(used) != 1 or used[0] <= m or dtypes[name].name not in ("float32", "float64"):
            continue
        user = program.statements[used[0]]
        found = _factor(user.value, name, constants)
        if found is None or user.op != "=":
            continue
        product, read, factor = found
        if read.indices != s.target.indices:
            continue
        if isinstance(factor, Read) and not loops_of_read(factor) <= {*s.free}:
            continue  # an index of the sum may be called the same
        moved = _movable(program, s, factor, constants)
        if moved is None:
            continue
        weight, axes = moved
        value = _replaced(user.value, product, read)
        new = _fresh_constant(program)
        tensor = replace(program.tensors[weight.tensor], name=new)
        scaled = _replaced(s.value, weight, replace(weight, tensor=new))
        statements = list(program.statements)
        statements[m] = replace(s, value=scaled)
        statements[used[0]] = replace(user, value=value)
        given = factor.tensor if isinstance(factor, Read) else float(factor.value)
        recipe = Scaled(new, weight.tensor, given, axes)
        return _rebuilt(replace(program, statements=tuple(statements)), [tensor], [recipe], temps)
    return Folded(program, ())


def _replaced(value: Expr, old: Expr, new: Expr) -> Expr:
    return rewrite(value, lambda e: new if e == old else e)


def _fresh_constant(program: Program) -> str:
    taken = {*program.tensors, *(i for s in program.statements for i in s.indices)}
    number = 0
    while f"W{number}" in taken:
        number += 1
    return f"W{number}"


def _factor(
    value: Expr, name: str, constants: frozenset[str]
) -> tuple[Op, Read, Read | Const] | None:
    """``T[…] * a`` in a value that reads T once: the product, the read and a."""
    reads = [e for e in walk(value) if isinstance(e, Read) and e.tensor == name]
    if len(reads) != 1:
        return None
    for e in walk(value):
        if isinstance(e, Op) and e.fn == "mul" and reads[0] in e.args:
            other = e.args[1] if e.args[0] == reads[0] else e.args[0]
            if isinstance(other, Const) and not isinstance(other.value, bool):
                return e, reads[0], other
            if isinstance(other, Read) and other.tensor in constants:
                return e, reads[0], other
    return None


def _movable(
    program: Program, s: Statement, factor: Read | Const, constants: frozenset[str]
) -> tuple[Read, tuple[int, ...]] | None:
    """The constant of a product that can absorb `factor`, and the dimensions of `factor` in it."""
    if program.dtypes[s.target.tensor] != dtype_of_expr(s.value, program.dtypes):
        return None
    for weight in _factors(s.value):
        if not isinstance(weight, Read) or weight.tensor not in constants:
            continue
        used = [e for t in program.statements for e in walk(t.value)
                if isinstance(e, Read) and e.tensor == weight.tensor]  # fmt: skip
        if len(used) != 1 or program.dtypes[weight.tensor] != program.dtypes[s.target.tensor]:
            continue
        if isinstance(factor, Const):
            return weight, ()
        if program.dtypes[factor.tensor] != program.dtypes[weight.tensor]:
            continue
        axes: list[int] = []
        for index, extent in zip(factor.indices, program.tensors[factor.tensor].shape, strict=True):
            if index == Const(0) and extent == Const(1):
                axes.append(-1)
                continue
            found = [
                d
                for d, own in enumerate(weight.indices)
                if own == index and program.tensors[weight.tensor].shape[d] == extent
                and d not in axes and indices_of(index)
            ]  # fmt: skip
            if not found:
                break
            axes.append(found[0])
        else:
            return weight, tuple(axes)
    return None


def _factors(value: Expr) -> list[Expr]:
    """The factors of a product."""
    if isinstance(value, Op) and value.fn == "mul":
        return [f for a in value.args for f in _factors(a)]
    return [value]
