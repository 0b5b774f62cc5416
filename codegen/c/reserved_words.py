"""Identifiers that generated code must not use for its own names, by language."""

from __future__ import annotations

import re

from codegen.c.type_names import C_TYPES, MATH

_FUNCTIONS = (*MATH, "rsqrt", "fma", "fmin", "fmax")

#: Keywords, names that the generated code uses, and those that its headers define.
C_RESERVED = frozenset(
    "lane_values auto break case char const continue default do double else enum extern float "
    "for goto if inline int long register restrict return short signed sizeof static struct "
    "switch typedef union unsigned void volatile while asm typeof main threads sizes tensors "
    "linux unix arrays "
    "NAN INFINITY NULL I y0 y1 yn j0 j1 jn gamma signgam isnan isinf isfinite isnormal fpclassify "
    "isgreater isgreaterequal isless islessequal islessgreater isunordered signbit "
    "math_errhandling memcpy memset stdin stdout stderr errno assert "
    "MAXFLOAT SNAN SNANF SNANL".split()
) | {*C_TYPES.values(), *_FUNCTIONS, *(f"{name}f" for name in _FUNCTIONS)}

#: C++, whose compilers read headers, and of C since 2023.
CPP_RESERVED = frozenset(
    "alignas alignof and and_eq bitand bitor bool catch char8_t char16_t char32_t class co_await "
    "co_return co_yield compl concept const_cast consteval constexpr constinit decltype delete "
    "dynamic_cast explicit export false friend mutable namespace new noexcept not not_eq nullptr "
    "operator or or_eq private protected public reinterpret_cast requires static_assert "
    "static_cast std template this thread_local throw true try typeid typename using virtual "
    "wchar_t xor xor_eq".split()
)

#: C++, as CUDA uses it, the built-in variables and functions of kernels, and what the headers of
#: the emulator define.
CUDA_RESERVED = CPP_RESERVED | frozenset(
    "threadIdx blockIdx blockDim gridDim warpSize uint3 dim3 int4 float4 nvcuda wmma half __half "
    "BUFSIZ EOF NFDBITS NGREG L_ctermid L_cuserid L_tmpnam P_tmpdir WCONTINUED WEXITED WEXITSTATUS "
    "WIFCONTINUED WIFEXITED WIFSIGNALED WIFSTOPPED WNOHANG WNOWAIT WSTOPPED WSTOPSIG WTERMSIG "
    "WUNTRACED alloca issubnormal strdupa strndupa".split()
)

#: OpenCL C, with the functions that a kernel calls.
OPENCL_RESERVED = frozenset(
    "kernel global local constant private generic read_only write_only read_write uniform pipe "
    "half bool true false uchar ushort uint ulong size_t ptrdiff_t intptr_t uintptr_t sampler_t "
    "event_t queue_t ndrange_t clk_event_t reserve_id_t cl_mem_fence_flags quad complex imaginary "
    "get_group_id get_local_id get_num_groups get_local_size get_global_id get_global_size barrier "
    "mem_fence min max abs clamp mad isequal vec_step".split()
)

#: Macros of standard headers: limits, constants, and names derived from these.
_MACROS = re.compile(
    r"(FLT|L?DBL|FP|U?INT(8|16|32|64|MAX|PTR)?|SIZE|PTRDIFF|WCHAR|WINT|SIG|U?CHAR|SCHAR|U?SHRT"
    r"|U?L?LONG|HUGE|MATH|DECIMAL|EXIT|RAND|SEEK|TMP|FOPEN|FILENAME|POSIX|FD|MS|MB|PROT|MAP|MADV"
    r"|MREMAP|MFD|MCL|MLOCK|PKEY|REG|RENAME|BYTE|LITTLE|BIG|PDP|CLK|FK)_[A-Z0-9_]+"
    r"|M_(E|LOG(2|10)E|LN(2|10)|([12]_)?PI(_[24])?|2_SQRTPI|SQRT(2|1_2))([fl][0-9]*x?)?"
    r"|SNANF[0-9]+X?|hto[bl]e[0-9]+|[bl]e[0-9]+toh"
)
#: Vector types, and OpenCL functions named after types.
_TYPED = re.compile(
    r"u?(char|short|int|long)(2|3|4|8|16)|(float|double|half)(2|3|4|8|16)|v(load|store)\w*"
    r"|(as|convert)_\w+|image[123]d_\w+|cl_\w+"
)


def is_reserved(name: str, words: frozenset[str] = frozenset()) -> bool:
    """Whether a name is reserved in C, or is one of another language's words.

    No reserved word ends in an underscore, so appending one makes any name available.
    """
    if name.endswith("_"):
        return False
    own = name in C_RESERVED or name in words or _MACROS.fullmatch(name) is not None
    return own or _TYPED.fullmatch(name) is not None
