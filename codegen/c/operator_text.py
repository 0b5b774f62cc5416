"""The language's operators as C text, on scalars."""

from __future__ import annotations

from codegen.c.type_names import C_TYPES, suffix
from poly.errors import ProgramError
from poly.ir.dtypes import DType
from poly.ir.operators import OPS

#: Functions that `codegen.c.vector_math` implements for float32.
OWN = frozenset("exp log tanh sigmoid erf pow".split())
#: Helpers of `codegen.c.prelude` that wrap around, for compilers which assume no overflow.
WRAPPING = frozenset("add sub mul neg".split())
#: Scalar helpers of `codegen.c.prelude`.
_HELPERS = frozenset("max min sign abs div floordiv mod shl shr rsqrt sigmoid".split())


def is_own(fn: str, dtype: DType, exact: bool) -> bool:
    """Whether our own code computes a function instead of the C library."""
    return fn in OWN and dtype.compute.name == "float32" and not exact


def apply(fn: str, dtype: DType, args: list[str], exact: bool, wraps: bool = True) -> str:
    """One arithmetic operator on arguments that already have the compute type of `dtype`.

    wraps : whether the compiler assumes that signed integers wrap around, as with ``-fwrapv``
    """
    d = dtype.compute
    c = C_TYPES[d.name]
    if not wraps and fn in WRAPPING and _may_overflow(fn, d):
        return f"fk_{fn}_{suffix(d)}({', '.join(args)})"
    if fn in ("add", "sub", "mul", "bitand", "bitor", "bitxor"):
        text = f"({args[0]} {OPS[fn].symbol} {args[1]})"
        return f"({c}){text}" if d.bits < 32 and d.kind != "b" else text
    if fn in ("neg", "bitnot"):
        if d.kind == "b":
            return f"(!{args[0]})"
        if fn == "bitnot" and d.kind == "u" and d.bits < 32:
            # A function call: compilers warn when the complement of a promoted integer is compared.
            return f"fk_bitnot_{suffix(d)}({args[0]})"
        text = f"({OPS[fn].symbol}{args[0]})"
        return f"({c}){text}" if d.bits < 32 else text
    if fn == "div" and d.is_float:
        return f"({args[0]} / {args[1]})"
    if fn == "abs":
        if d.kind == "u":
            return args[0]
        if d.is_float:
            return f"fabs{_f(d)}({args[0]})"
    if is_own(fn, d, exact):
        return f"fk_near_{fn}_{suffix(d)}({', '.join(args)})"
    if fn in _HELPERS or (fn == "fmod" and not d.is_float):
        return f"fk_{fn}_{suffix(d)}({', '.join(args)})"
    if not d.is_float:
        raise ProgramError(f"{fn} has no meaning on {dtype}")
    name = "rint" if fn == "round" else fn
    return f"{name}{_f(d)}({', '.join(args)})"


def _may_overflow(fn: str, d: DType) -> bool:
    """Whether a signed C type may overflow: narrow integers are promoted to a 32-bit int."""
    return (d.kind == "i" and d.bits >= 32) or (fn == "mul" and d.kind == "u" and d.bits == 16)


def _f(d: DType) -> str:
    return "f" if d.bits == 32 else ""
