"""Convolutions and pools against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from frontends.onnx import import_model
from poly.errors import ModelError
from poly.ir.graph import Call
from tests.frontends.onnx.onnx_support import agree, floats, single


def _conv(x: tuple[int, ...], w: tuple[int, ...], bias: bool = True, opset: int = 11, **attrs):
    inputs = {"x": floats(*x), "w": floats(*w)}
    if bias:
        inputs["b"] = floats(w[0])
    return agree(single("Conv", inputs, opset=opset, **attrs), inputs, 1e-5)


CONVS = [
    ((1, 3, 8, 9), (4, 3, 3, 3), {}),
    ((2, 3, 8, 9), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 3, 11, 9), (4, 3, 5, 3), {"pads": [2, 0, 1, 3], "strides": [2, 3]}),
    ((1, 3, 11, 12), (4, 3, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 1, 0]}),
    ((1, 4, 7, 7), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ((1, 4, 7, 7), (4, 1, 3, 3), {"group": 4, "strides": [2, 2]}),
    ((1, 4, 7, 7), (8, 1, 3, 3), {"group": 4}),
    ((1, 4, 7, 7), (2, 2, 1, 1), {"group": 2}),
    ((1, 5, 7, 7), (3, 5, 1, 1), {"strides": [2, 2]}),
    ((1, 1, 5, 5), (1, 1, 3, 3), {}),
    ((1, 3, 9, 10), (2, 3, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 9, 10), (2, 3, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ((1, 3, 9, 10), (2, 3, 4, 3), {"auto_pad": "VALID", "strides": [2, 1]}),
    ((2, 3, 12), (4, 3, 5), {"pads": [2, 1], "strides": [2]}),
    ((1, 2, 5, 6, 7), (3, 2, 3, 2, 3), {"pads": [1, 0, 1, 0, 1, 2], "strides": [1, 2, 1]}),
    ((1, 3, 5, 6), (2, 3, 1, 3), {"pads": [2, 4, 1, 0]}),
    ((0, 3, 8, 8), (4, 3, 3, 3), {}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), CONVS)
@pytest.mark.parametrize("bias", [False, True])
def test_conv(x, w, attrs, bias):
    graph = _conv(x, w, bias, **attrs)
    assert len(graph.nodes) == 1


def test_equal_convolutions_are_one_program():
    first = _conv((1, 3, 8, 8), (4, 3, 3, 3), pads=[1, 1, 1, 1])
    second = _conv((1, 3, 8, 8), (4, 3, 3, 3), auto_pad="SAME_UPPER")
    one, two = first.nodes[0], second.nodes[0]
    assert isinstance(one, Call) and isinstance(two, Call)
    assert one.program is two.program


def test_padding_is_a_condition_and_not_zeros():
    graph = _conv((1, 3, 8, 8), (4, 3, 3, 3), pads=[1, 1, 1, 1])
    (node,) = graph.nodes
    assert isinstance(node, Call)
    assert "0 <=" in str(node.program) and "select" not in str(node.program)


@pytest.mark.parametrize(
    ("shapes", "attrs", "message"),
    [
        (((1, 3, 8, 8), (4, 2, 3, 3)), {}, "3 channels and 4 filters of 2 channels"),
        (((1, 3, 2, 2), (4, 3, 3, 3)), {}, "does not fit into 2 elements"),
        (((1, 3, 8, 8), (4, 3, 3, 3)), {"strides": [0, 1]}, "strides must be numbers from 1 to"),
        (((1, 3, 8, 8), (4, 3, 3, 3)), {"pads": [1, 1]}, "pads has 2 entries"),
        (((1, 3, 8, 8), (4, 3, 3, 3)), {"kernel_shape": [5, 5]}, "kernel_shape"),
        (((1, 3, 8, 8), (4, 3, 3, 3)), {"auto_pad": "MAYBE"}, "does not exist"),
        (((1, 3, 8, 8), (4, 3, 3, 3)), {"group": 2}, "do not make 2 groups"),
    ],
)
def test_conv_mistakes(shapes, attrs, message):
    import onnx
    from onnx import helper

    node = helper.make_node("Conv", ["x", "w"], ["y"], name="node", **attrs)
    infos = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
        for n, s in zip("xw", shapes, strict=True)
    ]
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "g", infos, [out]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    with pytest.raises(ModelError, match=message) as caught:
        import_model(model)
    assert "Conv 'node'" in str(caught.value)


TRANSPOSED = [
    ((1, 3, 4, 5), (3, 2, 3, 3), {}),
    ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
    ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [2, 2], "output_padding": [1, 1]}),
    ((1, 4, 4, 5), (4, 3, 2, 2), {"strides": [2, 2], "group": 2}),
    ((1, 3, 4, 5), (3, 2, 3, 3), {"dilations": [2, 2]}),
    ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [2, 2], "output_shape": [9, 11]}),
    ((1, 3, 7), (3, 2, 3), {"strides": [2]}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), TRANSPOSED)
@pytest.mark.parametrize("bias", [False, True])
def test_conv_transpose(x, w, attrs, bias):
    inputs = {"x": floats(*x), "w": floats(*w)}
    if bias:
        inputs["b"] = floats(w[1] * attrs.get("group", 1))
    agree(single("ConvTranspose", inputs, opset=11, **attrs), inputs)
    short = {n: a.astype(np.float16) for n, a in inputs.items()}
    agree(single("ConvTranspose", short, opset=11, **attrs), short, rtol=1e-2)


POOLS = [
    ((1, 2, 8, 9), {"kernel_shape": [3, 3]}),
    ((1, 2, 8, 9), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ((1, 2, 8, 9), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 7, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1}),
    ((1, 2, 8, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 8, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 8, 9), {"kernel_shape": [3, 3], "auto_pad": "VALID"}),
    ((2, 2, 11), {"kernel_shape": [3], "strides": [2]}),
    ((1, 2, 5, 6, 5), {"kernel_shape": [3, 2, 2], "pads": [1, 0, 1, 1, 0, 1]}),
]


@pytest.mark.parametrize(("x", "attrs"), POOLS)
def test_max_pool(x, attrs):
    inputs = {"x": floats(*x)}
    agree(single("MaxPool", inputs, opset=12, **attrs), inputs, 0)


def test_max_pool_with_dilations():
    inputs = {"x": floats(1, 2, 9, 9)}
    attrs = {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [2, 1, 0, 0]}
    agree(single("MaxPool", inputs, opset=12, **attrs), inputs, 0)


@pytest.mark.parametrize("order", [0, 1])
def test_max_pool_indices(order):
    inputs = {"x": np.round(floats(2, 2, 6, 7))}
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "storage_order": order}
    agree(single("MaxPool", inputs, outputs=2, opset=12, **attrs), inputs, 0)


@pytest.mark.parametrize(("x", "attrs"), POOLS)
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool(x, attrs, include):
    inputs = {"x": floats(*x)}
    agree(single("AveragePool", inputs, opset=11, count_include_pad=include, **attrs), inputs)


@pytest.mark.parametrize("include", [0, 1])
def test_average_pool_with_dilations(include):
    inputs = {"x": floats(1, 2, 9, 9)}
    attrs = {"kernel_shape": [3, 3], "dilations": [2, 3], "pads": [2, 1, 1, 2]}
    model = single("AveragePool", inputs, opset=19, count_include_pad=include, **attrs)
    agree(model, inputs)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pools(p):
    inputs = {"x": floats(1, 2, 6, 7)}
    agree(single("LpPool", inputs, opset=11, kernel_shape=[2, 3], p=p), inputs)
    agree(single("GlobalLpPool", inputs, opset=11, p=p), inputs)


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (1, 2, 7), (1, 2, 3, 4, 5)])
def test_global_pools(operator, shape):
    inputs = {"x": floats(*shape)}
    agree(single(operator, inputs, opset=9), inputs)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size):
    inputs = {"x": floats(2, 7, 3, 4)}
    agree(single("LRN", inputs, opset=13, size=size, alpha=0.3, beta=0.6, bias=1.5), inputs)


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "GlobalAveragePool"])
def test_half_precision_pools(operator):
    inputs = {"x": floats(1, 2, 6, 6, dtype=np.float16)}
    attrs = {} if operator.startswith("Global") else {"kernel_shape": [3, 3]}
    agree(single(operator, inputs, opset=17, **attrs), inputs, 2e-3)
