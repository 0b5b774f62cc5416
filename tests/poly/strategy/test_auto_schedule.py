"""The automatic schedule: legal, deterministic, and made of steps that replay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.c.function import emit_function
from codegen.pipeline import CPU
from frontends.language.einsum import einsum_program
from poly.errors import ArgumentError
from poly.ir.dtypes import FLOAT32
from poly.ir.program import Program, specialise
from poly.machine.cpu import Machine, host_machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import groups
from poly.strategy.common.queries import attempt
from poly.strategy.cpu.auto_schedule import auto_schedule
from poly.tree.nodes import loops_of
from runtime.reference.interpret import instances
from tests.machines import AVX512
from tests.poly.oracle import broken_pairs, tree_order
from tests.poly.random_programs import programs
from tests.poly.texts import MATMUL, SOFTMAX, program, schedule


@given(programs(), st.booleans())
@settings(max_examples=25)
def test_random_programs(p: Program, exact: bool) -> None:
    start = Schedule.of(p, exact)
    s = auto_schedule(start)
    assert start.replay(str(s)).show == s.show
    for size in (1, 3):
        assert not broken_pairs(s.tree, s.scop, {"N": size}, exact)
        order = tree_order(s.tree, s.scop, {"N": size})
        assert sorted(map(str, order)) == sorted(map(str, instances(p, {"N": size})))


@pytest.mark.parametrize("text", [MATMUL, SOFTMAX])
def test_it_is_deterministic(text: str) -> None:
    assert str(auto_schedule(schedule(text))) == str(auto_schedule(schedule(text)))


def test_softmax_is_one_parallel_loop() -> None:
    s = auto_schedule(schedule(SOFTMAX))
    assert groups(s) == (s.statements,)
    assert "[parallel]" in s.show.splitlines()[0]


def test_a_product_gets_threads_lanes_and_registers() -> None:
    fixed = MATMUL.replace("N,K", "64,64").replace("K,M", "64,64")
    shown = auto_schedule(schedule(fixed)).show
    for what in ("[parallel]", "[vector]", "[unroll]", "promote C to register"):
        assert what in shown


@pytest.mark.parametrize("bounds", ["N <= 2147483648", "N <= 100, K <= 50", "K <= N, M >= 4"])
def test_bounds_of_sizes_are_no_extents(bounds: str) -> None:
    head, body = MATMUL.split(" {", 1)
    bounded = f"{head} where {bounds} {{{body}"
    assert str(auto_schedule(schedule(bounded))) == str(auto_schedule(schedule(MATMUL)))


def test_the_machine_decides_the_tile() -> None:
    fixed = program(MATMUL.replace("N,K", "64,64").replace("K,M", "64,64"))
    host = host_machine()
    assert isinstance(host, Machine)
    assert str(auto_schedule(Schedule.of(fixed), host)) == str(auto_schedule(Schedule.of(fixed)))


def test_an_attempt_changes_nothing_if_it_is_refused() -> None:
    s = schedule(MATMUL)
    assert attempt(s, Schedule.parallelize, "mm", "k") is s
    assert attempt(s, Schedule.parallelize, "mm", "nothing") is s
    assert str(attempt(s, Schedule.parallelize, "mm", "i")) == "parallelize mm: i"


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ({"N": 64, "M": 64, "K": 64}, ()),
        ({"N": 2048, "M": 2048, "K": 1024}, ("promote mm: j_p as B", "split mm: i by")),
        ({"N": 512, "M": 512, "K": 8192}, ("split mm: k by", "sink mm: k_p")),
        ({"N": 4096, "M": 32, "K": 2048}, ()),
        (
            {},
            ("split mm: k by", "sink mm: k_p", "split mm: i by 512", "promote mm: k_p as B, local"),
        ),
    ],
)
def test_large_products_get_blocks(sizes: dict[str, int], steps: tuple[str, ...]) -> None:
    p = program(MATMUL)
    script = str(auto_schedule(Schedule.of(specialise(p, sizes) if sizes else p), AVX512))
    for step in steps:
        assert step in script
    if not steps:
        assert "_p" not in script


def test_threads_share_tiles_and_blocks_of_rows_of_unknown_extent() -> None:
    script = str(auto_schedule(Schedule.of(program(MATMUL)), AVX512))
    assert "parallelize mm: i_t\nparallelize mm: j_p\n" in script


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        (
            """def f(float32 A[N,64], float32 B[30,64,32]) -> (Y) {
                Y[i,j] +=! A[i,k] * B[j // 32,k,j % 32] where j in 0:960
            }""",
            ["i_p", "j_o"],
        ),
        (  # the last tile along k is partial, but inside the loop over blocks
            """def f(float32 X[N,32,21], float32 W[7,8,32,32]) -> (Y) {
                Y[n,k,q] +=! X[n,c,q+s] * W[k // 32,s,c,k % 32] where k in 0:200
            }""",
            ["n_p", "k_o"],
        ),
    ],
)
def test_one_block_of_rows_is_no_work_for_all_threads(text: str, shared: list[str]) -> None:
    s = auto_schedule(Schedule.of(program(text)), AVX512)
    assert [str(x).split(": ")[1] for x in s.steps if str(x).startswith("parallelize")] == shared


def test_a_sum_of_everything_leaves_the_rest_in_its_order() -> None:
    """It has no parallel loop in any order."""
    text = """def f(float32 A[N,64], float32 B[64,96]) -> (float32 L[], float32 C[N,96]) {
        L[] max=! A[i,k]
        C[i,j] +=! A[i,k] * B[k,j] / L[]
    }"""
    s = auto_schedule(schedule(text), AVX512)
    assert "reschedule" not in str(s) and "C to register" in s.show


def test_a_batch_of_unknown_extent_is_no_vector_loop() -> None:
    text = "def f(float32 A[N,1,64], float32 B[N,64,M]) -> (C) { C[n,i,j] +=! A[n,i,k] * B[n,k,j] }"
    s = auto_schedule(schedule(text), AVX512)
    assert "vectorize S0: j_i" in str(s)


def test_lanes_of_unknown_extent_lie_together() -> None:
    text = "def f(float32 C[Y,B], float32 X[N,B,Z]) -> (O) { mm: O[n,y,z] +=! C[y,b] * X[n,b,z] }"
    script = str(auto_schedule(Schedule.of(program(text)), AVX512))
    assert "vectorize mm: z_i" in script


def test_a_sum_over_two_unknown_loops_gets_a_tile() -> None:
    text = "def f(float32 A[N,K,L], float32 B[K,L,M]) -> (C) { mm: C[i,j] +=! A[i,k,l] * B[k,l,j] }"
    script = str(auto_schedule(schedule(text), AVX512))
    assert "split mm: k by 32" in script and "split mm: l by 32" in script
    assert "promote mm: i_o as C, register" in script


def test_threads_do_not_pack_the_same_panel() -> None:
    sizes = {"N": 4096, "M": 80, "K": 1024}
    script = str(auto_schedule(Schedule.of(specialise(program(MATMUL), sizes)), AVX512))
    assert "parallelize mm: i_t" in script


@pytest.mark.parametrize(
    ("a", "b", "c", "sizes", "cores", "packed"),
    [
        ("k,i", "j,k", "i,j", (3136, 16, 3), 1, "B"),
        ("k,i", "j,k", "i,j", (300, 16, 64), 2, "B"),
        ("k,i", "j,k", "i,j", (196, 32, 1), 16, "B"),
        ("i,k", "j,k", "i,j", (16, 32, 3), 1, "B"),
        ("i,k", "j,k", "i,j", (16, 17, 500), 2, "A"),
        ("i,k", "k,j", "j,i", (32, 17, 3136), 1, "A"),
    ],
)
def test_lanes_that_lie_apart_are_packed_whatever_threads_share(
    a: str, b: str, c: str, sizes: tuple[int, int, int], cores: int, packed: str
) -> None:
    extents = dict(zip("ijk", map(str, sizes), strict=True))
    shapes = [",".join(extents[x] for x in access.split(",")) for access in (a, b)]
    text = f"""def f(float32 A[{shapes[0]}], float32 B[{shapes[1]}]) -> (C) {{
        mm: C[{c}] +=! A[{a}] * B[{b}]
    }}"""
    script = str(auto_schedule(schedule(text), replace(AVX512, cores=cores)))
    assert f"as {packed}, local" in script


TWO_REDUCTIONS = """def f(float32 A[N,I,K], float32 B[N,J,I]) -> (U) {
    T[n,i] +=! A[n,i,k]
    U[n,j] +=! exp(T[n,i] + B[n,j,i])
}"""


@pytest.mark.parametrize(
    ("batch", "size", "cores", "count"),
    [(1, 128, 2, 2), (1, 8, 2, 1), (16, 128, 8, 1), (4, 128, 8, 2), (4, 128, 4, 1)],
)
def test_loops_too_short_for_all_threads_are_not_shared(
    batch: int, size: int, cores: int, count: int
) -> None:
    machine = replace(host_machine(), cores=cores)
    sizes = {"N": batch, "I": size, "J": size + 1, "K": size}
    fixed = specialise(program(TWO_REDUCTIONS), sizes)
    s = auto_schedule(Schedule.of(fixed), machine)
    assert len(groups(s)) == count
    if count > 1:
        assert "parallelize S0_init: i" in str(s) and "parallelize S1_init: j" in str(s)


def test_loops_that_are_not_known_are_shared() -> None:
    assert len(groups(auto_schedule(schedule(TWO_REDUCTIONS)))) == 1


def test_initialisations_leave_the_loops_of_a_tiled_reduction() -> None:
    """isl's scheduler puts them there where it fuses a contraction with what follows."""
    p = einsum_program("fbac,adfe,be,dc->", [FLOAT32] * 4)
    s = auto_schedule(Schedule.of(CPU.prepare(p, AVX512)).reschedule(), AVX512)
    assert "reschedule" in str(s) and "distribute S0_2: f" in str(s)
    assert not {"f_p", "a_p", "d_p"} & {*s.loops("S0_2_init")}


def test_a_row_stays_in_one_loop_if_it_is_short() -> None:
    for row, count in ((1000, 1), (100_000, 2)):
        fixed = specialise(program(SOFTMAX), {"N": 1, "M": row})
        assert (len(groups(auto_schedule(Schedule.of(fixed), AVX512))) > 1) == (count > 1)


@pytest.mark.parametrize(("width", "count"), [(16, 24), (16, 28), (32, 48)])
def test_threads_do_not_share_one_full_tile_and_what_is_left(width: int, count: int) -> None:
    blocks = -(-count // width)
    text = f"""def f(float32 X[1,8,3136], float32 W[{blocks},8,{width}]) -> (Y) {{
        Y[n,k,p] +=! X[n,c,p] * W[k // {width},c,k % {width}] where k in 0:{count}
    }}"""
    s = auto_schedule(schedule(text), AVX512)
    assert "parallelize" in str(s)
    # A loop over one tile is gone when C is written, and its threads with it.
    assert emit_function(s, "f").parallel


@pytest.mark.parametrize(
    ("blocks", "rows", "shared"),
    [
        (5, 7, ["k_o", "n", "p"]),  # 35 tiles, where 5 panels leave one of two threads waiting
        (2, 112, ["k_o", "n", "p"]),  # one panel each, but of many pieces
        (64, 7, ["k_o"]),
    ],
)
def test_threads_share_tiles_of_several_panels(blocks: int, rows: int, shared: list[str]) -> None:
    text = f"""def f(float32 X[1,64,{rows},7], float32 W[{blocks},64,64]) -> (Y) {{
        Y[n,k,p,q] +=! X[n,c,p,q] * W[k // 64,c,k % 64] where k in 0:{64 * blocks}
    }}"""
    s = auto_schedule(schedule(text), AVX512)
    assert [str(x).split(": ")[1] for x in s.steps if str(x).startswith("parallelize")] == shared


def test_threads_share_no_loop_that_is_two_in_c() -> None:
    """What is left of 53 rows is a nest of its own below each panel."""
    text = """def f(float32 X[1,8,53], float32 W[5,8,64]) -> (Y) {
        Y[n,k,p] +=! X[n,c,p] * W[k // 64,c,k % 64] where k in 0:320
    }"""
    s = auto_schedule(schedule(text), AVX512)
    assert not ({"k_o", "p_o"} <= {m.name for m in loops_of(s.tree, "S0") if m.mark == "parallel"})


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("def f(float32 A[N,M], float32 x[N]) -> (Y) { Y[j] +=! A[i,j] * x[i] }", "S0: i by 16"),
        ("def f(float32 A[32,M]) -> (Y) { Y[j] +=! A[i,j] }", None),  # few rows
        ("def f(float32 A[N,64]) -> (Y) { Y[j] +=! A[i,j] }", None),  # rows on the same page
        ("def f(float32 A[B,N,M]) -> (Y) { Y[b,j] max=! A[b,i,j] }", "S0: i by 16"),
        ("def f(float32 A[M]) -> (Y) { Y[j] +=! A[j + i] where i in 0:100, j in 0:M-99 }", None),
    ],
)  # fmt: skip
def test_long_columns_are_summed_a_few_rows_at_a_time(text: str, steps: str | None) -> None:
    found = str(auto_schedule(schedule(text)))
    assert ("by 16" in found) == (steps is not None)
    assert steps is None or (f"split {steps}" in found and "distribute S0: j" in found)


def test_what_is_no_schedule() -> None:
    with pytest.raises(ArgumentError, match=r"is a Program, expected a Schedule, as Schedule\.of"):
        auto_schedule(program(MATMUL))  # type: ignore[arg-type]
