"""Helpers for instructions that add products of several narrow numbers in each lane, and for
packing their operands.

They have a form for compilers and machines without the instruction, with the same result; see
`poly.ir.instruction_tables` for what they mean.
"""

from __future__ import annotations

from collections.abc import Callable

from codegen.c.helper_text import VectorShape, alternatives, either, inline_function


def _dot2(s: VectorShape) -> str:
    """Sums of products of the halves of each lane: an instruction, or two."""
    name, parameters = f"dot2_{s.name}", f"{s.v} c, {s.v} a, {s.v} b"
    u = f"fk_u{s.name[1:]}"
    plain = (
        f"{u} low = ({u})(({s.v})(({u})a << 16) >> 16) * ({u})(({s.v})(({u})b << 16) >> 16); "
        f"return ({s.v})(({u})c + low + ({u})(a >> 16) * ({u})(b >> 16));"
    )
    loop = inline_function(s.v, name, parameters, plain)
    if s.lanes not in _CONDITIONS:
        return loop
    one = _CONDITIONS[s.lanes], _x86_sum(s, name, parameters, "vpdpwssd")
    has_pairs = f"defined({ {4: '__SSE2__', 8: '__AVX2__', 16: '__AVX512BW__'}[s.lanes] })"
    comment = "c + products of the lower and of the upper halves of each lane"
    two = has_pairs, _x86_pairs(s, name, parameters)
    return alternatives(one, two, otherwise=loop, comment=comment)


def _x86_pairs(s: VectorShape, name: str, parameters: str) -> str:
    """A function that multiplies pairs by one instruction of x86, and adds them by another."""
    bits, u = 32 * s.lanes, f"fk_u{s.name[1:]}"
    typed = f"typedef short _v __attribute__((vector_size({bits // 8})));"
    instruction = f"__builtin_ia32_pmaddwd{bits}"
    pairs = f"{instruction}((_v)a, (_v)b)"
    if s.lanes == 16:  # gcc has this one with a mask only
        masked = f"{instruction}_mask((_v)a, (_v)b, ({s.v}){{0}}, (uint16_t)-1)"
        pairs = either("defined(__clang__)", f"{u} p = ({u}){pairs};", f"{u} p = ({u}){masked};")
    else:
        pairs = f"{u} p = ({u}){pairs};"
    return (
        f"static inline {s.v} fk_{name}({parameters})\n"
        f"{{ {typed} {pairs} return ({s.v})(({u})c + p); }}"
    )


#: Where x86 has dot products of integers, by lanes.
_CONDITIONS = {
    16: "defined(__AVX512VNNI__)",
    8: "defined(__AVX512VNNI__) && defined(__AVX512VL__) || defined(__AVXVNNI__)",
    4: "defined(__AVX512VNNI__) && defined(__AVX512VL__) || defined(__AVXVNNI__)",
}


def _x86_sum(s: VectorShape, name: str, parameters: str, instruction: str) -> str:
    """A function that is an instruction of x86, by the names that compilers have for it."""
    bits = 32 * s.lanes
    typed = f"typedef int _v __attribute__((vector_size({bits // 8})));"
    call = either(
        "defined(__clang__)",
        f"return ({s.v})__builtin_ia32_{instruction}{bits}((_v)c, (_v)a, (_v)b);",
        f"return ({s.v})__builtin_ia32_{instruction}_v{s.lanes}si((_v)c, (_v)a, (_v)b);",
    )
    return f"static inline {s.v} fk_{name}({parameters})\n{{ {typed} {call} }}"


def _arm_sum(s: VectorShape, name: str, parameters: str, instruction: str, operand: str) -> str:
    """A function that is an instruction of ARM, for which each compiler has names of its own."""
    text = f'"{instruction} %0.4s, %1.{operand}, %2.{operand}" : "+w"(c) : "w"(a), "w"(b)'
    return f"static inline {s.v} fk_{name}({parameters})\n{{ __asm__({text}); return c; }}"


def _dot4(s: VectorShape) -> str:
    """Sums of products of four bytes: those of a without a sign, those of b with one."""
    name, parameters = f"dot4_{s.name}", f"{s.v} c, {s.v} a, {s.v} b"
    u = f"fk_u{s.name[1:]}"
    products = [f"({u})(a >> {8 * k} & 255) * {_signed_byte(s, 'b', k)}" for k in range(4)]
    plain = f"return ({s.v})(({u})c + {' + '.join(products)});"
    loop = inline_function(s.v, name, parameters, plain)
    if s.lanes not in _CONDITIONS:
        return loop
    forms = [(_CONDITIONS[s.lanes], _x86_sum(s, name, parameters, "vpdpbusd"))]
    if s.lanes == 4:
        arm = _arm_sum(s, name, parameters, "usdot", "16b")
        forms.append(("defined(__ARM_FEATURE_MATMUL_INT8)", arm))
    comment = "c + products of the four bytes of each lane, those of a without a sign"
    return alternatives(*forms, otherwise=loop, comment=comment)


def _dot4_signed(s: VectorShape) -> str:
    """Sums of products of four bytes, all of them with a sign."""
    name, parameters = f"dot4s_{s.name}", f"{s.v} c, {s.v} a, {s.v} b"
    u = f"fk_u{s.name[1:]}"
    products = [f"{_signed_byte(s, 'a', k)} * {_signed_byte(s, 'b', k)}" for k in range(4)]
    loop = inline_function(
        s.v, name, parameters, f"return ({s.v})(({u})c + {' + '.join(products)});"
    )
    if s.lanes != 4:
        return loop
    made = _arm_sum(s, name, parameters, "sdot", "16b")
    comment = "c + products of the four bytes of each lane"
    return alternatives(("defined(__ARM_FEATURE_DOTPROD)", made), otherwise=loop, comment=comment)


def _signed_byte(s: VectorShape, name: str, k: int) -> str:
    """The k-th byte of each lane, whose sign is extended."""
    u = f"fk_u{s.name[1:]}"
    return f"({u})(({s.v})(({u}){name} << {24 - 8 * k}) >> 24)"


def _dotbf16(s: VectorShape) -> str:
    """Sums of products of two bfloat16, as vdpbf16ps rounds them: subnormals are zero."""
    pairs, n = f"fk_i{s.name[1:]}", s.lanes
    parameters = f"{s.v} c, {pairs} a, {pairs} b"
    plain = (
        f"{s.v} even = ({s.v})(a << 16) * ({s.v})(b << 16); "
        f"{s.v} odd = ({s.v})(a & -65536) * ({s.v})(b & -65536); return c + (even + odd);"
    )
    loop = inline_function(s.v, f"dotbf16_{s.name}", parameters, plain)
    if n not in (4, 8, 16):
        return loop
    condition = "defined(__AVX512BF16__)" + ("" if n == 16 else " && defined(__AVX512VL__)")
    bits = 32 * n
    call = (
        f"\n#if defined(__clang__) && __clang_major__ < 16\n"
        f"  typedef int _h __attribute__((vector_size({bits // 8})));\n"
        f"#elif defined(__clang__) || __GNUC__ > 12\n"
        f"  typedef __bf16 _h __attribute__((vector_size({bits // 8})));\n"
        f"#else\n  typedef short _h __attribute__((vector_size({bits // 8})));\n#endif\n"
        f"#if defined(__clang__)\n"
        f"  return ({s.v})__builtin_ia32_dpbf16ps_{bits}(c, (_h)a, (_h)b);\n"
        f"#else\n  return ({s.v})__builtin_ia32_dpbf16ps_v{n}sf(c, (_h)a, (_h)b);\n#endif\n"
    )
    made = f"static inline {s.v} fk_dotbf16_{s.name}({parameters})\n{{{call}}}"
    forms = [(condition, made)]
    if n == 4:
        arm = _arm_sum(s, f"dotbf16_{s.name}", parameters, "bfdot", "8h")
        forms.append(("defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)", arm))
    comment = "c + products of both halves of each lane, which are bfloat16"
    return alternatives(*forms, otherwise=loop, comment=comment)


def _turned(group: int) -> Callable[[VectorShape], str]:
    """Bytes that lie a vector apart, together in the lane that they belong to."""

    def text(s: VectorShape) -> str:
        count = s.lanes * group
        order = ", ".join(str(s.lanes * k + j) for j in range(s.lanes) for k in range(group))
        body = f"return ({s.v})FK_SHUFFLE(fk_u8x{count}, x, x, {order});"
        return inline_function(s.v, f"turned{group}_{s.name}", f"fk_u8x{count} x", body)

    return text


def _windows(step: int) -> Callable[[VectorShape], str]:
    """The four bytes from ``p + step*j`` on in each lane j."""

    def text(s: VectorShape) -> str:
        name, parameters = f"windows{step}_{s.name}", "const uint8_t *p"
        each = f"for (int j = 0; j < {s.lanes}; j++) memcpy((char *)&r + 4 * j, p + {step} * j, 4);"
        loop = inline_function(s.v, name, parameters, f"{s.v} r; {each} return r;")
        row, length = f"fk_u8x{4 * s.lanes}", step * (s.lanes - 1) + 4
        order = ", ".join(str(step * j + k) for j in range(s.lanes) for k in range(4))
        kind = f"typedef char _v __attribute__((vector_size({4 * s.lanes})));"
        # No byte beyond the windows is read.
        some = f"({row})__builtin_ia32_loaddquqi{32 * s.lanes}_mask((const void *)p, (_v){{0}}, m)"
        body = (
            f"{kind} const uint64_t m = {(1 << length) - 1}ull; {row} x = {some}; "
            f"return ({s.v})FK_SHUFFLE({row}, x, x, {order});"
        )
        made = inline_function(s.v, name, parameters, body)
        condition = "defined(__AVX512VBMI__) && defined(__AVX512VL__) && defined(__AVX512BW__)"
        comment = f"four bytes from p + {step} * j on in lane j"
        return alternatives((condition, made), otherwise=loop, comment=comment)

    return text


def _zip(count: int) -> Callable[[VectorShape], str]:
    """Store lane l of vector k as element ``count*l + k``, which is how operands are packed."""

    def text(s: VectorShape) -> str:
        lines: list[str] = []

        def pair(x: str, y: str) -> tuple[str, str]:
            """Lanes of two vectors in turns: those of the lower and of the upper halves."""
            for start in (0, s.lanes // 2):
                lanes = range(start, start + s.lanes // 2)
                order = ", ".join(f"{k}, {k + s.lanes}" for k in lanes)
                made = f"FK_SHUFFLE({s.mask}, {x}, {y}, {order})"
                lines.append(f"{s.v} t{len(lines)} = {made};")
            return f"t{len(lines) - 2}", f"t{len(lines) - 1}"

        rows: tuple[str, ...]
        if count == 2:
            rows = pair("a", "b")
        else:
            low, high = zip(pair("a", "c"), pair("b", "d"), strict=True)
            rows = (*pair(*low), *pair(*high))
        lines += [f"*({s.v}_u *)(p + {n * s.lanes}) = {row};" for n, row in enumerate(rows)]
        body, vectors = "\n  ".join(lines), ", ".join(f"{s.v} {x}" for x in "abcd"[:count])
        return (
            f"/* lane l of vector k becomes element {count} * l + k */\n"
            f"static inline void fk_zip{count}_{s.name}({s.c} *p, {vectors})\n{{\n  {body}\n}}"
        )

    return text


def _table(s: VectorShape) -> str:
    """A lookup in a table of 256 bytes, of which an instruction sees half at a time."""
    name, parameters = f"table_{s.name}", f"const {s.c} *t, fk_u8x{s.lanes} x"
    plain = f"{s.v} r; for (int k = 0; k < {s.lanes}; k++) r[k] = t[x[k]]; return r;"
    loop = inline_function(s.v, name, parameters, plain)
    if s.lanes < 16:
        return loop
    parts = [f"*(const fk_{s.element}x64_u *)(t + {64 * k})" for k in range(4)]
    whole, kept = "x", "r"
    if s.lanes < 64:
        order = ", ".join(str(k % s.lanes) for k in range(64))
        whole = f"__builtin_shufflevector(x, x, {order})"
        kept = f"__builtin_shufflevector(r, r, {', '.join(map(str, range(s.lanes)))})"
    v = f"fk_{s.element}x64"
    made = (
        f"static inline {s.v} fk_{name}({parameters})\n{{\n"
        f"  fk_u8x64 i = {whole};\n"
        f"  {v} low = __builtin_shuffle({parts[0]}, {parts[1]}, (fk_i8x64)i);\n"
        f"  {v} high = __builtin_shuffle({parts[2]}, {parts[3]}, (fk_i8x64)i);\n"
        f"  {v} m = ({v})((fk_i8x64)i < 0), r = (m & high) | (~m & low);\n"
        f"  return {kept};\n}}"
    )
    condition = "defined(__AVX512VBMI__) && !defined(__clang__) && __GNUC__ >= 12"
    comment = "elements of a table of 256, of which the instruction sees half at a time"
    return alternatives((condition, made), otherwise=loop, comment=comment)


#: The text of each of these helpers.
DOT_HELPERS: dict[str, Callable[[VectorShape], str]] = {
    "dot2": _dot2,
    "dot4": _dot4,
    "dot4s": _dot4_signed,
    "dotbf16": _dotbf16,
    "turned4": _turned(4),
    "windows1": _windows(1),
    "windows2": _windows(2),
    "zip2": _zip(2),
    "zip4": _zip(4),
    "table": _table,
}
