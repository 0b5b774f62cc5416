"""One scheduled program as one C function, which every thread of a team runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.c.convention import LIBRARY, Convention
from codegen.c.expr_text import Names
from codegen.c.loop_passes import C_LOOP_PASSES
from codegen.c.reserved_words import is_reserved
from codegen.c.type_names import C_TYPES
from codegen.loops.check_index_width import check_index_width
from codegen.loops.from_schedule import build_loops
from codegen.loops.kernel_context import KernelContext
from codegen.loops.lower_instances import lower
from codegen.loops.nodes import Block, Buffer, CallIntrinsic, For, LoopNode, Tile, block
from codegen.loops.restrict import exchanged
from codegen.loops.traverse import (
    has_mark,
    own_bounds,
    own_values,
    reads_in,
    statements_in,
    walk_loops,
)
from codegen.loops.verify import verify_loops
from poly.ir.expr import Size, walk
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.program import Program, Tensor
from poly.ir.rounding import rounds_to_integers
from poly.machine.cpu import host_machine
from poly.passes import Pass, run_passes
from poly.schedule.schedule import Schedule
from poly.tree.kinds import Mark

#: A body with more loops and statements than this is cut into functions of at least so many.
MOST_NODES, FEWEST_NODES = 400, 60


@dataclass(frozen=True)
class MadeFrom:
    """What a text was generated from: a program, and its schedule as text.

    steps : of the schedule; script : with its comments; digest : of both
    exact : whether reductions keep the written order
    """

    program: Program
    steps: tuple[str, ...]
    script: str
    digest: str
    exact: bool

    @staticmethod
    def of(schedule: Schedule) -> MadeFrom:
        """The program and the text of a schedule."""
        steps = tuple(map(str, schedule.steps))
        return MadeFrom(schedule.program, steps, str(schedule), schedule.digest, schedule.exact)

    @property
    def fuses_products(self) -> bool:
        """Whether the compiler may make one operation, rounded once, of a product and a sum."""
        return fuses_products(self.program, self.exact)


def fuses_products(program: Program, exact: bool) -> bool:
    """See `MadeFrom.fuses_products`."""
    return not exact and not rounds_to_integers(program)


@dataclass(frozen=True)
class CNest:
    """A function for one loop nest of a program: its declaration, comments and lines."""

    prototype: str
    comments: tuple[str, ...]
    body: tuple[str, ...]

    def text(self, linkage: str) -> str:
        # Inlined again, they would be one long function.
        head = f"{linkage} __attribute__((noinline))"
        return "\n".join([*self.comments, head, self.prototype, *self.body, ""])


@dataclass(frozen=True)
class CFunction:
    """A C function for one program.

    Attributes
    ----------
    made_from : the scheduled program
    symbol : its C name
    sizes : the program sizes it takes, in order
    tensors : the tensors it takes, in order, each with its C type
    workspace : temporaries that the caller provides
    parallel : whether the calling team shares the work; if not, only one thread may call it
    nests : the functions that it calls, see `_parts_of`
    instructions : those of users that it runs
    prototype, comments, body : its declaration, one comment per statement, its lines
    thread_memory : bytes it uses of `codegen.c.thread_memory`
    """

    made_from: MadeFrom
    symbol: str
    sizes: tuple[str, ...]
    tensors: tuple[tuple[str, str], ...]
    workspace: tuple[Tensor, ...]
    parallel: bool
    prototype: str
    comments: tuple[str, ...]
    body: tuple[str, ...]
    thread_memory: int = 0
    nests: tuple[CNest, ...] = ()
    instructions: tuple[VectorIntrinsic, ...] = ()

    @property
    def text(self) -> str:
        """The definition, preceded by one comment per statement."""
        nests = [nest.text("static") for nest in self.nests]
        return "\n".join([*nests, *self.comments, self.prototype, *self.body])

    @property
    def static_text(self) -> str:
        """The definition with internal linkage."""
        nests = [nest.text("static") for nest in self.nests]
        return "\n".join([*nests, *self.own_text])

    @property
    def own_text(self) -> list[str]:
        """The definition with internal linkage, without the functions that it calls."""
        return [*self.comments, f"static {self.prototype}", *self.body]


def c_loops(
    schedule: Schedule, passes: Sequence[Pass[LoopNode]] = C_LOOP_PASSES, vector_bytes: int = 0
) -> LoopNode:
    """The loops of a schedule after all passes, as they are printed.

    vector_bytes : of the machine's vectors; 0: of this one

    Raises
    ------
    ScheduleError : isl exceeded its budget, or the loops would compute with numbers beyond
        64 bits.
    """
    program = schedule.program
    body = lower(build_loops(schedule))
    context = KernelContext(program, vector_bytes=vector_bytes or host_machine().vector_bytes)
    body = run_passes(body, passes, context, lambda n: verify_loops(n, program))
    return check_index_width(body, program)


def emit_function(
    schedule: Schedule,
    symbol: str,
    passes: Sequence[Pass[LoopNode]] = C_LOOP_PASSES,
    convention: Convention = LIBRARY,
) -> CFunction:
    """Generate the C function for a schedule.

    Raises
    ------
    ScheduleError : see `c_loops`.
    """
    program = schedule.program
    body = c_loops(schedule, passes, convention.vector_bytes)
    names = name_everything(program, body)
    whole = _Signature.of(program, names, body)
    is_shared = has_mark(body, Mark.PARALLEL)
    parts = _parts_of(body)
    comments = statement_comments(schedule)
    nests: list[CNest] = []
    calls: list[str] = []
    memory = 0
    for n, part in enumerate(parts, 1):
        printer = convention.printer(program, names, schedule.exact)
        printed = list(printer.body(part).generate())
        memory = max(memory, printer.memory.bytes)
        if len(parts) == 1:
            calls = printed
            break
        more = convention.passed(printer.memory.bytes, is_shared)
        own = _Signature.of(program, names, part).used_in(printed, names)
        run = statements_in(part)
        about = tuple(comments.pop(name) for name in [*comments] if name in run)
        nests.append(CNest(own.prototype(f"{symbol}_{n}", names, more), about, tuple(printed)))
        calls.append(f"  {symbol}_{n}({own.arguments(names, more)});")
    whole = whole.used_in(calls, names)
    return CFunction(
        MadeFrom.of(schedule),
        symbol,
        whole.sizes,
        tuple((t.name, whole.c_type(t)) for t in whole.tensors),
        tuple(t for t in whole.tensors if t in program.temps),
        is_shared,
        whole.prototype(symbol, names, convention.passed(memory, is_shared)),
        tuple(comments.values()),
        tuple(calls if len(parts) == 1 else ["{", *calls, "}"]),
        memory,
        tuple(nests),
        _declared(body),
    )


def _declared(body: LoopNode) -> tuple[VectorIntrinsic, ...]:
    """The instructions of users in a body, in order."""
    calls = (n.intrinsic for n in walk_loops(body) if isinstance(n, CallIntrinsic))
    return tuple(dict.fromkeys(i for i in calls if i.by_user))


@dataclass(frozen=True)
class _Signature:
    """The sizes and tensors that some loops of a program use, in the order of arguments."""

    program: Program
    sizes: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    exchanged: frozenset[str]

    @staticmethod
    def of(program: Program, names: Names, body: LoopNode) -> _Signature:
        touched = {r.tensor for r in reads_in(body)}
        needed = used_sizes(body, program, touched)
        every = argument_order(program, program.temps)
        return _Signature(
            program,
            tuple(s for s in program.sizes if s in needed),
            tuple(t for t in every if t.name in touched),
            frozenset(exchanged(body)),
        )

    def used_in(self, lines: Iterable[str], names: Names) -> _Signature:
        """Without the sizes that no line names: extents of 1 and of what is inside of them."""
        words = {word for line in lines for word in re.findall(r"\w+", line)}
        return replace(self, sizes=tuple(s for s in self.sizes if names.sizes[s] in words))

    def c_type(self, tensor: Tensor) -> str:
        """The type of a tensor's elements, constant if no statement sets them."""
        written = any(s.target.tensor == tensor.name for s in self.program.statements)
        return f"{'' if written else 'const '}{C_TYPES[tensor.dtype.name]}"

    def prototype(self, symbol: str, names: Names, more: Mapping[str, str]) -> str:
        """The declaration; the pointers of tensors in `exchanged` are not alone.

        more : further parameters, by name
        """
        params = [f"int64_t {names.sizes[s]}" for s in self.sizes]
        for t in self.tensors:
            alone = "" if t.name in self.exchanged else "restrict "
            params.append(f"{self.c_type(t)} *{alone}{names.tensors[t.name]}")
        params += more.values()
        return f"void {symbol}({', '.join(params) or 'void'})"

    def arguments(self, names: Names, more: Mapping[str, str]) -> str:
        """The arguments of a call from a function with all of these parameters."""
        passed = [names.sizes[s] for s in self.sizes]
        return ", ".join([*passed, *(names.tensors[t.name] for t in self.tensors), *more])


def _parts_of(body: LoopNode) -> list[LoopNode]:
    """The loop nests of a body that are functions of their own; the body itself if it is short.

    C compilers take more than twice as long for a function that is twice as long.
    """
    if not isinstance(body, Block) or _length(body) <= MOST_NODES:
        return [body]
    parts: list[list[LoopNode]] = [[]]
    for child in body.children:
        if sum(map(_length, parts[-1])) >= FEWEST_NODES:
            parts.append([])
        parts[-1].append(child)
    return [block(part) for part in parts]


def _length(body: LoopNode) -> int:
    return sum(1 for _ in walk_loops(body))


def argument_order(program: Program, workspace: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors a kernel's caller passes: inputs, outputs, workspace, each once."""
    inputs = (t for t in program.inputs if t.name not in program.updated)
    return (*inputs, *program.outputs, *workspace)


def team(call: str) -> list[str]:
    """The lines that make a call on a team of `threads` threads.

    A single thread calls directly: a team of one costs more than a small kernel.
    """
    return [
        "  if (threads > 1) {",
        "    #pragma omp parallel num_threads(threads)",
        f"    {call}",
        "  } else {",
        f"    {call}",
        "  }",
    ]


def identifier(name: str) -> str:
    """A C identifier that resembles `name`."""
    clean = re.sub(r"[^A-Za-z0-9_]", "_", name)[:64]
    return clean if clean and not clean[0].isdigit() else f"_{clean}"


def header_comment(made_from: MadeFrom, nodes: Iterable[str] = ()) -> str:
    """A comment with the computation and its schedule; `codegen.provenance` reads it.

    nodes : the network nodes that call the code, if any
    """
    mode = "exact" if made_from.exact else "reassociating"
    steps = made_from.steps or ("as written",)
    lines = [
        f"Generated by Farkas.  Schedule {made_from.digest} ({mode} reductions).",
        *(f"Node: {' '.join(node.split())}" for node in nodes),
        "",
        *str(made_from.program).splitlines(),
        "",
        "Schedule:",
        *(f"  {step}" for step in steps),
    ]
    return "/*\n" + "\n".join(f" * {comment_safe(line)}".rstrip() for line in lines) + "\n */"


def statement_comments(schedule: Schedule) -> dict[str, str]:
    """One comment per statement, by name: the comprehension it came from."""
    return {
        s.name: f"/* {s.name}: {s.role} of {comment_safe(str(s.source))} */"
        for s in schedule.scop.statements
    }


def comment_safe(text: str) -> str:
    """A text without marks of comments, for one line of a comment."""
    return text.replace("*/", "* /").replace("/*", "/ *")


def used_sizes(body: LoopNode, program: Program, tensors: set[str]) -> set[str]:
    """The sizes and host loop variables that a body computes with."""
    used: set[str] = set()
    for node in walk_loops(body):
        for e in (*own_bounds(node), *own_values(node)):
            used |= {x.name for x in walk(e) if isinstance(x, Size)}
    for name in tensors & set(program.tensors):
        # The first extent does not affect a row-major address.
        for extent in program.tensors[name].shape[1:]:
            used |= {x.name for x in walk(extent) if isinstance(x, Size)}
    return used


def name_everything(
    program: Program,
    body: LoopNode,
    more: Iterable[str] = (),
    reserved: frozenset[str] = frozenset(),
) -> Names:
    """Choose C identifiers for tensors, buffers, sizes and loops, distinct and not reserved.

    more : other sizes; reserved : reserved words beyond C's
    """
    taken = set[str]()

    def pick(name: str) -> str:
        unique = name
        while unique in taken or is_reserved(unique, reserved) or unique.startswith(("fk_", "_")):
            unique = f"{unique.lstrip('_')}_" if unique.startswith("_") else f"{unique}_"
            if unique.startswith("fk_"):
                unique = f"x{unique}"
        taken.add(unique)
        return unique

    tensors = {name: pick(name) for name in program.tensors}
    sizes = {name: pick(name) for name in (*program.sizes, *more)}
    for node in walk_loops(body):
        if isinstance(node, Buffer) and node.name not in tensors:
            tensors[node.name] = pick(node.name)
    loops: dict[str, str] = {}
    for node in walk_loops(body):
        own = [v for v, _ in node.names] if isinstance(node, Tile) else []
        if hasattr(node, "var") and isinstance(node.var, str):
            own.append(node.var)
        for var in own:
            if var not in loops:
                loops[var] = pick(var)
    threads = frozenset(
        n.var
        for n in walk_loops(body)
        if isinstance(n, For) and n.mark in (Mark.THREAD, Mark.OWN_THREAD)
    )
    return Names(tensors, sizes, loops, lambda read: read.tensor, str, threads)
