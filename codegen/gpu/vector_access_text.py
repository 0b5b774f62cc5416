"""GPU dialects' text for accesses to adjacent elements, see `codegen.gpu.vector_access`.

CUDA has wide accesses at aligned addresses, through aligned types.  OpenCL C has vector functions,
which may begin at any element.
"""

from __future__ import annotations

from codegen.c.printer import CPrinter
from codegen.c.type_names import LANE_TYPES, lane_suffix
from codegen.loops.nodes import Store, Together
from poly.buffers.copies import LEAST_TOGETHER, TOGETHER
from poly.ir.dtypes import DType
from poly.ir.expr import Op, Read
from poly.ir.linear_form import constant, linear_form

#: Bytes of an element, by the last part of its name.
_BYTES = {name: int(name[1:]) // 8 for name in LANE_TYPES if name != "f16"}
_SHAPES = [
    (name, count)
    for name, size in _BYTES.items()
    for count in (2, 4, 8, 16)
    if LEAST_TOGETHER <= size * count <= TOGETHER
]
#: OpenCL's names of vector elements.
_OPENCL = {
    "f32": "float", "f64": "double", "i8": "char", "i16": "short", "i32": "int",
    "i64": "long", "u8": "uchar", "u16": "ushort", "u32": "uint", "u64": "ulong",
}  # fmt: skip


def shape_name(dtype: DType, count: int) -> str:
    """The name of a group of elements in helpers: a 16-bit float is a bit pattern."""
    return f"{'u16' if dtype.name == 'float16' else lane_suffix(dtype)}x{count}"


def _values(count: int, before: str = "") -> list[str]:
    return [f"{before}{chr(ord('a') + n)}" for n in range(count)]


def _cuda(name: str, count: int) -> dict[str, str]:
    """Store with an instruction, which compilers otherwise split up if another path stores the same
    elements one by one.
    """
    kind, shape, size = LANE_TYPES[name], f"{name}x{count}", _BYTES[name] * count
    to = ", ".join(f"{kind} {v}" for v in _values(count, "*"))
    given = ", ".join(f"{kind} {v}" for v in _values(count))
    taken = " ".join(f"*{v} = all.at[{n}];" for n, v in enumerate(_values(count)))
    word, constraint, words = _words(name, count)
    vector = f".v{len(words)}" if len(words) > 1 else ""
    operands = ", ".join(f"%{n + 1}" for n in range(len(words)))
    operands = f"{{{operands}}}" if vector else operands
    values = ", ".join(f'"{constraint}"({w})' for w in words)
    return {
        f"fk_{shape}": f"struct __align__({size}) fk_{shape} {{ {kind} at[{count}]; }};",
        f"fk_load_{shape}": (
            f"static inline void fk_load_{shape}(const {kind} *from, {to})\n"
            f"{{ const fk_{shape} all = *(const fk_{shape} *)from;\n"
            f"  {taken}{_hidden(name, count)} }}"
        ),
        f"fk_store_{shape}": (
            f"static inline void fk_store_{shape}({kind} *to, {given})\n"
            "{\n#ifdef __CUDACC__\n"
            f'  asm volatile("st.global{vector}.{word} [%0], {operands};"\n'
            f'    :: "l"(__cvta_generic_to_global(to)), {values} : "memory");\n'
            "#else\n"
            f"  const fk_{shape} all = {{{{{', '.join(_values(count))}}}}};\n"
            f"  *(fk_{shape} *)to = all;\n#endif\n}}"
        ),
    }


def _hidden(name: str, count: int) -> str:
    """Hide where bytes come from.

    NVRTC 13.0 takes the lowest byte of a loaded word for a number whose sign fills 16 bits, and
    compares, say, ``7 - x`` together with the byte above it.
    """
    if _BYTES[name] > 1:
        return ""
    lines = [f'  {{ unsigned y = *{v}; asm("" : "+r"(y)); *{v} = y; }}' for v in _values(count)]
    return "\n#ifdef __CUDACC__\n" + "\n".join(lines) + "\n#endif\n"


def _words(name: str, count: int) -> tuple[str, str, list[str]]:
    """The operands of a store instruction: their type, their constraint, and the operands, in which
    narrow elements share words.
    """
    if name in ("f32", "f64"):
        return name, "f" if name == "f32" else "d", _values(count)
    bits, values = 8 * _BYTES[name], _values(count)
    if bits >= 32:
        return f"b{bits}", "r" if bits == 32 else "l", values
    each = 32 // bits
    parts = [f"(uint{bits}_t){v}" for v in values] if name[0] == "i" else values
    words = [
        " | ".join(
            f"(unsigned){p} << {n * bits}" if n else p for n, p in enumerate(parts[k : k + each])
        )
        for k in range(0, count, each)
    ]
    return "b32", "r", words


def _opencl(name: str, count: int) -> dict[str, str]:
    kind, shape, vector = LANE_TYPES[name], f"{name}x{count}", f"{_OPENCL[name]}{count}"
    to = ", ".join(f"{kind} {v}" for v in _values(count, "*"))
    given = ", ".join(f"{kind} {v}" for v in _values(count))
    taken = " ".join(f"*{v} = all.s{n:x};" for n, v in enumerate(_values(count)))
    return {
        f"fk_load_{shape}": (
            f"static inline void fk_load_{shape}(__global const {kind} *from, {to})\n"
            f"{{ const {vector} all = vload{count}(0, from);\n  {taken} }}"
        ),
        f"fk_store_{shape}": (
            f"static inline void fk_store_{shape}(__global {kind} *to, {given})\n"
            f"{{ vstore{count}(({vector})({', '.join(_values(count))}), 0, to); }}"
        ),
    }


#: Helpers by name.
CUDA_WIDE = {
    "fk_is_aligned": (
        "static inline bool fk_is_aligned(const void *place, int bytes)\n"
        "{ return (unsigned long long)place % bytes == 0; }"
    ),
    **{k: v for shape in _SHAPES for k, v in _cuda(*shape).items()},
}
OPENCL_WIDE = {k: v for shape in _SHAPES for k, v in _opencl(*shape).items()}


def access_text(node: Together, target: CPrinter) -> str | None:
    """``fk_load_f32x4(&X[..], &X_r_0, &X_r_1, ..);``, or None if the copies no longer have the
    form that `codegen.gpu.vector_access` made.
    """
    moves = [
        (s.target, s.value)
        for s in node.stores
        if isinstance(s, Store) and isinstance(s.value, Read)
    ]
    loads = moves[0][0].tensor in target.buffers
    registers, memory = zip(*(m if loads else m[::-1] for m in moves), strict=True)
    first = memory[0].indices
    if len(moves) < len(node.stores) or any(
        m.indices[:-1] != first[:-1]
        or linear_form(Op("sub", (m.indices[-1], first[-1]))) != constant(n)
        for n, m in enumerate(memory)
    ):
        return None
    shape = shape_name(target.dtypes[memory[0].tensor], len(moves))
    lvalues = [target.lvalue(r) for r in registers]
    given = ", ".join(f"&{p}" if loads else p for p in lvalues)
    return f"fk_{'load' if loads else 'store'}_{shape}(&{target.lvalue(memory[0])}, {given});"
