"""Suite K and the held-out shapes: names, operations, and results by numpy, ONNX and Farkas."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import farkas as fk
from benchmarks.convolution import Convolution, Transposed, conv1d, conv2d
from benchmarks.heldout import FAMILIES as HELDOUT_FAMILIES
from benchmarks.heldout import heldout
from benchmarks.kernel import Array, Kernel, Product
from benchmarks.kernels import FAMILIES, suite_k
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
from benchmarks.task import Task
from benchmarks.worker import difference

#: GFLOP of the kernels in order, as other measurements of the same names count them.
GIGAFLOPS = """
overhead_relu16 0.000  mm512 0.268  mm1024 2.147  mm2048 17.180  gemv1x4096x1024 0.008
mm128x3072x768 0.604  bmm12x128x64x128 0.025  rn_3x64_k7s2_224 0.236  rn_64x64_k1s1_56 0.026
rn_64x64_k3s1_56 0.231  rn_64x256_k1s1_56 0.103  rn_256x64_k1s1_56 0.103
rn_256x128_k1s1_56 0.206  rn_128x128_k3s2_56 0.231  rn_128x512_k1s1_28 0.103
rn_256x512_k1s2_56 0.206  rn_512x128_k1s1_28 0.103  rn_128x128_k3s1_28 0.231
rn_512x256_k1s1_28 0.206  rn_256x256_k3s2_28 0.231  rn_256x1024_k1s1_14 0.103
rn_512x1024_k1s2_28 0.206  rn_1024x256_k1s1_14 0.103  rn_256x256_k3s1_14 0.231
rn_1024x512_k1s1_14 0.206  rn_512x512_k3s2_14 0.231  rn_512x2048_k1s1_7 0.103
rn_1024x2048_k1s2_14 0.206  rn_2048x512_k1s1_7 0.103  rn_512x512_k3s1_7 0.231
mb_stem3x32_s2_224 0.022  mb_dw32_s1_112 0.007  mb_pw32x16_112 0.013  mb_pw16x96_112 0.039
mb_dw96_s2_112 0.005  mb_pw96x24_56 0.014  mb_pw24x144_56 0.022  mb_dw144_s1_56 0.008
mb_pw144x24_56 0.022  mb_dw144_s2_56 0.002  mb_pw144x32_28 0.007  mb_pw32x192_28 0.010
mb_dw192_s1_28 0.003  mb_pw192x32_28 0.010  mb_dw192_s2_28 0.001  mb_pw192x64_14 0.005
mb_pw64x384_14 0.010  mb_dw384_s1_14 0.001  mb_pw384x64_14 0.010  mb_pw384x96_14 0.014
mb_pw96x576_14 0.022  mb_dw576_s1_14 0.002  mb_pw576x96_14 0.022  mb_dw576_s2_14 0.001
mb_pw576x160_7 0.009  mb_pw160x960_7 0.015  mb_dw960_s1_7 0.001  mb_pw960x160_7 0.015
mb_pw960x320_7 0.030  mb_pw320x1280_7 0.040  softmax12x128x128 0.001  layernorm128x768 0.001
addrelu256x56x56 0.002  transpose1024 0.000  maxpool64x112 0.002  gap2048x7 0.000
bilinear64 0.034  tc_abcd_cdef_32 2.147  tc_aebf_dfce_24 0.382  gconv_g32_128_56 0.029
tbmm_scale_bias_relu 0.049  kru3_256 0.201  mttkrp256_r32 1.078  attn12x128x64 0.050
""".split()

ALL = [*suite_k(), *heldout()]

#: One of each kind, small and odd.
SMALL: list[Kernel] = [
    Product("product", "small", "ij,jk->ik", {"i": 5, "j": 7, "k": 9}),
    Product("batch", "small", "bij,bjk->bik", {"b": 2, "i": 5, "j": 7, "k": 9}),
    Product("three", "small", "ijk,jr,kr->ir", {"i": 5, "j": 4, "k": 3, "r": 6}),
    Product("dots", "small", "ij,ij->i", {"i": 5, "j": 7}),
    linear("linear", "small", 3, 10, 17),
    relu("relu", "small", 11),
    softmax("softmax", "small", (2, 3, 19)),
    layernorm("layernorm", "small", 3, 21),
    addrelu("addrelu", "small", (1, 3, 4, 5)),
    transpose("transpose", "small", 5, 9),
    maxpool("maxpool", "small", 3, 9),
    global_average("mean", "small", 5, 3),
    scaled_product("scaled", "small", 3, 4, 5, 6),
    attention("attention", "small", 2, 6, 4),
    conv2d("conv", "small", 3, 5, (7, 9), 3, 2),
    conv2d("dilated", "small", 2, 3, 9, 3, dilation=2, batch=2),
    conv2d("depthwise", "small", 4, 4, 8, 5, groups=4),
    conv2d("grouped", "small", 6, 9, 5, 3, groups=3),
    conv1d("line", "small", 3, 4, 15, 5),
    Transposed("transposed", "small", 3, 2, (4, 5), 3, 2, 1),
]


def named(kernel: Kernel) -> str:
    return kernel.name


def of_ort(kernel: Kernel, arrays: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(
        kernel.model(arrays).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (result,) = session.run(None, {n: arrays[n] for n in kernel.inputs})
    return np.asarray(result)


def test_the_suite_is_complete_and_counts_as_others_do() -> None:
    expected = dict(zip(GIGAFLOPS[::2], GIGAFLOPS[1::2], strict=True))
    found = {k.name: f"{k.flops / 1e9:.3f}" for k in suite_k()}
    assert found == expected
    assert len(suite_k()) == 74
    assert [f for f in FAMILIES if f in {k.family for k in suite_k()}] == list(FAMILIES)


def test_held_out_shapes_are_forty_others() -> None:
    assert len({k.name for k in heldout()}) == 40
    assert {k.family for k in heldout()} == set(HELDOUT_FAMILIES)
    used = {(type(k), tuple(k.inputs.values()), tuple(k.weights.values())) for k in suite_k()}
    for kernel in heldout():
        assert (
            type(kernel),
            tuple(kernel.inputs.values()),
            tuple(kernel.weights.values()),
        ) not in used


@pytest.mark.parametrize("kernel", ALL, ids=named)
def test_onnx_infers_the_output(kernel: Kernel) -> None:
    # Weights without their values: inference looks at shapes only.
    zeros = {n: np.zeros(s, np.float32) for n, s in kernel.weights.items()}
    model = kernel.model(zeros)
    onnx.checker.check_model(model)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output[0]
    shape = tuple(d.dim_value for d in inferred.type.tensor_type.shape.dim)
    assert shape == kernel.output
    moved = sum(int(np.prod(s)) for s in [*kernel.inputs.values(), *kernel.weights.values(), shape])
    assert kernel.bytes == 4 * moved


@pytest.mark.parametrize("kernel", SMALL, ids=named)
def test_small_ones_agree(kernel: Kernel) -> None:
    """numpy, ONNX Runtime, Farkas from ONNX, and Farkas from text with open and fixed sizes."""
    arrays = kernel.draw(1)
    expected = kernel.reference(arrays)
    assert expected.shape == kernel.output and expected.dtype == np.float32
    results = [of_ort(kernel, arrays)]
    if not isinstance(kernel, Product):
        model = fk.compile_onnx(kernel.model(arrays))
        results.append(model.run({n: arrays[n] for n in kernel.inputs})["Y"])
    text = kernel.text
    if text is not None:
        assert set(text.shapes) == {*kernel.inputs, *kernel.weights}
        given = [arrays[n].reshape(s) for n, s in text.shapes.items()]
        # With open sizes, the C compiler takes long over convolutions: one of them will do.
        open_too = not isinstance(kernel, Convolution) or kernel.name == "conv"
        for sizes in (None, text.sizes) if open_too else (text.sizes,):
            result = fk.compile(text.text, sizes=sizes)(*given)
            assert isinstance(result, np.ndarray)
            results.append(result)
    for result in results:
        assert difference([result], [expected]) < 1e-5


def test_what_has_no_text_says_so() -> None:
    assert {k.name for k in SMALL if k.text is None} == {"grouped", "transposed"}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ALL, ids=named)
def test_all_agree_with_onnx_runtime(kernel: Kernel) -> None:
    arrays = kernel.draw()
    expected = kernel.reference(arrays)
    assert np.isfinite(expected).all() and 0.05 < float(np.abs(expected).max()) < 1e4
    assert difference([of_ort(kernel, arrays)], [expected]) < Task.tolerance


def test_operations_of_the_cheapest_order() -> None:
    sizes = {"i": 2, "j": 3, "k": 5, "l": 7}
    assert Product("p", "f", "ij,jk,kl->il", sizes).flops == 2 * (2 * 3 * 5 + 2 * 5 * 7)
    assert Product("p", "f", "ij,jk->ik", sizes).flops == 2 * 2 * 3 * 5
    assert Product("p", "f", "ij->i", sizes).flops == 6
