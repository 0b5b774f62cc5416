"""CUDA C and OpenCL C: how kernels are printed, and where the two dialects differ.

A dialect is a small class; everything else comes from `CPrinter`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import cgen

from codegen.c.cgen_blocks import as_block
from codegen.c.expr_text import Names, ValueText, index_text
from codegen.c.prelude import HELPERS
from codegen.c.printer import CPrinter
from codegen.c.reserved_words import CUDA_RESERVED, OPENCL_RESERVED
from codegen.c.type_names import C_TYPES, MATH, PATTERNS, suffix
from codegen.gpu.async_copy import CUDA_COPIES, OPENCL_COPIES, copied_rows
from codegen.gpu.conditions import below
from codegen.gpu.float16_helpers import CUDA_HALVES, OPENCL_HALVES
from codegen.gpu.integer_helpers import CUDA_INTEGERS
from codegen.gpu.vector_access_text import CUDA_WIDE, OPENCL_WIDE, access_text
from codegen.gpu.wmma_text import SUMS, WMMA_HELPERS, tensor_cores
from codegen.loops.grid_limits import is_strided
from codegen.loops.nodes import (
    Buffer,
    Combine,
    For,
    If,
    IfAligned,
    LoopNode,
    MoveSums,
    MultiplyMatrices,
    Store,
    Together,
    Wait,
    axis_of,
    block,
)
from codegen.loops.restrict import touched_last
from codegen.loops.traverse import children_of, statements_in, walk_loops
from poly.errors import ScheduleError
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Index, Op, Read
from poly.ir.program import Program
from poly.machine.gpu import WARP
from poly.tree.kinds import Mark, Scope

#: Alignments of shared arrays; the first that divides an array's length is used, so that there are
#: no gaps: rows of tensor core matrices, and what a thread may read at once.
ALIGNMENTS = (32, 16)
#: Loops of at most this many iterations, without loops inside, are unrolled by the compiler.
UNROLL_MOST = 16
#: Longer sums are unrolled by this many terms; the compiler might otherwise unroll them fully and
#: run out of registers.
AT_ONCE = 8
_LINEAR = "threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)"
_NAMES = re.compile(r"\b[A-Za-z_]\w*\b")
_SIZED = ("int8", "int16", "int32", "int64")


class KernelText(ValueText):
    """Values on a GPU, whose compilers assume that signed integers do not wrap around."""

    wraps = False


class KernelPrinter(CPrinter):
    """Print what one thread of a GPU runs.  Functions such as exp are the device's."""

    value_text = KernelText
    stack_limit = None

    #: Identifiers reserved by the language in addition to C's.
    reserved: frozenset[str] = frozenset()
    #: The dialect's name, and the suffix of its files.
    name, suffix = "", ""
    barrier = ""
    #: Expressions for the index of a block in the grid, and of a thread in its block, by axis.
    block_index: Sequence[str] = ()
    #: Expressions for the number of blocks, by axis.
    grid_size: Sequence[str] = ()
    thread_index: Sequence[str] = ()
    #: Helpers specific to the dialect, by name.
    own_helpers: Mapping[str, str] = {}
    #: Qualifiers of helpers, of shared arrays, and of pointers to tensors.
    helper, shared, pointer, restrict = "static inline", "", "", "restrict"
    #: Text or compiler option that forbids contracting products and sums.
    no_contraction = ""
    exact_flags: tuple[str, ...] = ()
    #: Whether the dialect has asynchronous copies.
    asynchronous = False
    #: The condition that adjacent elements may be read together.
    aligned = ""

    def __init__(self, program: Program, identifiers: Names) -> None:
        super().__init__(program, identifiers, exact=True)
        #: Declarations of shared arrays at the head of the kernel, with their bytes.
        self.shared_arrays: dict[str, int] = {}
        #: Functions by which adjacent threads combine their values, by name.
        self.combining: dict[str, str] = {}
        self.threads = 1
        #: Copies, and those for the next iteration, which may end after the next barrier.
        self.copies: frozenset[str] = frozenset()
        self.prefetches: frozenset[str] = frozenset()
        #: Tensors in which tensor core matrices are loaded and stored.
        self.with_matrices: set[str] = set()
        #: Whether compilers are to unroll short loops.
        self._unroll_short = True

    # --- dialect hooks ---------------------------------------------------------------------------

    def signature(self, symbol: str, parameters: Sequence[str], block: tuple[int, int, int]) -> str:
        """The head of a kernel for blocks with these numbers of threads in x, y and z."""
        raise NotImplementedError

    @classmethod
    def definitions(cls, used: set[str]) -> list[str]:
        """Lines that define what the code uses and the dialect lacks."""
        raise NotImplementedError

    def across(self, threads: int) -> int:
        """How many shared elements `threads` threads of a block need to combine their values."""
        raise NotImplementedError

    def combine(self, name: str, c: str, op: str, threads: int) -> str:
        """A function, called `name`, by which groups of `threads` adjacent threads combine values.

        c : the type; op : an expression in `value` and `other`
        """
        raise NotImplementedError

    # --- statements ------------------------------------------------------------------------

    def statement(self, node: LoopNode) -> cgen.Generable:
        if isinstance(node, Wait):
            return cgen.Line(self.barrier)
        if isinstance(node, Combine):
            return self._combine(node)
        if isinstance(node, (MoveSums, MultiplyMatrices)):
            raise ScheduleError(f"{node.intrinsic} of {node.statement}: {self.name} has none")
        if isinstance(node, Together):
            text = access_text(node, self)
            return super().statement(block([*node.stores])) if text is None else cgen.Line(text)
        if isinstance(node, IfAligned):
            return self.if_aligned(node)
        if isinstance(node, For) and node.mark in (Mark.BLOCK, Mark.THREAD, Mark.OWN_THREAD):
            return self._mapped_loop(node)
        if isinstance(node, For) and (pair := copied_rows(node, self.buffers)) is not None:
            return self._copy_at_once(node, *pair)
        if isinstance(node, For) and node.mark == Mark.VECTOR and self._only_copies(node):
            return self._for(replace(node, mark=Mark.SEQ))
        if isinstance(node, For) and node.mark in (Mark.VECTOR, Mark.PARALLEL):
            step = {Mark.VECTOR: "vectorize", Mark.PARALLEL: "parallelize"}[node.mark]
            raise ScheduleError(
                f"{step} of {node.label} has no meaning on a GPU; use map_threads and map_blocks"
            )
        if isinstance(node, Buffer) and node.scope == Scope.SHARED:
            return self._shared_array(node)
        if isinstance(node, Buffer) and node.scope == Scope.FRAGMENT:
            return self._fragments(node)
        return super().statement(node)

    def _only_copies(self, node: LoopNode) -> bool:
        """Whether a node only copies; outside of threads, such copies are a CPU schedule's."""
        return self.copies.issuperset(statements_in(node))

    def if_aligned(self, node: IfAligned) -> cgen.Generable:
        """Vectors may begin at any element here."""
        if isinstance(node.cond, Const) and node.cond.value:
            return self.statement(node.then)
        return self._two_forms(index_text(node.cond, self.names), node)

    def _two_forms(self, cond: str, node: IfAligned) -> cgen.Generable:
        then = as_block(self._commented(node.then))
        self._unroll_short = False  # remainders and unaligned parts need not be fast
        other = as_block(self._commented(node.other))
        self._unroll_short = True
        return cgen.If(cond, then, other)

    def _copy_at_once(self, node: For, to: Read, origin: Read) -> cgen.Generable:
        """``fk_copy_16(&A_s[..], &A[..]);``: the first target and source element of a wide copy."""
        assert isinstance(node.body, Store)
        early = self.asynchronous and node.body.statement in self.prefetches
        kind = "copy_async" if early else "copy"
        size = "16" if node.body.dtype.bytes == 2 else "4x4"
        return cgen.Line(f"fk_{kind}_{size}(&{self.lvalue(to)}, &{self.lvalue(origin)});")

    def _for(self, node: For) -> cgen.Generable:
        """Short loops are left to the compiler to unroll."""
        loop = super()._for(node)
        ends = below(Index(node.var), node.upper)
        short = any(
            isinstance(c, Op) and c.args[0] == Index(node.var) and isinstance(c.args[1], Const)
            and int(c.args[1].value) <= UNROLL_MOST * node.step
            for c in ends
        )  # fmt: skip
        if not self._unroll_short:
            return cgen.Collection([cgen.Pragma("unroll 1"), loop])
        if short and node.lower == Const(0) and not _has_loops(node.body):
            return cgen.Collection([cgen.Pragma("unroll"), loop])
        count = node.trip
        sums_up = isinstance(node.body, Store) and node.body.op != "="
        if count is not None and count > UNROLL_MOST and sums_up:
            return cgen.Collection([cgen.Pragma(f"unroll {AT_ONCE}"), loop])
        return loop

    def continues(self, node: For) -> str:
        """The loop condition, without a minimum or a division in each iteration."""
        return " && ".join(index_text(c, self.names, 3) for c in below(Index(node.var), node.upper))

    def _mapped_loop(self, node: For) -> cgen.Generable:
        """The body of a loop on blocks or threads, after its index is declared."""
        var = self.names.loops[node.var]
        body = self.statement(node.body)
        if is_strided(node):
            return self._strided(node, body)
        if node.mark == Mark.OWN_THREAD:
            value = index_text(node.lower, self.names)
        else:
            axis = axis_of(node)
            value = (self.block_index if node.mark == Mark.BLOCK else self.thread_index)[axis]
        if var not in set(_NAMES.findall("\n".join([*body.generate(), *self.shared_arrays]))):
            return body
        kind = "int" if node.mark != Mark.BLOCK else "int64_t"
        return cgen.Collection([cgen.Line(f"const {kind} {var} = {value};"), body])

    def _strided(self, node: For, body: cgen.Generable) -> cgen.Generable:
        """A grid-stride loop, for an axis on which the grid may be too small."""
        axis, var = axis_of(node), self.names.loops[node.var]
        lines = [body]
        if self.shared_arrays and touched_last(node.body, self.program.tensors):
            lines.append(cgen.Line(f"{self.barrier} /* before what is shared is written again */"))
        start, step = self.block_index[axis], self.grid_size[axis]
        head = (f"int64_t {var} = {start}", self.continues(node), f"{var} += {step}")
        return cgen.For(*head, as_block(cgen.Collection(lines)))

    def _combine(self, node: Combine) -> cgen.Generable:
        """``x = fk_sum_of_32_f32(x, shared);``"""
        d, count = node.dtype.compute, node.threads
        c = self.types[d.name]
        fn, what = {
            "+=": ("add", "sum"), "*=": ("mul", "product"), "max=": ("max", "maximum"),
            "min=": ("min", "minimum"),
        }[node.op]  # fmt: skip
        name = f"fk_{what}_of_{count}_{suffix(d)}"
        if name not in self.combining:
            op = self.values.operation(fn, d, ["value", "other"])
            comment = f"/* The {what} over each {count} neighbouring threads, for all of them. */"
            self.combining[name] = f"{comment}\n{self.combine(name, c, op, count)}"
        lvalue = self.lvalue(node.target)
        arguments = [self.values.load(lvalue, node.dtype)]
        length = self.across(count)
        if length:
            shared = f"fk_across_{suffix(d)}"
            self.shared_arrays[f"{self.shared} {c} {shared}[{length}];"] = length * d.bytes
            arguments.append(shared)
        value = f"{name}({', '.join(arguments)})"
        return cgen.Line(f"{lvalue} = {self.values.stored(value, node.dtype)};")

    def _fragments(self, node: Buffer) -> cgen.Generable:
        """``fk_sums C_f[2][4];`` around what is done with them."""
        shape = "".join(f"[{n}]" for n in node.shape)
        line = cgen.Line(f"{SUMS} {self.names.tensors[node.name]}{shape};")
        with self.inside(node):
            return as_block(cgen.Collection([line, self.statement(node.body)]))

    def _shared_array(self, node: Buffer) -> cgen.Generable:
        shape = "".join(f"[{n}]" for n in node.shape)
        c, name = self.types[node.dtype.name], self.names.tensors[node.name]
        count = node.dtype.bytes * prod(node.shape)
        bound = alignment_of(count)
        aligned = f"{self.aligned % bound} " if bound > 1 else ""
        self.shared_arrays[f"{self.shared} {aligned}{c} {name}{shape};"] = count
        with self.inside(node):
            return self.statement(node.body)

    # --- what precedes a kernel --------------------------------------------------------------

    @classmethod
    def guarded(cls, name: str, text: str) -> str:
        """A helper, guarded where only some compilers support it."""
        return text

    @classmethod
    def prelude(cls, code: str, exact: bool = False) -> str:
        """The types and helpers that kernels use.

        exact : products and sums are rounded one by one
        """
        called = set(_NAMES.findall(code))
        helpers = {**HELPERS, **cls.own_helpers}
        for name in reversed(helpers):  # a helper calls those above it
            if name in called:
                called |= set(_NAMES.findall(helpers[name]))
        texts = [
            cls.guarded(name, text.replace("static inline", cls.helper))
            for name, text in helpers.items()
            if name in called
        ]
        used = called | set(_NAMES.findall("\n".join(texts)))
        head = [cls.no_contraction] if exact and cls.no_contraction else []
        return "\n".join([*head, *cls.definitions(used), *texts])


#: CUDA helpers in inline PTX, for which the emulator has its own definitions; and all helpers.
_BY_INSTRUCTIONS = {**CUDA_HALVES, **CUDA_COPIES, **WMMA_HELPERS}
_OF_CUDA = {**_BY_INSTRUCTIONS, **CUDA_WIDE, **CUDA_INTEGERS}
_OF_OPENCL = {**OPENCL_HALVES, **OPENCL_COPIES, **OPENCL_WIDE}


class CudaText(KernelText):
    """Values in CUDA."""

    def select(self, condition: str, arms: list[str], dtype: DType) -> str:
        helper = f"fk_select_{suffix(dtype)}"
        if helper in CUDA_INTEGERS:
            return f"{helper}({condition}, {arms[0]}, {arms[1]})"
        return super().select(condition, arms, dtype)


class CudaPrinter(KernelPrinter):
    """CUDA C, for nvcc and for NVRTC, which has no headers."""

    value_text = CudaText
    own_helpers = _OF_CUDA

    reserved = CUDA_RESERVED
    name, suffix = "cuda", ".cu"
    barrier = "__syncthreads();"
    block_index = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
    grid_size = ("gridDim.x", "gridDim.y", "gridDim.z")
    thread_index = ("(int)threadIdx.x", "(int)threadIdx.y", "(int)threadIdx.z")
    helper, shared, restrict = "static __device__ inline", "__shared__", "__restrict__"
    asynchronous = True
    aligned = "__align__(%d)"
    exact_flags = ("--fmad=false",)

    @classmethod
    def guarded(cls, name: str, text: str) -> str:
        return f"#ifdef __CUDACC__\n{text}\n#endif" if name in _BY_INSTRUCTIONS else text

    def signature(self, symbol: str, parameters: Sequence[str], block: tuple[int, int, int]) -> str:
        threads = block[0] * block[1] * block[2]
        return (
            f'extern "C" __global__ void __launch_bounds__({threads})\n'
            f"{symbol}({', '.join(parameters)})"
        )

    def statement(self, node: LoopNode) -> cgen.Generable:
        if isinstance(node, Store) and node.statement in self.prefetches:
            size, value = node.dtype.bytes, node.value
            # The instruction only reads global memory.
            in_memory = isinstance(value, Read) and value.tensor not in self.buffers
            if size in (4, 8) and isinstance(value, Read) and in_memory:
                to, origin = self.lvalue(node.target), self.lvalue(value)
                return cgen.Line(f"fk_copy_async_{size}(&{to}, &{origin});")
        if isinstance(node, (MoveSums, MultiplyMatrices)):
            return tensor_cores(self, node)
        if isinstance(node, Wait) and self.prefetches:
            return cgen.Collection([cgen.Line("fk_wait_for_copies();"), cgen.Line(self.barrier)])
        return super().statement(node)

    def if_aligned(self, node: IfAligned) -> cgen.Generable:
        """One test for all threads: whether tensors are aligned."""
        always = isinstance(node.cond, Const) and node.cond.value
        asked = [] if always else [index_text(node.cond, self.names, 3)]
        asked += [f"fk_is_aligned({self.names.tensors[t]}, {n})" for t, n in node.tensors]
        return self._two_forms(" && ".join(asked), node)

    def across(self, threads: int) -> int:
        return -(-self.threads // WARP) if threads > WARP else 0

    def combine(self, name: str, c: str, op: str, threads: int) -> str:
        """Within warps by shuffles, between them through shared memory."""
        shared = f", {c} *across" if self.across(threads) else ""
        lines = [f"static __device__ inline {c} {name}({c} value{shared})", "{"]
        lines += [
            f"  for (int apart = {min(threads, WARP) // 2}; apart > 0; apart /= 2) {{",
            f"    const {c} other = __shfl_xor_sync(0xffffffffu, value, apart);",
            f"    value = {op};",
            "  }",
        ]
        if shared:
            warps = threads // WARP
            lines += [
                f"  const int thread = {_LINEAR};",
                f"  if (thread % {WARP} == 0)",
                f"    across[thread / {WARP}] = value;",
                "  __syncthreads();",
                f"  const int first = thread / {threads} * {warps};",
                "  value = across[first];",
                f"  for (int warp = 1; warp < {warps}; ++warp) {{",
                f"    const {c} other = across[first + warp];",
                f"    value = {op};",
                "  }",
                "  __syncthreads(); /* what is shared may be written again */",
            ]
        return "\n".join([*lines, "  return value;", "}"])

    @classmethod
    def definitions(cls, used: set[str]) -> list[str]:
        plain = {"int8": "signed char", "int16": "short", "int32": "int", "int64": "long long"}
        own = [f"typedef {plain[n]} {n}_t;" for n in _SIZED if f"{n}_t" in used]
        own += [
            f"typedef unsigned {plain[n].replace('signed ', '')} u{n}_t;"
            for n in _SIZED
            if f"u{n}_t" in used
        ]
        own += _limits(used, "LL")
        for name, bits in (("NAN", "0x7fffffff"), ("INFINITY", "0x7f800000")):
            if name in used:
                own.append(f"#define {name} __int_as_float({bits})")
        halves = _halves(used)
        if own:  # NVRTC has no headers
            headers = ("#include <math.h>", "#include <stdint.h>")
            own = ["#ifdef __CUDACC_RTC__", *own, "#else", *headers, "#endif"]
        return [*own, *halves]


class OpenClPrinter(KernelPrinter):
    """OpenCL C 1.2."""

    own_helpers = _OF_OPENCL

    reserved = OPENCL_RESERVED
    name, suffix = "opencl", ".cl"
    barrier = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"
    block_index = tuple(f"get_group_id({k})" for k in range(3))
    grid_size = tuple(f"get_num_groups({k})" for k in range(3))
    thread_index = tuple(f"(int)get_local_id({k})" for k in range(3))
    helper, shared, pointer = "static inline", "__local", "__global "
    aligned = "__attribute__((aligned(%d)))"
    no_contraction = "#pragma OPENCL FP_CONTRACT OFF"

    def signature(self, symbol: str, parameters: Sequence[str], block: tuple[int, int, int]) -> str:
        shape = ", ".join(map(str, block))
        return (
            f"__kernel __attribute__((reqd_work_group_size({shape})))\n"
            f"void {symbol}({', '.join(parameters)})"
        )

    def statement(self, node: LoopNode) -> cgen.Generable:
        inside = walk_loops(node.then) if isinstance(node, If) and node.other is None else ()
        if isinstance(node, If) and any(isinstance(n, (Wait, Combine)) for n in inside):
            # PoCL 3 overwrites memory where a barrier is below a condition, but not in a loop, and
            # breaks the code around it unless another barrier follows.
            once = f"fk_once < ({index_text(node.cond, self.names)})"
            body = as_block(self.statement(node.then))
            loop = cgen.For("int fk_once = 0", once, "fk_once++", body)
            return cgen.Collection([loop, cgen.Line(self.barrier)])
        return super().statement(node)

    def across(self, threads: int) -> int:
        return self.threads

    def combine(self, name: str, c: str, op: str, threads: int) -> str:
        """Combine through shared memory, halving the threads: OpenCL 1.2 has no shuffles.

        It is always inlined.  Called twice, PoCL may leave it a function, and results were then
        sometimes wrong with blocks that run at once.
        """
        return "\n".join([
            "__attribute__((always_inline))",
            f"static inline {c} {name}({c} value, __local {c} *across)",
            "{",
            "  const int thread = (int)get_local_id(0) + (int)get_local_size(0) *",
            "    ((int)get_local_id(1) + (int)get_local_size(1) * (int)get_local_id(2));",
            "  across[thread] = value;",
            "  barrier(CLK_LOCAL_MEM_FENCE);",
            f"  for (int apart = {threads // 2}; apart > 0; apart /= 2) {{",
            f"    if (thread % {threads} < apart) {{",
            f"      const {c} other = across[thread + apart];",
            f"      across[thread] = value = {op};",
            "    }",
            "    barrier(CLK_LOCAL_MEM_FENCE);",
            "  }",
            f"  value = across[thread / {threads} * {threads}];",
            "  barrier(CLK_LOCAL_MEM_FENCE); /* what is shared may be written again */",
            "  return value;",
            "}",
        ])  # fmt: skip

    @classmethod
    def definitions(cls, used: set[str]) -> list[str]:
        plain = {"int8": "char", "int16": "short", "int32": "int", "int64": "long"}
        lines = []
        if "double" in used:
            lines.append("#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
        lines += [f"typedef {plain[n]} {n}_t;" for n in _SIZED if f"{n}_t" in used]
        lines += [f"typedef u{plain[n]} u{n}_t;" for n in _SIZED if f"u{n}_t" in used]
        lines += _halves(used)
        lines += _limits(used, "L")
        lines += [f"#define {fn}f {fn}" for fn in MATH if f"{fn}f" in used]
        return lines


def alignment_of(count: int) -> int:
    """The alignment in bytes of a shared array of `count` bytes; 1: none."""
    return next((a for a in ALIGNMENTS if count % a == 0), 1)


def _has_loops(node: LoopNode) -> bool:
    """Whether a body has loops worth optimising; unaligned parts do not count."""
    if isinstance(node, IfAligned):
        return _has_loops(node.then)
    if isinstance(node, (Wait, Combine)) or (isinstance(node, For) and node.mark != Mark.WIDE):
        return True
    return any(map(_has_loops, children_of(node)))


def _halves(used: set[str]) -> list[str]:
    names = (C_TYPES[name] for name in PATTERNS)
    return [f"typedef unsigned short {name};" for name in names if name in used]


def _limits(used: set[str], ending: str) -> list[str]:
    """The constants of <stdint.h> that are used."""
    values = {
        "INT64_C(x)": f"x##{ending}",
        "UINT64_C(x)": f"x##U{ending}",
        "INT32_MIN": "(-2147483647 - 1)",
        "INT64_MIN": f"(-9223372036854775807{ending} - 1)",
    }
    return [f"#define {k} {v}" for k, v in values.items() if k.partition("(")[0] in used]
