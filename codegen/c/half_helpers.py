"""Conversions of 16-bit floats, which are stored as bit patterns: scalars, and vectors of them.

All of them round to nearest even, keep infinities and subnormals, and make NaN of NaN.  Processors
with F16C or AVX-512 have instructions for float16, and so has every aarch64; elsewhere, the C
compiler would call a function for each element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from codegen.c.helper_text import alternatives

_HALF = "short __attribute__((vector_size(16)))"
#: Where F16C's loads are built-in functions: clang 22 has none, and converts _Float16 with them.
_HAS_LOADS = "defined(__F16C__) && (!defined(__clang__) || __clang_major__ < 16)"

#: Scalar helpers by name.
SCALAR_HELPERS: dict[str, str] = {
    "fk_bf16_load": (
        "static inline float fk_bf16_load(fk_bf16 x)\n"
        "{ uint32_t u = (uint32_t)x << 16; float f; memcpy(&f, &u, 4); return f; }"
    ),
    "fk_bf16_store": (
        "/* round to nearest even; NaN stays NaN */\n"
        "static inline fk_bf16 fk_bf16_store(float f)\n"
        "{ uint32_t u; memcpy(&u, &f, 4);\n"
        "  if (f != f) return (fk_bf16)((u >> 16) | 64);\n"
        "  return (fk_bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16); }"
    ),
    "fk_f16_load": f"""\
static inline float fk_f16_load(fk_f16 x)
{{
#if {_HAS_LOADS}
  return __builtin_ia32_vcvtph2ps(({_HALF}){{(short)x}})[0];
#elif defined(__aarch64__) || defined(__F16C__)
  _Float16 h; memcpy(&h, &x, 2); return (float)h;
#else
  const uint32_t size = x & 0x7fff, sign = (uint32_t)(x & 0x8000) << 16;
  const uint32_t more = size < 0x7c00 ? 112u << 23 : 224u << 23; /* or infinite, or NaN */
  const float small = (float)size * 0x1p-24f;
  uint32_t u = (size << 13) + more;
  if (size < 0x400) memcpy(&u, &small, 4);
  u |= sign;
  float f; memcpy(&f, &u, 4); return f;
#endif
}}""",
    "fk_f16_store": f"""\
/* round to nearest even; NaN stays NaN */
static inline fk_f16 fk_f16_store(float f)
{{
#if defined(__F16C__)
  typedef float vector __attribute__((vector_size(16)));
  return (fk_f16)(({_HALF})__builtin_ia32_vcvtps2ph((vector){{f}}, 0))[0];
#elif defined(__aarch64__)
  _Float16 h = (_Float16)f; fk_f16 x; memcpy(&x, &h, 2); return x;
#else
  uint32_t u; memcpy(&u, &f, 4);
  const uint32_t sign = (u >> 16) & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return (fk_f16)(sign | 0x7e00);
  if (u >= 0x477ff000) return (fk_f16)(sign | 0x7c00);
  if (u >= 0x38800000) return (fk_f16)(sign | ((u + 0xfff + ((u >> 13) & 1) - (112u << 23)) >> 13));
  float small; memcpy(&small, &u, 4);
  small += 0.5f; /* whose last bit is the least subnormal number */
  memcpy(&u, &small, 4);
  return (fk_f16)(sign | (u - 0x3f000000));
#endif
}}""",
    "fk_f16_store_f64": """\
/* cut to an odd float first, so that it is rounded once */
static inline fk_f16 fk_f16_store_f64(double d)
{
  float f = (float)d;
  uint32_t u; memcpy(&u, &f, 4);
  if (f != d && d == d) u = (u - ((double)fabsf(f) > fabs(d))) | 1;
  memcpy(&f, &u, 4); return fk_f16_store(f);
}""",
}


@dataclass(frozen=True)
class _Built:
    """The built-in functions of gcc and clang that convert float16 in some lanes.

    condition : of the preprocessor; load, store : expressions of ``x``
    """

    condition: str
    load: str
    store: str


_PAIR = "long long __attribute__((vector_size(16)))"
_BUILT: dict[int, _Built] = {
    4: _Built(
        "__F16C__",
        f"__builtin_ia32_vcvtph2ps(({_HALF})({_PAIR}){{(long long)x}})",
        f"(({_PAIR})__builtin_ia32_vcvtps2ph(x, 0))[0]",
    ),
    8: _Built(
        "__F16C__",
        f"__builtin_ia32_vcvtph2ps256(({_HALF})x)",
        "__builtin_ia32_vcvtps2ph256(x, 0)",
    ),
    16: _Built(
        "__AVX512F__",
        "__builtin_ia32_vcvtph2ps512_mask((fk_i16x16)x, (fk_f32x16){0}, (uint16_t)-1, 4)",
        "__builtin_ia32_vcvtps2ph512_mask(x, 0, (fk_i16x16){0}, (uint16_t)-1)",
    ),
}


def load_f16(lanes: int) -> str:
    """The helper that makes floats of a vector of float16."""
    u16, u32, f32, i32 = _types(lanes)
    other = (
        f"  const {u32} whole = __builtin_convertvector(x, {u32}), size = whole & 0x7fff;\n"
        f"  const {f32} small = __builtin_convertvector(({i32})size, {f32}) * 0x1p-24f;\n"
        f"  const {u32} more = ((({u32})(size >= 0x7c00) & 112) + 112) << 23;\n"
        f"  const {u32} usual = (size << 13) + more, rare = ({u32})(size < 0x400);\n"
        f"  return ({f32})((rare & ({u32})small) | (~rare & usual) | (whole & 0x8000) << 16);"
    )
    return _in_forms(f"{f32} fk_load_f16_f32x{lanes}({u16} x)", lanes, f32, other, False)


def store_f16(lanes: int) -> str:
    """The helper that rounds a vector of floats to float16."""
    u16, u32, f32, _ = _types(lanes)
    other = (
        f"  const {u32} u = ({u32})x & 0x7fffffff, sign = (({u32})x >> 16) & 0x8000;\n"
        f"  const {u32} even = (u + 0xfff + ((u >> 13) & 1) - (112u << 23)) >> 13;\n"
        f"  const {u32} small = ({u32})(({f32})u + 0.5f) - 0x3f000000;\n"
        f"  const {u32} rare = ({u32})(u < 0x38800000), huge = ({u32})(u >= 0x477ff000);\n"
        f"  const {u32} finite = (rare & small) | (~rare & even);\n"
        f"  const {u32} nan = ({u32})(u > 0x7f800000) & 0x7e00;\n"
        f"  const {u32} r = (~huge & finite) | (huge & 0x7c00) | nan;\n"
        f"  return __builtin_convertvector(r | sign, {u16});"
    )
    head = f"{u16} fk_store_f16_f32x{lanes}({f32} x)"
    return f"/* to nearest even; NaN stays NaN */\n{_in_forms(head, lanes, u16, other, True)}"


def store_f16_once(lanes: int) -> str:
    """The helper that rounds a vector of doubles to float16."""
    u16 = f"fk_u16x{lanes}"
    return (
        f"static inline {u16} fk_store_f16_f64x{lanes}(fk_f64x{lanes} x)\n"
        f"{{ {u16} r; for (int k = 0; k < {lanes}; k++) r[k] = fk_f16_store_f64(x[k]); return r; }}"
    )


def _in_forms(head: str, lanes: int, result: str, other: str, stores: bool) -> str:
    """A helper in the forms that processors have: their own instructions, or integers.

    head : its type, name and parameter; other : its body without such instructions
    """
    lines, word, other_condition = [f"static inline {head}", "{"], "#if", "defined(__aarch64__)"
    built = _BUILT.get(lanes)
    if built is not None:
        text = built.store if stores else built.load
        condition = f"defined({built.condition})"
        if built.condition == "__F16C__" and not stores:
            condition, other_condition = _HAS_LOADS, f"{other_condition} || {condition}"
        lines += [f"#if {condition}", f"  return ({result}){text};"]
        word = "#elif"
    kind = f"_Float16 __attribute__((vector_size({2 * lanes})))"
    value = (
        f"({result})__builtin_convertvector(x, {kind})"
        if stores
        else f"__builtin_convertvector(({kind})x, {result})"
    )
    lines += [f"{word} {other_condition}", f"  return {value};", "#else", other, "#endif", "}"]
    return "\n".join(lines)


def load_bf16(lanes: int) -> str:
    """The helper that makes floats of a vector of bfloat16."""
    u16, u32, f32, i32 = _types(lanes)
    wide = f"__builtin_convertvector(x, {u32})"
    text = f"  return ({f32})({wide} << 16);"
    if lanes == 16:  # gcc 12 does this in two halves
        made = f"__builtin_ia32_pmovzxwd512_mask((fk_i16x16)x, ({i32}){{0}}, (uint16_t)-1)"
        text = _for_gcc(f"  return ({f32})({made} << 16);", text)
    return f"static inline {f32} fk_load_bf16_f32x{lanes}({u16} x)\n{{\n{text}\n}}"


#: The instruction that rounds to bfloat16; it makes 0 of subnormal numbers.
_BF16_INSTRUCTION = """\
#if defined(__AVX512BF16__) && defined(__AVX512DQ__) && !defined(__clang__)
  if (__builtin_expect(__builtin_ia32_fpclassps512_mask(x, 0x20, (uint16_t)-1) == 0, 1))
    return (fk_u16x16)__builtin_ia32_cvtneps2bf16_v16sf(x);
#endif
"""


def store_bf16(lanes: int) -> str:
    """The helper that rounds a vector of floats to bfloat16."""
    u16, u32, f32, i32 = _types(lanes)
    text = f"  return __builtin_convertvector(r, {u16});"
    if lanes == 16:
        made = f"__builtin_ia32_pmovdw512_mask(({i32})r, (fk_i16x16){{0}}, (uint16_t)-1)"
        text = _for_gcc(f"  return ({u16}){made};", text)
    return (
        f"/* to nearest even; NaN stays NaN */\n"
        f"static inline {u16} fk_store_bf16_f32x{lanes}({f32} x)\n{{\n"
        f"{_BF16_INSTRUCTION if lanes == 16 else ''}"
        f"  const {u32} u = ({u32})x, even = u + 0x7fff + ((u >> 16) & 1);\n"
        f"  const {u32} r = fk_select_u32x{lanes}(({i32})(x != x), u | 0x400000, even) >> 16;\n"
        f"{text}\n}}"
    )


def _for_gcc(own: str, other: str) -> str:
    condition = "defined(__AVX512F__) && !defined(__clang__)"
    return alternatives((condition, own), otherwise=other)


def _types(lanes: int) -> tuple[str, str, str, str]:
    """The vector types of bit patterns, and of unsigned numbers, floats and masks as wide."""
    u16, u32, f32, i32 = (f"fk_{kind}x{lanes}" for kind in ("u16", "u32", "f32", "i32"))
    return u16, u32, f32, i32


#: Vector helpers by name: their text for a number of lanes, and whether doubles are converted.
VECTOR_HELPERS: dict[str, Callable[[int, bool], str]] = {
    "load_f16": lambda lanes, wide: load_f16(lanes),
    "store_f16": lambda lanes, wide: store_f16_once(lanes) if wide else store_f16(lanes),
    "load_bf16": lambda lanes, wide: load_bf16(lanes),
    "store_bf16": lambda lanes, wide: store_bf16(lanes),
}
