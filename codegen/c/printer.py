"""Targets: how the loop IR is spelt in a language.  `CPrinter` is C with OpenMP.

A target is a small class; a dialect overrides the hooks that differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import gcd
from typing import Any

import cgen

from codegen.c.cgen_blocks import as_block, unrolled
from codegen.c.expr_text import Names, ValueText, index_text, literal
from codegen.c.instruction_text import c_type, call_text
from codegen.c.registers import Registers
from codegen.c.store_text import interleaved_text, vector_store_text
from codegen.c.thread_memory import STACK_LIMIT, ThreadMemory, array
from codegen.c.transpose_text import transposed_text
from codegen.c.type_names import C_TYPES, SCHEDULE, suffix, vector_type
from codegen.loops.index_ranges import depends_on, flatten
from codegen.loops.nodes import (
    Block,
    Buffer,
    CallIntrinsic,
    CompilerFence,
    For,
    If,
    Interleaved,
    LoopNode,
    Single,
    Store,
    Tile,
    Transposed,
    VectorStore,
    block,
)
from codegen.loops.rolled import is_rolled
from codegen.loops.traverse import (
    children_of,
    collapsible,
    is_simple,
    own_variables,
    statements_in,
    walk_loops,
)
from codegen.loops.verify import LoopError
from codegen.loops.workshare import sequential
from codegen.vector.mask_lanes import is_masked
from codegen.vector.scalarise import is_indexed, is_scalarisable, vector_lanes
from codegen.vector.tables import table_index
from poly.ir.dtypes import INT64, DType, identity
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    indices_of,
    mul,
    reads_of,
    simplify,
    sub,
    walk,
)
from poly.ir.linear_form import Linear, linear_form, render
from poly.ir.program import Program
from poly.tree.kinds import Mark, Scope


class CPrinter:
    """Print loop IR as C statements."""

    #: C spelling of stored elements by type name, and what prints values.
    types: Mapping[str, str] = C_TYPES
    value_text: type[ValueText] = ValueText
    #: See `codegen.c.thread_memory`.
    stack_limit: int | None = STACK_LIMIT

    def __init__(self, program: Program, identifiers: Names, exact: bool = False) -> None:
        self.program = program
        self.ids = identifiers
        # Innermost buffers and registers of the code being printed, by name.
        self.buffers: dict[str, Any] = {}
        self.registers: dict[str, Registers] = {}
        self.memory = ThreadMemory(self.stack_limit)
        self._loops = dict(identifiers.loops)
        names = replace(identifiers, loops=self._loops, lvalue=self.lvalue, value=self._data)
        self.names = names
        self.dtypes: dict[str, DType] = dict(program.dtypes)
        self._announced: tuple[str, ...] = ()
        self._count = 0
        #: In a tile: names for the common parts of addresses, and the variables it declares.
        self._bases: dict[Expr, Index] | None = None
        self._inner: set[str] = set()
        self._multiples: dict[str, int] = {}
        #: The variables of the rolled loops around the code being printed.
        self._rolled: frozenset[str] = frozenset()
        #: The condition under which lanes of the code being printed are active; None: always.
        self.when: Expr | None = None
        self.values = self.value_text(names, self.dtypes, exact)

    # --- dialect hooks -------------------------------------------------------------------------

    def shared_loops(self, node: For, depth: int) -> cgen.Generable:
        """`depth` loops whose iterations are shared among the threads that all run this code."""
        collapse = f" collapse({depth})" if depth > 1 else ""
        loop = self.loop(node, sequential(node.body))
        return cgen.Collection([cgen.Pragma(f"omp for{collapse} schedule({SCHEDULE})"), loop])

    def continues(self, node: For) -> str:
        """The condition under which a loop has another iteration."""
        return f"{self.names.loops[node.var]} < {index_text(node.upper, self.names, 5)}"

    def lanes_for(self, loop: cgen.Generable) -> cgen.Generable:
        """A loop whose iterations may run in lanes, left to the C compiler."""
        return cgen.Collection([cgen.Pragma("omp simd"), loop])

    def single(self, body: cgen.Generable) -> cgen.Generable:
        return cgen.Collection([cgen.Pragma("omp single"), as_block(body)])

    # --- statements ------------------------------------------------------------------------

    def statement(self, node: LoopNode) -> cgen.Generable:
        """Print one node."""
        if isinstance(node, Block):
            return cgen.Collection([self._commented(c) for c in node.children])
        if isinstance(node, For):
            return self._for(node)
        if isinstance(node, If):
            if node.masked and self._maskable(node.then):
                return self._under_mask(node)
            then = as_block(self._commented(node.then))
            other = None if node.other is None else as_block(self._commented(node.other))
            return cgen.If(index_text(node.cond, self.names), then, other)
        if isinstance(node, Tile):
            return self._tile(node)
        if isinstance(node, Single):
            return self.single(self.statement(node.body))
        if isinstance(node, Store):
            return cgen.Line(self.values.store(node.target, node.op, node.value))
        if isinstance(node, VectorStore):
            return vector_store_text(self, node)
        if isinstance(node, Transposed):
            return transposed_text(self, node)
        if isinstance(node, Interleaved):
            return interleaved_text(self, node)
        if isinstance(node, Buffer):
            return self._buffer(node)
        if isinstance(node, CallIntrinsic):
            return self._call(node)
        if isinstance(node, CompilerFence):
            return cgen.Line('__asm__ volatile ("" : : : "memory"); /* read again, do not keep */')
        raise LoopError(f"{type(node).__name__} has no C form; it should have been lowered")

    def _call(self, node: CallIntrinsic) -> cgen.Generable:
        """An instruction, with pointers to its operands."""
        pointers = {}
        for tensor, first in zip(node.tensors, node.operands, strict=True):
            # Registers are vectors, which a user's function takes as their elements.
            vector = node.intrinsic.by_user and first.tensor in self.registers
            cast = f"({c_type(node.intrinsic, tensor)} *)" if vector else ""
            pointers[tensor] = f"{cast}&{self.lvalue(first)}"
        return cgen.Line(call_text(node.intrinsic, pointers))

    def body(self, node: LoopNode) -> cgen.Generable:
        """A function body in braces, with the comments that `codegen.provenance` reads."""
        return cgen.Block([self._commented(node)])

    def _commented(self, node: LoopNode) -> cgen.Generable:
        """A node below a comment naming the statements it runs, unless that comment is in effect.

        A comment holds to the end of the enclosing braces, or to the next comment in them.
        """
        names = statements_in(node)
        if isinstance(node, Block) or not names:
            return self.statement(node)
        known = names == self._announced
        self._announced = names
        text = self.statement(node)
        self._announced = names
        return text if known else cgen.Collection([cgen.Line(f"/* {', '.join(names)} */"), text])

    def _tile(self, node: Tile) -> cgen.Generable:
        """A tile, preceded by the declarations of the names it uses.

        Addresses in it are offsets from opaque bases: otherwise C compilers keep and advance a
        pointer for each row of each such tile, and spill most of them.
        """
        before, self._bases = self._bases, {}
        self._inner = own_variables(node.body)
        inner = self.statement(node.body)
        bases, self._bases = self._bases, before
        lines = [
            f"const int64_t {index.name} = fk_here({index_text(value, self.names)});"
            for value, index in bases.items()
        ]
        # All lanes of registers that nothing else reads are computed, so their ends go unused.
        used = set(_WORD.findall("\n".join([*lines, *inner.generate()])))
        named = [(self.names.loops[name], value) for name, value in node.names]
        lines[:0] = [
            f"const int64_t {name} = {index_text(value, self.names)};"
            for name, value in named
            if name in used
        ]
        return cgen.Block([*map(cgen.Line, lines), inner])

    def _for(self, node: For) -> cgen.Generable:
        if node.mark == Mark.PARALLEL:
            return self.shared_loops(node, collapsible(node))
        loop = self.loop(node, node.body)
        if is_rolled(node) or node.at_once > 1:
            return unrolled(node, loop)
        return self.lanes_for(loop) if node.mark == Mark.VECTOR and is_simple(node.body) else loop

    def loop(self, node: For, inner: LoopNode) -> cgen.Generable:
        """A loop around `inner`, which one thread runs."""
        var = self.names.loops[node.var]
        lower = index_text(node.lower, self.names)
        step = f"{var}++" if node.step == 1 else f"{var} += {node.step}"
        outer = self._rolled
        if is_rolled(node):
            self._rolled = outer | {node.var}
        with self.running(node):
            body = self.statement(inner)
        if not is_rolled(node) or not (is_rolled(inner) or isinstance(body, cgen.Line)):
            body = as_block(body)
        self._rolled = outer
        loop = cgen.For(f"int64_t {var} = {lower}", self.continues(node), step, body)
        if node.note:
            return cgen.Collection([cgen.Line(f"/* {var}: {node.note} */"), loop])
        return loop

    @contextmanager
    def running(self, node: For) -> Iterator[None]:
        """Inside of a loop, its variable is known to be a multiple of a number."""
        before = self.multiple(node.var)
        first = int(node.lower.value) if isinstance(node.lower, Const) else 1
        self._multiples[node.var] = gcd(first, node.step)
        yield
        self._multiples[node.var] = before

    # --- buffers ---------------------------------------------------------------------------

    @contextmanager
    def inside(self, node: Buffer, registers: Registers | None = None) -> Iterator[None]:
        """Bind a buffer's name inside its scope, and restore the outer meaning after it."""
        before = self.buffers, self.registers
        self.dtypes[node.name] = node.dtype
        self.buffers = {**self.buffers, node.name: node}
        self.registers = {n: r for n, r in self.registers.items() if n != node.name}
        if registers is not None:
            self.registers[node.name] = registers
        yield
        self.buffers, self.registers = before

    def _buffer(self, node: Buffer) -> cgen.Generable:
        lines: list[cgen.Generable] = []
        lanes = vector_lanes(node) if node.scope == Scope.REGISTER else None
        if node.scope == Scope.LANES:
            name = f"{suffix(node.dtype)}x{node.shape[1]}"
            start = f"fk_splat_{name}({literal(identity(node.op, node.dtype), node.dtype)})"
            registers = Registers(node, self.names.tensors[node.name], node.shape[1])
            with self.inside(node, registers):
                lines += [cgen.Line(f"fk_{name} {v} = {start};") for v in registers.variables]
                body = self.statement(node.body)
        elif lanes is not None and is_scalarisable(node):
            registers = Registers(node, self.names.tensors[node.name], lanes, is_indexed(node))
            with self.inside(node, registers):
                body = self._with_registers(node, registers)
            kind = vector_type(node.dtype, lanes) if lanes > 1 else self.types[node.dtype.name]
            read = set(_READ.findall("\n".join(body.generate())))
            # Masked stores keep lanes that were never written.
            start = " = {0}" if any(is_masked(n, node.name) for n in walk_loops(node)) else ""
            lines += map(cgen.Line, registers.declarations(kind, read, start))
        else:
            name = self.names.tensors[node.name]
            if node.scope == Scope.REGISTER:
                lines.append(cgen.Line(f"/* {name}: {_INDEXED} */"))
            with self.memory.reserve(node) as offset, self.inside(node):
                declared = array(self.types[node.dtype.name], name, node.shape, offset)
                lines.append(cgen.Line(declared))
                body = self.statement(node.body)
        lines.append(body)
        return as_block(cgen.Collection(lines))

    def _with_registers(self, node: Buffer, registers: Registers) -> cgen.Generable:
        """The body of a register buffer.

        Matrices transposed after a loop need many registers besides the accumulators, and gcc
        then takes them from the accumulators inside the loop.  So the accumulators go through
        memory first, with a compiler barrier, since gcc would otherwise forward the stored values.
        """
        children = node.body.children if isinstance(node.body, Block) else ()
        loops = [
            k
            for k, c in enumerate(children)
            if any(isinstance(n, For) and not is_rolled(n) for n in walk_loops(c))
        ]
        after = block(list(children[loops[-1] + 1 :])) if loops else Block(())
        if not any(isinstance(n, Transposed) for n in walk_loops(after)):
            return self.statement(node.body)
        before = self.statement(block(list(children[: loops[-1] + 1])))
        kept = self.fresh()
        kind = vector_type(node.dtype, registers.lanes)
        barrier = f'__asm__ volatile ("" : "+m"({kept}));'
        if registers.indexed:
            text = "\n".join(before.generate())
            lines = [*registers.copied(kind, kept, text), barrier]
            self.registers = {**self.registers, node.name: replace(registers, name=kept)}
            return cgen.Collection([before, *map(cgen.Line, lines), self.statement(after)])
        names = registers.variables
        lines = [f"{kind} {kept}[{len(names)}];"]
        lines += [f"{kept}[{k}] = {name};" for k, name in enumerate(names)]
        lines.append(barrier)
        registers.kept.update({name: f"{kept}[{k}]" for k, name in enumerate(names)})
        return cgen.Collection([before, *map(cgen.Line, lines), self.statement(after)])

    # --- addresses -------------------------------------------------------------------------

    def lvalue(self, read: Read) -> str:
        """The C lvalue of an element of a tensor, of a buffer, or of a register."""
        name = self.names.tensors[read.tensor]
        if read.tensor in self.registers:
            own = self.registers[read.tensor]
            return own.combined() if own.is_accumulator else self._register_of(read, None)
        if read.tensor in self.buffers:
            return name + "".join(f"[{index_text(i, self.names)}]" for i in read.indices)
        return f"{name}[{index_text(self.offset(read), self.names)}]"

    def _data(self, e: Expr) -> str:
        """A value that determines an index, as an int64."""
        return self.values.text(e, INT64)

    def offset(self, read: Read) -> Expr:
        """Row-major offset of an element in its tensor, in Horner form."""
        shape = self.program.tensors[read.tensor].shape
        result: Expr = Const(0)
        steps: Expr = Const(0)
        for index, extent in zip(read.indices, shape, strict=True):
            if self._bases is not None:
                # The part common to all rows and filter taps of a tile, and the offset from it.
                step = self._within_tile(index)
                rest = sub(index, step)
                index = rest if reads_of(index) else simplify(rest)
                steps = add(mul(steps, extent), step)
            result = add(mul(result, extent), index)
        result = flatten(result)
        if self._bases is None:
            return self._rolled_last(result)
        if not any(isinstance(e, Index) and e.name in self._inner for e in walk(result)):
            if result not in self._bases:
                self._bases[result] = Index(name := self.fresh())
                self._loops[name] = name
            result = self._bases[result]
        return self._rolled_last(add(result, flatten(steps)))

    def _rolled_last(self, offset: Expr) -> Expr:
        """An offset with its rolled loops at the end: ``o - 112 + 112*i``.

        gcc moves a constant at the end of an index into the address.  In the copies of a loop that
        it unrolls, ``112*i`` is one; after other terms, it would need a register for each copy,
        and ``(o + 112*1) - 112`` and ``o + 112*0`` would be loaded apart.
        """
        form = linear_form(offset)
        moving = [t for t in form.terms if any(x in self._rolled for x in indices_of(t[0]))]
        rest = Linear(tuple(t for t in form.terms if t not in moving), form.constant)
        if not moving or not rest.terms:
            return offset
        result = render(rest)
        for atom, c in moving:
            result = Op("add" if c > 0 else "sub", (result, mul(Const(abs(c)), atom)))
        return result

    def _within_tile(self, index: Expr) -> Expr:
        """The part of an index that differs between the rows and filter taps of a tile."""
        form = linear_form(index)
        moving = (t for t in form.terms if isinstance(t[0], Index) and t[0].name in self._rolled)
        return render(Linear(tuple(moving), form.constant))

    def _register_of(self, read: Read, var: str | None) -> str:
        registers = self.registers[read.tensor]
        lanes = registers.lanes
        parts: list[Linear] = []
        lane = ""
        for index in read.indices or (Const(0),):
            form = linear_form(index)
            if var is not None:
                form = form.without(Index(var))
            else:
                for moving, _ in form.terms:
                    # Inside a loop over the lanes of a vector: an index that depends on the lane.
                    if not (isinstance(moving, Index) and moving.name in self._rolled):
                        lane = f"[{index_text(moving, self.names)}]"
                        form = form.without(moving)
            parts.append(form)
        last = parts.pop()
        if not registers.is_accumulator:
            terms = tuple((a, c // lanes) for a, c in last.terms)
            parts.append(Linear(terms, last.constant // lanes))
        name = registers.variable(parts, lambda form: index_text(render(form), self.names))
        registers.used.add(name)
        return registers.kept.get(name, name) + lane

    # --- vectors ---------------------------------------------------------------------------

    def _maskable(self, node: LoopNode) -> bool:
        """Whether a node only updates vectors kept in variables."""
        if isinstance(node, VectorStore):
            return node.store.target.tensor in self.registers
        outer = isinstance(node, (Block, If)) or is_rolled(node)
        inside = outer and all(map(self._maskable, children_of(node)))
        return inside and not (isinstance(node, If) and node.other is not None)

    def _under_mask(self, node: If) -> cgen.Generable:
        """The body of a condition, without a branch: where it fails, no lane is active."""
        before = self.when
        self.when = node.cond if before is None else Op("and", (before, node.cond))
        try:
            return self.statement(node.then)
        finally:
            self.when = before

    def vector_lvalue(self, read: Read, var: str, lanes: int) -> str:
        """A vector lvalue whose lane 0 is the element at lane 0."""
        if read.tensor in self.registers:
            return self._register_of(read, var)
        first = Read(read.tensor, tuple(_lane_zero(i, var) for i in read.indices))
        return f"*({vector_type(self.dtypes[read.tensor], lanes)}_u *)&{self.lvalue(first)}"

    # --- required by `LaneText` ----------------------------------------------------------------

    @property
    def in_tile(self) -> bool:
        """Whether there may be no lanes, and the common part of all addresses has a name."""
        return self._bases is not None

    def register(self, read: Read, var: str) -> str | None:
        """The variable that holds an element in each lane, if there is one."""
        return self._register_of(read, var) if read.tensor in self.registers else None

    def distance(self, read: Read, var: str) -> Expr | None:
        """The stride in memory between adjacent lanes; None if it varies."""
        for index in read.indices:
            rest = linear_form(index).without(Index(var))
            if any(depends_on(a, var) for a, _ in rest.terms):
                return None
        if read.tensor in self.buffers:
            total = 0
            for index, extent in zip(read.indices, self.buffers[read.tensor].shape, strict=True):
                total = total * extent + linear_form(index).coefficient(Index(var))
            return Const(total)
        moved = tuple(Const(linear_form(i).coefficient(Index(var))) for i in read.indices)
        return self.offset(Read(read.tensor, moved))

    def multiple(self, var: str) -> int:
        """A divisor of all values of the loop that is being printed."""
        return self._multiples.get(var, 1)

    def table_index(self, read: Read) -> Expr | None:
        """See `codegen.vector.tables`."""
        return table_index(read, self.program, self.dtypes)

    @contextmanager
    def numbered(self, index: Index) -> Iterator[None]:
        """Bind the variable of an unrolled loop that is not in the loop IR."""
        before, self._rolled = self._rolled, self._rolled | {index.name}
        self._loops[index.name] = index.name
        yield
        self._rolled = before

    def fresh(self) -> str:
        """A new name for a vector value."""
        self._count += 1
        return f"fk_lanes{self._count}"


_WORD = re.compile(r"\w+")
_INDEXED = "an array, since its places are not constant"
#: Names that occur other than as the target of an assignment.
_READ = re.compile(r"\b([A-Za-z_]\w*)\b(?! = )")


def _lane_zero(index: Expr, var: str) -> Expr:
    return render(linear_form(index).without(Index(var)))
