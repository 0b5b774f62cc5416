"""Loops on blocks and threads: what runs where, what waits for what, and what makes no sense.

What dependences forbid is in ``tests/illegal/cases``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from codegen.loops.from_schedule import build_kernel
from codegen.loops.lower_instances import lower
from codegen.loops.nodes import If, LoopNode, Wait
from codegen.loops.traverse import map_children, walk_loops
from poly.errors import ScheduleError
from poly.ir.expr import Const, Index, Op
from poly.lower.launches import launches
from runtime.gpu.gpu_program import launches_of
from tests.gpu.programs import CASES, HEAT, MATMUL, SHARED, SOFTMAX, Case
from tests.gpu.races import races, races_of, without_wait


def schedule(text: str, script: str) -> fk.Schedule:
    return fk.Schedule.of(fk.parse(text)).replay(script)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_no_two_threads_meet(case: Case) -> None:
    s = schedule(case.text, case.script)
    source = generate_gpu(s, "cuda")
    assert len(source.kernels) == case.launches
    kernels = source.text[source.text.index('extern "C"') :]  # behind helpers that wait, too
    assert kernels.count("__syncthreads();\n") == case.barriers
    assert races(s, source, case.sizes) == []


#: Barriers between the iterations of loops over blocks: none behind what ends with one.
BETWEEN_BLOCKS = {"tiles ahead": 0, "one operand ahead": 0, "transpose": 1, "three dimensions": 1}


@pytest.mark.parametrize("name", BETWEEN_BLOCKS)
def test_blocks_that_one_block_runs(name: str) -> None:
    case = CASES[name]
    text = generate_gpu(schedule(case.text, case.script), "cuda").text
    assert text.count("__syncthreads(); /* before") == BETWEEN_BLOCKS[name]


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.barriers])
def test_every_barrier_is_needed(name: str) -> None:
    """Without any one of them there is a race, which the check finds."""
    case = CASES[name]
    s = schedule(case.text, case.script)
    source = generate_gpu(s, "cuda")
    _, found = launches(s.tree, s.scop)
    ((kernel, grid, env), *_) = launches_of(source, case.sizes)
    launch = found[source.kernels.index(kernel)]
    body = lower(build_kernel(s, launch))
    count = sum(isinstance(n, Wait) for n in walk_loops(body))
    assert count == case.barriers
    for k in range(count):
        assert races_of(without_wait(body, k), launch, grid, env)


def test_a_barrier_that_some_do_not_reach_is_found() -> None:
    case = CASES["shared tiles"]
    s = schedule(case.text, case.script)
    source = generate_gpu(s, "cuda")
    _, (launch,) = launches(s.tree, s.scop)
    ((_, grid, env), *_) = launches_of(source, case.sizes)
    body = lower(build_kernel(s, launch))

    def visit(node: LoopNode) -> LoopNode:
        if isinstance(node, Wait):
            return If(Op("lt", (Index("thread_x"), Const(3))), node)
        return map_children(node, visit)

    assert any("threads wait" in r.what for r in races_of(visit(body), launch, grid, env))


@pytest.mark.parametrize(
    ("text", "script", "message"),
    [
        (MATMUL, "map_threads mm: i", "split it by a number"),
        (MATMUL, "split mm: i by 2048\nmap_threads mm: i_i", "a block at most 1024"),
        (MATMUL, "tile mm: i, j by 64, 64\nmap_threads mm: i_i, j_i", "64 x 64 threads, over 1024"),
        (MATMUL, "map_blocks mm: j, i", "in the order of the nest"),
        (MATMUL, "parallelize mm: i\nmap_blocks mm: j", "i around mm is already marked parallel"),
        (MATMUL, "map_blocks mm: i\nmap_blocks mm: j", "i around mm is already marked block"),
        (MATMUL, "split mm: j by 8\nmap_threads mm: j_i\nmap_blocks mm: i", ""),
        (MATMUL, "split mm: i by 8\nmap_threads mm: i_i\nmap_blocks mm: j", "marked thread"),
        (MATMUL, "promote mm: i as A, shared", "no constant bound"),
        (
            MATMUL,
            "tile mm: i, j, k by 128, 8, 128\npromote mm: k_o as A, shared",
            "over 49152",
        ),
        (
            MATMUL,
            "tile mm: i, j, k by 8, 8, 8\npromote mm: k_o as A, local\nmap_threads mm: i_i, j_i",
            "belongs to one thread",
        ),
        (
            MATMUL,
            "tile mm: i, j, k by 8, 8, 8\nmap_threads mm: i_i, j_i\npromote mm: k_o as A, register",
            "loops inside run on several",
        ),
        (
            MATMUL,
            "tile mm: i, j, k by 8, 8, 8\npromote mm: k_o as A, shared\nmap_blocks mm: i_i",
            "belongs to one block",
        ),
        (HEAT, "reverse step: i\nmap_blocks step: i", "begins below 0"),
    ],
)
def test_a_mapping_that_makes_no_sense(text: str, script: str, message: str) -> None:
    if not message:
        schedule(text, script)
        return
    with pytest.raises(ScheduleError, match=message):
        generate_gpu(schedule(text, script), "cuda")


def test_lanes_and_cpu_threads_are_refused() -> None:
    for script, message in (
        ("vectorize mm: j by 8", "vectorize of j_i has no meaning on a GPU"),
        ("parallelize mm: i", "parallelize of i has no meaning on a GPU"),
    ):
        with pytest.raises(ScheduleError, match=message):
            generate_gpu(schedule(MATMUL, script), "cuda")


def test_the_host_leaves_out_what_does_nothing() -> None:
    s = schedule(HEAT, "split step: i by 16\nmap_blocks step: i_o\nmap_threads step: i_i")
    source = generate_gpu(s, "opencl")
    assert [grid for _, grid, _ in launches_of(source, {"T": 4, "N": 40})] == [(3, 1, 1)] * 3
    assert list(launches_of(source, {"T": 1, "N": 40})) == []
    assert list(launches_of(source, {"T": 4, "N": 2})) == []


def test_a_grid_that_is_too_short_has_blocks_that_go_on() -> None:
    """Along y and z there are 65,535 blocks at most, along x 2^31 - 1."""
    script = "fuse mm_init, mm: i, j\nmap_blocks mm: i, j"
    source = generate_gpu(schedule(MATMUL, script), "cuda")
    ((_, grid, _),) = launches_of(source, {"N": 70000, "K": 1, "M": 3})
    assert grid == (3, 65535, 1)
    with pytest.raises(fk.ToolchainError, match="3000000000 blocks in x, the limit is 2147483647"):
        list(launches_of(source, {"N": 1, "K": 1, "M": 3 * 10**9}))
    kernel = fk.compile(MATMUL, schedule=script, target="cuda-emulator")
    assert kernel.verify({"N": 66000, "K": 1, "M": 1}).exact
    fixed = generate_gpu(schedule(MATMUL.replace("N", "64"), script), "cuda")
    assert "gridDim" in source.text and "gridDim" not in fixed.text


def test_blocks_that_go_on_wait_before_they_share_again() -> None:
    source = generate_gpu(schedule(MATMUL, SHARED), "cuda")
    assert "__syncthreads(); /* before what is shared is written again */" in source.text


def test_the_tree_shows_what_runs_where() -> None:
    s = schedule(SOFTMAX, CASES["rows"].script)
    assert "for i  [block]" in s.show and "for j_i  [thread]" in s.show
    assert replace(s).digest == schedule(SOFTMAX, CASES["rows"].script).digest


def test_what_may_be_filled_ahead() -> None:
    start = "tile mm: i, j, k by 8, 8, 8\n"
    s = schedule(MATMUL, f"{start}promote mm: k_o as A, shared, ahead")
    assert "promote A to shared A_s, one iteration ahead" in s.show
    assert s.tree == schedule(MATMUL, start).promote("mm", "k_o", "A", "shared", ahead=True).tree
    for script, message in (
        ("promote mm: k_o as A, local, ahead", "`ahead` needs a shared buffer"),
        ("promote mm: k_o as C, shared, ahead", "mm writes C in k_o, so that it cannot be read"),
        ("map_threads mm: i_i\npromote mm: i_i as A, shared, ahead", "i_i is marked thread"),
    ):
        with pytest.raises(ScheduleError, match=message):
            schedule(MATMUL, start + script)
    fused = "def f(float32 A[N], float32 B[N]) -> (A, C) { p: C[i] = A[i]; q: A[i] = 2 * B[i] }"
    step = "split p: i by 8\nsplit q: i by 8\npromote p: i_o as A, shared, ahead\n"
    later = schedule(fused, f"{step}fuse p, q: i_o")
    with pytest.raises(ScheduleError, match="q writes A in i_o, so that it cannot be read an iter"):
        generate_gpu(later, "cuda")
