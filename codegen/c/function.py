"""One scheduled program as one C function, which every thread of a team runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codegen.c.expr_text import Names
from codegen.c.loop_passes import C_LOOP_PASSES
from codegen.c.printer import CPrinter
from codegen.c.reserved_words import is_reserved
from codegen.c.type_names import C_TYPES
from codegen.loops.check_index_width import check_index_width
from codegen.loops.from_schedule import build_loops
from codegen.loops.kernel_context import KernelContext
from codegen.loops.lower_instances import lower
from codegen.loops.nodes import Buffer, For, LoopNode, Tile
from codegen.loops.restrict import exchanged
from codegen.loops.traverse import has_mark, own_bounds, own_values, reads_in, walk_loops
from codegen.loops.verify import verify_loops
from poly.ir.expr import Size, walk
from poly.ir.program import Program, Tensor
from poly.passes import Pass, run_passes
from poly.schedule.schedule import Schedule
from poly.tree.kinds import Mark


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

    @property
    def text(self) -> str:
        """The definition, preceded by one comment per statement."""
        return "\n".join([*self.comments, self.prototype, *self.body])

    @property
    def static_text(self) -> str:
        """The definition with internal linkage."""
        return "\n".join([*self.comments, f"static {self.prototype}", *self.body])


def c_loops(schedule: Schedule, passes: Sequence[Pass[LoopNode]] = C_LOOP_PASSES) -> LoopNode:
    """The loops of a schedule after all passes, as they are printed.

    Raises
    ------
    ScheduleError : isl exceeded its budget, or the loops would compute with numbers beyond
        64 bits.
    """
    program = schedule.program
    body = lower(build_loops(schedule))
    body = run_passes(body, passes, KernelContext(program), lambda n: verify_loops(n, program))
    return check_index_width(body, program)


def emit_function(
    schedule: Schedule, symbol: str, passes: Sequence[Pass[LoopNode]] = C_LOOP_PASSES
) -> CFunction:
    """Generate the C function for a schedule.

    Raises
    ------
    ScheduleError : see `c_loops`.
    """
    program = schedule.program
    body = c_loops(schedule, passes)
    names = name_everything(program, body)
    printer = CPrinter(program, names, schedule.exact)
    lines = list(printer.body(body).generate())
    touched = {r.tensor for r in reads_in(body)}
    written = {s.target.tensor for s in program.statements}
    workspace = tuple(t for t in program.temps if t.name in touched)
    needed = used_sizes(body, program, touched)
    sizes = tuple(s for s in program.sizes if s in needed)
    tensors = tuple(
        (t.name, f"{'' if t.name in written else 'const '}{C_TYPES[t.dtype.name]}")
        for t in argument_order(program, workspace)
        if t.name in touched
    )
    params = [f"int64_t {names.sizes[s]}" for s in sizes]
    shared = exchanged(body)
    params += [
        f"{c} *{'' if name in shared else 'restrict '}{names.tensors[name]}" for name, c in tensors
    ]
    prototype = f"void {symbol}({', '.join(params) or 'void'})"
    return CFunction(
        MadeFrom.of(schedule),
        symbol,
        sizes,
        tensors,
        workspace,
        has_mark(body, Mark.PARALLEL),
        prototype,
        tuple(statement_comments(schedule)),
        tuple(lines),
        printer.memory.bytes,
    )


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
    return "/*\n" + "\n".join(f" * {_comment_safe(line)}".rstrip() for line in lines) + "\n */"


def statement_comments(schedule: Schedule) -> list[str]:
    """One comment per statement: its name and the comprehension it came from."""
    return [
        f"/* {s.name}: {s.role} of {_comment_safe(str(s.source))} */"
        for s in schedule.scop.statements
    ]


def _comment_safe(text: str) -> str:
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
