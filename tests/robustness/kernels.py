"""Texts of all kinds, with sizes that leave tails, for tests that run many kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.poly.texts import PLAIN_SOFTMAX

Sizes = dict[str, int]


@dataclass(frozen=True)
class Case:
    """A text, its element types if it is no definition, sizes to run, and special inputs."""

    text: str
    sizes: tuple[Sizes, ...]
    dtypes: str | None = None
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    exact: bool = False
    auto: bool = True
    fixed: bool = False  # compile for these sizes


MATMUL = "C[i,j] +=! A[i,k] * B[k,j]"
PADDED = """def padded(float32 X[N,C,H,W], float32 F[K,C,3,3], float32 B[K]) -> (Y) {
    T[n,k,p,q] +=! X[n,c,p+r-1,q+s-1] * F[k,c,r,s]
        where p in 0:H, q in 0:W, 0 <= p+r-1 < H, 0 <= q+s-1 < W
    Y[n,k,p,q] = max(T[n,k,p,q] + B[k], 0)
}"""
STRIDED = """def strided(float32 X[N,C,H,W], float32 F[K,C,R,S]) -> (Y) {
    Y[n,k,p,q] +=! X[n,c,2*p+r,2*q+s] * F[k,c,r,s]
}"""
DEPTHWISE = """def depthwise(float32 X[N,C,H,W], float32 F[C,3,3]) -> (Y) {
    Y[n,c,p,q] +=! X[n,c,p+r-1,q+s-1] * F[c,r,s]
        where p in 0:H, q in 0:W, 0 <= p+r-1 < H, 0 <= q+s-1 < W
}"""
DILATED = """def dilated(float32 X[N,C,H], float32 F[K,C,R]) -> (Y) {
    Y[n,k,p] +=! X[n,c,p+3*r] * F[k,c,r]
}"""
TRANSPOSED = """def transposed(float32 X[N,C,H], float32 F[C,K,R]) -> (Y) {
    Y[n,k,p] +=! X[n,c,(p-r)//2] * F[c,k,r]
        where p in 0:2*H+R-2, 0 <= p-r, (p-r)//2 < H, (p-r) % 2 == 0
}"""
QUANTISED = """def quantised(uint8 X[N,7,H,W], int8 F[11,7,3,3], uint8 Z[]) -> (Y) {
    Y[n,k,p,q] +=! (int32(X[n,c,p+r-1,q+s-1]) - int32(Z[])) * int32(F[k,c,r,s])
        where p in 0:H, q in 0:W, 0 <= p+r-1 < H, 0 <= q+s-1 < W
}"""
MAXPOOL = """def maxpool(float32 X[N,C,H,W]) -> (Y) {
    Y[n,c,p,q] max=! X[n,c,2*p+r-1,2*q+s-1]
        where p in 0:(H+1)//2, q in 0:(W+1)//2, r in 0:3, s in 0:3,
              0 <= 2*p+r-1 < H, 0 <= 2*q+s-1 < W
}"""
AVERAGE = """def average(float64 X[N,H,W]) -> (Y) {
    Y[n,p,q] +=! X[n,p+r,q+s] / 4.0 where r in 0:2, s in 0:2
}"""
LAYERNORM = """def layernorm(float32 X[N,D], float32 G[D], float32 B[D]) -> (Y) {
    mean[i] +=! X[i,d] / D
    var[i] +=! (X[i,d] - mean[i]) * (X[i,d] - mean[i]) / D
    Y[i,d] = (X[i,d] - mean[i]) * rsqrt(var[i] + 1e-5) * G[d] + B[d]
}"""
RNN = """def rnn(float32 X[T,N], float32 U[M,N], float32 W[M,M], float32 a0[M]) -> (H) {
    A[0,j] = a0[j]
    A[t+1,j] +=! U[j,n] * X[t,n]
    A[t+1,j] += W[j,k] * tanh(A[t,k]) where t in 0:T
    H[t,j] = tanh(A[t+1,j])
}"""
SCAN = """def scan(float32 X[N]) -> (S) {
    S[0] = 0
    S[i+1] = S[i] + X[i]
}"""
GATHER = """def embedding(float32 table[V,D], int64 tokens[N]) -> (Y) {
    Y[n,d] = table[tokens[n], d]
}"""
GATHER32 = """def rows(int16 table[V,D], int32 at[N,M]) -> (Y) {
    Y[n,m,d] = table[at[n,m], d] + table[at[n,m] + 1, D - 1 - d]
}"""
CONCAT = """def concat(float32 A[N], float32 B[M]) -> (Y) {
    Y[i] = A[i]
    Y[N+i] = B[i]
}"""
TRIANGLE = """def triangle(float32 A[N,N]) -> (L) {
    L[i,j] = A[i,j] where j in 0:i+1
    L[i,j] = 0 where i in 0:N, i+1 <= j, j in 0:N
}"""
UPDATE = """def update(float32 Y[N], float32 X[N]) -> (Y) { Y[i] += X[i] * 2.0 }"""
STENCIL = """def jacobi(float32 A0[N], float32 dummy[T]) -> (A) {
    A[0,i] = A0[i] where i in 0:N
    A[t+1,i] = (A[t,max(i-1,0)] + A[t,i] + A[t,min(i+1,N-1)]) / 3.0 where t in 0:T, i in 0:N
}"""
BATCHED = "C[z,i,j] +=! A[z,i,k] * B[z,k,j]"
CONTRACTION = "C[u,v,w] +=! A[u,w,e,f] * B[e,v,f]"
THREE = "Y[i,l] +=! A[i,j] * B[j,k] * C[k,l]"
HALF = "C[i,j] +=! A[i,k] * B[k,j]; D[i,j] = exp(C[i,j])"
LINEAR = """def linear(float32 X[N,K], float32 W[M,K], float32 B[M]) -> (Y) {
    T[i,j] +=! X[i,k] * W[j,k]
    Y[i,j] = sigmoid(T[i,j] + B[j])
}"""
STRIDES = "Y[i,j] = A[2*i+1, 3*j] + B[j//2, i%3]"
REVERSED = "def reversed(int16 A[N]) -> (Y) { Y[i] = A[N - 1 - i] where i in 0:N }"

MATMUL_SIZES = (
    {"I": 37, "J": 45, "K": 29}, {"I": 1, "J": 1, "K": 1}, {"I": 8, "J": 32, "K": 5},
    {"I": 0, "J": 5, "K": 3}, {"I": 3, "J": 0, "K": 3}, {"I": 5, "J": 9, "K": 0},
    {"I": 65, "J": 3, "K": 2}, {"I": 2, "J": 67, "K": 130},
)  # fmt: skip
IMAGE_SIZES = (
    {"N": 1, "C": 3, "H": 11, "W": 13, "K": 5}, {"N": 2, "C": 1, "H": 1, "W": 1, "K": 1},
    {"N": 1, "C": 2, "H": 2, "W": 37, "K": 33}, {"N": 0, "C": 2, "H": 3, "W": 3, "K": 2},
    {"N": 1, "C": 0, "H": 3, "W": 4, "K": 2}, {"N": 1, "C": 1, "H": 0, "W": 4, "K": 2},
)  # fmt: skip
ROW_SIZES = ({"N": 7, "M": 37}, {"N": 1, "M": 1}, {"N": 33, "M": 16}, {"N": 0, "M": 3},
             {"N": 3, "M": 0})  # fmt: skip


def _only(sizes: tuple[Sizes, ...], names: str) -> tuple[Sizes, ...]:
    return tuple({n: s[n] for n in names} for s in sizes)


HOSTILE = np.array(
    [0, -1, 1, 4, 5, 6, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**62, 2**32 + 1, 2**60]
)

#: Those that the quick test runs.
CASES: tuple[Case, ...] = (
    Case(MATMUL, MATMUL_SIZES, "float32"),
    Case(PADDED, IMAGE_SIZES),
    Case(STRIDED, (
        {"N": 1, "C": 3, "H": 11, "W": 14, "K": 5, "R": 3, "S": 2},
        {"N": 2, "C": 2, "H": 3, "W": 38, "K": 33, "R": 3, "S": 3},
        {"N": 1, "C": 0, "H": 5, "W": 5, "K": 2, "R": 1, "S": 1},
    )),
    Case(DEPTHWISE, _only(IMAGE_SIZES, "NCHW")),
    Case(MAXPOOL, _only(IMAGE_SIZES, "NCHW")),
    Case(PLAIN_SOFTMAX, ROW_SIZES),
    Case(LAYERNORM, ({"N": 5, "D": 37}, {"N": 1, "D": 1}, {"N": 9, "D": 64}, {"N": 0, "D": 4})),
    Case(RNN, ({"T": 5, "N": 7, "M": 19}, {"T": 1, "N": 1, "M": 1}, {"T": 0, "N": 3, "M": 2})),
    Case(SCAN, ({"N": 33}, {"N": 1}, {"N": 0})),
    Case(GATHER, ({"V": 6, "D": 17, "N": 13}, {"V": 1, "D": 1, "N": 13}), inputs={
        "tokens": HOSTILE}),
    Case(GATHER32, ({"V": 6, "D": 7, "N": 4, "M": 3},), inputs={
        "at": np.array([0, -1, 5, 6, 2**31 - 1, -(2**31), 4, 1, 2, 3, 7, -7], np.int32)
        .reshape(4, 3)}),
    Case(TRIANGLE, ({"N": 19}, {"N": 1}, {"N": 0})),
    Case(UPDATE, ({"N": 41}, {"N": 0})),
    Case(STRIDES, ({"I": 9, "J": 21, "A0": 19, "A1": 61, "B0": 11, "B1": 3},), "float32"),
    Case(THREE, ({"I": 9, "J": 7, "K": 17, "L": 21},), "float64"),
    Case(HALF, ({"I": 9, "J": 35, "K": 17},), "float16"),
    Case(HALF, ({"I": 9, "J": 35, "K": 17},), "bfloat16"),
    Case(MATMUL, ({"I": 9, "J": 35, "K": 17},), "int8"),
    Case(MATMUL, ({"I": 63, "J": 65, "K": 33},), "float32", fixed=True),
    Case(MATMUL, ({"I": 13, "J": 35, "K": 17},), "float32", exact=True),
    Case(LINEAR, ({"N": 13, "K": 21, "M": 35},)),
)  # fmt: skip

MORE: tuple[Case, ...] = (
    Case(DILATED, ({"N": 1, "C": 3, "H": 40, "K": 5, "R": 3}, {"N": 1, "C": 1, "H": 1, "K": 1,
                                                               "R": 1})),
    Case(TRANSPOSED, ({"N": 1, "C": 3, "H": 11, "K": 5, "R": 3}, {"N": 1, "C": 1, "H": 1, "K": 1,
                                                                 "R": 1})),
    Case(AVERAGE, ({"N": 2, "H": 9, "W": 35}, {"N": 1, "H": 2, "W": 2})),
    Case(CONCAT, ({"N": 9, "M": 40}, {"N": 0, "M": 3}, {"N": 3, "M": 0}, {"N": 0, "M": 0})),
    Case(STENCIL, ({"N": 37, "T": 5}, {"N": 1, "T": 2}, {"N": 5, "T": 0})),
    Case(BATCHED, ({"Z": 3, "I": 9, "J": 35, "K": 17}, {"Z": 0, "I": 1, "J": 1, "K": 1}),
         "float32"),
    Case(CONTRACTION, ({"U": 5, "V": 9, "W": 18, "E": 3, "F": 7},), "float32"),
    Case(REVERSED, ({"N": 40}, {"N": 0})),
)  # fmt: skip


def integer_case(dtype: str) -> Case:
    """Everything that can go wrong with integers, at the edges of a type."""
    info = np.iinfo(dtype)
    edge = np.array([info.min, info.max, 0, 1, info.min + 1, 3, 7, info.max // 2], dtype)
    if info.min < 0:
        edge = np.append(edge, np.array([-1, -2, -7, -info.bits], dtype))
    edge = np.append(edge, np.array([info.bits, info.bits - 1, info.bits + 1], dtype))
    a, b = (m.ravel().copy() for m in np.meshgrid(edge, edge))
    text = f"""def edges({dtype} A[N], {dtype} B[N]) -> (D, F, M, R, L, S, P, G, K) {{
        D[i] = A[i] / B[i]
        F[i] = A[i] // B[i]
        M[i] = A[i] % B[i]
        R[i] = fmod(A[i], B[i])
        L[i] = A[i] << B[i]
        S[i] = A[i] >> B[i]
        P[i] = A[i] * B[i] + A[i] - B[i]
        G[i] = -abs(A[i]) + sign(B[i]) - ~A[i]
        K[i] = (A[i] & B[i]) | (A[i] ^ max(A[i], B[i]))
    }}"""
    return Case(text, ({"N": len(a)},), inputs={"A": a, "B": b})


def cast_case(source: str, target: str) -> Case:
    """A cast of values that the target has; others, from floats, are unspecified."""
    values = [0, 1, 2, 100]
    if not source.startswith("u") and not target.startswith("u") and "bool" not in (source, target):
        values += [-1, -100]
    if source == "bool":
        values = [0, 1]
    from poly.ir.dtypes import DTYPES

    x = np.array(values * 7).astype(DTYPES[source].numpy)
    text = f"def cast({source} X[N]) -> (Y) {{ Y[i] = {target}(X[i]) }}"
    return Case(text, ({"N": len(x)},), inputs={"X": x})


#: Not among those that are mutated, most of which would be no programs.
PAIRS = Case(QUANTISED, _only(IMAGE_SIZES, "NHW"))
