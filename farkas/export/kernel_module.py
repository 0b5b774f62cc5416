"""`kernel_module`: a comprehension as what a C file is made of, with its sizes as arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from codegen.c.convention import SERIAL, Convention
from codegen.c.function import emit_function
from codegen.c.module import Module, Parameter, Step, Storage, Temporary
from codegen.c.type_names import C_TYPES
from codegen.pipeline import CPU
from farkas.export.exported import Exported, convention_of, named_after
from farkas.export.forms import check_form, write_form
from farkas.export.graph_module import about, check_name, names_in_c
from farkas.export.joined import joined
from farkas.export.sizes import SizeText
from poly.errors import ArgumentError
from poly.ir.expr import Size
from poly.ir.program import Program, Tensor
from poly.machine.isa import DEFAULT_ISA, Isa, find_isas
from poly.schedule.schedule import Schedule


def kernel_module(
    program: Program,
    name: str,
    isa: Isa,
    exact: bool = False,
    schedule: Schedule | None = None,
    convention: Convention = SERIAL,
) -> Module:
    """Generate the C of a program.

    name : of the module, a C identifier
    exact : keep the written order of reductions
    schedule : by default the automatic one for `isa`

    Raises
    ------
    ArgumentError : `name` is no C identifier.
    ScheduleError : no code can be generated.
    """
    check_name(name)
    if schedule is None:
        machine = isa.for_threads(convention.has_team)
        prepared = CPU.prepare(program, machine, exact)
        schedule = CPU.automatic(prepared, machine, exact).schedule
    function = emit_function(
        schedule, f"fk_kernel_{name}", CPU.loop_passes, convention.on(isa.machine)
    )
    # A tensor that is updated is passed once, as an output that has its elements already.
    read = [t for t in program.inputs if t.name not in program.updated]
    tensors = [*read, *program.outputs]
    chosen = names_in_c(name, [*program.sizes, *(t.name for t in tensors)])
    names = dict(zip(program.sizes, chosen, strict=False))
    sizes = SizeText(schedule.program.products, names)
    ports = [
        Parameter(called, t.name, t.dtype, sizes.shape(t.shape), tuple(map(sizes.shown, t.shape)))
        for t, called in zip(tensors, chosen[len(program.sizes) :], strict=True)
    ]
    own = {t.name: f"fk_temporary_{n}" for n, t in enumerate(function.workspace)}
    given = {p.label: p.name for p in ports} | own
    passed = [sizes.text(Size(s)) for s in function.sizes]
    passed += [f"({kind} *){given[tensor]}" for tensor, kind in function.tensors]
    passed += convention.passed(function.thread_memory, function.parallel)
    return Module(
        name,
        about(name, f"a kernel, `{program.name}`", isa.name),
        tuple(ports[: len(read)]),
        tuple(ports[len(read) :]),
        ((function, ()),),
        (Step("", f"{function.symbol}({', '.join(passed)});", function.parallel),),
        isa,
        sizes={called: size for size, called in names.items()},
        conditions=tuple((sizes.text(c), sizes.shown(c)) for c in program.constraints),
        temporaries=tuple(_temporary(own[t.name], t, sizes) for t in function.workspace),
        has_team=convention.has_team,
        has_openmp=convention.has_openmp,
    )


def _temporary(name: str, tensor: Tensor, sizes: SizeText) -> Temporary:
    storage = Storage(sizes.shape(tensor.shape), tensor.dtype.bytes)
    return Temporary(name, C_TYPES[tensor.dtype.name], (storage,))


def export_kernel(
    program: Program,
    path: Path,
    isa: str | Sequence[str] | None,
    threads: str,
    name: str | None,
    exact: bool = False,
    schedule: Schedule | None = None,
    to: str = "c",
    cc: str | None = None,
) -> Exported:
    """Write a program as a C file and a header, or as a library; see `Kernel.export`."""
    check_form(to, path, cc=cc is not None)
    if to not in ("c", "shared", "static"):
        raise ArgumentError(f"a kernel is exported to 'c', 'shared' or 'static', not to {to!r}")
    chosen, called = find_isas(isa or DEFAULT_ISA), name or named_after(path, to)
    convention = convention_of(threads)
    modules = [kernel_module(program, called, x, exact, schedule, convention) for x in chosen]
    made = Exported(joined(modules))
    return made.write(path) if to == "c" else write_form(made, to, path, cc=cc)
