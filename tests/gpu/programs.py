"""Programs with schedules for a GPU: what each of them is for, and sizes to run it at."""

from __future__ import annotations

from dataclasses import dataclass

MATMUL = "def mm(float32 A[N,K], float32 B[K,M]) -> (C) { mm: C[i,j] +=! A[i,k] * B[k,j] }"
HEAT = """def heat(float32 A[T,N]) -> (A) {
    step: A[t+1,i] = A[t,i-1] + A[t,i] + A[t,i+1] where t in 0:T-1, i in 1:N-1 }"""
SOFTMAX = """def softmax(float32 X[N,M]) -> (Y) {
    top[i] max=! X[i,j]
    e[i,j] = exp(X[i,j] - top[i])
    sum[i] +=! e[i,j]
    Y[i,j] = e[i,j] / sum[i] }"""
TRANSPOSE = "def turn(float32 X[N,M]) -> (Y) { t: Y[j,i] = X[i,j] }"
CHAIN = """def chain(float32 X[N]) -> (U) {
    T[i] = 2 * X[i]
    U[i] = T[i] + T[i+1] where i in 0:N-1 }"""
STENCIL = """def blur(int32 X[N,M]) -> (Y) {
    Y[i,j] = X[i,j+1] + X[i+2,j+1] + X[i+1,j] + X[i+1,j+2] }"""
SCAN = """def scan(int64 X[N,M], int64 A[N,M]) -> (A) {
    s: A[i,j] = A[i,j-1] + X[i,j] where j in 1:M }"""

CUBE = """def cube(float32 X[N,M,L]) -> (Y) {
    Y[k,j,i] = X[i,j,k] + X[i,j+1,k] where j in 0:M-1 }"""


@dataclass(frozen=True)
class Case:
    """launches, barriers : how many there are to be in the text"""

    text: str
    script: str
    sizes: dict[str, int]
    launches: int
    barriers: int


SHARED = """
fuse mm_init, mm: i, j
tile mm: i, j by 16, 16
sink mm: k
split mm: k by 8
reorder mm: i_o, j_o, k_o, i_i, j_i, k_i
map_blocks mm: i_o, j_o
map_threads mm: i_i, j_i
promote mm: k_o as A, shared
promote mm: k_o as B, shared
"""
REGISTERS = """
fuse mm_init, mm: i, j
tile mm: i, j by 16, 16 as ib, jb, ii, ji
tile mm: ii, ji by 2, 4 as it, jt, ir, jr
sink mm: k
split mm: k by 8
reorder mm: ib, jb, it, jt, k_o, k_i, ir, jr
map_blocks mm: ib, jb
map_threads mm: it, jt
promote mm: jt as C, register
promote mm: k_o as A, shared
promote mm: k_o as B, shared
unroll mm: ir
unroll mm: jr
"""
QUOTIENT = """def quotient(float32 A[N,K], float32 B[K,M], float32 C[N,M,K]) -> (Y) {
    mm: Y[i,j] +=! floor(C[i,j,k]) // (A[i,k] + B[k,j]) }"""
ROWS = """
fuse S0_init, S0: i
fuse S0_init, S1: i
fuse S0_init, S2_init: i
fuse S0_init, S2: i
fuse S0_init, S3: i
map_blocks S0: i
split S1: j by 16
split S3: j by 16
map_threads S1: j_i
map_threads S3: j_i
"""
#: Rows whose maximum and sum threads find together: 16 of them by shuffles, 64 through memory, too.
REDUCED = """
fuse S0_init, S0: i
fuse S0_init, S1: i
fuse S0_init, S2_init: i
fuse S0_init, S2: i
fuse S0_init, S3: i
map_blocks S0: i
split S0: j by 64
split S1: j by 64
split S2: j by 64
split S3: j by 64
reduce_threads S0: j_i
map_threads S1: j_i
reduce_threads S2: j_i
map_threads S3: j_i
"""
CASES = {
    "as written": Case(MATMUL, "", {"N": 5, "K": 6, "M": 7}, 1, 0),
    "one point a thread": Case(
        MATMUL,
        "fuse mm_init, mm: i, j\ntile mm: i, j by 4, 8\nmap_blocks mm: i_o, j_o\n"
        "map_threads mm: i_i, j_i",
        {"N": 9, "K": 3, "M": 17}, 1, 0,
    ),
    "two launches": Case(
        MATMUL,
        "tile mm_init: i, j by 4, 8\nmap_blocks mm_init: i_o, j_o\nmap_threads mm_init: i_i, j_i\n"
        "tile mm: i, j by 4, 8\nmap_blocks mm: i_o, j_o\nmap_threads mm: i_i, j_i",
        {"N": 5, "K": 6, "M": 17}, 2, 0,
    ),
    "shared tiles": Case(MATMUL, SHARED, {"N": 21, "K": 19, "M": 37}, 1, 2),
    "registers": Case(MATMUL, REGISTERS, {"N": 21, "K": 19, "M": 37}, 1, 2),
    # C is read where it is, and has no place for what is left of a tile.
    "registers of quotients": Case(
        QUOTIENT, REGISTERS.replace("as C", "as Y"), {"N": 21, "K": 19, "M": 37}, 1, 2
    ),
    "rows": Case(SOFTMAX, ROWS, {"N": 3, "M": 37}, 1, 3),
    "the host runs time": Case(
        HEAT, "split step: i by 16\nmap_blocks step: i_o\nmap_threads step: i_i",
        {"T": 5, "N": 40}, 1, 0,
    ),
    "one block runs time": Case(
        HEAT, "split step: i by 16\nmap_threads step: i_i", {"T": 5, "N": 40}, 1, 1
    ),
    "transpose": Case(
        TRANSPOSE,
        "tile t: j, i by 8, 8\nmap_blocks t: j_o, i_o\nmap_threads t: j_i, i_i\n"
        "promote t: i_o as X, shared",
        {"N": 19, "M": 13}, 1, 1,
    ),
    "neighbours": Case(
        CHAIN,
        "split S0: i by 8\nsplit S1: i by 8\nmap_threads S0: i_i\nmap_threads S1: i_i",
        {"N": 30}, 1, 1,
    ),
    "halo": Case(
        STENCIL,
        "tile S0: i, j by 4, 8\nmap_blocks S0: i_o, j_o\nmap_threads S0: i_i, j_i\n"
        "promote S0: j_o as X, shared",
        {"N": 11, "M": 21}, 1, 1,
    ),
    "three dimensions": Case(
        CUBE,
        "tile S0: k, j, i by 2, 4, 8\nmap_blocks S0: k_o, j_o, i_o\n"
        "map_threads S0: k_i, j_i, i_i\npromote S0: i_o as X, shared",
        {"N": 11, "M": 7, "L": 5}, 1, 1,
    ),
    "rows reduced by warps": Case(
        SOFTMAX, REDUCED.replace("64", "16"), {"N": 5, "M": 37}, 1, 2
    ),
    "rows reduced by blocks": Case(SOFTMAX, REDUCED, {"N": 3, "M": 150}, 1, 2),
    "tiles ahead": Case(
        MATMUL,
        "fuse mm_init, mm: i, j\ntile mm: i, j by 16, 16 as ib, jb, ii, ji\n"
        "tile mm: ii, ji by 2, 4 as it, jt, ir, jr\ndistribute mm: ir\nreorder mm: k, ir, jr\n"
        "split mm: k by 8\nmap_blocks mm: ib, jb\nmap_threads mm: it, jt\n"
        "promote mm: jt as C, register\npromote mm: k_o as A, shared, 1, 0, ahead\n"
        "promote mm: k_o as B, shared, ahead\nunroll mm: ir\nunroll mm: jr\n"
        "unroll mm_init: ir\nunroll mm_init: jr",
        {"N": 21, "K": 19, "M": 37}, 1, 1,
    ),
    "one operand ahead": Case(
        MATMUL,
        "fuse mm_init, mm: i, j\ntile mm: i, j by 8, 8\nsplit mm: k by 8\n"
        "map_blocks mm: i_o, j_o\nmap_threads mm: i_i, j_i\npromote mm: k_o as A, shared, ahead\n"
        "promote mm: k_o as B, shared",
        {"N": 9, "K": 19, "M": 10}, 1, 2,
    ),
    "scans apart": Case(
        SCAN, "split s: i by 4\nmap_blocks s: i_o\nmap_threads s: i_i", {"N": 10, "M": 6}, 1, 0
    ),
}  # fmt: skip
