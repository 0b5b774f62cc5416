"""Statements that `tensorize` matches with an instruction of a CPU, and those that it refuses."""

from __future__ import annotations

import random
import re

import pytest

import farkas as fk
from poly.errors import ScheduleError

DOT = """\
def f(uint8 A[12,32], int8 B[48,32], int32 C[12,48]) -> (C) {
    s: C[i,j] += int32(A[i,k]) * int32(B[j,k])
}"""
TILES = "split s: j by 16\nsplit s: k by 4\nreorder s: i, j_o, k_o, j_i, k_i\n"
PACKED = TILES + "promote s: j_o as B, local, 0, 1, 0x16, 1x4\n"
STEP = "tensorize s: j_i, k_i as vpdpbusd_16_b"


def schedule(script: str, text: str = DOT, exact: bool = False) -> fk.Schedule:
    return fk.Schedule.of(fk.parse(text), exact).replay(script)


def refused(script: str, text: str = DOT) -> str:
    with pytest.raises(ScheduleError) as caught:
        schedule(script, text)
    return str(caught.value)


def test_a_match_runs_as_the_instruction() -> None:
    kernel = fk.compile(DOT, schedule=PACKED + STEP)
    assert "fk_dot4_i32x16(" in kernel.source
    assert kernel.verify().exact


def test_factors_in_any_order() -> None:
    text = DOT.replace("int32(A[i,k]) * int32(B[j,k])", "int32(B[j,k]) * int32(A[i,k])")
    assert fk.compile(text, schedule=PACKED + STEP).verify().exact


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("split s: j by 8\nsplit s: k by 4\nreorder s: i, j_o, k_o, j_i, k_i\n" + STEP,
         "not every tile is known to be full"),
        ("split s: j by 32\nsplit s: k by 4\nreorder s: i, j_o, k_o, j_i, k_i\n" + STEP,
         "j_i has 32 iterations, and vpdpbusd_16_b 16 from 0; split the loop by 16"),
        (TILES + "tensorize s: k_i, j_i as vpdpbusd_16_b", "j_i has 16 iterations"),
        (TILES + "tensorize s: k_i as vpdpbusd_16_b", "takes 2 loops, in the order of j, k in"),
        (TILES + "tensorize s: j_o, k_i as vpdpbusd_16_b", "innermost|one perfect nest|adjacent"),
        (TILES + "tensorize s: j_i, k_i as vpdpbusd_16_a", "does not move as"),
        (TILES + "vectorize s: k_i\n" + STEP, "vector"),
        (TILES + STEP + "\n" + STEP, "k_i|j_i"),
        (TILES.replace("k by 4", "k by 2") + "tensorize s: j_i, k_i as vdpbf16ps_16_b",
         "which is not `C.j. .= float32"),
        (TILES + "tensorize s: j_i, k_i as wmma_f16", "wmma_f16"),
    ],
)  # fmt: skip
def test_refusals(script: str, message: str) -> None:
    assert re.search(message, refused(script)), refused(script)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("uint8 A", "int8 A"), "which is not"),
        (("int8 B", "uint8 B"), "which is not"),
        (("int32 C", "int64 C"), "which is not"),
        (("+= int32(A[i,k]) *", "+= int32(A[i,k]) +"), "which is not"),
        (("C[i,j] +=", "C[i,j] max="), "which is not"),
        (("int32(A[i,k]) * int32(B[j,k])", "2 * int32(A[i,k]) * int32(B[j,k])"), "which is not"),
        (("A[i,k]", "A[i,31-k]"), "does not move as"),
        (("B[j,k]", "B[47-j,k]"), "does not move as"),
        (("A[i,k]", "A[k%12,k]"), "does not move as"),
        (("B[j,k]", "B[(j+k)%48,k]"), "does not move as"),
    ],
)  # fmt: skip
def test_statements_that_are_not_the_instruction(change: tuple[str, str], message: str) -> None:
    text = DOT.replace(*change)
    assert text != DOT
    assert message in refused(TILES + STEP, text)


def test_tiles_that_are_not_full() -> None:
    """Run beyond the edge only where nobody sees it."""
    text = DOT.replace("48", "45")
    assert "not every tile is known to be full" in refused(PACKED + STEP, text)
    kept = PACKED.replace("0x16, 1x4", "0x16, 1x4, padded")
    kept += "promote s: j_o as C, register, 0, 1\n"
    assert fk.compile(text, schedule=kept + STEP).verify().exact
    assert "not every tile" in refused(kept.replace(", padded", "") + STEP, text)
    open_text = DOT.replace("48", "N")
    assert "not every tile is known to be full" in refused(PACKED + STEP, open_text)
    assert fk.compile(open_text, schedule=kept + STEP).verify({"N": 21}).exact


def test_terms_that_are_not_full_are_refused() -> None:
    """A sum of more terms would be another sum, if what is read beyond is not zero."""
    text = DOT.replace(",32]", ",30]")
    kept = PACKED + "promote s: j_o as C, register, 0, 1\n"
    assert "not every tile" in refused(kept + STEP, text)


def test_floats_keep_their_order_in_exact_mode() -> None:
    text = """\
def f(bfloat16 A[8,32], bfloat16 B[48,32], float32 C[8,48]) -> (C) {
    s: C[i,j] += float32(A[i,k]) * float32(B[j,k])
}"""
    steps = TILES.replace("k by 4", "k by 2")
    steps += "tensorize s: j_i, k_i as vdpbf16ps_16_b"
    assert schedule(steps, text)
    with pytest.raises(ScheduleError, match=r"rounds otherwise than .* exact"):
        schedule(steps, text, exact=True)


def test_an_operand_of_the_tensor_that_is_written() -> None:
    fk.intrinsic(
        "def add4(float32 x[4], float32 z[4]) -> (z) { z[i] += x[i] }",
        "for (int i = 0; i < 4; i++) {z}[i] += {x}[i];",
    )
    text = "def f(float32 Y[9,8]) -> (Y) { s: Y[i+1,j] += Y[i,j] where i in 0:8 }"
    reason = refused("split s: j by 4\ntensorize s: j_i as add4", text)
    assert "s reads Y beside the element that it sets" in reason


def test_data_dependent_reads_are_refused() -> None:
    text = "def f(float32 X[64], int64 P[64]) -> (float32 Y[64]) { s: Y[i] = X[P[i]] }"
    fk.intrinsic(
        "def copy4(float32 x[4]) -> (float32 z[4]) { z[i] = x[i] }",
        "for (int i = 0; i < 4; i++) {z}[i] = {x}[i];",
    )
    reason = refused("split s: i by 4\ntensorize s: i_i as copy4", text)
    assert "depends on data" in reason


@pytest.mark.parametrize("number", ["0", "0.0"])
def test_constants_match_by_their_value(number: str) -> None:
    """However they are written; where sums begin, too."""
    fk.intrinsic(
        f"def relu4(float32 x[4]) -> (float32 z[4]) {{ z[i] = max(x[i], {number}) }}",
        "for (int i = 0; i < 4; i++) {z}[i] = {x}[i] > 0 || {x}[i] != {x}[i] ? {x}[i] : 0;",
    )
    fk.intrinsic(
        f"def none4() -> (float32 z[4]) {{ z[i] = {number} where i in 0:4 }}",
        "for (int i = 0; i < 4; i++) {z}[i] = 0;",
    )
    for value in ("max(X[k], 0)", "max(X[k], 0.0)"):
        text = f"def f(float32 X[16]) -> (Y) {{ s: Y[k] = {value} }}"
        assert schedule("split s: k by 4\ntensorize s: k_i as relu4", text)
    assert "not" in refused(
        "split s: k by 4\ntensorize s: k_i as relu4",
        "def f(float32 X[16]) -> (Y) { s: Y[k] = max(X[k], 1) }",
    )
    sums = "def f(float32 X[9,16]) -> (Y) { s: Y[i] +=! X[k,i] }"
    assert schedule("split s_init: i by 4\ntensorize s_init: i_i as none4", sums)


# --- random statements -------------------------------------------------------------------------

_LANES = {16: "vpdpbusd_16", 8: "vpdpbusd_8", 4: "vpdpbusd_4"}


def program(rng: random.Random) -> tuple[str, str]:
    """A sum of products of bytes, and a script that ends in `tensorize`."""
    lanes = rng.choice([*_LANES])
    form = rng.choice(["a", "b", "ab"])
    m, n, k = rng.choice([1, 3]), rng.randint(1, 40), rng.randint(1, 20)
    if rng.randint(0, 7):  # all terms, nearly always
        k = -(-k // 4) * 4
    if rng.random() < 0.5:  # full tiles, half of the time
        n = -(-n // lanes) * lanes
    moving = {"a": ("A",), "b": ("B",), "ab": ("A", "B")}[form]
    shapes, reads = {}, {}
    for tensor in "AB":
        outer = "j" if tensor in moving else "i"
        extent = n if tensor in moving else m
        if rng.random() < 0.5:
            shapes[tensor], reads[tensor] = f"[{extent},{k}]", f"{tensor}[{outer},k]"
        else:
            shapes[tensor], reads[tensor] = f"[{k},{extent}]", f"{tensor}[k,{outer}]"
    factors = [f"int32({reads[t]})" for t in "AB"]
    if rng.random() < 0.5:
        factors.reverse()
    types = ("uint8", "int8") if rng.randint(0, 15) else ("int8", "int8")
    text = (
        f"def f({types[0]} A{shapes['A']}, {types[1]} B{shapes['B']}, int32 C[{m},{n}]) -> (C) {{\n"
        f"    s: C[i,j] += {' * '.join(factors)} where i in 0:{m}, j in 0:{n}, k in 0:{k}\n}}"
    )
    steps = [f"split s: j by {lanes}", "split s: k by 4", "reorder s: i, j_o, k_o, j_i, k_i"]
    padded = rng.choice(["", ", padded"])
    for tensor in rng.choice([("A", "B")] * 3 + [moving, ()]):
        turned = reads[tensor].startswith(f"{tensor}[k")
        blocks = {(False, True): f"0, 1, 0x{lanes}, 1x4", (True, True): f"1, 0, 1x{lanes}, 0x4"}
        layout = blocks.get((turned, tensor in moving), "1, 0" if turned else "0, 1")
        steps.append(f"promote s: j_o as {tensor}, local, {layout}{padded}")
    if rng.random() < 0.5:
        steps.append("promote s: j_o as C, register, 0, 1")
    loops = rng.choice(["j_i, k_i"] * 15 + ["k_i, j_i"])
    steps.append(f"tensorize s: {loops} as {_LANES[lanes]}_{form}")
    return text, "\n".join(steps)


def test_random_statements_are_refused_or_right() -> None:
    """Whatever is accepted computes what the reference does."""
    counts = {"run": 0, "refused": 0}
    for seed in range(60):
        text, script = program(random.Random(seed))
        try:
            kernel = fk.compile(text, schedule=script)
        except ScheduleError:
            counts["refused"] += 1
            continue
        counts["run"] += 1
        assert "fk_dot4_" in kernel.source
        assert kernel.verify().exact, f"{seed}: {text}\n{script}"
    assert counts["run"] >= 15 and counts["refused"] >= 10, counts
