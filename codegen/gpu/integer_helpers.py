"""Least, greatest, magnitude and choice of integers in CUDA, where NVIDIA's compilers go wrong.

Programs on a card found two of their faults, both for Hopper (``sm_90``):

* ``min(a, min(b, -c))`` became one instruction for three operands, without the minus (ptxas 12.9 to
  13.2; right in 12.4 and 13.5).  Here a permutation of bytes that changes nothing stands before the
  minimum: ptxas removes it, but only after it has looked for such instructions.  Where a minimum is
  written as a choice, one of its operands is hidden from the comparison.
* ``max(abs(x), 20)`` and ``x < 7 - y`` of 8 bits were computed on 16, of which the upper half was
  undefined (NVRTC 13.0): see `codegen.gpu.vector_access_text`.  Here 8 and 16 bits are computed on
  32, in PTX, which NVRTC does not read.
"""

from __future__ import annotations

from codegen.c.type_names import C_TYPES, suffix
from poly.ir.dtypes import DTYPES, DType

_BODY = """\
static inline {c} fk_{name}_{suffix}({parameters})
{{
#ifdef __CUDACC__
  {wide} y;
  asm("{{.reg .b32 {registers}; {moves}{operation}}}" : "=r"(y) : {operands});
  return {result};
#else
  return {plain};
#endif
}}"""
_SELECT = """\
static inline {c} fk_select_{suffix}(bool where, {c} a, {c} b)
{{
#ifdef __CUDACC__
  unsigned y = b;
  asm("" : "+r"(y));
  b = y;
#endif
  return where ? a : b;
}}"""
_SAME = "prmt.b32 {to}, {of}, 0, 0x3210; "


def _helper(d: DType, name: str, arguments: str, plain: str) -> str:
    c, wide = C_TYPES[d.name], "unsigned" if d.kind == "u" else "int"
    kind = f"{d.kind if d.kind == 'u' else 's'}32"
    return _BODY.format(
        c=c,
        name=name,
        suffix=suffix(d),
        wide=wide,
        parameters=", ".join(f"{c} {a}" for a in arguments),
        registers=", ".join(arguments),
        moves="".join(_SAME.format(to=a, of=f"%{n}") for n, a in enumerate(arguments, 1)),
        operation=f"{name}.{kind} %0, {', '.join(arguments)};",
        operands=", ".join(f'"r"(({wide}){a})' for a in arguments),
        result="y" if d.bits == 32 else f"({c})y",
        plain=plain.format(c=c),
    )


def _helpers() -> dict[str, str]:
    found = {}
    for d in DTYPES.values():
        if d.kind not in "iu" or d.bits > 32:
            continue
        found[f"fk_max_{suffix(d)}"] = _helper(d, "max", "ab", "a > b ? a : b")
        found[f"fk_min_{suffix(d)}"] = _helper(d, "min", "ab", "a < b ? a : b")
        found[f"fk_select_{suffix(d)}"] = _SELECT.format(c=C_TYPES[d.name], suffix=suffix(d))
        if d.kind == "i":
            minus = "({c})(0 - (unsigned)x)"
            found[f"fk_abs_{suffix(d)}"] = _helper(d, "abs", "x", f"x < 0 ? {minus} : x")
    return found


#: Helpers by name.
CUDA_INTEGERS = _helpers()
