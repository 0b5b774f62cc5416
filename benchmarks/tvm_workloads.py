"""TVM's own tuning workloads, as texts: ``te_workload.CONFIGS`` of its wheel, all but Winograd's.

Images have channels last; where channels are in groups, the groups are a dimension of their own,
which is the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Workload:
    """A workload of TVM, by its name and number there, and the same as a text."""

    name: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


def _along(
    out: str, tap: str, extent: int, kernel: int, stride: int, pad: int, dil: int
) -> tuple[str, list[str]]:
    """How an image is read along a dimension: the index, and its ranges and guards."""
    length = (extent + 2 * pad - dil * (kernel - 1) - 1) // stride + 1
    read = f"{stride}*{out} + {dil}*{tap} - {pad}"
    guards = [f"{out} in 0:{length}", f"{tap} in 0:{kernel}"]
    if pad:
        guards.append(f"0 <= {read} < {extent}")
    return read, guards


def _over_image(extent: int, kernel: int, stride: int, pad: int) -> tuple[str, str, str]:
    """How a square image is read: both indices, and their ranges and guards."""
    (h, rows), (w, columns) = (
        _along(o, t, extent, kernel, stride, pad, 1) for o, t in (("h", "y"), ("w", "x"))
    )
    return h, w, ", ".join([*rows, *columns])


def _convolution(extents: tuple[int, ...], ci: int, co: int, kernel: int, stride: int = 1,
                 pad: int = 0, dil: int = 1, groups: int = 1, tail: str = "") -> str:  # fmt: skip
    """A convolution with channels last, in one to three dimensions; groups have a dimension."""
    outs, taps = ("d", "h", "w")[-len(extents) :], ("z", "y", "x")[-len(extents) :]
    parts = [
        _along(o, t, e, kernel, stride, pad, dil)
        for o, t, e in zip(outs, taps, extents, strict=True)
    ]
    reads = ",".join(read for read, _ in parts)
    where = ", ".join(guard for _, guards in parts for guard in guards)
    image, window = ",".join(map(str, extents)), ",".join([str(kernel)] * len(extents))
    g, one = ("g,", f"{groups},") if groups > 1 else ("", "")
    own = "C" if tail else "Y"
    more = f", float32 b[{co}], float32 o[{co}], float32 s[{co}]" if tail else ""
    return (
        f"def f(float32 X[1,{image},{one}{ci // groups}], "
        f"float32 W[{window},{ci // groups},{one}{co // groups}]{more})"
        f" -> (Y) {{ {own}[n,{','.join(outs)},{g}k] +=! X[n,{reads},{g}c] * "
        f"W[{','.join(taps)},c,{g}k] where n in 0:1, {where}\n{tail} }}"
    )


_TAIL = "Y[n,h,w,k] = max((C[n,h,w,k] + b[k]) * s[k] + o[k], 0)"


def _depthwise(extent: int, channels: int, kernel: int, stride: int, pad: int) -> str:
    h, w, where = _over_image(extent, kernel, stride, pad)
    return (
        f"def f(float32 X[1,{extent},{extent},{channels}], "
        f"float32 W[1,{kernel},{kernel},{channels}]) -> (Y) {{ "
        f"Y[n,h,w,c] +=! X[n,{h},{w},c] * W[0,y,x,c] where "
        f"n in 0:1, {where} }}"
    )


def _transposed(extent: int, ci: int, co: int) -> str:
    """With windows of 4 x 4 and stride 2, which double an image."""

    def along(out: str, tap: str) -> tuple[str, str]:
        back = f"({out} + 1 - {tap})"
        return f"{back}//2", (
            f"{out} in 0:{2 * extent}, {tap} in 0:4, {back} % 2 == 0, 0 <= {back}//2 < {extent}"
        )

    (h, rows), (w, columns) = along("h", "y"), along("w", "x")
    return (
        f"def f(float32 X[1,{extent},{extent},{ci}], float32 W[4,4,{ci},{co}]) -> (Y) {{ "
        f"Y[n,h,w,k] +=! X[n,{h},{w},c] * W[y,x,c,k] where n in 0:1, {rows}, {columns} }}"
    )


def _capsules(extent: int, ci: int, co: int, kernel: int, stride: int, pad: int) -> str:
    h, w, where = _over_image(extent, kernel, stride, pad)
    return (
        f"def f(float32 X[1,{extent},{extent},4,4,{ci}], "
        f"float32 W[{kernel},{kernel},4,4,{ci},{co}]) -> (Y) {{ "
        f"Y[n,h,w,i,j,k] +=! X[n,{h},{w},i,l,c] * W[y,x,l,j,c,k] where "
        f"n in 0:1, {where} }}"
    )


def _product(rows: int, columns: int, terms: int) -> str:
    return (
        f"def f(float32 X[1,{rows},{terms}], float32 Y[1,{terms},{columns}]) -> (Z) {{ "
        "Z[b,i,j] +=! X[b,i,k] * Y[b,k,j] }"
    )


def _norm(rows: int, columns: int) -> str:
    return (
        f"def f(float32 A[1,{rows},{columns}]) -> (D) {{ c[b] +=! A[b,i,j] * A[b,i,j]\n"
        "D[b] = sqrt(c[b]) }"
    )


def _softmax(rows: int, columns: int) -> str:
    return (
        f"def f(float32 A[{rows},{columns}]) -> (B) {{ m[i] max=! A[i,j]\n"
        "e[i,j] = exp(A[i,j] - m[i])\ns[i] +=! e[i,j]\nB[i,j] = e[i,j] / s[i] }"
    )


def _scores(length: int, heads: int, width: int) -> str:
    return (
        f"def f(float32 Q[1,{length},{heads},{width}], float32 V[1,{length},{heads},{width}]) "
        "-> (C) { C[b,h,i,j] +=! Q[b,i,h,k] * V[b,j,h,k] }"
    )


def _of(name: str, make: Callable[..., str], *arguments: tuple[Any, ...]) -> Iterator[Workload]:
    for number, given in enumerate(arguments):
        yield Workload(name, number, make(*given))


def workloads() -> Iterator[Workload]:
    """In TVM's order, with its numbers."""
    c = _convolution
    yield from _of("C1D", c, ((256,), 64, 128, 3, 2, 1), ((128,), 128, 256, 1, 2, 0),
                   ((64,), 256, 256, 5, 1, 2), ((32,), 512, 512, 3, 1, 1))  # fmt: skip
    images = ((224, 3, 64, 7, 2, 3), (56, 64, 64, 1, 1, 0), (14, 256, 256, 3, 1, 1),
              (7, 512, 512, 3, 1, 1))  # fmt: skip
    yield from _of("C2D", c, *(((e, e), *rest) for e, *rest in images))
    yield from _of("C3D", c, *(((16, e, e), *rest) for e, *rest in images))
    yield from _of("GMM", _product, (128, 128, 128), (512, 32, 512), (512, 512, 512),
                   (1024, 1024, 1024))  # fmt: skip
    grouped = ((56, 64, 128, 3, 2, 1), *images[1:])
    yield from _of("GRP", c, *(((e, e), *rest, 1, 4) for e, *rest in grouped))
    yield from _of("DIL", c, *(((e, e), *rest, 2) for e, *rest in images))
    yield from _of("DEP", _depthwise, (112, 32, 3, 1, 1), (112, 64, 3, 2, 1), (14, 512, 3, 2, 1),
                   (7, 1024, 3, 1, 1))  # fmt: skip
    yield from _of("T2D", _transposed, (4, 512, 256), (8, 256, 128), (16, 128, 64), (32, 64, 3))
    yield from _of("CAP", _capsules, (16, 32, 32, 3, 2, 1), (8, 32, 32, 3, 1, 1),
                   (16, 8, 16, 3, 2, 1), (8, 16, 16, 3, 1, 1))  # fmt: skip
    yield from _of("NRM", _norm, (256, 256), (512, 512), (1024, 1024), (4096, 1024))
    yield from _of("SFM", _softmax, *((n, n) for n in (256, 512, 1024, 2048)))
    folded = ((224, 3, 64, 7, 2, 3), (56, 64, 128, 3, 2, 1), (28, 128, 256, 1, 2, 0),
              (7, 512, 512, 3, 1, 1))  # fmt: skip
    yield from _of("CBR", c, *(((e, e), *rest, 1, 1, _TAIL) for e, *rest in folded))
    yield from _of("TBG", _scores, (128, 12, 64), (128, 16, 64), (64, 12, 128), (128, 12, 128))
