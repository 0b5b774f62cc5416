"""`kernel_module`: a comprehension as what a C file is made of, with its sizes as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from codegen.c.convention import SERIAL, Convention
from codegen.c.expr_text import Names, index_text
from codegen.c.function import emit_function
from codegen.c.module_text import Module, Parameter, Step, Temporary
from codegen.c.type_names import C_TYPES
from codegen.pipeline import CPU
from farkas.export.exported import Exported, convention_of, named_after
from farkas.export.graph_module import about, check_name, names_in_c
from poly.ir.expr import Const, Expr, Size, substitute
from poly.ir.program import Program, Tensor
from poly.machine.isa import Isa, find_isa
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
    function = emit_function(schedule, f"fk_{name}", CPU.loop_passes, convention.on(isa.machine))
    # A tensor that is updated is passed once, as an output that has its elements already.
    read = [t for t in program.inputs if t.name not in program.updated]
    tensors = [*read, *program.outputs]
    chosen = names_in_c(name, [*program.sizes, *(t.name for t in tensors)])
    sizes = _Sizes(schedule.program, dict(zip(program.sizes, chosen, strict=False)))
    ports = [
        Parameter(called, t.name, t.dtype, sizes.shape(t))
        for t, called in zip(tensors, chosen[len(program.sizes) :], strict=True)
    ]
    own = {t.name: f"fk_temporary_{n}" for n, t in enumerate(function.workspace)}
    given = {p.label: p.name for p in ports} | own
    passed = [sizes.text(Size(s)) for s in function.sizes]
    passed += [f"({kind} *){given[tensor]}" for tensor, kind in function.tensors]
    passed += convention.passed(function.thread_memory, function.parallel)
    return Module(
        name,
        about(name, f"a kernel, `{program.name}`", isa),
        tuple(ports[: len(read)]),
        tuple(ports[len(read) :]),
        ((function, ()),),
        (Step("", f"{function.symbol}({', '.join(passed)});", function.parallel),),
        isa.flags,
        isa.macro,
        sizes=tuple(sizes.names.sizes.values()),
        conditions=tuple(map(sizes.text, program.constraints)),
        temporaries=tuple(
            Temporary(own[t.name], C_TYPES[t.dtype.name], sizes.shape(t), t.dtype.bytes)
            for t in function.workspace
        ),
        has_team=convention.has_team,
        has_openmp=convention.has_openmp,
    )


def export_kernel(
    program: Program,
    path: Path,
    isa: str,
    threads: str,
    name: str | None,
    exact: bool = False,
    schedule: Schedule | None = None,
) -> Exported:
    """Write a program as a C file and a header; see `Kernel.export`."""
    chosen, called = find_isa(isa), name or named_after(path)
    module = kernel_module(program, called, chosen, exact, schedule, convention_of(threads))
    made = Exported.of(module, chosen)
    made.write(path)
    return made


class _Sizes:
    """Expressions over the sizes of a scheduled program, in C over those that callers pass."""

    def __init__(self, program: Program, names: Mapping[str, str]) -> None:
        self.products, self.names = program.products, Names({}, names, {}, str, str)

    def text(self, e: Expr) -> str:
        """An expression in C."""
        return index_text(substitute(e, sizes=self.products), self.names)

    def shape(self, tensor: Tensor) -> tuple[int | str, ...]:
        """The shape of a tensor, see `codegen.c.module_text.Parameter`."""
        return tuple(int(e.value) if isinstance(e, Const) else self.text(e) for e in tensor.shape)
