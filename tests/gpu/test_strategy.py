"""The automatic schedule for a GPU: which form a program gets, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from codegen.pipeline import CUDA
from poly.machine.gpu import ANY, NAMED
from poly.strategy.common.apply_tactics import apply_tactics
from poly.strategy.gpu.auto_schedule import GPU_STRATEGY, gpu_schedule
from runtime.cuda.compile import compile_cubin
from tests.gpu.architectures import needs_compiler, on_one_each
from tests.gpu.races import races


@dataclass(frozen=True)
class Shape:
    """A program, steps that its schedule has, and words of its CUDA text.

    sizes : small ones at which all accesses are followed
    """

    text: str
    steps: tuple[str, ...]
    words: tuple[str, ...]
    sizes: dict[str, int]
    kernels: int = 1


SHAPES = {
    "matrix product": Shape(
        "def mm(float32 A[N,K], float32 B[K,M], float32 b[M]) -> (D) "
        "{ mm: C[i,j] +=! A[i,k] * B[k,j]; r: D[i,j] = max(C[i,j] + b[j], 0) }",
        ("map_blocks mm: i_b, j_b", "map_threads mm: i_t, j_t", "as A, shared, 1, 0, ahead",
         "as B, shared, ahead", "as C, register", "unroll r: j_r"),
        ("A_s[2][16][68]", "B_s[2][16][64]", "fk_copy_async_4", "__launch_bounds__(256)"),
        {"N": 70, "K": 20, "M": 66},
    ),
    "large matrix product": Shape(
        "def mm(float32 A[4096,4096], float32 B[4096,4096]) -> (C) "
        "{ mm: C[i,j] +=! A[i,k] * B[k,j] }",
        ("split mm: i by 128", "split mm: i_w by 8"),
        ("A_s[2][16][132]", "C_r_7_7", "fk_copy_async_4x4"), {},
    ),
    "convolution": Shape(
        "def conv(float32 X[2,5,16,16], float32 W[9,5,3,3]) -> (Y) "
        "{ c: Y[n,o,y,x] +=! X[n,k,y+r,x+s] * W[o,k,r,s] }",
        ("split c: o by 4", "as W, shared", "as X, shared", "as Y, register"),
        ("__shared__", "W_s"), {},
    ),
    "rows": Shape(
        "def softmax(float32 X[N,M]) -> (Y) { top[i] max=! X[i,j]; e[i,j] = exp(X[i,j] - top[i]); "
        "sum[i] +=! e[i,j]; Y[i,j] = e[i,j] / sum[i] }",
        ("map_blocks S0_init: i", "reduce_threads S0: j_i", "reduce_threads S2: j_i",
         "map_threads S3: j_i", "as top, shared", "as sum, shared"),
        ("__shfl_xor_sync", "fk_maximum_of_256_f32", "fk_sum_of_256_f32"), {"N": 2, "M": 300},
    ),
    "short rows": Shape(
        "def total(float32 X[500,40]) -> (Y) { t: Y[i] +=! X[i,j] }",
        ("map_threads t_init: i_i", "reduce_threads t: j_i"), ("fk_sum_of_64_f32",), {},
    ),
    "columns": Shape(
        "def total(float32 X[N,M]) -> (Y) { t: Y[j] +=! X[i,j] }",
        ("map_threads t_init: j_i", "as Y, register"), ("Y_r_0 +=",), {"N": 5, "M": 300},
    ),
    "columns added to others": Shape(
        "def total(float32 X[N,M], float32 Y[M]) -> (Y) { t: Y[j] += X[i,j] }",
        ("map_threads t: j_i", "promote t: j_i as Y, register"), ("Y_r_0 +=",), {"N": 5, "M": 300},
    ),
    "transpose": Shape(
        "def turn(float32 X[N,M]) -> (Y) { t: Y[j,i] = X[i,j] }",
        ("map_threads t: j_t, i_t", "as X, shared"), ("X_s[32][33]", "__launch_bounds__(256)"),
        {"N": 40, "M": 35},
    ),
    "pointwise": Shape(
        "def scale(float32 X[B,C,H,W], float32 s[C]) -> (Y) { p: Y[b,c,h,w] = X[b,c,h,w] * s[c] }",
        ("split p: h_w by 4 as h_w_g, h_w_v", "map_blocks p: b, c, h_w_g_o", "as X, register"),
        ("__launch_bounds__(256)", "fk_load_f32x4"), {"B": 2, "C": 3, "H": 20, "W": 15},
    ),
    "points": Shape(
        "def next(float32 X[N]) -> (float32 Y[N-1]) { p: Y[i] = X[i+1] - X[i] }",
        ("split p: i by 256", "map_blocks p: i_o"), ("__launch_bounds__(256)",), {"N": 600},
    ),
    "time": Shape(
        "def heat(float32 A[T,N]) -> (A) { s: A[t+1,i] = A[t,i-1] + A[t,i+1] "
        "where t in 0:T-1, i in 1:N-1 }",
        ("map_blocks s: i_o", "map_threads s: i_i"), ("host_t",), {"T": 4, "N": 300},
    ),
    "a sum of everything": Shape(
        "def total(float32 X[N]) -> (Y) { t: Y[] +=! X[i] }", ("reduce_threads t: i_i",),
        ("fk_sum_of_256_f32",), {"N": 300},
    ),
}  # fmt: skip


def made(shape: Shape) -> fk.Schedule:
    whole = replace(ANY, processors=1)  # for which no reduction is split
    return gpu_schedule(fk.Schedule.of(CUDA.prepare(fk.parse(shape.text), whole)), ANY)


@pytest.mark.parametrize("name", SHAPES)
def test_the_form_of_a_program(name: str) -> None:
    shape = SHAPES[name]
    schedule = made(shape)
    script = str(schedule)
    missing = [s for s in shape.steps if s not in script]
    assert not missing, script
    source = generate_gpu(schedule, "cuda", fk.parse(shape.text))
    assert not [w for w in shape.words if w not in source.text], source.text
    assert len(source.kernels) == shape.kernels
    if shape.sizes:
        assert races(schedule, source, source.all_sizes(shape.sizes)) == []


@pytest.mark.parametrize(("name", "arch"), on_one_each(SHAPES))
def test_nothing_is_spilled(name: str, arch: str) -> None:
    needs_compiler(arch)
    source = generate_gpu(made(SHAPES[name]), "cuda")
    for symbol, own in compile_cubin(source.text, arch).kernels.items():
        assert own.spill_store_bytes == own.spill_load_bytes == own.stack_bytes == 0
        kernel = next(k for k in source.kernels if k.symbol == symbol)
        x, y, z = kernel.block
        assert own.shared_bytes == kernel.shared_bytes
        assert own.registers <= 128 and own.registers * x * y * z <= 65536 // 2


def test_tiles_grow_where_every_processor_has_several() -> None:
    text = (
        "def mm(float32 A[1024,64], float32 B[64,1024]) -> (C) { mm: C[i,j] +=! A[i,k] * B[k,j] }"
    )
    start = fk.Schedule.of(fk.parse(text))
    assert "split mm: i by 64" in str(gpu_schedule(start, NAMED["sm_90"]))
    assert "split mm: i by 128" in str(gpu_schedule(start, replace(ANY, processors=8)))


def test_with_plain_tactics_every_thread_has_points_of_its_own() -> None:
    start = fk.Schedule.of(fk.parse(SHAPES["rows"].text))
    script = str(apply_tactics(start, ANY, GPU_STRATEGY, plain=True).schedule)
    assert "reduce_threads" not in script and "shared" not in script and "map_threads" in script


def test_the_result_depends_on_nothing_else() -> None:
    for shape in SHAPES.values():
        assert str(made(shape)) == str(made(shape))


ROWS_TAKE_TURNS = """def f(uint8 U[2,2,N]) -> (U) {
    U[i+1,j,k] = U[i,j,k] + U[i,max(j-1,0),k] * 7 where i in 0:1, j in 0:2, k in 0:N }"""
A_SUM_HAS_ONE_TERM = """def f(float32 A[64,N], float32 B[N,64]) -> (float32 Y[64,64]) {
    Y[i,j] +=! A[i,k] * B[k,j] where i in 0:64, j in 0:64, k in 0:N, i == k }"""


THE_OTHER_ROW = """def f(float32 X[2,8192]) -> (float32 Y[2]) {
    Y[i] +=! X[i,k] * X[1-i,k] where i in 0:2, k in 0:8192 }"""


@pytest.mark.parametrize("text", [ROWS_TAKE_TURNS, A_SUM_HAS_ONE_TERM, THE_OTHER_ROW])
@pytest.mark.parametrize("exact", [True, False])
def test_registers_have_constant_places(text: str, exact: bool) -> None:
    """Other ones are in local memory, which is as far away as global memory."""
    source = CUDA.automatic(fk.parse(text), ANY, exact).source
    assert "an array, since its places are not constant" not in source.text


#: Several rows of one tensor, each with a place of its own.
ROWS = {
    "gates": "def f(float32 X[64,2,65536]) -> (Y) { Y[b,j] = X[b,0,j] * X[b,1,j] }",
    "colours": """def f(float32 X[8,3,512,512]) -> (Y) {
        Y[b,i,j] = 0.3*X[b,0,i,j] + 0.6*X[b,1,i,j] + 0.1*X[b,2,i,j] }""",
    "pairs": """def f(float32 X[4096,1024]) -> (Y) {
        Y[p,j] = X[2*p,j] + X[2*p+1,j] where p in 0:2048 }""",
    "stacked": """def f(float32 X[4096,1024]) -> (float32 Y[4096,2,1024]) {
        Y[b,0,j] = X[b,j]
        Y[b,1,j] = X[b,j] * 2 }""",
}


@pytest.mark.parametrize("name", ROWS)
def test_neighbours_of_several_rows(name: str) -> None:
    source = CUDA.automatic(fk.parse(ROWS[name]), NAMED["sm_90"]).source
    assert "fk_load_f32x4(" in source.text and "fk_store_f32x4(" in source.text
    assert "an array, since its places are not constant" not in source.text
