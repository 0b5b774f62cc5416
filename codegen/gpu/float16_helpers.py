"""16-bit floats in GPU kernels: bit patterns that helpers load and store."""

from __future__ import annotations

#: For CUDA, in inline PTX, since NVRTC lacks the header that defines the conversions.
CUDA_HALVES = {
    "fk_f16_load": (
        "static inline float fk_f16_load(fk_f16 x)\n"
        '{ float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x)); return f; }'
    ),
    "fk_f16_store": (
        "static inline fk_f16 fk_f16_store(float f)\n"
        '{ fk_f16 x; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(f)); return x; }'
    ),
    "fk_f16_store_f64": (
        "static inline fk_f16 fk_f16_store_f64(double f)\n"
        '{ fk_f16 x; asm("cvt.rn.f16.f64 %0, %1;" : "=h"(x) : "d"(f)); return x; }'
    ),
    "fk_bf16_load": (
        "static inline float fk_bf16_load(fk_bf16 x)\n"
        "{ return __uint_as_float((unsigned)x << 16); }"
    ),
    "fk_bf16_store": (
        "static inline fk_bf16 fk_bf16_store(float f)\n"
        '{ fk_bf16 x; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x) : "f"(f)); return x; }'
    ),
}
#: For OpenCL, where half is a storage type only; bit manipulation works on every device.
OPENCL_HALVES = {
    "fk_f16_load": (
        "static inline float fk_f16_load(fk_f16 x)\n"
        "{ const uint size = x & 0x7fff, sign = (uint)(x & 0x8000) << 16;\n"
        "  if (size < 0x400) return as_float(sign | as_uint((float)size * 0x1p-24f));\n"
        "  const uint more = size < 0x7c00 ? 112u << 23 : 224u << 23; /* or infinite, or NaN */\n"
        "  return as_float(sign | ((size << 13) + more)); }"
    ),
    "fk_f16_store": (
        "/* round to nearest even */\n"
        "static inline fk_f16 fk_f16_store(float f)\n"
        "{ uint u = as_uint(f) & 0x7fffffff, sign = (as_uint(f) >> 16) & 0x8000;\n"
        "  if (u > 0x7f800000) return (fk_f16)(sign | 0x7e00); /* NaN */\n"
        "  if (u >= 0x477ff000) return (fk_f16)(sign | 0x7c00); /* infinite */\n"
        "  if (u < 0x38800000) return (fk_f16)(sign | (uint)rint(as_float(u) * 0x1p24f));\n"
        "  return (fk_f16)(sign | ((u + 0xfff + ((u >> 13) & 1) - (112u << 23)) >> 13)); }"
    ),
    "fk_f16_store_f64": (
        "/* cut to an odd float first, so that it is rounded once */\n"
        "static inline fk_f16 fk_f16_store_f64(double d)\n"
        "{ float f = convert_float_rtz(d);\n"
        "  return fk_f16_store(f == d ? f : as_float(as_uint(f) | 1)); }"
    ),
    "fk_bf16_load": (
        "static inline float fk_bf16_load(fk_bf16 x) { return as_float((uint)x << 16); }"
    ),
    "fk_bf16_store": (
        "/* round to nearest even; NaN stays NaN */\n"
        "static inline fk_bf16 fk_bf16_store(float f)\n"
        "{ uint u = as_uint(f);\n"
        "  if (f != f) return (fk_bf16)((u >> 16) | 64);\n"
        "  return (fk_bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16); }"
    ),
}
