"""Small programs built by hand, so that these tests need no parser."""

from __future__ import annotations

from codegen.c.kernel_source import KernelSource
from poly.ir.dtypes import FLOAT32, DType
from poly.ir.expr import Const, Expr, Index, Op, Read, Size
from poly.ir.program import Program, Range, Statement, Tensor, verify_program

N, M, K, C, H, W, R, S, T = (Size(x) for x in "NMKCHWRST")
i, j, k, c, p, q, r, s, t = (Index(x) for x in "ijkcpqrst")


def e(value: Expr | int | float | bool) -> Expr:
    return value if isinstance(value, Expr) else Const(value)


def op(fn: str, *args: Expr | int | float | bool) -> Op:
    return Op(fn, tuple(map(e, args)))


def read(name: str, *indices: Expr | int) -> Read:
    return Read(name, tuple(map(e, indices)))


def tensor(name: str, *shape: Expr | int, dtype: DType = FLOAT32) -> Tensor:
    return Tensor(name, dtype, tuple(map(e, shape)))


def span(**ranges: Expr | int | tuple[Expr | int, Expr | int]) -> tuple[Range, ...]:
    """``span(i=N, j=(1, M))``: ranges by index name."""
    return tuple(
        Range(n, e(b[0]), e(b[1])) if isinstance(b, tuple) else Range(n, Const(0), e(b))
        for n, b in ranges.items()
    )


def statement(
    name: str,
    target: Read,
    operator: str,
    value: Expr | int | float | bool,
    ranges: tuple[Range, ...],
    reductions: str = "",
    guards: tuple[Expr, ...] = (),
) -> Statement:
    """`operator` is written as in the language, with ``!`` for an initialisation."""
    return Statement(
        name,
        target,
        operator.rstrip("!"),
        operator.endswith("!"),
        e(value),
        ranges,
        tuple(reductions),
        guards,
    )


def program(
    statements: list[Statement],
    inputs: list[Tensor],
    outputs: list[Tensor],
    temps: tuple[Tensor, ...] = (),
    sizes: str = "",
    constraints: tuple[Expr, ...] = (),
    name: str = "f",
) -> Program:
    return verify_program(
        Program(
            name,
            tuple(sizes),
            tuple(inputs),
            tuple(outputs),
            temps,
            tuple(statements),
            constraints,
        )
    )


def matmul(dtype: DType = FLOAT32, out: DType | None = None) -> Program:
    product = op("mul", read("A", i, k), read("B", k, j))
    s0 = statement("S", read("C", i, j), "+=!", product, span(i=N, j=M, k=K), "k")
    ins = [tensor("A", N, K, dtype=dtype), tensor("B", K, M, dtype=dtype)]
    return program([s0], ins, [tensor("C", N, M, dtype=out or dtype)], sizes="NMK")


def elementwise(value: Expr, dtype: DType, *names: str, out: DType | None = None) -> Program:
    """``Y[i] = value`` over inputs of one dtype."""
    s0 = statement("S", read("Y", i), "=", value, span(i=N))
    inputs = [tensor(n, N, dtype=dtype) for n in names]
    return program([s0], inputs, [tensor("Y", N, dtype=out or dtype)], sizes="N")


def scan() -> Program:
    """``H[t+1, j] += H[t, k] * W[k, j]``: every step reads the one before."""
    product = op("mul", read("H", t, k), read("V", k, j))
    s0 = statement("S", read("H", op("add", t, 1), j), "+=", product, span(t=T, j=N, k=N), "k")
    h = tensor("H", op("add", T, 1), N)
    return program([s0], [h, tensor("V", N, N)], [h], sizes="TN")


ADD_TEXT = """\
#include <stdint.h>
void add(int32_t threads, const int64_t *sizes, void *const *tensors);
void add(int32_t threads, const int64_t *sizes, void *const *tensors)
{
    (void)threads;
    const float *a = tensors[0], *b = tensors[1];
    float *y = tensors[2];
    for (int64_t i = 0; i < sizes[0]; i++) y[i] = a[i] + b[i];
}
"""


def add_source() -> KernelSource:
    """``Y[i] = A[i] + B[i]`` with hand-written C."""
    return KernelSource(
        elementwise(op("add", read("A", i), read("B", i)), FLOAT32, "A", "B"), "add", ADD_TEXT
    )
