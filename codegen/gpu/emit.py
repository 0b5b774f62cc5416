"""Generate GPU kernels for a schedule, and what the host does to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.c.function import (
    MadeFrom,
    argument_order,
    header_comment,
    identifier,
    name_everything,
    statement_comments,
    used_sizes,
)
from codegen.gpu.check_barriers import check_barriers
from codegen.gpu.host_loops import build_host
from codegen.gpu.loop_passes import GPU_LOOP_PASSES
from codegen.gpu.match_fragments import to_instructions
from codegen.gpu.printers import (
    CudaPrinter,
    KernelPrinter,
    OpenClPrinter,
    alignment_of,
)
from codegen.gpu.wmma_text import memory_of_warps
from codegen.loops.check_index_width import NUMBERS_OF_HOST, check_index_width
from codegen.loops.from_schedule import LoopProgram, build_kernel
from codegen.loops.grid_limits import is_strided
from codegen.loops.kernel_context import KernelContext
from codegen.loops.lower_instances import lower
from codegen.loops.nodes import For, LoopNode, axis_of
from codegen.loops.restrict import exchanged, stored_in
from codegen.loops.traverse import map_children, reads_in, walk_loops
from codegen.loops.verify import verify_loops
from poly.errors import CapacityError
from poly.ir.expr import Const, Expr, evaluate_int, substitute
from poly.ir.program import Program, Tensor
from poly.lower.launches import Launch, launches
from poly.machine.gpu import SHARED_BYTES
from poly.passes import Pass, run_passes
from poly.schedule.schedule import Schedule
from poly.tree.kinds import Mark

#: The dialects by name.
DIALECTS: dict[str, type[KernelPrinter]] = {t.name: t for t in (CudaPrinter, OpenClPrinter)}


@dataclass(frozen=True)
class GpuKernel:
    """One kernel of a text.

    Attributes
    ----------
    symbol : its name
    sizes : its first arguments, each an int64: program sizes and variables of host loops
    hosts : the names of the surrounding host loops' variables, outermost first
    tensors : the tensors it takes next, in order
    grid : blocks in x, y and z, as expressions over program sizes
    block : threads of a block in x, y and z
    shared_bytes : shared memory per block
    with_matrices : tensors that must begin at a multiple of `SUMS_ALIGNMENT` bytes
    strided : the axes along which the grid may be smaller, since blocks loop over the rest
    """

    symbol: str
    sizes: tuple[str, ...]
    hosts: tuple[str, ...]
    tensors: tuple[str, ...]
    grid: tuple[Expr, ...]
    block: tuple[int, int, int]
    shared_bytes: int
    with_matrices: tuple[str, ...] = ()
    strided: frozenset[int] = frozenset()


@dataclass(frozen=True)
class GpuSource:
    """Kernels of one program, and the host's part.

    Attributes
    ----------
    program : the program as callers see it
    dialect : `cuda` or `opencl`; text : the translation unit
    kernels : by the numbers that `host` calls them by
    host : loops and conditions around instances ``launch(number, values of host loops)``
    workspace : temporaries that the caller allocates on the device
    made : kernel sizes that are products of program sizes
    exact : whether products and sums are rounded one by one
    code : the kernels without their prelude; functions : further functions they call, by name
    """

    program: Program
    dialect: str
    text: str
    kernels: tuple[GpuKernel, ...]
    host: LoopNode
    workspace: tuple[Tensor, ...]
    made: tuple[tuple[str, Expr], ...] = ()
    exact: bool = False
    code: str = ""
    functions: tuple[tuple[str, str], ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Compiler options: exact mode forbids contraction."""
        return DIALECTS[self.dialect].exact_flags if self.exact else ()

    def all_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes of a call, and those derived from them."""
        return {**sizes, **{name: evaluate_int(e, sizes) for name, e in self.made}}


def generate_gpu(
    schedule: Schedule,
    dialect: str,
    written: Program | None = None,
    passes: Sequence[Pass[LoopNode]] = GPU_LOOP_PASSES,
) -> GpuSource:
    """Generate kernels for a schedule.

    written : the program that callers see, see `codegen.c.kernel_unit.generate`
    passes : the loop passes of each kernel

    Raises
    ------
    ScheduleError : loops in vector lanes or on CPU threads, blocks with too many threads or too
        much shared memory, element types that the dialect lacks, or isl exceeded its budget.
    """
    program = schedule.program
    host, found = launches(schedule.tree, schedule.scop)
    target = DIALECTS[dialect]
    base = f"fk_{identifier(program.name)}_{schedule.digest}"
    made = [
        _kernel(schedule, launch, f"{base}_{launch.number}", target, passes) for launch in found
    ]
    functions = tuple({name: text for _, _, f in made for name, text in f.items()}.items())
    code = "\n\n".join(text for text, _, _ in made)
    touched = {t for _, k, _ in made for t in k.tensors}
    header = header_comment(MadeFrom.of(schedule))
    text = f"{header}\n{_unit(target, functions, [code], schedule.exact)}"
    written = written or program
    made_of = {n: e for n, e in program.products.items() if n not in written.sizes}
    workspace = tuple(
        replace(t, shape=tuple(substitute(e, sizes=made_of) for e in t.shape))
        for t in program.temps
        if t.name in touched
    )
    kernels = tuple(k for _, k, _ in made)
    body = check_index_width(build_host(schedule.scop, host, found), program, loops=NUMBERS_OF_HOST)
    sizes = tuple(made_of.items())
    code = f"{header}\n{code}"
    return GpuSource(
        written, dialect, text, kernels, body, workspace, sizes, schedule.exact, code,
        functions,
    )  # fmt: skip


def joined_text(sources: Sequence[GpuSource]) -> str:
    """One translation unit with the kernels of several sources, each once.

    All sources have the same dialect and the same `exact`.
    """
    first = sources[0]
    if len(sources) == 1:
        return first.text
    functions = [f for s in sources for f in s.functions]
    return _unit(DIALECTS[first.dialect], functions, [s.code for s in sources], first.exact)


def _unit(
    target: type[KernelPrinter],
    functions: Sequence[tuple[str, str]],
    codes: Sequence[str],
    exact: bool,
) -> str:
    """Kernels, preceded by the functions they call."""
    code = "\n\n".join([*dict(functions).values(), *dict.fromkeys(codes)])
    return f"{target.prelude(code, exact)}\n\n{code}\n"


def lower_kernel(loops: LoopProgram) -> LoopNode:
    """Lower a kernel's loops to stores, and to instructions where the schedule marks them.

    Raises
    ------
    ScheduleError : see `codegen.gpu.match_fragments.to_instructions`.
    """
    return to_instructions(lower(loops))


def kernel_loops(
    schedule: Schedule, passes: Sequence[Pass[LoopNode]] = GPU_LOOP_PASSES
) -> tuple[LoopNode, ...]:
    """The loops of each kernel of a schedule after all passes, as they are printed.

    Raises
    ------
    ScheduleError : see `generate_gpu`.
    """
    _, found = launches(schedule.tree, schedule.scop)
    return tuple(_loops(schedule, launch, passes)[1] for launch in found)


def _loops(
    schedule: Schedule, launch: Launch, passes: Sequence[Pass[LoopNode]]
) -> tuple[LoopProgram, LoopNode]:
    """The loops that isl generates for a launch, and the loops after all passes."""
    program = schedule.program
    loops = build_kernel(schedule, launch)
    body = lower_kernel(loops)
    free = SHARED_BYTES - memory_of_warps(body, program, launch.threads)
    context = KernelContext(program, launch.block, free)
    body = run_passes(body, passes, context, lambda n: verify_loops(n, program))
    check_barriers(body)
    return loops, check_index_width(body, program, launch.host_names)


def _kernel(
    schedule: Schedule,
    launch: Launch,
    symbol: str,
    target: type[KernelPrinter],
    passes: Sequence[Pass[LoopNode]],
) -> tuple[str, GpuKernel, dict[str, str]]:
    """The text of a kernel, and the functions it calls other than those of the prelude."""
    program = schedule.program
    loops, body = _loops(schedule, launch, passes)
    names = name_everything(program, body, launch.host_names, target.reserved)
    printer = target(program, names)
    printer.threads = launch.threads
    printer.copies = frozenset(loops.copies)
    printer.prefetches = frozenset(name for name, c in loops.copies.items() if c.ahead)
    lines = list(printer.body(body).generate())
    touched = {r.tensor for r in reads_in(body)}
    needed = used_sizes(_without_grid(body), program, touched)
    sizes = tuple(s for s in (*program.sizes, *launch.host_names) if s in needed)
    order = argument_order(program, program.temps)
    tensors = tuple(t for t in order if t.name in touched)
    parameters = [f"const int64_t {names.sizes[s]}" for s in sizes]
    stored, shared = stored_in(body), exchanged(body)
    for t in tensors:
        const = "" if t.name in stored else "const "
        pointer = f"{target.pointer}{const}{target.types[t.dtype.name]} *"
        alone = "" if t.name in shared else f"{target.restrict} "
        parameters.append(f"{pointer}{alone}{names.tensors[t.name]}")
    total = sum(printer.shared_arrays.values())
    if total > SHARED_BYTES:
        raise CapacityError(
            f"a block would use {total} bytes of shared memory, the limit is {SHARED_BYTES}; use "
            "smaller tiles"
        )
    head = printer.signature(symbol, parameters, launch.block)
    every = statement_comments(schedule)
    comments = [c for name, c in every.items() if name in launch.statements]
    # The most strictly aligned arrays first, so that there are no gaps.
    ordered = sorted(
        printer.shared_arrays.items(), key=lambda line: (-alignment_of(line[1]), -line[1])
    )
    arrays = [f"  {line}" for line, _ in ordered]
    text = "\n".join([*comments, head, lines[0], *arrays, *lines[1:]])
    blocks = _blocks(body)
    grid = tuple(n.upper for n in blocks)
    strided = frozenset(axis_of(n) for n in blocks if is_strided(n))
    kernel = GpuKernel(
        symbol, sizes, launch.host_names, tuple(t.name for t in tensors), grid, launch.block, total,
        tuple(sorted(printer.with_matrices)), strided,
    )  # fmt: skip
    return text, kernel, printer.combining


def _without_grid(body: LoopNode) -> LoopNode:
    """The loops of a kernel without grid extents, except those it needs to know."""

    def visit(node: LoopNode) -> LoopNode:
        if isinstance(node, For) and node.mark == Mark.BLOCK and not is_strided(node):
            node = replace(node, upper=Const(1))
        return map_children(node, visit)

    return visit(body)


def _blocks(body: LoopNode) -> list[For]:
    """The loops over blocks, x first."""
    found = [n for n in walk_loops(body) if isinstance(n, For) and n.mark == Mark.BLOCK]
    return sorted(found, key=axis_of)
