"""Loop nests that are instructions of a CPU become calls, with pointers to adjacent elements."""

from __future__ import annotations

import re

import pytest

import farkas as fk
from codegen.c.instruction_text import call_text, definitions, function_name
from codegen.loops.nodes import CallIntrinsic
from codegen.loops.traverse import walk_loops
from codegen.pipeline import CPU
from farkas.intrinsics.declare import read_intrinsic
from poly.errors import ScheduleError
from poly.ir.instruction_tables import VECTOR_INTRINSICS

DOT = """\
def f(uint8 A[4,8], int8 B[32,8], int32 C[4,32]) -> (C) {
    s: C[i,j] += int32(A[i,k]) * int32(B[j,k])
}"""
TILES = "split s: j by 16\nsplit s: k by 4\nreorder s: i, j_o, k_o, j_i, k_i\n"
STEP = "tensorize s: j_i, k_i as vpdpbusd_16_b"


def calls(text: str, script: str) -> list[str]:
    (loops,) = CPU.loops(fk.Schedule.of(fk.parse(text)).replay(script))
    return [str(n) for n in walk_loops(loops) if isinstance(n, CallIntrinsic)]


def test_operands_in_memory_and_in_buffers() -> None:
    packed = TILES + "promote s: j_o as B, local, 0, 1, 0x16, 1x4\n"
    found = calls(DOT, packed + STEP)
    assert found == ["vpdpbusd_16_b A = A[i, 4 * k_o], B = B_p[0, k_o, 0, 0], C = C[i, 16 * j_o]"]
    kept = packed + "promote s: j_o as C, register, 0, 1\n"
    assert "C = C_r[" in calls(DOT, kept + STEP)[0]


@pytest.mark.parametrize("layout", ["", "promote s: j_o as B, local, 0, 1\n"])
def test_elements_that_are_not_adjacent(layout: str) -> None:
    """A row of 8 terms is between the groups of four."""
    with pytest.raises(ScheduleError, match=r"vpdpbusd_16_b: s does not have .*promote what is"):
        calls(DOT, TILES + layout + STEP)


def test_rows_lie_as_far_apart_as_the_instruction_has_them() -> None:
    fk.intrinsic(
        "def tile(float32 x[2,4]) -> (float32 z[2,4]) { z[i,j] = x[i,j] }",
        "for (int n = 0; n < 8; n++) {z}[n] = {x}[n];",
    )
    text = "def f(float32 X[8,4]) -> (Y) { s: Y[i,j] = X[i,j] }"
    assert len(calls(text, "split s: i by 2\ntensorize s: i_i, j as tile")) == 1
    wider = text.replace("[8,4]", "[8,8]")
    with pytest.raises(ScheduleError, match="does not have its elements"):
        calls(wider, "tile s: i, j by 2, 4\ntensorize s: i_i, j_i as tile")


def test_loops_that_changed_after_the_step() -> None:
    packed = TILES + "promote s: j_o as B, local, 0, 1, 0x16, 1x4\n"
    with pytest.raises(ScheduleError):
        calls(DOT, f"{packed}{STEP}\nunroll s: k_i")


def test_texts_of_calls() -> None:
    """Ours are written out, with what stands for a pointer; users' are functions."""
    ours = VECTOR_INTRINSICS["vpdpbusd_16_b"]
    text = call_text(ours, {"A": "&a[0]", "B": "&b[0]", "C": "&c[0]"})
    assert "&a[0]" in text and "{" not in text and definitions([ours]) == []
    made = read_intrinsic(
        "def put(float32 x[2]) -> (float32 z[2]) { z[i] = x[i] }",
        "float v = *{x}; {z}[0] = v; {z}[1] = {x}[1]",
        setup="\n#define TWO 2\n", headers=["math.h", "math.h"],
    )  # fmt: skip
    assert call_text(made, {"x": "&X[i]", "z": "&Y[i]"}) == f"{function_name(made)}(&X[i], &Y[i]);"
    lines = definitions([made, made])
    assert lines[:2] == ["#include <math.h>", "#define TWO 2"] and len(lines) == 4
    assert "(const float *fk_x, float *fk_z)" in lines[2]
    assert "{\n  float v = *fk_x; fk_z[0] = v; fk_z[1] = fk_x[1];\n}" in lines[2]
    other = read_intrinsic(
        "def put(float32 x[2]) -> (float32 z[2]) { z[i] = x[i] }",
        "{z}[0] = {x}[0]; {z}[1] = {x}[1];",
    )
    assert function_name(other) != function_name(made)
    assert re.fullmatch(r"fk_user_put_[0-9a-f]{8}", function_name(made))
