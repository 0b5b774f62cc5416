"""C names of element types and of vectors of them."""

from __future__ import annotations

from poly.ir.dtypes import DType

C_TYPES: dict[str, str] = {
    "float16": "fk_f16",
    "bfloat16": "fk_bf16",
    "float32": "float",
    "float64": "double",
    "bool": "uint8_t",
    **{f"{u}int{b}": f"{u}int{b}_t" for u in ("", "u") for b in (8, 16, 32, 64)},
}

#: Types whose values are bit patterns until they are loaded, and what their helpers are called.
PATTERNS: dict[str, str] = {"float16": "f16", "bfloat16": "bf16"}

#: The macro for how iterations are shared among threads, which the build may define.
SCHEDULE = "FK_SCHEDULE"

#: Stands before loops that the C compiler unrolls.
UNROLLED = "FK_UNROLL"

#: Begins what stands before loops that it unrolls in part; their number of copies follows.
UNROLLED_BY = "FK_UNROLL_BY_"

#: Stands before loops whose iterations may run in lanes, where OpenMP is not used.
LANES = "FK_LANES"

#: Vector element types: their names in helpers, and in C.
LANE_TYPES: dict[str, str] = {
    "f32": "float",
    "f64": "double",
    **{f"{k}{b}": f"{u}int{b}_t" for k, u in (("i", ""), ("u", "u")) for b in (8, 16, 32, 64)},
}


def suffix(dtype: DType) -> str:
    """The suffix of helpers for this type: f32, i8, u64, b8 …"""
    return f"{dtype.kind}{dtype.bits}"


def lane_suffix(dtype: DType) -> str:
    """Suffix for vectors of stored values: bool and 16-bit floats are stored as integers."""
    return f"u{dtype.bits}" if dtype.kind == "b" or dtype.name in PATTERNS else suffix(dtype)


def vector_type(dtype: DType, lanes: int) -> str:
    """Name of the GCC vector type of `lanes` stored elements."""
    return f"fk_{lane_suffix(dtype)}x{lanes}"


def mask_type(bits: int, lanes: int) -> str:
    """Name of the vector type of truth values, 0 or -1 in each lane."""
    return f"fk_i{bits}x{lanes}"


#: Functions of C's math library whose float versions end in f; OpenCL overloads them by type.
MATH = (
    "sqrt exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf pow atan2 fabs "
    "floor ceil trunc rint fmod copysign"
).split()
