"""Wide copies to shared memory: adjacent elements that one thread copies, see `Copy.together`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codegen.loops.index_ranges import replace_var
from codegen.loops.nodes import Buffer, For, Store
from codegen.vector.vectorise import lane_stride
from poly.buffers.copies import TOGETHER
from poly.ir.expr import Const, Read
from poly.ir.linear_form import linear_form, normal
from poly.tree.kinds import Mark, Scope

#: CUDA's copy helpers.
CUDA_COPIES = {
    "fk_copy_4x4": (
        "/* four 32-bit numbers to shared memory; that they are aligned is not known */\n"
        "static inline void fk_copy_4x4(void *to, const void *from)\n"
        "{\n  if (((unsigned long long)from & 15) == 0) *(int4 *)to = *(const int4 *)from;\n"
        "  else for (int n = 0; n < 4; n++) ((int *)to)[n] = ((const int *)from)[n];\n}"
    ),
    "fk_copy_16": (
        "/* eight 16-bit numbers to shared memory; that they are aligned is not known */\n"
        "static inline void fk_copy_16(void *to, const void *from)\n"
        "{\n  if (((unsigned long long)from & 15) == 0) *(int4 *)to = *(const int4 *)from;\n"
        "  else for (int n = 0; n < 8; n++) ((short *)to)[n] = ((const short *)from)[n];\n}"
    ),
    "fk_copy_async_16": (
        "/* the same while threads go on */\n"
        "static inline void fk_copy_async_16(void *to, const void *from)\n"
        "{\n#if __CUDA_ARCH__ >= 800\n"
        "  if (((unsigned long long)from & 15) == 0) {\n"
        "    const unsigned shared = (unsigned)__cvta_generic_to_shared(to);\n"
        '    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"\n'
        '      :: "r"(shared), "l"(from) : "memory");\n'
        "    return;\n  }\n"
        "#endif\n  fk_copy_16(to, from);\n}"
    ),
    **{
        f"fk_copy_async_{size}": (
            f"/* copies {size} bytes to shared memory, without a register, while threads go on */\n"
            f"static inline void fk_copy_async_{size}(void *to, const void *from)\n"
            "{\n#if __CUDA_ARCH__ >= 800\n"
            "  const unsigned shared = (unsigned)__cvta_generic_to_shared(to);\n"
            f'  asm volatile("cp.async.ca.shared.global [%0], [%1], {size};"\n'
            '    :: "r"(shared), "l"(from) : "memory");\n'
            f"#else\n  *({c} *)to = *(const {c} *)from;\n#endif\n}}"
        )
        for size, c in ((4, "int"), (8, "long long"))
    },
    "fk_copy_async_4x4": (
        "/* and four of 4 */\n"
        "static inline void fk_copy_async_4x4(void *to, const void *from)\n"
        "{\n#if __CUDA_ARCH__ >= 800\n"
        "  if (((unsigned long long)from & 15) == 0) {\n"
        "    const unsigned shared = (unsigned)__cvta_generic_to_shared(to);\n"
        '    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"\n'
        '      :: "r"(shared), "l"(from) : "memory");\n'
        "    return;\n  }\n"
        "  for (int n = 0; n < 4; n++) fk_copy_async_4((int *)to + n, (const int *)from + n);\n"
        "#else\n  fk_copy_4x4(to, from);\n#endif\n}"
    ),
    "fk_wait_for_copies": (
        "static inline void fk_wait_for_copies()\n"
        "{\n#if __CUDA_ARCH__ >= 800\n"
        '  asm volatile("cp.async.wait_all;" ::: "memory");\n'
        "#endif\n}"
    ),
}
#: OpenCL's copy helpers.
OPENCL_COPIES = {
    "fk_copy_4x4": (
        "/* four 32-bit numbers to shared memory */\n"
        "static inline void fk_copy_4x4(__local void *to, __global const void *from)\n"
        "{ vstore4(vload4(0, (__global const int *)from), 0, (__local int *)to); }"
    ),
    "fk_copy_16": (
        "/* eight 16-bit numbers to shared memory */\n"
        "static inline void fk_copy_16(__local void *to, __global const void *from)\n"
        "{ vstore8(vload8(0, (__global const short *)from), 0, (__local short *)to); }"
    ),
}


def copied_rows(node: For, buffers: Mapping[str, Buffer]) -> tuple[Read, Read] | None:
    """The first source and target elements of a loop that copies whole rows of 16 bytes.

    None if it is not such a copy: it may have conditions inside, or other bounds.
    """
    store = node.body
    if (
        node.mark != Mark.WIDE
        or not isinstance(store, Store)
        or not isinstance(store.value, Read)
        or store.op != "="
        or node.lower != Const(0)
        or node.trip != TOGETHER // store.dtype.bytes
    ):
        return None
    buffer = buffers.get(store.target.tensor)
    if buffer is None or buffer.scope != Scope.SHARED or store.value.tensor in buffers:
        return None
    if any(lane_stride(read, node.var) != 1 for read in (store.target, store.value)):
        return None
    first = [
        replace(r, indices=tuple(normal(replace_var(i, node.var, Const(0))) for i in r.indices))
        for r in (store.target, store.value)
    ]
    count = TOGETHER // store.dtype.bytes
    row = linear_form(first[0].indices[-1])
    whole = row.is_multiple_of(count) and buffer.shape[-1] % count == 0
    return (first[0], first[1]) if whole else None
