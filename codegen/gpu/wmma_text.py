"""Tensor core instructions as CUDA text: PTX in small helpers, since NVRTC has no headers.

A warp holds a matrix in the registers of all its threads, in an unspecified layout; so a matrix is
accessed only through these instructions (PTX ISA, "wmma").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import cgen

from codegen.c.expr_text import Names, index_text
from codegen.loops.nodes import Buffer, LoopNode, Matrix, MoveSums, MultiplyMatrices
from codegen.loops.traverse import children_of
from poly.errors import ScheduleError
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr, Op, Read, add, mul
from poly.ir.instruction_tables import MATRIX_INTRINSICS
from poly.ir.intrinsics import ACCUMULATOR, SUMS_ALIGNMENT, MatrixIntrinsic
from poly.ir.linear_form import linear_form, normal
from poly.ir.program import Program
from poly.machine.gpu import WARP
from poly.tree.kinds import Scope

#: A thread's part of a matrix of sums.
SUMS = "fk_sums"
#: A shared array with a matrix of sums for each warp.
_OWN = "fk_of_warps"
#: Layouts of a matrix, and its memory spaces.
MAJORS, SPACES = ("row", "col"), ("shared", "global")
#: Registers per thread for an operand of each type.
_REGISTERS = {"wmma_f16": 8, "wmma_bf16": 4, "wmma_tf32": 4}
_TYPES = {"wmma_f16": "fk_f16", "wmma_bf16": "fk_bf16", "wmma_tf32": "float"}


def kind_of(intrinsic: str) -> str:
    """An intrinsic's name in names of helpers: ``f16``."""
    return intrinsic.removeprefix("wmma_")


def _listed(letter: str, count: int, first: int) -> tuple[str, str]:
    """Operands ``{%0, %1}`` of an instruction, and ``"=r"(m.x[0]), …`` for them."""
    numbers = ", ".join(f"%{first + n}" for n in range(count))
    return f"{{{numbers}}}", ", ".join(f'"{letter}"({{}}.x[{n}])' for n in range(count))


def _address(space: str) -> tuple[str, str]:
    """A line that makes an address of `p`, and the operand."""
    if space == "shared":
        return "  const unsigned at = (unsigned)__cvta_generic_to_shared(p);\n", '"r"(at)'
    return "", '"l"(p)'


def _load(i: MatrixIntrinsic, role: str, major: str, space: str) -> tuple[str, str]:
    kind, count = kind_of(i.name), _REGISTERS[i.name]
    name = f"fk_{kind}_{role}_{major}_{space}"
    numbers, values = _listed("=r", count, 0)
    line, at = _address(space)
    rounded = "".join(
        f'  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(m.x[{n}]) : "f"(__uint_as_float(m.x[{n}])));\n'
        for n in range(count)
    )
    return name, (
        f"static inline fk_{kind}_matrix {name}(const {_TYPES[i.name]} *p, int stride)\n"
        f"{{\n  fk_{kind}_matrix m;\n{line}"
        f'  asm volatile("wmma.load.{role}.sync.aligned.{major}.{_shape(i)}.{space}.{kind} "\n'
        f'    "{numbers}, [%{count}], %{count + 1};"\n'
        f"    : {values.format(*['m'] * count)}\n"
        f'    : {at}, "r"(stride) : "memory");\n'
        f"{rounded if kind == 'tf32' else ''}  return m;\n}}"
    )


def _multiply(i: MatrixIntrinsic, a: str, b: str) -> tuple[str, str]:
    kind, count = kind_of(i.name), _REGISTERS[i.name]
    name = f"fk_{kind}_multiply_{a}_{b}"
    types = "f32.f32" if kind == "f16" else f"f32.{kind}.{kind}.f32"
    sums, into = _listed("+f", 8, 0)
    left, of_a = _listed("r", count, 8)
    right, of_b = _listed("r", count, 8 + count)
    return name, (
        f"static inline void {name}({SUMS} &c, const fk_{kind}_matrix &a,\n"
        f"    const fk_{kind}_matrix &b)\n"
        f'{{\n  asm volatile("wmma.mma.sync.aligned.{a}.{b}.{_shape(i)}.{types} "\n'
        f'    "{sums}, "\n    "{left}, "\n    "{right}, "\n    "{sums};"\n'
        f"    : {into.format(*['c'] * 8)}\n"
        f"    : {of_a.format(*['a'] * count)},\n"
        f"      {of_b.format(*['b'] * count)});\n}}"
    )


def _load_sums(i: MatrixIntrinsic, major: str, space: str) -> tuple[str, str]:
    name = f"fk_{kind_of(i.name)}_sums_{major}_{space}"
    numbers, values = _listed("=f", 8, 0)
    line, at = _address(space)
    return name, (
        f"static inline {SUMS} {name}(const float *p, int stride)\n{{\n  {SUMS} c;\n{line}"
        f'  asm volatile("wmma.load.c.sync.aligned.{major}.{_shape(i)}.{space}.f32 "\n'
        f'    "{numbers}, [%8], %9;"\n    : {values.format(*["c"] * 8)}\n'
        f'    : {at}, "r"(stride) : "memory");\n'
        "  __syncwarp(); /* what others store now, nobody loads any more */\n  return c;\n}"
    )


def _store(i: MatrixIntrinsic, major: str, space: str) -> tuple[str, str]:
    name = f"fk_{kind_of(i.name)}_store_{major}_{space}"
    numbers, values = _listed("f", 8, 2)
    line, at = _address(space)
    return name, (
        f"static inline void {name}(float *p, int stride, const {SUMS} &c)\n{{\n{line}"
        f'  asm volatile("wmma.store.d.sync.aligned.{major}.{_shape(i)}.{space}.f32 "\n'
        f'    "[%0], {numbers}, %1;"\n    :: {at}, "r"(stride),\n'
        f'       {values.format(*["c"] * 8)} : "memory");\n}}'
    )


def _part(i: MatrixIntrinsic, action: str, major: str) -> tuple[str, str]:
    """Access rows (or columns) of a matrix of sums that is incomplete or not aligned."""
    kind = kind_of(i.name)
    name = f"fk_{kind}_{action}_part_{major}"
    loads, rounds = action == "sums", action == "round"
    c = _TYPES[i.name] if rounds else "float"
    value = f"fk_{kind}_store(own[n])" if rounds else "own[n]"
    here = "n / 16 < lines && n % 16 < length"
    element = "p[n / 16 * stride + n % 16]"
    if loads:
        first, last = (
            "",
            f"  const {SUMS} c = fk_{kind}_sums_{major}_shared(own, 16);\n  return c;\n",
        )
        step = f"own[n] = {here} ? {element} : 0.0f;"
    else:
        first, last = f"  fk_{kind}_store_{major}_shared(own, 16, c);\n  __syncwarp();\n", ""
        step = f"if ({here}) {element} = {value};"
    sums = "" if loads else f", const {SUMS} &c"
    return name, (
        "/* the first lines of a matrix, up to a length, by way of memory of the warp */\n"
        f"static inline {SUMS if loads else 'void'} {name}({'const ' if loads else ''}{c} *p, "
        f"long long stride{sums},\n    float *own, long long lines, long long length)\n{{\n"
        f"{first}#pragma unroll\n  for (int n = (int)threadIdx.x; n < 256; n += 32)\n    {step}\n"
        f"  __syncwarp();\n{last}}}"
    )


def _within(i: MatrixIntrinsic, major: str, space: str) -> tuple[str, str]:
    kind = kind_of(i.name)
    name = f"fk_{kind}_store_within_{major}_{space}"
    return name, (
        f"static inline void {name}(float *p, int stride, const {SUMS} &c,\n"
        "    float *own, long long lines, long long length)\n{\n"
        f"  if (lines >= 16 && length >= 16) fk_{kind}_store_{major}_{space}(p, stride, c);\n"
        f"  else fk_{kind}_store_part_{major}(p, stride, c, own, lines, length);\n}}"
    )


def _round(i: MatrixIntrinsic, major: str) -> tuple[str, str]:
    kind = kind_of(i.name)
    name = f"fk_{kind}_round_{major}"
    return name, (
        "/* sums as 16-bit floats, by way of memory of the warp, where threads find theirs */\n"
        f"static inline void {name}({_TYPES[i.name]} *p, long long stride, const {SUMS} &c,\n"
        "    float *own)\n"
        f"{{\n  fk_{kind}_store_{major}_shared(own, 16, c);\n  __syncwarp();\n"
        "  const int line = threadIdx.x / 2, half = threadIdx.x % 2 * 8;\n"
        "#pragma unroll\n  for (int n = half; n < half + 8; n++)\n"
        f"    p[line * stride + n] = fk_{kind}_store(own[16 * line + n]);\n  __syncwarp();\n}}"
    )


def _shape(i: MatrixIntrinsic) -> str:
    return "m{}n{}k{}".format(*i.extents)


def _helpers() -> dict[str, str]:
    found = {
        SUMS: f"struct {SUMS} {{ float x[8]; }}; /* a thread's part of a 16 x 16 matrix */",
        "fk_zeros": (
            f"static inline {SUMS} fk_zeros()\n{{\n  {SUMS} c;\n"
            "  for (int n = 0; n < 8; n++) c.x[n] = 0.0f;\n  return c;\n}"
        ),
    }
    for i in MATRIX_INTRINSICS.values():
        kind, count = kind_of(i.name), _REGISTERS[i.name]
        found[f"fk_{kind}_matrix"] = f"struct fk_{kind}_matrix {{ unsigned x[{count}]; }};"
        for role, major, space in product("ab", MAJORS, SPACES):
            name, text = _load(i, role, major, space)
            found[name] = text
        for a, b in product(MAJORS, MAJORS):
            name, text = _multiply(i, a, b)
            found[name] = text
        for major, space in product(MAJORS, SPACES):
            for make in (_load_sums, _store):
                name, text = make(i, major, space)
                found[name] = text
        rounds = i.operand != ACCUMULATOR
        for major in MAJORS:
            made = [_part(i, a, major) for a in ("sums", "store", *(["round"] if rounds else []))]
            made += [_within(i, major, space) for space in SPACES]
            made += [_round(i, major)] if rounds else []
            found |= made
    return found


#: Every helper by name; each calls only helpers above it.
WMMA_HELPERS: Mapping[str, str] = _helpers()


# --- matrix layouts --------------------------------------------------------------------------


@dataclass(frozen=True)
class Lines:
    """The layout of a matrix: contiguous rows (or columns, `major`), and the stride between them.

    misaligned : why they are not known to be aligned, "" if they are
    """

    major: str
    stride: Expr
    misaligned: str


def lines_of(
    matrix: Matrix, buffers: Mapping[str, Buffer], program: Program, dtype: DType, alignment: int
) -> Lines:
    """The layout of a matrix in memory.

    alignment : of each row or column, in bytes

    Raises
    ------
    ScheduleError : neither rows nor columns are contiguous.
    """
    name = matrix.first.tensor
    buffer = buffers.get(name)
    shape: Sequence[Expr] = (
        program.tensors[name].shape if buffer is None else [Const(n) for n in buffer.shape]
    )
    strides: list[Expr] = []
    step: Expr = Const(1)
    for extent in reversed(shape):
        strides.insert(0, step)
        step = normal(mul(step, extent))
    directions = {"row": (matrix.columns, matrix.rows), "col": (matrix.rows, matrix.columns)}
    for major, (along, across) in directions.items():
        if strides[along] == Const(1):
            why = _misaligned(matrix, strides, across, dtype, alignment)
            return Lines(major, strides[across], why)
    raise ScheduleError(
        f"neither rows nor columns of a matrix in {name} are contiguous: {matrix.first}; promote "
        "it to `shared` with another order of dimensions"
    )


def _misaligned(
    matrix: Matrix, strides: Sequence[Expr], across: int, dtype: DType, alignment: int
) -> str:
    unit = alignment // dtype.bytes
    offset: Expr = strides[across]
    parts = [offset]
    for index, stride in zip(matrix.first.indices, strides, strict=True):
        form = linear_form(index)
        parts += [mul(Const(c), stride) for c in (form.constant, *(c for _, c in form.terms))]
    whole = [linear_form(normal(add(p, Const(0)))) for p in parts]
    if not all(f.is_multiple_of(unit) for f in whole) or whole[0].terms:
        return (
            f"rows and columns of matrices in {matrix.first.tensor} have to begin at multiples of "
            f"{alignment} bytes ({unit} elements), which is not known of {matrix.first}; promote "
            "it to `shared`, or fix its sizes to multiples of that"
        )
    return ""


# --- statements --------------------------------------------------------------------------------


class Printer(Protocol):
    """The part of `codegen.gpu.printers.CudaPrinter` that is needed here."""

    program: Program
    names: Names
    buffers: dict[str, Any]
    dtypes: dict[str, DType]
    shared_arrays: dict[str, int]
    with_matrices: set[str]
    threads: int
    shared: str
    aligned: str

    def lvalue(self, read: Read) -> str:
        """The lvalue of an element."""


def tensor_cores(printer: Printer, node: MoveSums | MultiplyMatrices) -> cgen.Generable:
    """The text of an instruction."""
    if isinstance(node, MultiplyMatrices):
        return _products(printer, node)
    sums, kind = printer.lvalue(node.sums), kind_of(node.intrinsic)
    if node.memory is None:
        return cgen.Line(f"{sums} = fk_zeros();")
    found = _sums_in_memory(printer.program, printer.buffers, node)
    lvalue = printer.lvalue(node.memory.first)
    at = f"&{lvalue}, {index_text(found.lines.stride, printer.names)}"
    c, major, space = f"fk_{kind}", found.lines.major, found.space
    if found.direct:
        if space == "global":
            printer.with_matrices.add(node.memory.first.tensor)
        if node.action == "load":
            return cgen.Line(f"{sums} = {c}_sums_{major}_{space}({at});")
        if node.counts is None:
            return cgen.Line(f"{c}_store_{major}_{space}({at}, {sums});")
    own = _own_memory(printer)
    if node.counts is None and found.rounds:
        return cgen.Line(f"{c}_round_{major}({at}, {sums}, {own});")
    counts = [_up_to_16(e) for e in node.counts or (Const(16), Const(16))]
    lines, length = (index_text(e, printer.names) for e in counts[:: 1 if major == "row" else -1])
    if node.action == "load":
        return cgen.Line(f"{sums} = {c}_sums_part_{major}({at}, {own}, {lines}, {length});")
    what = "round_part" if found.rounds else "store_within" if found.direct else "store_part"
    end = f"{major}_{space}" if what == "store_within" else major
    return cgen.Line(f"{c}_{what}_{end}({at}, {sums}, {own}, {lines}, {length});")


@dataclass(frozen=True)
class _Memory:
    """Where sums are stored to or loaded from.

    rounds : whether they are rounded there; direct : an instruction stores all of a matrix
    """

    lines: Lines
    space: str
    rounds: bool
    direct: bool


def _sums_in_memory(program: Program, buffers: Mapping[str, Buffer], node: MoveSums) -> _Memory:
    assert node.memory is not None
    name = node.memory.first.tensor
    buffer = buffers.get(name)
    dtype = program.tensors[name if buffer is None else buffer.tensor].dtype
    rounds = dtype != ACCUMULATOR
    alignment = dtype.bytes if rounds else SUMS_ALIGNMENT
    lines = lines_of(node.memory, buffers, program, dtype, alignment)
    if buffer is not None and buffer.scope != Scope.SHARED:
        raise ScheduleError(_of_one_thread(buffer, name))
    direct = not rounds and not lines.misaligned and (node.action == "store" or not node.counts)
    return _Memory(lines, "global" if buffer is None else "shared", rounds, direct)


def _up_to_16(count: Expr) -> Expr:
    """A row count without the limit of 16, which instructions have anyway."""
    form = linear_form(count)
    for atom, factor in form.terms:
        if isinstance(atom, Op) and atom.fn == "min" and factor == 1:
            rest = form.without(atom)
            limit = Const(16 - rest.constant)
            others = [e for e in atom.args if e != limit]
            if not rest.terms and len(others) == 1:
                return normal(add(others[0], Const(rest.constant)))
    return count


def memory_of_warps(root: LoopNode, program: Program, threads: int) -> int:
    """Bytes of shared memory that warps need to move sums."""

    def needed(node: LoopNode, buffers: Mapping[str, Buffer]) -> bool:
        if isinstance(node, Buffer):
            buffers = {**buffers, node.name: node}
        if isinstance(node, MoveSums) and node.memory is not None:
            found = _sums_in_memory(program, buffers, node)
            return not found.direct or node.counts is not None
        return any(needed(c, buffers) for c in children_of(node))

    return threads // WARP * 1024 if needed(root, {}) else 0


def _products(printer: Printer, node: MultiplyMatrices) -> cgen.Generable:
    """Matrix products, with each matrix loaded before its first use."""
    kind, alignment = kind_of(node.intrinsic), MATRIX_INTRINSICS[node.intrinsic].alignment
    lines: list[str] = []
    loaded: dict[tuple[str, Matrix], tuple[str, str]] = {}
    for sums, *operands in node.products:
        for role, matrix in zip("ab", operands, strict=True):
            if (role, matrix) in loaded:
                continue
            major, space, at = _at(printer, matrix, alignment)
            name = f"{role}{sum(r == role for r, _ in loaded)}"
            loaded[role, matrix] = name, major
            lines.append(f"const fk_{kind}_matrix {name} = fk_{kind}_{role}_{major}_{space}({at});")
        (a, of_a), (b, of_b) = (loaded[x] for x in zip("ab", operands, strict=True))
        lines.append(f"fk_{kind}_multiply_{of_a}_{of_b}({printer.lvalue(sums)}, {a}, {b});")
    return cgen.Block([*map(cgen.Line, lines)])


def _at(printer: Printer, matrix: Matrix, alignment: int) -> tuple[str, str, str]:
    """An operand's layout, its memory space, and the arguments for its address."""
    name = matrix.first.tensor
    lines = lines_of(matrix, printer.buffers, printer.program, printer.dtypes[name], alignment)
    buffer = printer.buffers.get(name)
    if buffer is not None and buffer.scope != Scope.SHARED:
        raise ScheduleError(_of_one_thread(buffer, name))
    if lines.misaligned:
        raise ScheduleError(lines.misaligned)
    if buffer is None:
        printer.with_matrices.add(name)
    at = f"&{printer.lvalue(matrix.first)}, {index_text(lines.stride, printer.names)}"
    return lines.major, "global" if buffer is None else "shared", at


def _of_one_thread(buffer: Buffer, name: str) -> str:
    return (
        f"{buffer.name} belongs to one thread, but {name} is read by a warp; promote it to `shared`"
    )


def _own_memory(printer: Printer) -> str:
    """A warp's own shared memory for a matrix of sums."""
    count = printer.threads // WARP
    aligned = printer.aligned % SUMS_ALIGNMENT
    line = f"{printer.shared} {aligned} float {_OWN}[{count}][256];"
    printer.shared_arrays[line] = count * 1024
    return f"{_OWN}[threadIdx.y + blockDim.y * threadIdx.z]"
