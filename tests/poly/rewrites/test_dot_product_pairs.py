"""Sums of narrow products in pairs: what is rewritten, what is not, and that nothing changes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import farkas as fk
from frontends.language.parse_program import parse_program
from poly.ir.expr import Op
from poly.ir.program import Program
from poly.machine.cpu import host_machine
from poly.rewrites.dot_product_pairs import pair_products
from runtime.reference.evaluate import evaluate

RNG = np.random.default_rng(5)


def whole(dtype: str, *shape: int) -> np.ndarray:
    """All numbers of a type are likely, the least and the greatest most of all."""
    info = np.iinfo(dtype)
    values = RNG.integers(info.min, info.max + 1, shape)
    ends = RNG.random(shape)
    return np.where(ends < 0.1, info.min, np.where(ends > 0.9, info.max, values)).astype(dtype)


def pairs_of(program: Program) -> int:
    return sum(isinstance(s.value, Op) and s.value.fn == "dot2" for s in program.statements)


def product(a: str, b: str, k: int | str, value: str) -> str:
    return f"""def f({a} A[M,{k}], {b} B[{k},24], {a} ZA[], {b} ZB[24]) -> (Y) {{
        Y[i,j] +=! {value} where i in 0:M, j in 0:24, k in 0:{k} }}"""


PLAIN = "int32(A[i,k]) * int32(B[k,j])"
POINTS = "(int32(A[i,k]) - int32(ZA[])) * (int32(B[k,j]) - int32(ZB[j]))"


@pytest.mark.parametrize("value", [PLAIN, POINTS])
@pytest.mark.parametrize("a", ["int8", "uint8"])
@pytest.mark.parametrize("b", ["int8", "uint8"])
@pytest.mark.parametrize("k", [2, 3, 16, 31])
def test_products(value: str, a: str, b: str, k: int) -> None:
    program = parse_program(product(a, b, k, value))
    made = pair_products(program)
    assert pairs_of(made) == 1 and pairs_of(program) == 0
    assert len(made.statements) == 3 and parse_program(str(made)) == made
    kernel = fk.compile(product(a, b, k, value), threads=2)
    for m in (1, 5, 33):
        arrays = {
            "A": whole(a, m, k), "B": whole(b, k, 24), "ZA": whole(a), "ZB": whole(b, 24),
        }  # fmt: skip
        given_ = {t.name: arrays[t.name] for t in program.inputs}
        x = arrays["A"].astype(np.int64) - (arrays["ZA"] if value == POINTS else np.int64(0))
        w = arrays["B"].astype(np.int64) - (arrays["ZB"] if value == POINTS else np.int64(0))
        expected = (x @ w).astype(np.int32)
        np.testing.assert_array_equal(evaluate(made, given_)["Y"], expected)
        np.testing.assert_array_equal(kernel(**given_), expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (product("int16", "int8", 16, PLAIN), "a difference could take 17 bits"),
        (product("int8", "int8", "K", PLAIN), "how many pairs there are is not known"),
        (
            "def f(int8 A[9,16], int8 B[16]) -> (Y) "
            "{ Y[i] +=! int32(A[i,k]) * int32(B[k]) where i in 0:9, k in 0:16 }",
            "the matrix is read once",
        ),
        (
            "def f(int8 A[9,30], int8 B[16,24]) -> (Y) { Y[i,j] +=! int32(A[i,k + j]) * "
            "int32(B[k,j]) where i in 0:9, j in 0:8, k in 0:16 }",
            "k is not alone in its dimension",
        ),
        (
            "def f(int8 A[9,16], int8 B[16,24]) -> (Y) { Y[i,j] +=! int32(A[i,k]) * "
            "int32(B[k,j]) where i in 0:9, j in 0:24, k in 0:16, k <= i }",
            "a condition on k",
        ),
        (
            "def f(int8 A[9,16], int8 B[16,24]) -> (int64 Y[9,24]) { Y[i,j] +=! int32(A[i,k]) * "
            "int32(B[k,j]) where i in 0:9, j in 0:24, k in 0:16 }",
            "the sum has more bits",
        ),
    ],
)
def test_what_is_left_alone(text: str, why: str) -> None:
    program = parse_program(text)
    assert pair_products(program) is program, why


CONV = """def f({x} X[2,{c},9,W], {w} F[11,{c},3,3], {x} Z[]) -> (Y) {{
    Y[n,k,p,q] +=! (int32(X[n,c,p+r-1,{s}*q+t-1]) - int32(Z[])) * int32(F[k,c,r,t])
        where n in 0:2, k in 0:11, p in 0:9, q in 0:(W + {s} - 1)//{s}, c in 0:{c}, r in 0:3,
              t in 0:3, 0 <= p+r-1 < 9, 0 <= {s}*q+t-1 < W }}"""


@given(st.sampled_from(("int8", "uint8")), st.sampled_from(("int8", "uint8")),
       st.integers(2, 9), st.integers(1, 2), st.integers(1, 20))  # fmt: skip
@settings(max_examples=4, deadline=None)
def test_convolutions_with_padding(x: str, w: str, c: int, s: int, width: int) -> None:
    program = parse_program(CONV.format(x=x, w=w, c=c, s=s))
    made = pair_products(program)
    assert pairs_of(made) == 1
    arrays = {"X": whole(x, 2, c, 9, width), "F": whole(w, 11, c, 3, 3), "Z": whole(x)}
    expected = evaluate(program, arrays)["Y"]
    np.testing.assert_array_equal(evaluate(made, arrays)["Y"], expected)
    kernel = fk.compile(CONV.format(x=x, w=w, c=c, s=s), threads=1)
    np.testing.assert_array_equal(kernel(**arrays), expected)


DOT = "def f(int32 A[N], int32 B[N]) -> (Y) { Y[i] = dot2(A[i], B[i]) where i in 0:N }"


def test_the_operator_in_lanes_and_outside() -> None:
    kernel = fk.compile(DOT, threads=1)
    a, b = (whole("int16", 300, 2) for _ in range(2))
    a[:2] = b[:2] = -(2**15)  # whose sum of products wraps around
    expected = (a.astype(np.int64) * b).sum(1).astype(np.int32)
    for n in (1, 3, 5, 9, 17, 300):
        x, y = (v[:n].copy().view(np.int32).reshape(-1) for v in (a, b))
        np.testing.assert_array_equal(kernel(x, y), expected[:n])
        np.testing.assert_array_equal(evaluate(parse_program(DOT), {"A": x, "B": y})["Y"],
                                      expected[:n])  # fmt: skip


@pytest.mark.parametrize("dtype", ["int64", "int16", "uint32", "float32"])
def test_the_operator_takes_int32(dtype: str) -> None:
    with pytest.raises(fk.LanguageError, match="dot2"):
        parse_program(DOT.replace("int32", dtype))


def test_a_quantised_network() -> None:
    """Weights are put together once, when the network is compiled."""
    weights = whole("int8", 16, 6, 3, 3)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    node = helper.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])
    constants = {
        "xs": np.float32(0.1), "xz": np.uint8(100), "w": weights, "ws": np.full(16, 0.01, "f4"),
        "wz": np.zeros(16, np.int8), "ys": np.float32(0.4), "yz": np.uint8(120),
    }  # fmt: skip
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 6, 10, 12])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 16, 10, 12])],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    compiled = fk.compile_onnx(model)
    assert compiled.is_whole
    has_four = "avx512_vnni" in host_machine().extensions
    used, kind, size = ("dot4", np.int8, 16 * 3 * 3 * 8) if has_four else (
        "dot2", np.int32, weights.size // 2)  # fmt: skip
    assert any(used in text for text in compiled.source.values())
    assert any(a.dtype == kind and a.size == size for a in compiled.graphs[0].constants.values()), {
        n: (a.dtype, a.shape) for n, a in compiled.graphs[0].constants.items()
    }
    found = compiled.compare("onnxruntime", {"x": whole("uint8", 1, 6, 10, 12)}, atol=1)
    assert found.agrees, str(found)
