"""Suite K: 73 kernels of networks and of code that no library has, and the cost of a call.

The names mean:

* ``mm512``: square product, both factors inputs of every call; ``bmm12x128x64x128``: batch 12 of
  128 x 64 times 64 x 128, likewise.
* ``gemv1x4096x1024``, ``mm128x3072x768``: rows x inner x columns with constant weights, as linear
  layers (of a recogniser, of BERT).
* ``rn_CxK_kRsS_H``: convolution of ResNet-50 with bias, C channels to K, window R, stride S, on an
  image of H x H, padded by half the window; ``mb_pw``, ``mb_dw``: pointwise and depthwise 3x3 of
  MobileNetV2.  Weights and biases are constants; batch normalisation would be folded into them.
* ``tc_…``: contractions of two tensors of rank 4, every extent the number at the end;
  ``bilinear64``: ``ni,oij,nj->no``; ``mttkrp256_r32``: ``ijk,jr,kr->ir``, 256³ and rank 32.
* ``gconv_g32_128_56``: 3x3 in 32 groups of 4 channels on 56 x 56, as in ResNeXt.
* ``tbmm_scale_bias_relu``: 500 products of 26 x 72 with 72 x 26, the second factor transposed, then
  ``max(0.125·P + bias, 0)``.
* ``kru3_256``: ``(A ⊗ B ⊗ C) x`` for 256 vectors x, with square factors of 8, 24 and 32.
* ``attn12x128x64``: softmax(Q Kᵀ / 8) V, 12 heads, 128 positions, depth 64.

Operations count a multiply-add as two and include taps on padding; of several factors, those of
the cheapest order of pairwise products.  Softmax counts five an element, normalisation eight.
"""

from __future__ import annotations

from functools import cache

from benchmarks.convolution import conv2d
from benchmarks.kernel import Kernel, Product
from benchmarks.other_kernels import (
    addrelu,
    attention,
    global_average,
    layernorm,
    linear,
    maxpool,
    relu,
    scaled_product,
    softmax,
    transpose,
)

#: Families in the order of the tables.
FAMILIES = ("overhead", "matmul", "resnet50", "mbv2_pw", "mbv2_dw", "memory", "custom")

#: Channels in, channels out, window, stride, extent of the input.
RESNET = (
    (3, 64, 7, 2, 224), (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56),
    (256, 64, 1, 1, 56), (256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 512, 1, 1, 28),
    (256, 512, 1, 2, 56), (512, 128, 1, 1, 28), (128, 128, 3, 1, 28), (512, 256, 1, 1, 28),
    (256, 256, 3, 2, 28), (256, 1024, 1, 1, 14), (512, 1024, 1, 2, 28), (1024, 256, 1, 1, 14),
    (256, 256, 3, 1, 14), (1024, 512, 1, 1, 14), (512, 512, 3, 2, 14), (512, 2048, 1, 1, 7),
    (1024, 2048, 1, 2, 14), (2048, 512, 1, 1, 7), (512, 512, 3, 1, 7),
)  # fmt: skip

#: Channels in, channels out, extent.
_POINTWISE = (
    (32, 16, 112), (16, 96, 112), (96, 24, 56), (24, 144, 56), (144, 24, 56), (144, 32, 28),
    (32, 192, 28), (192, 32, 28), (192, 64, 14), (64, 384, 14), (384, 64, 14), (384, 96, 14),
    (96, 576, 14), (576, 96, 14), (576, 160, 7), (160, 960, 7), (960, 160, 7), (960, 320, 7),
    (320, 1280, 7),
)  # fmt: skip

#: Channels, stride, extent of the input.
_DEPTHWISE = (
    (32, 1, 112), (96, 2, 112), (144, 1, 56), (144, 2, 56), (192, 1, 28), (192, 2, 28),
    (384, 1, 14), (576, 1, 14), (576, 2, 14), (960, 1, 7),
)  # fmt: skip


@cache
def suite_k() -> tuple[Kernel, ...]:
    """The kernels, by family."""
    found: list[Kernel] = [relu("overhead_relu16", "overhead", 16)]
    for n in (512, 1024, 2048):
        found.append(Product(f"mm{n}", "matmul", "ij,jk->ik", {"i": n, "j": n, "k": n}))
    found.append(linear("gemv1x4096x1024", "matmul", 1, 4096, 1024))
    found.append(linear("mm128x3072x768", "matmul", 128, 3072, 768))
    batch = {"b": 12, "i": 128, "j": 64, "k": 128}
    found.append(Product("bmm12x128x64x128", "matmul", "bij,bjk->bik", batch))
    for c, k, r, s, h in RESNET:
        found.append(conv2d(f"rn_{c}x{k}_k{r}s{s}_{h}", "resnet50", c, k, h, r, s))
    found.append(conv2d("mb_stem3x32_s2_224", "mbv2_pw", 3, 32, 224, 3, 2))
    for c, k, h in _POINTWISE:
        found.append(conv2d(f"mb_pw{c}x{k}_{h}", "mbv2_pw", c, k, h, 1))
    for c, s, h in _DEPTHWISE:
        found.append(conv2d(f"mb_dw{c}_s{s}_{h}", "mbv2_dw", c, c, h, 3, s, groups=c))
    found += [
        softmax("softmax12x128x128", "memory", (12, 128, 128)),
        layernorm("layernorm128x768", "memory", 128, 768),
        addrelu("addrelu256x56x56", "memory", (1, 256, 56, 56)),
        transpose("transpose1024", "memory", 1024, 1024),
        maxpool("maxpool64x112", "memory", 64, 112),
        global_average("gap2048x7", "memory", 2048, 7),
    ]
    found += _custom()
    return tuple(found)


def _custom() -> list[Kernel]:
    """Contractions and compositions that no library has, which need a compiler."""

    def product(name: str, spec: str, **extents: int) -> Product:
        return Product(name, "custom", spec, extents)

    def cube(name: str, spec: str, extent: int) -> Product:
        return product(name, spec, **{x: extent for x in spec if x.isalpha()})

    return [
        cube("bilinear64", "ni,oij,nj->no", 64),
        cube("tc_abcd_cdef_32", "abcd,cdef->abef", 32),
        cube("tc_aebf_dfce_24", "aebf,dfce->abcd", 24),
        conv2d("gconv_g32_128_56", "custom", 128, 128, 56, 3, groups=32),
        scaled_product("tbmm_scale_bias_relu", "custom", 500, 26, 26, 72),
        product("kru3_256", "nabc,xa,yb,zc->nxyz", n=256, a=8, b=24, c=32, x=8, y=24, z=32),
        product("mttkrp256_r32", "ijk,jr,kr->ir", i=256, j=256, k=256, r=32),
        attention("attn12x128x64", "custom", 12, 128, 64),
    ]
