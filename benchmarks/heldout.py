"""Held-out shapes: 16 contractions and 24 convolutions that nothing was tuned for.

Odd and prime extents, dilation, depthwise windows of 5 and 7, batches of 8, one dimension,
transposed convolutions.  They are measured like suite K, and must not be used to choose
parameters.
"""

from __future__ import annotations

from functools import cache

from benchmarks.convolution import Transposed, conv1d, conv2d
from benchmarks.kernel import Kernel, Product

FAMILIES = ("contraction", "convolution", "depthwise", "conv1d", "transposed")


@cache
def heldout() -> tuple[Kernel, ...]:
    """The 40 kernels, by family."""
    return (*_contractions(), *_convolutions(), *_depthwise(), *_lines(), *_transposed())


def _contractions() -> list[Kernel]:
    def product(name: str, spec: str, *extents: int) -> Product:
        letters = dict.fromkeys(x for x in spec if x.isalpha())
        return Product(name, "contraction", spec, dict(zip(letters, extents, strict=True)))

    return [
        product("ho_mm333", "ij,jk->ik", 333, 333, 333),
        product("ho_mm97x1009x211", "ij,jk->ik", 97, 1009, 211),
        product("ho_mm1000x17x1000", "ij,jk->ik", 1000, 17, 1000),
        product("ho_mm13x4099x37", "ij,jk->ik", 13, 4099, 37),
        product("ho_mm_bt257x509x131", "ij,kj->ik", 257, 509, 131),
        product("ho_mm_at509x301x263", "ji,jk->ik", 509, 301, 263),
        product("ho_bmm8x61x67x71", "bij,bjk->bik", 8, 61, 67, 71),
        product("ho_bmm_bt48x37x29x53", "bij,bkj->bik", 48, 37, 29, 53),
        product("ho_gemv_1777x3001", "ij,j->i", 1777, 3001),
        product("ho_rowdot_2003x499", "ij,ij->i", 2003, 499),
        product("ho_chain3_150x170x190x210", "ij,jk,kl->il", 150, 170, 190, 210),
        product("ho_tc_abcd_dbea_ec", "abcd,dbea->ec", 29, 23, 31, 19, 37),
        product("ho_tc_abc_acd_db", "abc,acd->db", 41, 127, 43, 131),
        product("ho_tc_ijk_klj_il", "ijk,klj->il", 211, 67, 61, 103),
        product("ho_tucker_23", "ijkl,ja,kb,lc->iabc", 37, 23, 23, 23, 11, 13, 17),
        product("ho_mttkrp101_r19", "ijk,jr,kr->ir", 101, 113, 127, 19),
    ]


def _convolutions() -> list[Kernel]:
    family = "convolution"
    return [
        conv2d("ho_conv17x29_k3_31x43", family, 17, 29, (31, 43), 3),
        conv2d("ho_conv61x67_k3_53", family, 61, 67, 53, 3),
        conv2d("ho_conv37x53_k1_29x31", family, 37, 53, (29, 31), 1),
        conv2d("ho_conv100x200_k1_27", family, 100, 200, 27, 1),
        conv2d("ho_conv64x64_k3d2_41", family, 64, 64, 41, 3, dilation=2),
        conv2d("ho_conv48x96_k3d4_33", family, 48, 96, 33, 3, dilation=4),
        conv2d("ho_conv32x48_k5_37", family, 32, 48, 37, 5),
        conv2d("ho_conv24x40_k5s2_75", family, 24, 40, 75, 5, 2),
        conv2d("ho_conv3x96_k7s4_197", family, 3, 96, 197, 7, 4),
        conv2d("ho_conv64x64_k1x7_35", family, 64, 64, 35, (1, 7)),
        conv2d("ho_conv32x32_k3_b8_30", family, 32, 32, 30, 3, batch=8),
        conv2d("ho_conv72x72_g6_k3_45", family, 72, 72, 45, 3, groups=6),
    ]


def _depthwise() -> list[Kernel]:
    family = "depthwise"
    return [
        conv2d("ho_dw96_k5_47", family, 96, 96, 47, 5, groups=96),
        conv2d("ho_dw120_k5s2_57", family, 120, 120, 57, 5, 2, groups=120),
        conv2d("ho_dw80_k7_39", family, 80, 80, 39, 7, groups=80),
        conv2d("ho_dw67_k3_61", family, 67, 67, 61, 3, groups=67),
        conv2d("ho_dw64_k3d2_b8_25", family, 64, 64, 25, 3, dilation=2, groups=64, batch=8),
    ]


def _lines() -> list[Kernel]:
    family = "conv1d"
    return [
        conv1d("ho_conv1d_80x384_k3_751", family, 80, 384, 751, 3),
        conv1d("ho_conv1d_64x64_k3d8_1999", family, 64, 64, 1999, 3, dilation=8),
        conv1d("ho_conv1d_1x31_k251s10_16001", family, 1, 31, 16001, 251, 10),
        conv1d("ho_dw1d_256_k31_499", family, 256, 256, 499, 31, groups=256),
    ]


def _transposed() -> list[Kernel]:
    family = "transposed"
    return [
        Transposed("ho_convt128x64_k4s2_19", family, 128, 64, (19, 19), 4, 2, 1),
        Transposed("ho_convt67x41_k3s2_23x29", family, 67, 41, (23, 29), 3, 2, 0),
        Transposed("ho_convt32x16_k2s2_b8_27", family, 32, 16, (27, 27), 2, 2, 0, 8),
    ]
