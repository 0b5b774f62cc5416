"""Buffers for some accesses to a tensor each, where one for all of them would be large."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from poly.deps.reference_groups import reference_groups
from poly.tree.nodes import Band, Promote, path_to, statements_below, walk_tree
from runtime.common.cache import Cache
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.verify import verify
from tests.gpu.races import races

GRAM = "def gram(float32 A[N,M]) -> (C) { g: C[i,j] +=! A[k,i] * A[k,j] }"
OUTER = "def outer(float32 A[M,N]) -> (C) { g: C[i,j] +=! A[i,k] * A[j,k] }"
TILES = """
fuse g_init, g: i, j
tile g: i, j by 8, 8 as i_b, j_b, i_t, j_t
sink g: k
split g: k by 4
reorder g: i_b, j_b, i_t, j_t, k_o, k_i
map_blocks g: i_b, j_b
map_threads g: i_t, j_t
promote g: k_o as A, shared
"""
FAR = "def far(float32 X[4096]) -> (Y) { s: Y[i] = X[i] + X[i+1] + X[i+2000] where i in 0:2000 }"


def scheduled(text: str, script: str) -> fk.Schedule:
    return fk.Schedule.of(fk.parse(text)).replay(script)


def buffers(schedule: fk.Schedule) -> list[str]:
    """What is promoted, as the tree says it."""
    lines = (line.strip() for line in schedule.show.splitlines())
    return [line.removeprefix("promote ") for line in lines if line.startswith("promote ")]


def groups_of(text: str, loop: str, script: str = "") -> list[set[str]]:
    """The groups of the accesses to X below a loop of the last statement."""
    schedule = scheduled(text, script)
    name, outer = schedule.statements[-1], []
    for node in path_to(schedule.tree, name):
        outer += node.members if isinstance(node, Band) else ()
    outer = outer[: [m.name for m in outer].index(loop) + 1]
    below = statements_below(schedule.tree, schedule.tree, schedule.statements)
    found = reference_groups("X", schedule.scop, outer, below)
    return [{str(read) for _, read in group} for group in found]


@pytest.mark.parametrize(
    ("text", "loop", "groups"),
    [
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[i] + X[i+1] + X[i+2] }", "i_o",
         [{"X[i]", "X[i + 1]", "X[i + 2]"}]),
        (FAR, "i_o", [{"X[i]", "X[i + 1]"}, {"X[i + 2000]"}]),
        ("def f(float32 X[N,N]) -> (Y) { Y[i,j] = X[i,j] + X[j,i] where i in 0:N }", "i_o",
         [{"X[i, j]"}, {"X[j, i]"}]),
        # A part that is written may not be in two places.
        ("def f(float32 X[N]) -> (X) { X[i] += X[i+1] * X[i+3] where i in 0:N-3 }", "i_o", []),
        ("def f(float32 X[N], int32 p[N]) -> (Y) { Y[i] = X[i] + X[p[i]] }", "i_o", []),
    ],
)  # fmt: skip
def test_groups(text: str, loop: str, groups: list[set[str]]) -> None:
    split = "split S0: i by 16" if "s: " not in text else "split s: i by 16"
    assert groups_of(text, loop, split) == groups


@pytest.mark.parametrize(("text", "first"), [(GRAM, "A[k, i]"), (OUTER, "A[i, k]")])
@pytest.mark.parametrize("ahead", ["", ", ahead"])
def test_products_of_one_tensor(text: str, first: str, ahead: str, tmp_path: Path) -> None:
    script = TILES.strip() + ahead
    schedule = scheduled(text, script)
    more = ", one iteration ahead" if ahead else ""
    assert buffers(schedule)[0] == f"{first} to shared A_s_1{more}" and len(buffers(schedule)) == 2
    source = generate_gpu(schedule, "cuda")
    # One before what is copied is used, one behind; and one where a block goes on.
    assert source.text.count("__syncthreads") == (2 if ahead else 3)
    sizes = {"N": 11, "M": 21}
    assert races(schedule, source, sizes) == []
    for backwards in (False, True):
        run = GpuProgram(source, CpuDevice(tmp_path, backwards=backwards))
        assert verify(schedule.program, run, sizes=sizes).close(1e-5)


def test_registers_inside_take_from_the_buffer_that_has_them(tmp_path: Path) -> None:
    script = TILES.replace("8, 8 as", "16, 16 as").replace("map_threads g: i_t, j_t", """
tile g: i_t, j_t by 4, 4 as i_u, j_u, i_r, j_r
reorder g: i_b, j_b, i_u, j_u, k_o, k_i, i_r, j_r
map_threads g: i_u, j_u""") + "promote g: k_i as A, register"  # fmt: skip
    schedule = scheduled(GRAM, script)
    assert len(buffers(schedule)) == 4
    source = generate_gpu(schedule, "cuda")
    for n in (1, 2):
        assert len(re.findall(rf"A_r_{n}\[0\]\[\d\] = A_s_{n}\[", source.text)) == 4
    assert not re.search(r"A_r_\S+ = A\[", source.text)
    run = GpuProgram(source, CpuDevice(tmp_path))
    assert verify(schedule.program, run, sizes={"N": 11, "M": 21}).close(1e-5)


def test_what_one_buffer_could_not_hold(cache: Cache) -> None:
    """On a CPU, too: the box from X[i] to X[i + 2000] does not begin at multiples of its size."""
    text = FAR.replace("X[i+1] + ", "")
    schedule = scheduled(text, "split s: i by 8\npromote s: i_o as X, register\nunroll s: i_i")
    assert buffers(schedule) == ["X[i] to register X_r_1", "X[i + 2000] to register X_r_2"]
    assert fk.compile(text, schedule=str(schedule), cache=cache).verify().exact


def test_buffers_have_names_of_their_own() -> None:
    text = GRAM.replace("}", "; h: D[i,j] +=! A[k,i] * A[k,j] }").replace("(C)", "(C, D)")
    both = TILES.strip() + TILES.strip().replace("g:", "h:").replace("g_init", "h_init")
    schedule = scheduled(text, both.replace("sharedfuse", "shared\nfuse"))
    names = [n.buffer for n in walk_tree(schedule.tree) if isinstance(n, Promote)]
    assert len(set(names)) == len(names) == 4
