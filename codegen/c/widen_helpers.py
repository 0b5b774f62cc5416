"""Helpers that widen integers to 32 bits.

gcc 12 makes one instruction of ``__builtin_convertvector`` between such types where a function does
nothing else, and fifty of it where a value is loaded before or computed with after.
"""

from __future__ import annotations

from collections.abc import Callable

from codegen.c.helper_text import VectorShape, alternatives, inline_function

#: By narrow type: its letters in the names of instructions, and the C type of their operands.
_NARROW = {
    "u8": ("zxbd", "char"),
    "i8": ("sxbd", "char"),
    "u16": ("zxwd", "short"),
    "i16": ("sxwd", "short"),
}
#: Part of a register, when it comes from memory and is masked, ends gcc 12 with an internal error:
#: it "could not split" the one instruction of load, extension and mask.
_OPAQUE = '__asm__("" : "+v"(v))'

#: What the preprocessor is asked about vectors of so many lanes.
_FEATURES = {16: "__AVX512F__", 8: "__AVX2__", 4: "__SSE4_1__"}


def has_widening(element: str, lanes: int) -> bool:
    """Whether there is a helper for vectors of so many of these."""
    return element in _NARROW and lanes in _FEATURES


def _wide(element: str) -> Callable[[VectorShape], str]:
    def text(s: VectorShape) -> str:
        letters, c = _NARROW[element]
        name, narrow = f"wide_{element}_{s.name}", f"fk_{element}x{s.lanes}"
        plain = f"return __builtin_convertvector(x, {s.v});"
        loop = inline_function(s.v, name, f"{narrow} x", plain)
        if not has_widening(element, s.lanes):
            return loop
        bits, given = 32 * s.lanes, s.lanes * int(element[1:])
        operand = f"({c} __attribute__((vector_size({max(16, given // 8)}))))"
        before = ""
        if given in (128, 256):
            operand += "x"
        else:
            whole = {64: "long long", 32: "int"}[given]
            before = f"{whole} __attribute__((vector_size(16))) v = {{({whole})x}}; {_OPAQUE}; "
            operand += "v"
        rest = (
            f"512_mask({operand}, ({s.v}){{0}}, (uint16_t)-1)"
            if bits == 512
            else (f"{bits}({operand})")
        )
        body = f"{before}return ({s.v})__builtin_ia32_pmov{letters}{rest};"
        own = inline_function(s.v, name, f"{narrow} x", body)
        condition = f"defined({_FEATURES[s.lanes]}) && !defined(__clang__)"
        return alternatives((condition, own), otherwise=loop)

    return text


#: The text of each of these helpers.
WIDEN_HELPERS: dict[str, Callable[[VectorShape], str]] = {
    f"wide_{element}": _wide(element) for element in _NARROW
}
