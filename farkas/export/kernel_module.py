"""`kernel_module`: a comprehension as what a C file is made of, with its sizes as arguments."""

from __future__ import annotations

from codegen.c.convention import SERIAL, Convention
from codegen.c.expr_text import Names, index_text
from codegen.c.function import argument_order, emit_function
from codegen.c.module_text import Module, Parameter, Step, Temporary
from codegen.c.type_names import C_TYPES
from codegen.pipeline import CPU
from farkas.export.graph_module import about, check_name, names_in_c
from poly.ir.expr import Const, Expr, Size, substitute
from poly.ir.program import Program, Tensor
from poly.machine.isa import Isa
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
    function = emit_function(schedule, f"fk_{name}", CPU.loop_passes, convention)
    # A tensor that is updated is passed once, as an output that has its elements already.
    read = [t for t in program.inputs if t.name not in program.updated]
    tensors = [*read, *program.outputs]
    chosen = names_in_c(name, [*program.sizes, *(t.name for t in tensors)])
    sizes = dict(zip(program.sizes, chosen, strict=False))
    names = Names({}, sizes, {}, str, str)

    def text(e: Expr) -> str:
        """An extent in C, over the sizes that callers pass."""
        return index_text(substitute(e, sizes=schedule.program.products), names)

    def shape(tensor: Tensor) -> tuple[int | str, ...]:
        return tuple(int(e.value) if isinstance(e, Const) else text(e) for e in tensor.shape)

    ports = [
        Parameter(called, t.name, t.dtype, shape(t))
        for t, called in zip(tensors, chosen[len(sizes) :], strict=True)
    ]
    own = {t.name: f"fk_temporary_{n}" for n, t in enumerate(function.workspace)}
    temporaries = [
        Temporary(own[t.name], C_TYPES[t.dtype.name], shape(t), t.dtype.bytes)
        for t in function.workspace
    ]
    given = {p.label: p.name for p in ports} | own
    order = {t.name for t in argument_order(schedule.program, function.workspace)}
    assert all(tensor in order for tensor, _ in function.tensors)
    passed = [text(Size(s)) for s in function.sizes]
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
        sizes=tuple(sizes.values()),
        conditions=tuple(text(c) for c in program.constraints),
        temporaries=tuple(temporaries),
        has_team=convention.has_team,
    )
