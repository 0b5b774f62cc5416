"""CUDA C and OpenCL C: what a kernel's text is made of, and where the two differ.

A dialect is a small class; everything else is `CTarget`'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import cgen

from codegen.blocks import as_block
from codegen.cexpr import Names, index_text
from codegen.loopir import Buffer, For, If, LoopNode, Wait, walk_loops
from codegen.prelude import HELPERS
from codegen.spelling import C_TYPES
from codegen.target import CTarget
from poly.errors import ScheduleError
from poly.program import Program

_NAMES = re.compile(r"\b[A-Za-z_]\w*\b")
_SIZED = ("int8", "int16", "int32", "int64")
#: Functions of C's math library on floats, which OpenCL overloads by type.
_MATH = (
    "sqrt exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf pow atan2 fabs "
    "floor ceil trunc rint fmod copysign"
).split()


class KernelTarget(CTarget):
    """Prints what one thread of a GPU runs.  Functions such as exp are the device's."""

    #: What a dialect is called, and the end of its files.
    name, suffix = "", ""
    barrier = ""
    #: How the place of a block in the grid, and of a thread in its block, are read, by axis.
    block_index: Sequence[str] = ()
    thread_index: Sequence[str] = ()
    #: What stands before a helper, an array that a block shares, and a pointer to a tensor.
    helper, shared, pointer, restrict = "static inline", "", "", "restrict"

    def __init__(self, program: Program, identifiers: Names) -> None:
        super().__init__(program, identifiers, exact=True)
        #: Declarations of what a block shares, which stand at the head of the kernel.
        self.shared_arrays: list[str] = []

    # --- hooks of a dialect --------------------------------------------------------------------

    def signature(self, symbol: str, parameters: Sequence[str], block: tuple[int, int, int]) -> str:
        """The head of a kernel for blocks of so many threads in x, y and z."""
        raise NotImplementedError

    @classmethod
    def types(cls, used: set[str]) -> list[str]:
        """Lines that define what the code uses and the dialect does not have."""
        raise NotImplementedError

    # --- statements ------------------------------------------------------------------------

    def statement(self, node: LoopNode) -> cgen.Generable:
        if isinstance(node, Wait):
            return cgen.Line(self.barrier)
        if isinstance(node, For) and node.mark in ("block", "thread", "place"):
            return self._at_place(node)
        if isinstance(node, For) and node.mark in ("vector", "parallel"):
            step = {"vector": "vectorize", "parallel": "parallelize"}[node.mark]
            raise ScheduleError(
                f"{step} of {node.label} has no meaning on a GPU; use map_threads and map_blocks"
            )
        if isinstance(node, Buffer) and node.scope == "shared":
            return self._shared_array(node)
        return super().statement(node)

    def _at_place(self, node: For) -> cgen.Generable:
        """What runs at one place only, behind the number of the place."""
        var = self.names.loops[node.var]
        body = self.statement(node.body)
        if node.mark == "place":
            value = index_text(node.lower, self.names)
        else:
            axis = "xyz".index(node.label.rstrip("_")[-1])
            value = (self.block_index if node.mark == "block" else self.thread_index)[axis]
        if var not in set(_NAMES.findall("\n".join([*body.generate(), *self.shared_arrays]))):
            return body
        kind = "int" if node.mark != "block" else "int64_t"
        return cgen.Collection([cgen.Line(f"const {kind} {var} = {value};"), body])

    def _shared_array(self, node: Buffer) -> cgen.Generable:
        outer = (self.buffers.get(node.name), self.registers.pop(node.name, None))
        self.buffers[node.name] = node
        self.dtypes[node.name] = node.dtype
        shape = "".join(f"[{n}]" for n in node.shape)
        c, name = C_TYPES[node.dtype.name], self.names.tensors[node.name]
        line = f"{self.shared} {c} {name}{shape};"
        if line not in self.shared_arrays:
            self.shared_arrays.append(line)
        body = self.statement(node.body)
        for table, before in zip((self.buffers, self.registers), outer, strict=True):
            if before is None:
                table.pop(node.name, None)
            else:
                table[node.name] = before
        return body

    # --- what stands above a kernel ----------------------------------------------------------

    @classmethod
    def prelude(cls, code: str) -> str:
        """The types and helpers that kernels use."""
        called = set(_NAMES.findall(code))
        helpers = [text for name, text in HELPERS.items() if name in called]
        texts = [text.replace("static inline", cls.helper) for text in helpers]
        used = called | set(_NAMES.findall("\n".join(texts)))
        return "\n".join([*cls.types(used), *texts])


class CudaTarget(KernelTarget):
    """CUDA C, for nvcc and for NVRTC, which has no headers."""

    name, suffix = "cuda", ".cu"
    barrier = "__syncthreads();"
    block_index = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
    thread_index = ("(int)threadIdx.x", "(int)threadIdx.y", "(int)threadIdx.z")
    helper, shared, restrict = "static __device__ inline", "__shared__", "__restrict__"

    def signature(self, symbol: str, parameters: Sequence[str], block: tuple[int, int, int]) -> str:
        threads = block[0] * block[1] * block[2]
        return (
            f'extern "C" __global__ void __launch_bounds__({threads})\n'
            f"{symbol}({', '.join(parameters)})"
        )

    @classmethod
    def types(cls, used: set[str]) -> list[str]:
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
        if not own:
            return []
        return ["#ifdef __CUDACC_RTC__", *own, "#else", "#include <math.h>", "#include <stdint.h>",
                "#endif"]  # fmt: skip


class OpenClTarget(KernelTarget):
    """OpenCL C 1.2."""

    name, suffix = "opencl", ".cl"
    barrier = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"
    block_index = tuple(f"get_group_id({k})" for k in range(3))
    thread_index = tuple(f"(int)get_local_id({k})" for k in range(3))
    helper, shared, pointer = "static inline", "__local", "__global "

    def signature(self, symbol: str, parameters: Sequence[str], block: tuple[int, int, int]) -> str:
        shape = ", ".join(map(str, block))
        return (
            f"__kernel __attribute__((reqd_work_group_size({shape})))\n"
            f"void {symbol}({', '.join(parameters)})"
        )

    def statement(self, node: LoopNode) -> cgen.Generable:
        below = walk_loops(node.then) if isinstance(node, If) and node.other is None else ()
        if isinstance(node, If) and any(isinstance(n, Wait) for n in below):
            # PoCL 3 overwrites memory where a barrier is below a condition, but not in a loop.
            once = f"fk_once < ({index_text(node.cond, self.names)})"
            return cgen.For(
                "int fk_once = 0", once, "fk_once++", as_block(self.statement(node.then))
            )
        return super().statement(node)

    @classmethod
    def types(cls, used: set[str]) -> list[str]:
        plain = {"int8": "char", "int16": "short", "int32": "int", "int64": "long"}
        lines = []
        if "double" in used:
            lines.append("#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
        lines += [f"typedef {plain[n]} {n}_t;" for n in _SIZED if f"{n}_t" in used]
        lines += [f"typedef u{plain[n]} u{n}_t;" for n in _SIZED if f"u{n}_t" in used]
        lines += _limits(used, "L")
        lines += [f"#define {fn}f {fn}" for fn in _MATH if f"{fn}f" in used]
        return lines


def _limits(used: set[str], ending: str) -> list[str]:
    """What <stdint.h> has beside types."""
    values = {
        "INT64_C(x)": f"x##{ending}",
        "UINT64_C(x)": f"x##U{ending}",
        "INT32_MIN": "(-2147483647 - 1)",
        "INT64_MIN": f"(-9223372036854775807{ending} - 1)",
    }
    return [f"#define {k} {v}" for k, v in values.items() if k.partition("(")[0] in used]
