"""Lowerings of ATen operators, each beside numpy, without torch: all are outputs of one model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import helper

import farkas as fk
from frontends.aten import convert  # noqa: F401 - fills the registry
from frontends.aten.emitter import Emitter
from frontends.aten.registry import LOWERINGS
from frontends.aten.values import Ref, Unsupported, axes_of
from frontends.onnx.core.own_models import model_bytes

RNG = np.random.default_rng(7)
ARRAYS: dict[str, np.ndarray] = {
    "x": RNG.standard_normal((3, 4)).astype("f"),
    "y": RNG.standard_normal((3, 4)).astype("f"),
    "row": RNG.standard_normal((1, 4)).astype("f"),
    "n": RNG.integers(-9, 9, (3, 4)),
    "some": RNG.integers(0, 2, (3, 4)).astype(bool),
    "edges": np.array([-1, np.inf, -np.inf, 1e-9], "f"),
    "at": np.array([2, 0, 2]),
    "steps": np.array([-5, 0, 0, 4]),
    "across": np.array([[1], [3], [0]]),
    "image": RNG.standard_normal((2, 3, 6, 5)).astype("f"),
    "weight": RNG.standard_normal((4, 3, 3, 3)).astype("f"),
    "square": RNG.standard_normal((4, 4)).astype("f"),
}
X, Y, ROW, N, SOME = (ARRAYS[k] for k in ("x", "y", "row", "n", "some"))
AT, ACROSS, IMAGE = ARRAYS["at"], ARRAYS["across"], ARRAYS["image"]


def erfc(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erfc)(x).astype("f")


def scattered(how: str) -> np.ndarray:
    found = X.copy()
    for i, place in enumerate(ACROSS[:, 0]):
        found[i, place] = found[i, place] + Y[i, 0] if how == "add" else Y[i, 0]
    return found


def put(accumulate: bool) -> np.ndarray:
    found = X.copy()
    for k, place in enumerate(AT):
        found[place] = found[place] + Y[k] if accumulate else Y[k]
    return found


def pooled() -> tuple[np.ndarray, np.ndarray]:
    padded = np.pad(IMAGE, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    flat = views.reshape(*views.shape[:4], 9)
    best = flat.argmax(-1)
    rows = np.arange(flat.shape[2])[:, None] * 2 - 1 + best // 3
    columns = np.arange(flat.shape[3]) * 2 - 1 + best % 3
    return flat.max(-1), rows * IMAGE.shape[3] + columns


POOL = {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1]}

#: The operator, its arguments (names of arrays are strings), and its results.
CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("add.Tensor", {"self": "x", "other": "row", "alpha": 3}, X + 3 * ROW),
    ("sub.Tensor", {"self": "n", "other": 2, "alpha": 2}, N - 4),
    ("rsub.Scalar", {"self": "x", "other": 1.5}, 1.5 - X),
    ("mul.Tensor", {"self": "x", "other": "n"}, (X * N).astype("f")),
    ("div.Tensor", {"self": "x", "other": "y"}, X / Y),
    ("div.Tensor_mode", {"self": "x", "other": "y", "rounding_mode": "floor"}, X // Y),
    ("div.Tensor_mode", {"self": "n", "other": 4, "rounding_mode": "trunc"}, (N / 4).astype(int)),
    ("remainder.Tensor", {"self": "x", "other": "y"}, np.mod(X, Y)),
    ("fmod.Scalar", {"self": "n", "other": 4}, np.fmod(N, 4)),
    ("pow.Tensor_Scalar", {"self": "x", "exponent": 3}, X**3),
    ("pow.Tensor_Tensor", {"self": "n", "exponent": "some"}, N ** SOME.astype(int)),
    ("signbit.default", {"self": "edges"}, np.signbit(ARRAYS["edges"])),
    ("i0.default", {"self": "x"}, np.i0(X).astype("f")),
    ("lgamma.default", {"self": "y"}, np.vectorize(math.lgamma)(Y).astype("f")),
    ("gcd.default", {"self": "n", "other": "n"}, np.abs(N)),
    ("sort.default", {"self": "x", "dim": 0}, [np.sort(X, 0), np.argsort(X, 0)]),
    ("topk.default", {"self": "x", "k": 2, "dim": 1, "largest": False},
     [np.sort(X, 1)[:, :2], np.argsort(X, 1)[:, :2]]),
    ("bucketize.Tensor", {"self": "n", "boundaries": "steps", "right": False},
     np.searchsorted(ARRAYS["steps"], N)),
    ("log1p.default", {"self": "some"}, np.log1p(SOME.astype("f"))),
    ("log1p.default", {"self": "edges"}, np.array([-np.inf, np.inf, np.nan, 1e-9], "f")),
    ("expm1.default", {"self": "x"}, np.expm1(X)),
    ("erfc.default", {"self": "x"}, erfc(X)),
    ("sign.default", {"self": "n"}, np.sign(N)),
    ("fmax.default", {"self": "x", "other": "y"}, np.fmax(X, Y)),
    ("where.self", {"condition": "some", "self": "x", "other": 2},
     np.where(SOME, X, 2).astype("f")),
    ("clamp.default", {"self": "x", "min": -0.5, "max": None}, np.maximum(X, np.float32(-0.5))),
    ("logical_and.default", {"self": "some", "other": "n"}, SOME & (N != 0)),
    ("bitwise_not.default", {"self": "some"}, ~SOME),
    ("bitwise_left_shift.Tensor", {"self": "n", "other": 65}, N * 0),
    ("bitwise_right_shift.Tensor", {"self": "n", "other": 2}, N >> 2),
    ("isnan.default", {"self": "n"}, np.zeros((3, 4), bool)),
    ("_to_copy.default", {"self": "x"}, X.astype(np.int32)),
    ("sum.dim_IntList", {"self": "some", "dim": [1]}, SOME.sum(1)),
    ("mean.dim", {"self": "x", "dim": [0], "keepdim": True}, X.mean(0, keepdims=True)),
    ("prod.default", {"self": "x"}, X.prod()),
    ("amax.default", {"self": "n", "dim": [-1]}, N.max(1)),
    ("any.dim", {"self": "some", "dim": 1}, SOME.any(1)),
    ("all.default", {"self": "some"}, SOME.all()),
    ("argmax.default", {"self": "x", "dim": 1}, X.argmax(1)),
    ("argmin.default", {"self": "x", "dim": None}, X.argmin()),
    ("max.dim", {"self": "n", "dim": 0}, [N.max(0), N.argmax(0)]),
    ("var.correction", {"self": "x", "dim": [1], "correction": 1}, X.var(1, ddof=1)),
    ("cumsum.default", {"self": "n", "dim": 1}, N.cumsum(1)),
    ("cumprod.default", {"self": "x", "dim": 0}, X.cumprod(0)),
    ("logcumsumexp.default", {"self": "x", "dim": 1}, np.logaddexp.accumulate(X, 1)),
    ("view.default", {"self": "x"}, X.reshape(2, 6)),
    ("permute.default", {"self": "x", "dims": [1, 0]}, X.T),
    ("expand.default", {"self": "row"}, np.broadcast_to(ROW, (5, 4))),
    ("slice.Tensor", {"self": "x", "dim": 1, "start": -3, "end": None, "step": 2}, X[:, -3::2]),
    ("select.int", {"self": "x", "dim": 0, "index": -1}, X[-1]),
    ("cat.default", {"tensors": ["x", "row"], "dim": 0}, np.concatenate([X, ROW])),
    ("constant_pad_nd.default", {"self": "x", "pad": [1, -2], "value": 7.0},
     np.pad(X[:, :2], ((0, 0), (1, 0)), constant_values=7)),
    ("flip.default", {"self": "x", "dims": [0]}, X[::-1]),
    ("repeat.default", {"self": "x"}, np.tile(X, (2, 1, 3))),
    ("diagonal.default", {"self": "square", "offset": -1}, np.diagonal(ARRAYS["square"], -1)),
    ("slice_scatter.default", {"self": "x", "src": "row", "dim": 0, "start": 1, "end": 2},
     np.concatenate([X[:1], ROW, X[2:]])),
    ("full.default", {"fill_value": 2.5}, np.full((2, 3), 2.5, "f")),
    ("arange.start_step", {"start": 3, "step": 2}, np.arange(3, 13, 2)),
    ("embedding.default", {"weight": "x", "indices": "at"}, X[AT]),
    ("gather.default", {"self": "x", "dim": 1, "index": "across"},
     np.take_along_axis(X, ACROSS, 1)),
    ("index.Tensor", {"self": "image", "indices": [None, "at"]}, IMAGE[:, AT]),
    ("scatter.src", {"self": "x", "dim": 1, "index": "across", "src": "y"}, scattered("")),
    ("scatter_add.default", {"self": "x", "dim": 1, "index": "across", "src": "y"},
     scattered("add")),
    ("index_put.default", {"self": "x", "indices": ["at"], "values": "y"}, put(False)),
    ("index_put.default", {"self": "x", "indices": ["at"], "values": "y", "accumulate": True},
     put(True)),
    ("mm.default", {"self": "x", "mat2": "square"}, X @ ARRAYS["square"]),
    ("addmm.default", {"self": "row", "mat1": "x", "mat2": "square", "beta": 2, "alpha": 0.5},
     2 * ROW + 0.5 * (X @ ARRAYS["square"])),
    ("max_pool2d_with_indices.default", {"self": "image", **POOL}, [*pooled()]),
    ("native_layer_norm.default",
     {"input": "x", "normalized_shape": [4], "weight": None, "bias": None, "eps": 1e-5},
     [(X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5),
      X.mean(1, keepdims=True), 1 / np.sqrt(X.var(1, keepdims=True) + 1e-5)]),
]  # fmt: skip


def references() -> dict[str, Ref]:
    return {n: Ref(n, a.dtype.name, a.shape) for n, a in ARRAYS.items()}


def given(value: Any, refs: dict[str, Ref]) -> Any:
    if isinstance(value, list):
        return [given(v, refs) for v in value]
    return refs[value] if isinstance(value, str) and value in refs else value


@pytest.fixture(scope="module")
def results() -> tuple[list[list[np.ndarray]], dict[str, np.ndarray]]:
    """The outputs of each case, and what says whether indices were in range."""
    e, refs, names = Emitter(), references(), []
    outputs = []
    for number, (operator, arguments, wanted) in enumerate(CASES):
        e.origin = f"case{number}"
        wanted = [np.asarray(w) for w in (wanted if isinstance(wanted, list) else [wanted])]
        outs = [Ref("", w.dtype.name, w.shape) for w in wanted]
        plain = {n: given(v, refs) for n, v in arguments.items()}
        made = LOWERINGS[operator](e, {**plain, "name": operator}, outs)
        own = [r for r in (made if isinstance(made, list) else [made]) if r is not None]
        for k, (ref, out) in enumerate(zip(own, outs, strict=True)):
            assert ref.dtype == out.dtype, operator
            e.nodes.append(helper.make_node("Identity", [ref.name], [f"out{number}_{k}"]))
            outputs.append((f"out{number}_{k}", ref.dtype))
        names.append([f"out{number}_{k}" for k in range(len(own))])
    outputs += [(check.name, "int32") for check in e.checks]
    ports = [(r.name, r.dtype, r.shape) for r in refs.values()]
    ends = [(n, d, None) for n, d in outputs]
    model = model_bytes("cases", e.nodes, ports, ends, e.constants)
    found = fk.compile_onnx(model).run(ARRAYS)
    return [[found[n] for n in own] for own in names], {c.name: found[c.name] for c in e.checks}


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_each_lowering(number: int, results: Any) -> None:
    wanted = CASES[number][2]
    wanted = wanted if isinstance(wanted, list) else [wanted]
    for found, want in zip(results[0][number], wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)
        assert found.shape == np.shape(want)


def test_indices_are_in_range(results: Any) -> None:
    assert len(results[1]) == 7
    assert all(v <= 0 for v in results[1].values())


@pytest.mark.parametrize(
    ("operator", "arguments", "out", "reason"),
    [
        ("sort.default", {"self": Ref("long", "float32", (1 << 17,)), "dim": 0}, X, "more than"),
        ("remainder.Scalar", {"self": "n", "other": 0}, N, "by 0"),
        ("index.Tensor", {"self": "x", "indices": ["some"]}, X, "an index of bool elements"),
        ("amax.default", {"self": Ref("e", "float32", (0, 2)), "dim": [0]}, X[0, :2], "of nothing"),
    ],
)
def test_what_has_none(operator: str, arguments: Any, out: np.ndarray, reason: str) -> None:
    refs = references()
    plain = {n: given(v, refs) for n, v in arguments.items()}
    with pytest.raises(Unsupported, match=reason):
        LOWERINGS[operator](
            Emitter(), {**plain, "name": operator}, [Ref("", out.dtype.name, out.shape)]
        )


def test_axes() -> None:
    assert axes_of(None, 3) == axes_of([], 3) == (0, 1, 2)
    assert axes_of([-1, 0], 3) == (0, 2)
    assert axes_of(0, 0) == ()
