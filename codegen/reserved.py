"""Identifiers that generated code must not use for its own names, by language."""

from __future__ import annotations

from codegen.spelling import C_TYPES, MATH

_FUNCTIONS = (*MATH, "rsqrt", "fma", "fmin", "fmax")

C_RESERVED = frozenset(
    "lane_values auto break case char const continue default do double else enum extern float "
    "for goto if inline int long register restrict return short signed sizeof static struct "
    "switch typedef union unsigned void volatile while asm typeof main threads sizes tensors "
    "linux unix arrays "
    "NAN INFINITY NULL I y0 y1 yn j0 j1 jn gamma signgam isnan isinf isfinite "
    "memcpy memset stdin stdout stderr errno assert".split()
) | {*C_TYPES.values(), *_FUNCTIONS, *(f"{name}f" for name in _FUNCTIONS)}

#: C++, which CUDA is, with the names that a kernel finds its place by and what it calls.
CUDA_RESERVED = frozenset(
    "alignas alignof and and_eq bitand bitor bool catch char8_t char16_t char32_t class co_await "
    "co_return co_yield compl concept const_cast consteval constexpr constinit decltype delete "
    "dynamic_cast explicit export false friend mutable namespace new noexcept not not_eq nullptr "
    "operator or or_eq private protected public reinterpret_cast requires static_assert "
    "static_cast std template this thread_local throw true try typeid typename using virtual "
    "wchar_t xor xor_eq "
    "threadIdx blockIdx blockDim gridDim warpSize uint3 dim3 int4 float4 signbit "
    "nvcuda wmma half __half".split()
)

#: OpenCL C, with the functions that a kernel calls.
OPENCL_RESERVED = frozenset(
    "kernel global local constant private generic read_only write_only read_write uniform pipe "
    "half bool true false uchar ushort uint ulong size_t ptrdiff_t intptr_t uintptr_t sampler_t "
    "event_t queue_t ndrange_t clk_event_t reserve_id_t cl_mem_fence_flags quad complex imaginary "
    "get_group_id get_local_id get_num_groups get_local_size get_global_id get_global_size barrier "
    "mem_fence min max abs clamp mad fma isequal signbit "
    "MAXFLOAT HUGE_VALF HUGE_VAL CLK_LOCAL_MEM_FENCE CLK_GLOBAL_MEM_FENCE".split()
) | {
    f"{name}{count}"
    for name in "char uchar short ushort int uint long ulong float double half".split()
    for count in (2, 3, 4, 8, 16)
} | {f"{fn}{count}" for fn in ("vload", "vstore") for count in (2, 3, 4, 8, 16)} | {
    f"as_{t}" for t in "int uint long ulong float double short ushort char uchar".split()
}  # fmt: skip
