"""What precedes generated code: includes, types, and the helpers that a kernel uses.

Each helper is a static inline function, so that a kernel's text is self-contained.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from codegen.c.half_helpers import SCALAR_HELPERS
from codegen.c.operator_text import OWN
from codegen.c.type_names import C_TYPES, LANES, PATTERNS, SCHEDULE, UNROLLED, UNROLLED_BY, suffix
from codegen.c.vector_helpers import lane_prelude
from poly.ir.dtypes import DTYPES, DType
from poly.ir.operators import OPS

#: Included by all generated C.
HEADERS = """\
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
"""


def _helpers() -> dict[str, str]:
    found: dict[str, str] = {
        "fk_floordiv": (
            "/* floor(a / b) for b > 0 */\n"
            "static inline int64_t fk_floordiv(int64_t a, int64_t b)\n"
            "{ int64_t q = a / b; return q - (a % b < 0); }"
        ),
        "fk_mod": (
            "/* a mod b in [0, b) for b > 0 */\n"
            "static inline int64_t fk_mod(int64_t a, int64_t b)\n"
            "{ int64_t r = a % b; return r < 0 ? r + b : r; }"
        ),
        "fk_lo": "static inline int64_t fk_lo(int64_t a, int64_t b) { return a < b ? a : b; }",
        "fk_hi": "static inline int64_t fk_hi(int64_t a, int64_t b) { return a > b ? a : b; }",
        "fk_here": (
            "/* x, which is computed where this stands */\n"
            'static inline int64_t fk_here(int64_t x) { __asm__("" : "+r"(x)); return x; }'
        ),
        "fk_pointer": (
            "/* p, which is computed where this stands */\n"
            'static inline void *fk_pointer(void *p) { __asm__("" : "+r"(p)); return p; }'
        ),
        **SCALAR_HELPERS,
    }
    for dtype in DTYPES.values():
        if dtype.bits == 16 and dtype.is_float:
            continue
        found.update(_for_type(dtype))
    return found


#: Defines a helper from its name, the letters of its arguments, and its body.
_Define = Callable[[str, str, str], None]


def _for_type(d: DType) -> dict[str, str]:
    """The helpers for values of a type, by name."""
    c, s = C_TYPES[d.name], suffix(d)
    out: dict[str, str] = {}

    def define(name: str, args: str, body: str) -> None:
        params = ", ".join(f"{c} {a}" for a in args)
        out[f"fk_{name}_{s}"] = f"static inline {c} fk_{name}_{s}({params})\n{{ {body} }}"

    if d.is_float:
        _for_floats(d, define)
        return out
    define("max", "ab", "return a > b ? a : b;")
    define("min", "ab", "return a < b ? a : b;")
    if d.kind == "b":
        return out
    # Unsigned arithmetic wraps around in every compiler; 16-bit operands are promoted to int.
    u = C_TYPES[f"uint{max(d.bits, 32)}"]
    for name, symbol in (("add", "+"), ("sub", "-"), ("mul", "*")):
        define(name, "ab", f"return ({c})(({u})a {symbol} ({u})b);")
    if d.kind == "i":
        _for_signed(d, u, define)
    else:
        _for_unsigned(d, u, define)
    return out


def _for_floats(d: DType, define: _Define) -> None:
    c, f = C_TYPES[d.name], "f" if d.bits == 32 else ""
    define("max", "ab", "return (a > b || a != a) ? a : b;")
    define("min", "ab", "return (a < b || a != a) ? a : b;")
    define("sign", "x", f"return x != x ? x : ({c})((x > 0) - (x < 0));")
    define("rsqrt", "x", f"return 1 / sqrt{f}(x);")
    define("sigmoid", "x", f"return 1 / (1 + exp{f}(-x));")
    define(
        "mod", "ab",
        f"{c} r = fmod{f}(a, b); "
        f"return r == 0 ? copysign{f}(({c})0, b) : ((r < 0) != (b < 0)) ? r + b : r;",
    )  # fmt: skip
    define("floordiv", "ab", f"return floor{f}(a / b);")
    if d.bits == 32:
        for name in sorted(OWN):  # the same values as in vector lanes
            given = "x" if OPS[name].arity == 1 else "ab"
            v = ", ".join(f"fk_splat_f32x4({x})" for x in given)
            define(f"near_{name}", given, f"fk_f32x4 v = fk_near_{name}_f32x4({v}); return v[0];")


def _for_signed(d: DType, u: str, define: _Define) -> None:
    """u : the unsigned type with as many bits, at least 32."""
    c = C_TYPES[d.name]
    minus = f"({c})(0 - ({u})%s)"
    define("neg", "x", f"return {minus % 'x'};")
    define("abs", "x", f"return x < 0 ? {minus % 'x'} : x;")
    define("sign", "x", f"return ({c})((x > 0) - (x < 0));")
    guard = f"if (b == 0) return 0; if (b == -1) return {minus % 'a'};"
    zero = "if (b == 0 || b == -1) return 0;"
    define("div", "ab", f"{guard} return ({c})(a / b);")
    define("fmod", "ab", f"{zero} return ({c})(a % b);")
    define(
        "floordiv",
        "ab",
        f"{guard} return ({c})(a / b - ((a % b != 0) && ((a < 0) != (b < 0))));",
    )
    define(
        "mod",
        "ab",
        f"{zero} {c} r = ({c})(a % b); return ({c})((r != 0 && ((r < 0) != (b < 0))) ? r + b : r);",
    )
    define("shl", "ab", f"return (b < 0 || b >= {d.bits}) ? 0 : ({c})(({u})a << b);")
    define("shr", "ab", f"return (b < 0 || b >= {d.bits}) ? ({c})(a < 0 ? -1 : 0) : ({c})(a >> b);")


def _for_unsigned(d: DType, u: str, define: _Define) -> None:
    """u : the type itself, or its 32-bit version."""
    c = C_TYPES[d.name]
    define("sign", "x", f"return ({c})(x > 0);")
    define("bitnot", "x", f"return ({c})~x;")
    for name in ("div", "floordiv"):
        define(name, "ab", f"return b == 0 ? 0 : ({c})(a / b);")
    for name in ("fmod", "mod"):
        define(name, "ab", f"return b == 0 ? 0 : ({c})(a % b);")
    define("shl", "ab", f"return b >= {d.bits} ? 0 : ({c})(({u})a << b);")
    define("shr", "ab", f"return b >= {d.bits} ? 0 : ({c})(a >> b);")


HELPERS: dict[str, str] = _helpers()

#: Buffers are filled and used under the same conditions, which gcc cannot always see.
_QUIET = """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif"""
#: gcc 12 says that vectors are used uninitialised whose lanes are set one by one.
_QUIET_BY_LANE = """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif"""
_SET_BY_LANE = re.compile(r"\+\+\) (r|fk_lanes\d+)\[\w+\] = ")
_HELPER = re.compile(r"\bfk_\w+\b")
_SCHEDULE = f"""\
#ifndef {SCHEDULE} /* how threads share a loop */
#define {SCHEDULE} static
#endif"""
_UNROLLED = f"""\
#if defined(__clang__) /* the next loop becomes straight code */
#define {UNROLLED} _Pragma("clang loop unroll(full)")
#else
#define {UNROLLED} _Pragma("GCC unroll 64")
#endif"""
_UNROLLED_BY = f"""\
#if defined(__clang__) /* the next loop takes {{0}} steps at once */
#define {UNROLLED_BY}{{0}} _Pragma("clang loop unroll_count({{0}})")
#else
#define {UNROLLED_BY}{{0}} _Pragma("GCC unroll {{0}}")
#endif"""
_IN_LANES = f"""\
#if defined(__GNUC__) && !defined(__clang__) /* the next loop may run in lanes */
#define {LANES} _Pragma("GCC ivdep")
#else
#define {LANES}
#endif"""
_BUFFER = re.compile(r"^ +\w+ \w+(\[\d+\])*( __attribute__\(\(aligned\(64\)\)\))?;$", re.MULTILINE)


def pattern_types(text: str) -> list[str]:
    """The types that C lacks, or converts slowly, and that a text names."""
    names = (C_TYPES[name] for name in PATTERNS)
    return [f"typedef uint16_t {name};" for name in names if re.search(rf"\b{name}\b", text)]


def prelude_for(body: str) -> str:
    """The includes, types and helpers that `body` uses, in a fixed order."""
    parts = [HEADERS]
    lanes = lane_prelude(body)
    by_lane = any(_SET_BY_LANE.search(text) for text in (body, *lanes))
    if by_lane or _BUFFER.search(body):
        parts.append(_QUIET)
    if by_lane:
        parts.append(_QUIET_BY_LANE)
    if SCHEDULE in body:
        parts.append(_SCHEDULE)
    if any(re.search(rf"\b{UNROLLED}\b", text) for text in (body, *lanes)):
        parts.append(_UNROLLED)
    copies = {*re.findall(rf"\b{UNROLLED_BY}(\d+)\b", body)}
    parts += [_UNROLLED_BY.format(n) for n in sorted(copies)]
    if re.search(rf"\b{LANES}\b", body):
        parts.append(_IN_LANES)
    used = _used("\n".join([body, *lanes]))
    parts += pattern_types("\n".join([body, *lanes, *used]))
    # The scalar form of a vector function follows the vector helpers; all others precede them.
    parts += [text for text in used if "fk_splat" not in text]
    parts += lane_prelude("\n".join([body, *used]))
    parts += [text for text in used if "fk_splat" in text]
    return "\n".join(parts) + "\n"


def _used(code: str) -> list[str]:
    """The scalar helpers that code calls, and those that these call, in a fixed order."""
    called, found = "", code
    while called != found:
        called = found
        names = set(_HELPER.findall(called))
        used = [text for name, text in HELPERS.items() if name in names]
        found = "\n".join([code, *used])
    return used
