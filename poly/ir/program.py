"""Programs: sequences of tensor comprehensions over size parameters.

A `Program` is produced by every frontend and consumed by everything after.  It prints as the
language of comprehensions, with every inferred range made explicit, and that text parses back.

Meaning of one statement ``T[f(x)] op value(x, y)``, with free indices x and reduction indices y:

* its *iteration domain* is the box of `Range`s restricted by `guards`; instances run in
  lexicographic order of `indices` = free indices, then reduction indices;
* with ``init`` (written ``!``), before its first instance the identity of `op` is stored to
  ``T[f(x)]`` for every x in the box of the free ranges that satisfies the guards which mention
  no reduction index; so an element whose reduction domain is empty holds the identity;
* statements run one after the other in the order written; but adjacent ones that share a `block`
  run step by step: for each value of their first index, which is the same in all of them, all
  of their instances in the order written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from poly.errors import ProgramError, Span
from poly.ir.dtypes import DTYPES, DType, dtype_of
from poly.ir.expr import (
    INTEGER_MEANING,
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    dtype_of_expr,
    evaluate_int,
    indices_of,
    reads_of,
    rewrite,
    simplify,
    sizes_of,
    substitute,
    substitute_value,
    walk,
)
from poly.ir.operators import FUNCTIONS

UPDATE_OPS = ("=", "+=", "*=", "max=", "min=")

#: Words that cannot name a tensor, index or size: words of the language …
RESERVED = frozenset(FUNCTIONS) | frozenset(
    "def where in and or not true false inf nan for if else".split()
)

#: … and of isl's notation, which isl reads in any case: ``Min`` is not allowed either.
ISL_WORDS = frozenset(
    "exists and or implies not infty infinity nan min max rat true false "
    "ceild floord mod ceil floor".split()
)

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def fresh_name(name: str, taken: set[str]) -> str:
    """`name`, with as many underscores as make it new; added to `taken`."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def taken_names(program: Program) -> set[str]:
    """The names that a new tensor, size or index of a program cannot have."""
    indices = {i for s in program.statements for i in s.indices}
    return {*program.tensors, *program.sizes, *RESERVED} | indices


#: The suffix of the name of a statement's initialisation.
INIT = "_init"


def statement_names(program: Program) -> set[str]:
    """The names of a program's statements and of their initialisations."""
    return {name for s in program.statements for name in (s.name, f"{s.name}{INIT}")}


def fresh_statement(name: str, taken: set[str]) -> str:
    """`fresh_name` for a statement that may have an initialisation."""
    while {name, f"{name}{INIT}"} & taken:
        name += "_"
    taken |= {name, f"{name}{INIT}"}
    return name


@dataclass(frozen=True)
class Tensor:
    """A named array: element type and shape, the shape in sizes and literals only."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {self.name}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Range:
    """``lo <= index < hi``; the bounds are over sizes and literals only."""

    index: str
    lo: Expr
    hi: Expr

    def __str__(self) -> str:
        return f"{self.index} in {self.lo}:{self.hi}"


@dataclass(frozen=True)
class Statement:
    """One comprehension; see the module's docstring for its meaning.

    `target` is the written element, `ranges` has one entry per index, free indices first in
    order of appearance on the left, then `reductions` in order of appearance on the right.
    `block` is the number of the ``for`` around the statement, 0 for none; its index comes first.
    """

    name: str
    target: Read
    op: str
    init: bool
    value: Expr
    ranges: tuple[Range, ...]
    reductions: tuple[str, ...] = ()
    guards: tuple[Expr, ...] = ()
    span: Span | None = field(default=None, compare=False)
    block: int = 0

    @property
    def indices(self) -> tuple[str, ...]:
        """All iteration indices, in execution order."""
        return tuple(r.index for r in self.ranges)

    @property
    def free(self) -> tuple[str, ...]:
        """The indices that appear on the left."""
        return tuple(i for i in self.indices if i not in self.reductions)

    @property
    def step(self) -> str:
        """The index of the ``for`` around the statement, "" if there is none."""
        return self.ranges[0].index if self.block else ""

    @property
    def is_update(self) -> bool:
        """Whether the statement combines its value with the previous one of the target."""
        return self.op != "="

    @property
    def scatters(self) -> bool:
        """Whether data says which element is written."""
        return any(reads_of(i) for i in self.target.indices)

    @property
    def is_reduction(self) -> bool:
        """Whether instances may be reordered: an update whose value does not read the target.

        Where data says which elements are written, nobody knows which instances meet.
        """
        return (
            self.is_update
            and not self.scatters
            and all(
                r.tensor != self.target.tensor
                for e in (self.value, *self.target.indices)
                for r in reads_of(e)
            )
        )

    @property
    def free_guards(self) -> tuple[Expr, ...]:
        """Guards without reduction indices: those that restrict the initialisation too."""
        return tuple(g for g in self.guards if not set(indices_of(g)) & set(self.reductions))

    @property
    def reads(self) -> tuple[Read, ...]:
        """Every element that an instance reads, except the target of an update."""
        exprs = (self.value, *self.guards, *self.target.indices)
        return tuple(dict.fromkeys(r for e in exprs for r in reads_of(e)))

    def __str__(self) -> str:
        op = self.op + ("!" if self.init else "")
        # The range of a block's index is printed at its head.
        ranges = self.ranges[1:] if self.block else self.ranges
        where = ", ".join([*map(str, ranges), *map(str, self.guards)])
        return f"{self.target} {op} {self.value}" + (f" where {where}" if where else "")


@dataclass(frozen=True)
class Program:
    """Statements over declared tensors.

    A tensor in both `inputs` and `outputs` is updated: its output starts as a copy of the input.
    `constraints` are what callers must guarantee about the sizes, besides each being >= 0.
    `text` is the source that it came from, for messages; it is ignored in comparisons.
    """

    name: str
    sizes: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    temps: tuple[Tensor, ...]
    statements: tuple[Statement, ...]
    constraints: tuple[Expr, ...] = ()
    text: str | None = field(default=None, compare=False)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {t.name: t for t in (*self.inputs, *self.outputs, *self.temps)}

    @property
    def dtypes(self) -> dict[str, DType]:
        return {name: t.dtype for name, t in self.tensors.items()}

    @property
    def updated(self) -> tuple[str, ...]:
        """Names of the tensors that are both input and output."""
        inputs = {t.name for t in self.inputs}
        return tuple(t.name for t in self.outputs if t.name in inputs)

    @property
    def products(self) -> dict[str, Expr]:
        """The sizes that a constraint defines as a product of others, ``H_W == H * W``."""
        found: dict[str, Expr] = {}
        for c in self.constraints:
            if isinstance(c, Op) and c.fn == "eq" and isinstance(c.args[0], Size):
                name, value = c.args[0].name, c.args[1]
                if isinstance(value, Op) and value.fn == "mul" and name not in sizes_of(value):
                    found[name] = value
        return found

    @property
    def groups(self) -> tuple[tuple[Statement, ...], ...]:
        """The statements of each block together, all others alone, in the order written."""
        found: list[list[Statement]] = []
        for s in self.statements:
            if s.block and found and found[-1][-1].block == s.block:
                found[-1].append(s)
            else:
                found.append([s])
        return tuple(map(tuple, found))

    @property
    def has_blocks(self) -> bool:
        """Whether some statements run step by step."""
        return any(s.block for s in self.statements)

    def with_tensors(
        self, changed: Callable[[Tensor], Tensor], statements: Iterable[Statement]
    ) -> Program:
        """The program with other declarations and statements, and without a source text."""
        return replace(
            self,
            inputs=tuple(map(changed, self.inputs)),
            outputs=tuple(map(changed, self.outputs)),
            temps=tuple(map(changed, self.temps)),
            statements=tuple(statements),
            text=None,
        )

    def with_accesses(
        self, changed: Callable[[Tensor], Tensor], access: Callable[[Read], Read]
    ) -> Program:
        """The program with changed declarations, and accesses rewritten to match."""

        def visit(e: Expr) -> Expr:
            return access(e) if isinstance(e, Read) else e

        def rewritten(s: Statement) -> Statement:
            target = rewrite(s.target, visit)
            assert isinstance(target, Read)
            return replace(s, target=target, value=rewrite(s.value, visit))

        return self.with_tensors(changed, map(rewritten, self.statements))

    def accesses(self, tensor: str) -> Iterator[tuple[Statement, Read]]:
        """Every write and read of a tensor, with its statement."""
        for s in self.statements:
            for read in (s.target, *s.reads):
                if read.tensor == tensor:
                    yield s, read

    def statement(self, name: str) -> Statement:
        for s in self.statements:
            if s.name == name:
                return s
        raise ProgramError(
            f"there is no statement {name!r}; there are "
            + ", ".join(s.name for s in self.statements)
        )

    def __str__(self) -> str:
        return self._written

    @cached_property
    def _written(self) -> str:
        """The program in the language; torch's operators are given it in each call."""
        ins = ", ".join(map(str, self.inputs))
        outs = ", ".join(map(str, self.outputs))
        # Sizes are declared by the shapes in which they appear, unless some do not appear there.
        tensors = (*self.inputs, *self.outputs, *self.temps)
        shown = dict.fromkeys(n for t in tensors for e in t.shape for n in sizes_of(e))
        sizes = "" if tuple(shown) == self.sizes else f"[{', '.join(self.sizes)}]"
        where = " where " + ", ".join(map(str, self.constraints)) if self.constraints else ""
        lines = [f"def {self.name}{sizes}({ins}) -> ({outs}){where} {{"]
        lines += [f"    {t}" for t in self.temps]
        names = {s.name: default_name(n) for n, s in enumerate(self.statements)}
        for group in self.groups:
            indent = "    "
            if group[0].block:
                lines.append(f"    for {group[0].ranges[0]} {{")
                indent *= 2
            for s in group:
                label = "" if s.name == names[s.name] else f"{s.name}: "
                lines.append(f"{indent}{label}{s}")
            if group[0].block:
                lines.append("    }")
        return "\n".join([*lines, "}"])

    @cached_property
    def digest(self) -> str:
        """A content hash of the meaning (the name is ignored)."""
        return _short_digest(str(replace(self, name="f")))

    @cached_property
    def form(self) -> Form:
        """What it shares with programs that differ in the names of their sizes alone."""
        order: dict[str, str] = {}

        def numbered(found: re.Match[str]) -> str:
            name = found.group()
            return order.setdefault(name, f"%{len(order)}") if name in self.sizes else name

        text = re.sub(r"[A-Za-z_]\w*", numbered, str(replace(self, name="f")))
        return Form(_short_digest(text), tuple(order))


@dataclass(frozen=True)
class Form:
    """A program but for the names of its sizes.

    digest : a content hash of its meaning; sizes : the names, in the order of first use
    """

    digest: str
    sizes: tuple[str, ...]


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def default_name(position: int) -> str:
    """The name of a statement without a label: S0, S1, … by position."""
    return f"S{position}"


def specialise(program: Program, sizes: Mapping[str, int]) -> Program:
    """The same program with some sizes replaced by numbers.

    Raises
    ------
    ProgramError : for an unknown size, a negative value, or a precondition that does not hold.
    """
    for name, value in sizes.items():
        if name not in program.sizes:
            raise ProgramError(f"{program.name} has no size {name!r}; it has {program.sizes}")
        if value < 0:
            raise ProgramError(f"size {name} = {value} is negative")
    env = {name: Const(int(v)) for name, v in sizes.items()}

    def fix(e: Expr) -> Expr:
        return simplify(substitute(e, sizes=env))

    constraints = [(c, fix(c)) for c in program.constraints]
    for c, fixed in constraints:
        if not sizes_of(fixed) and not evaluate_int(fixed, {}):
            at = ", ".join(f"{n}={sizes[n]}" for n in sizes_of(c) if n in sizes)
            raise ProgramError(f"precondition {c} does not hold: {at}")

    def fix_tensor(t: Tensor) -> Tensor:
        return replace(t, shape=tuple(map(fix, t.shape)))

    def fix_target(r: Read) -> Read:
        found = substitute_value(r, sizes=env)
        assert isinstance(found, Read)
        return found

    return replace(
        program,
        sizes=tuple(s for s in program.sizes if s not in env),
        inputs=tuple(map(fix_tensor, program.inputs)),
        outputs=tuple(map(fix_tensor, program.outputs)),
        temps=tuple(map(fix_tensor, program.temps)),
        constraints=tuple(c for _, c in constraints if sizes_of(c)),
        statements=tuple(
            replace(
                s,
                target=fix_target(s.target),
                value=substitute_value(s.value, sizes=env),
                ranges=tuple(replace(r, lo=fix(r.lo), hi=fix(r.hi)) for r in s.ranges),
                guards=tuple(map(fix, s.guards)),
            )
            for s in program.statements
        ),
    )


def verify_program(program: Program) -> Program:
    """Check every rule of the representation; returns the program.

    Raises
    ------
    ProgramError : naming the statement or tensor that breaks a rule.
    """
    check_program_name(program.name)
    declared = [*program.inputs, *program.outputs, *program.temps]
    names: dict[str, Tensor] = {}
    for t in declared:
        _check_identifier(t.name, "tensor")
        if names.setdefault(t.name, t) != t:
            raise ProgramError(f"tensor {t.name} is declared twice, differently")
        dtype_of(t.dtype)
        for extent in t.shape:
            _check_over_sizes(extent, program, f"the shape of {t.name}")
    temps = {t.name for t in program.temps}
    if temps & {t.name for t in (*program.inputs, *program.outputs)}:
        raise ProgramError("a temporary is also an input or output")
    for name in program.sizes:
        _check_identifier(name, "size")
        if name in names:
            raise ProgramError(f"{name} is both a size and a tensor")
    for c in program.constraints:
        _check_over_sizes(c, program, "a constraint", condition=True)
    if not program.outputs:
        raise ProgramError(f"{program.name} has no output")
    seen: set[str] = set()
    read_only = {t.name for t in program.inputs} - {t.name for t in program.outputs}
    for s in program.statements:
        if s.name in seen:
            raise ProgramError(f"two statements are named {s.name}")
        seen.add(s.name)
        _check_identifier(s.name, "statement")
        _verify_statement(s, program, names, read_only)
    _verify_blocks(program)
    for t in program.outputs:
        if all(s.target.tensor != t.name for s in program.statements):
            raise ProgramError(f"output {t.name} is never written")
    return program


def _verify_blocks(program: Program) -> None:
    blocks = [g[0].block for g in program.groups if g[0].block]
    if len(set(blocks)) != len(blocks):
        raise ProgramError("the statements of a block are not adjacent")
    for group in program.groups:
        for s in group:
            if s.block and (not s.free or s.ranges[0] != group[0].ranges[0]):
                raise ProgramError(f"statement {s.name} does not run along its block's index")


def _verify_statement(
    s: Statement, program: Program, names: Mapping[str, Tensor], read_only: set[str]
) -> None:
    where = f"statement {s.name}"
    if s.op not in UPDATE_OPS:
        raise ProgramError(f"{where}: unknown operator {s.op!r}")
    if s.init and s.op == "=":
        raise ProgramError(f"{where}: '=!' does not exist; '=' needs no initialisation")
    if len(set(s.indices)) != len(s.indices):
        raise ProgramError(f"{where}: an index has two ranges")
    if set(s.reductions) - set(s.indices):
        raise ProgramError(f"{where}: a reduction index has no range")
    if s.reductions and s.indices[len(s.indices) - len(s.reductions) :] != s.reductions:
        raise ProgramError(f"{where}: reduction indices must come last")
    if s.reductions and not s.is_update:
        raise ProgramError(
            f"{where}: {', '.join(s.reductions)} appears only on the right of a plain '='"
        )
    if s.target.tensor in read_only:
        raise ProgramError(f"{where}: {s.target.tensor} is an input and cannot be written")
    for index in s.indices:
        _check_identifier(index, "index")
        if index in names or index in program.sizes:
            raise ProgramError(f"{where}: {index} is an index and also a tensor or a size")
    for r in s.ranges:
        _check_over_sizes(r.lo, program, f"{where}, the range of {r.index}")
        _check_over_sizes(r.hi, program, f"{where}, the range of {r.index}")
    for e in (s.target, s.value, *s.guards):
        for node in walk(e):
            if isinstance(node, Index) and node.name not in s.indices:
                raise ProgramError(f"{where}: index {node.name} has no range")
            if isinstance(node, Size) and node.name not in program.sizes:
                raise ProgramError(f"{where}: there is no size {node.name}")
            if isinstance(node, Read):
                _check_read(node, names, where)
    if s.scatters:
        _verify_scattered(s, where)
    for g in s.guards:
        if reads_of(g):
            raise ProgramError(f"{where}: a guard that depends on data is not allowed; use select")
        if dtype_of_expr(g, program.dtypes).kind != "b":
            raise ProgramError(f"{where}: {g} is not a condition")
    value = dtype_of_expr(s.value, program.dtypes)
    target = names[s.target.tensor].dtype
    if (value.kind == "b") != (target.kind == "b"):
        raise ProgramError(f"{where}: stores {value} into {target} {s.target.tensor}; cast it")
    if target.kind == "b" and s.op in ("+=", "*="):
        raise ProgramError(f"{where}: {s.op} is not defined on bool; use max= or min=")


def _verify_scattered(s: Statement, where: str) -> None:
    if not s.is_update:
        raise ProgramError(f"{where}: a '=' whose index depends on data is not allowed; use +=")
    if s.init:
        raise ProgramError(
            f"{where}: which elements {s.op}! initialises would depend on data; write "
            f"{s.target.tensor} in a statement before it, and use {s.op}"
        )
    if any(r.tensor == s.target.tensor for r in s.reads):
        raise ProgramError(f"{where}: {s.target.tensor} is written where data says, and read")


def _check_read(read: Read, names: Mapping[str, Tensor], where: str) -> None:
    if read.tensor not in names:
        raise ProgramError(f"{where}: there is no tensor {read.tensor!r}")
    rank = names[read.tensor].rank
    if len(read.indices) != rank:
        raise ProgramError(
            f"{where}: {read} has {len(read.indices)} indices, but {read.tensor} has rank {rank}"
        )


def _check_over_sizes(expr: Expr, program: Program, where: str, condition: bool = False) -> None:
    for e in walk(expr):
        if isinstance(e, Size) and e.name not in program.sizes:
            raise ProgramError(f"{where} uses {e.name}, which is not a size of {program.name}")
    try:
        check_integer(expr, condition)
    except ProgramError as error:
        raise ProgramError(f"{where}: {error}") from None


def check_integer(expr: Expr, condition: bool = False) -> Expr:
    """Check that an expression is an integer, or a `condition` on integers, once its sizes are
    known; returns it.

    Raises
    ------
    ProgramError : it is not.
    """
    for e in walk(expr):
        if not isinstance(e, (Size, Const, Op)):
            raise ProgramError(f"{e} is not made of sizes and numbers")
        if isinstance(e, Const) and (e.dtype is not None or isinstance(e.value, float)):
            raise ProgramError(f"{e} is not a plain integer")
        if not isinstance(e, Op):
            continue
        if e.fn not in INTEGER_MEANING:
            raise ProgramError(f"{e}: {e.fn!r} is not integer arithmetic")
        if e.fn in ("div", "fmod", "floordiv", "mod") and e.args[1] == Const(0):
            raise ProgramError(f"{e} divides by 0")
    if (dtype_of_expr(expr, {}).kind == "b") != condition:
        wrong = "not a condition" if condition else "a condition, not a number"
        raise ProgramError(f"{expr} is {wrong}")
    return expr


def check_program_name(name: str) -> None:
    """Check that a name can follow ``def``; it may be a word of the language, `exp` for one.

    Raises
    ------
    ProgramError : it cannot.
    """
    if not _IDENTIFIER.match(name):
        raise ProgramError(f"{name!r} cannot name a program: letters, digits and _ only")


def _check_identifier(name: str, what: str) -> None:
    if not _IDENTIFIER.match(name):
        raise ProgramError(f"{name!r} cannot name a {what}: letters, digits and _ only")
    if name in RESERVED or name in DTYPES or name.lower() in ISL_WORDS:
        raise ProgramError(f"{name!r} is a word of the language and cannot name a {what}")
