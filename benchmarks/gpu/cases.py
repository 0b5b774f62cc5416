"""Computations measured on a GPU: kernels as in suite K but large enough for one, and suite E.

Families: ``matmul``, ``resnet50`` (its convolutions, 32 images), ``rows`` (softmax, normalisation),
``elementwise``, ``transpose``, ``custom`` (contractions and compositions that no library has),
``network`` (whole networks, one image or text at a time; see `benchmarks.gpu.networks`).

With float16, inputs, weights and results of kernels have that type, and everything else is float32,
as libraries accumulate, too.  In networks, values between operators are float16 as well.
With tf32, everything is float32, and factors may be rounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
from onnx import NodeProto, helper

from benchmarks.convolution import conv2d
from benchmarks.gpu import networks
from benchmarks.kernel import Array, Arrays, Composite, Kernel, Product, Shape, Text
from benchmarks.kernels import RESNET
from benchmarks.other_kernels import (
    addrelu,
    attention,
    layernorm,
    linear,
    scaled_product,
    softmax,
    transpose,
)
from benchmarks.suites import Item

KERNELS = ("matmul", "resnet50", "rows", "elementwise", "transpose", "custom")
FAMILIES = (*KERNELS, "network")


@dataclass(frozen=True)
class Mode:
    """The precision that every contender uses.

    element : type of inputs and results, by its numpy name
    tolerance : greatest difference from the reference of kernels, relative to its maximum
    deep : the same for networks, where the errors of operators add up
    families : those for which it makes a difference
    rounds : whether factors of type float32 may be rounded to 10 bits
    """

    element: str
    tolerance: float
    deep: float
    families: tuple[str, ...] = FAMILIES
    rounds: bool = False


MODES = {
    # Factors rounded to 10 bits make results of kernels differ by 2.6e-4 and more.
    "float32": Mode("float32", 2e-4, 1e-3),
    "tf32": Mode("float32", 5e-3, 2e-2, ("matmul", "resnet50", "custom", "network"), rounds=True),
    "float16": Mode("float16", 1e-2, 2e-2),
}


def chain(name: str, family: str, shape: Shape) -> Composite:
    """``max(A * B + C, 0) * A``, element by element."""
    ins: Mapping[str, Shape] = {"A": shape, "B": shape, "C": shape}
    operands = ", ".join(f"float32 {n}[N,M]" for n in ins)
    text = f"def chain({operands}) -> (Y) {{ Y[i,j] = max(A[i,j] * B[i,j] + C[i,j], 0) * A[i,j] }}"

    def nodes() -> list[NodeProto]:
        return [
            helper.make_node("Mul", ["A", "B"], ["P"]),
            helper.make_node("Add", ["P", "C"], ["S"]),
            helper.make_node("Relu", ["S"], ["R"]),
            helper.make_node("Mul", ["R", "A"], ["Y"]),
        ]

    def reference(a: Arrays) -> Array:
        return np.asarray(np.maximum(a["A"] * a["B"] + a["C"], 0) * a["A"])

    sizes = dict(zip("NM", shape, strict=True))
    return Composite(
        name, family, 4 * prod(shape), ins, {}, shape, nodes, reference, Text(text, sizes, ins)
    )


@cache
def suite(tiny: bool = False) -> tuple[Kernel, ...]:
    """The kernels, by family; with `tiny`, one or two of each at sizes for an emulator."""
    return _tiny() if tiny else _full()


def _square(n: int) -> Product:
    return Product(f"mm{n}", "matmul", "ij,jk->ik", {"i": n, "j": n, "k": n})


def _cube(name: str, spec: str, extent: int) -> Product:
    return Product(name, "custom", spec, {x: extent for x in spec if x.isalpha()})


def _full() -> tuple[Kernel, ...]:
    found: list[Kernel] = [_square(n) for n in (512, 1024, 2048, 4096, 8192)]
    found += [
        Product("mm1000x999x1001", "matmul", "ij,jk->ik", {"i": 1000, "j": 999, "k": 1001}),
        Product("bmm96x512x64x512", "matmul", "bij,bjk->bik",
                {"b": 96, "i": 512, "j": 64, "k": 512}),
        linear("mm4096x1024x4096", "matmul", 4096, 1024, 4096),
        linear("gemv16x4096x4096", "matmul", 16, 4096, 4096),
    ]  # fmt: skip
    for c, k, r, s, h in RESNET:
        found.append(conv2d(f"rn_{c}x{k}_k{r}s{s}_{h}", "resnet50", c, k, h, r, s, batch=32))
    found += [
        softmax("softmax96x512x512", "rows", (96, 512, 512)),
        softmax("softmax1x64x32768", "rows", (1, 64, 32768)),
        layernorm("layernorm16384x768", "rows", 16384, 768),
        layernorm("layernorm4096x4096", "rows", 4096, 4096),
        addrelu("addrelu32x256x56x56", "elementwise", (32, 256, 56, 56)),
        chain("chain8192x4096", "elementwise", (8192, 4096)),
        transpose("transpose4096", "transpose", 4096, 4096),
        transpose("transpose16384x1000", "transpose", 16384, 1000),
        _cube("tc_abcd_cdef_32", "abcd,cdef->abef", 32),
        _cube("tc_aebf_dfce_48", "aebf,dfce->abcd", 48),
        _cube("bilinear256", "ni,oij,nj->no", 256),
        Product(
            "mttkrp512_r32", "custom", "ijk,jr,kr->ir", {"i": 512, "j": 512, "k": 512, "r": 32}
        ),
        scaled_product("tbmm_scale_bias_relu", "custom", 4096, 26, 26, 72),
        attention("attn96x512x64", "custom", 96, 512, 64),
    ]
    return tuple(found)


def _tiny() -> tuple[Kernel, ...]:
    return (
        Product("mm9x17x33", "matmul", "ij,jk->ik", {"i": 9, "j": 17, "k": 33}),
        _square(64),  # for tensor cores
        linear("linear3x10x17", "matmul", 3, 10, 17),
        conv2d("conv3x5", "resnet50", 3, 5, (7, 9), 3, 2, batch=2),
        softmax("softmax2x3x19", "rows", (2, 3, 19)),
        layernorm("layernorm3x21", "rows", 3, 21),
        chain("chain5x9", "elementwise", (5, 9)),
        transpose("transpose5x9", "transpose", 5, 9),
        Product("three", "custom", "ijk,jr,kr->ir", {"i": 5, "j": 4, "k": 3, "r": 6}),
        attention("attention", "custom", 2, 6, 4),
    )


def items(tiny: bool, only: str = "", families: Sequence[str] = FAMILIES) -> list[Item]:
    """All matching items of the wanted families, with bytes in float32."""
    kernels = [k for k in suite(tiny) if k.family in families and re.search(only, k.name)]
    found = [Item("", k.name, k.family, k.flops, k.bytes) for k in kernels]
    if "network" in families:
        names = [n for n in networks.names(tiny) if re.search(only, n)]
        found += [Item("", n, "network", *networks.size(n)) for n in names]
    return found


def named(name: str, tiny: bool) -> Kernel:
    """The kernel of a suite with this name."""
    return next(k for k in suite(tiny) if k.name == name)


# --- float16 --------------------------------------------------------------------------------------


def text_of(kernel: Kernel, element: str) -> Text:
    """A kernel's comprehension for an element type; it must have one."""
    text = kernel.text
    assert text is not None, kernel.name
    if element == "float32":
        return text
    return Text(halved(text.text, [*text.shapes]), text.sizes, text.shapes)


def halved(text: str, inputs: list[str]) -> str:
    """A definition with float16 inputs and the float16 result ``Y``, computed in float32.

    >>> halved("def f(float32 A[N]) -> (Y) { Y[] +=! A[i] }", ["A"])
    'def f(float16 A[N]) -> (Y) { Y_f[] +=! float32(A[i])\\nY[] = float16(Y_f[]) }'
    """
    head, arrow, body = text.partition("->")
    for name in inputs:
        head = head.replace(f"float32 {name}[", f"float16 {name}[")
        body = re.sub(rf"\b({name}\[[^\]]*\])", r"float32(\1)", body)
    (indices,) = set(re.findall(r"\bY(\[[^\]]*\])", body))
    body = body.replace(f"Y{indices}", f"Y_f{indices}")
    end = body.rindex("}")
    return f"{head}{arrow}{body[:end].rstrip()}\nY{indices} = float16(Y_f{indices}) {body[end:]}"
