"""Gradients of operators that move elements, of products of matrices, and of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.conformance.gradient_check import Case, F, Fixed, Passed, case, spread, torch

_NOT_A_COMPREHENSION = "has no gradient: it is no comprehension"


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _shapes() -> Iterator[Case]:
    x = spread(2, 3, 4)
    yield case("Transpose", "", [x], lambda x: x.permute(2, 0, 1), perm=[2, 0, 1])
    yield case("Transpose", "reversed", [x], lambda x: x.permute(2, 1, 0))
    yield case("Reshape", "", [x, ints(0, -1)], lambda x, _: x.reshape(2, 12))
    yield case("Flatten", "", [x], lambda x: x.reshape(6, 4), axis=2)
    yield case("Squeeze", "", [x[:, :1], ints(1)], lambda x, _: x.squeeze(1))
    yield case("Unsqueeze", "", [x, ints(0, -1)], lambda x, _: x[None, ..., None])
    yield case("Expand", "", [x[:, :1], ints(3, 2, 5, 4)], lambda x, _: x.expand(3, 2, 5, 4))
    yield case("Tile", "", [x, ints(2, 1, 3)], lambda x, _: x.repeat(2, 1, 3))
    parts = [spread(2, n, 4) for n in (1, 3, 2)]
    yield case("Concat", "", parts, lambda *parts: torch.cat(parts, 1), axis=1)
    yield case("Concat", "of itself", [x, x * 1.5], lambda a, b: torch.cat([a, b], -1), axis=-1)
    yield case("Split", "sizes", [x, ints(1, 3)], lambda x, _: x.split([1, 3], 2),
               outputs=2, axis=2)  # fmt: skip
    yield case("Split", "number", [spread(5, 2)], lambda x: x.split(2), outputs=3, num_outputs=3)
    image = spread(2, 8, 2, 3)
    yield case("DepthToSpace", "DCR", [image], lambda x: x.view(2, 2, 2, 2, 2, 3)
               .permute(0, 3, 4, 1, 5, 2).reshape(2, 2, 4, 6), blocksize=2)  # fmt: skip
    yield case("DepthToSpace", "CRD", [image], lambda x: F.pixel_shuffle(x, 2),
               blocksize=2, mode="CRD")  # fmt: skip
    yield case("SpaceToDepth", "", [spread(2, 2, 4, 6)], lambda x: x.view(2, 2, 2, 2, 3, 2)
               .permute(0, 3, 5, 1, 2, 4).reshape(2, 8, 2, 3), blocksize=2)  # fmt: skip
    yield case("Trilu", "upper", [x], lambda x: x.triu())
    yield case("Trilu", "lower", [x, ints(1)[0]], lambda x, _: x.tril(1), upper=0)
    yield case("CenterCropPad", "", [spread(5, 3), ints(3, 6)],
               lambda x, _: F.pad(x[1:4], (1, 2)))  # fmt: skip
    yield case("ReverseSequence", "", [spread(4, 3, 2), ints(1, 4, 3)],
               lambda x, n: torch.stack([torch.cat([x[: n[b], b].flip(0), x[n[b] :, b]])
                                         for b in range(3)], 1))  # fmt: skip
    yield case("Identity", "of a scalar", [np.array(0.3)], lambda x: x * 1)


def _parts() -> Iterator[Case]:
    x = spread(4, 5, 3)
    yield case("Slice", "steps", [x, ints(1, 0), ints(4, 5), ints(0, 1), ints(2, 3)],
               lambda x, *_: x[1:4:2, 0:5:3])  # fmt: skip
    yield case("Slice", "backwards", [x, ints(-1), ints(-6), ints(1), ints(-2)],
               lambda x, *_: x.flip(1)[:, ::2])  # fmt: skip
    rows = ints(2, 0, 2, -1)
    for what, indices in {"": Passed(rows), "constant": rows}.items():
        yield case("Gather", what, [x, indices], lambda x, i: x[:, i % 5], axis=1)
    yield case("Gather", "matrix", [x, Passed(rows.reshape(2, 2))], lambda x, i: x[i % 4])
    places = np.array([[0, 2], [1, 1], [2, 2], [0, 0]])
    for what, indices in {"": Passed(places), "constant": places}.items():
        yield case("GatherElements", what, [spread(4, 3), indices],
                   lambda x, i: x.gather(1, i), axis=1)  # fmt: skip
    pairs = np.array([[0, 2], [3, 4], [0, 2]])
    yield case("GatherND", "", [x, Passed(pairs)], lambda x, i: x[i[:, 0], i[:, 1]])
    yield case("GatherND", "constant", [x, pairs], lambda x, i: x[i[:, 0], i[:, 1]])
    yield case("GatherND", "batch", [x, Passed(ints(0, 4, 1, 1)[:, None])],
               lambda x, i: x[torch.arange(4), i[:, 0]], batch_dims=1)  # fmt: skip
    yield case("OneHot", "", [Passed(ints(1, 0, 2)), ints(3), np.array([0.2, 0.9])],
               lambda i, _, v: v[0] + F.one_hot(i, 3) * (v[1] - v[0]))  # fmt: skip
    yield case("ScatterElements", "", [spread(4, 3), places, spread(4, 2)],
               lambda x, i, u: x.scatter(1, i, u), axis=1,
               refused=_NOT_A_COMPREHENSION)  # fmt: skip
    yield case("ScatterElements", "add", [spread(4, 3), places, spread(4, 2)],
               lambda x, i, u: x.scatter_add(1, i, u), axis=1, reduction="add",
               refused=_NOT_A_COMPREHENSION)  # fmt: skip
    yield case("Scatter", "", [spread(4, 3), places, spread(4, 2)],
               lambda x, i, u: x.scatter(1, i, u), axis=1, opset=10,
               refused=_NOT_A_COMPREHENSION)  # fmt: skip
    yield case("ScatterND", "", [x, pairs[:2], spread(2, 3)],
               lambda x, i, u: x.index_put((i[:, 0], i[:, 1]), u),
               refused=_NOT_A_COMPREHENSION)  # fmt: skip
    yield case("TensorScatter", "", [spread(2, 4, 3), spread(2, 2, 3), ints(1, 0)],
               refused=_NOT_A_COMPREHENSION)  # fmt: skip


def _pads() -> Iterator[Case]:
    x = spread(1, 2, 4, 5)
    pads = ints(0, 0, 1, 2, 0, 0, 3, 1)
    yield case("Pad", "constant", [x, pads, np.array(0.7)],
               lambda x, _, v: F.pad(x - v, (2, 1, 1, 3)) + v)  # fmt: skip
    modes = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    for mode, named in modes.items():
        yield case("Pad", mode, [x, pads],
                   lambda x, _, m=named: F.pad(x, (2, 1, 1, 3), mode=m), mode=mode)  # fmt: skip
    yield case("Pad", "negative", [x, ints(0, 0, -1, 1, 0, 0, 1, -2)],
               lambda x, _: F.pad(x, (1, -2, -1, 1)))  # fmt: skip
    yield case("Pad", "axes", [x, ints(1, 2), None, ints(-1)],
               lambda x, *_: F.pad(x, (1, 2)))  # fmt: skip


def _products() -> Iterator[Case]:
    for what, a, b in (
        ("matrices", (3, 4), (4, 2)),
        ("vectors", (4,), (4,)),
        ("vector and matrices", (4,), (2, 4, 3)),
        ("matrices and vector", (2, 3, 4), (4,)),
        ("broadcast", (2, 1, 3, 4), (5, 4, 2)),
    ):
        yield case("MatMul", what, [spread(*a), spread(*b)], lambda a, b: a @ b)
    for ta, tb, c in ((0, 0, (3, 2)), (1, 0, (2,)), (0, 1, (3, 1)), (1, 1, (1, 1))):
        a, b = spread(*((4, 3) if ta else (3, 4))), spread(*((2, 4) if tb else (4, 2)))
        yield case(
            "Gemm", f"transA {ta}, transB {tb}", [a, b, spread(*c)],
            lambda a, b, c, ta=ta, tb=tb: (
                0.5 * ((a.T if ta else a) @ (b.T if tb else b)) + 0.25 * c
            ),
            transA=ta, transB=tb, alpha=0.5, beta=0.25,
        )  # fmt: skip
    yield case("Gemm", "without C", [spread(3, 4), spread(4, 2)], lambda a, b: a @ b)
    for equation, shapes in (
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 2)]),
        ("...ij->...ji", [(2, 3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ij->", [(3, 4)]),
        ("i,j,ij->ij", [(3,), (4,), (3, 4)]),
        ("ij,kj,lk->il", [(2, 3), (4, 3), (2, 4)]),
        ("ijkl,mnkl->ijmn", [(2, 1, 3, 2), (1, 2, 3, 2)]),
    ):
        yield case("Einsum", equation, [spread(*s) for s in shapes],
                   lambda *a, equation=equation: torch.einsum(equation, *a),
                   equation=equation)  # fmt: skip
    yield case("Det", "", [spread(2, 3, 3)], lambda x: torch.det(x),
               refused=_NOT_A_COMPREHENSION)  # fmt: skip


def _resized(**options: Any) -> Callable[..., Any]:
    """`torch.nn.functional.interpolate`, whatever the operands but the first."""
    return lambda x, *_: F.interpolate(x, **options)


def _resizes() -> Iterator[Case]:
    x, double = spread(1, 2, 3, 4), Fixed(np.array([1, 1, 2, 2], np.float32))
    floor = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    corners = {"coordinate_transformation_mode": "align_corners"}
    sizes = [x, None, None, ints(1, 2, 5, 7)]
    yield case("Resize", "nearest", [x, None, double],
               _resized(scale_factor=2, mode="nearest"), **floor)  # fmt: skip
    yield case("Resize", "nearest to sizes", sizes, _resized(size=(5, 7), mode="nearest"),
               **floor)  # fmt: skip
    yield case("Resize", "linear", sizes, _resized(size=(5, 7), mode="bilinear"), mode="linear")
    yield case("Resize", "linear smaller", [spread(1, 2, 6, 7), None, None, ints(1, 2, 3, 4)],
               _resized(size=(3, 4), mode="bilinear"), mode="linear")  # fmt: skip
    yield case("Resize", "linear, corners", sizes,
               _resized(size=(5, 7), mode="bilinear", align_corners=True), mode="linear",
               **corners)  # fmt: skip
    yield case("Resize", "linear in three dimensions", [spread(1, 1, 2, 3, 2), None, None,
               ints(1, 1, 3, 4, 5)], _resized(size=(3, 4, 5), mode="trilinear"),
               mode="linear")  # fmt: skip
    yield case("Resize", "cubic", sizes, _resized(size=(5, 7), mode="bicubic"), mode="cubic")
    yield case("Resize", "cubic, corners", sizes,
               _resized(size=(5, 7), mode="bicubic", align_corners=True), mode="cubic",
               **corners)  # fmt: skip
    yield case("Resize", "linear, antialias", [spread(1, 1, 6, 7), None, None, ints(1, 1, 3, 4)],
               _resized(size=(3, 4), mode="bilinear", antialias=True), mode="linear",
               antialias=1, exclude_outside=1)  # fmt: skip
    yield case("Resize", "crop", [x, Fixed(np.array([0, 0, 0.25, 0.25, 1, 1, 0.75, 0.75])), None,
               ints(1, 2, 3, 3)], mode="linear", extrapolation_value=0.5,
               coordinate_transformation_mode="tf_crop_and_resize")  # fmt: skip
    yield case("Resize", "pytorch_half_pixel, excluded outside", sizes, mode="cubic",
               exclude_outside=1, coordinate_transformation_mode="pytorch_half_pixel")  # fmt: skip
    yield case("Upsample", "nearest", [x, double], _resized(scale_factor=2, mode="nearest"),
               opset=9)  # fmt: skip
    yield case("Upsample", "linear", [x, double], opset=9, mode="linear")


def _samples() -> Iterator[Case]:
    x, grid = spread(2, 2, 4, 5), spread(2, 3, 4, 2, low=-1.2, high=1.2)
    named = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    for mode, inside in named.items():
        for padding in ("zeros", "border", "reflection"):
            corners = padding == "border"
            yield case(
                "GridSample", f"{mode}, {padding}", [x, grid],
                lambda x, g, m=inside, p=padding, c=corners: F.grid_sample(
                    x, g, mode=m, padding_mode=p, align_corners=c
                ),
                mode=mode, padding_mode=padding, align_corners=int(corners),
            )  # fmt: skip
    yield case("GridSample", "linear in three dimensions",
               [spread(1, 1, 3, 2, 4), spread(1, 2, 2, 2, 3, low=-0.9, high=0.9)],
               lambda x, g: F.grid_sample(x, g, align_corners=False))  # fmt: skip
    for corners in (0, 1):
        yield case("AffineGrid", f"align_corners {corners}", [spread(2, 2, 3), ints(2, 3, 3, 4)],
                   lambda t, _, c=corners: F.affine_grid(t, [2, 3, 3, 4], align_corners=bool(c)),
                   align_corners=corners)  # fmt: skip
    yield case("AffineGrid", "three dimensions", [spread(1, 3, 4), ints(1, 1, 2, 3, 4)],
               lambda t, _: F.affine_grid(t, [1, 1, 2, 3, 4], align_corners=False))  # fmt: skip
    rois = Fixed(np.array([[0.0, 0, 3, 3], [1, 0, 4, 3]]))
    yield case("RoiAlign", "", [spread(1, 1, 4, 5), rois, ints(0, 0)], output_height=2,
               output_width=2, refused=_NOT_A_COMPREHENSION)  # fmt: skip
    boxes = Fixed(np.array([[0, 0.0, 0, 3, 3], [0, 1, 0, 4, 3]]))
    yield case("MaxRoiPool", "", [spread(1, 1, 4, 5), boxes], pooled_shape=[2, 2],
               refused=_NOT_A_COMPREHENSION)  # fmt: skip


def _signals() -> Iterator[Case]:
    real, signal = spread(2, 6, 1), spread(2, 6, 2)

    def pairs(z: Any) -> Any:
        return torch.view_as_real(z.resolve_conj())

    def whole(x: Any) -> Any:
        return torch.view_as_complex(x.contiguous())

    axis = ints(1)[0]
    yield case("DFT", "real", [real, None, axis], lambda x, *_: pairs(torch.fft.fft(x[..., 0])))
    yield case("DFT", "complex", [signal, None, axis], lambda x, *_: pairs(torch.fft.fft(whole(x))))
    yield case("DFT", "inverse", [signal, None, axis],
               lambda x, *_: pairs(torch.fft.ifft(whole(x))), inverse=1)  # fmt: skip
    yield case("DFT", "one side", [real, None, axis],
               lambda x, *_: pairs(torch.fft.rfft(x[..., 0])), onesided=1)  # fmt: skip
    yield case("DFT", "longer", [real, ints(8)[0], axis],
               lambda x, *_: pairs(torch.fft.fft(x[..., 0], 8)))  # fmt: skip

    def frames(x: Any, window: Any) -> Any:
        return pairs(torch.fft.rfft(x[..., 0].unfold(1, 4, 3) * window))

    long = spread(2, 10, 1)
    yield case("STFT", "", [long, ints(3)[0], spread(4, low=0.5, high=1)],
               lambda x, _, w: frames(x, w), onesided=1)  # fmt: skip
    yield case("STFT", "two sides", [long, ints(3)[0], None, ints(4)[0]],
               lambda x, *_: pairs(torch.fft.fft(x[..., 0].unfold(1, 4, 3))),
               onesided=0)  # fmt: skip


TENSORS = (
    *_shapes(), *_parts(), *_pads(), *_products(), *_resizes(), *_samples(), *_signals(),
)  # fmt: skip
