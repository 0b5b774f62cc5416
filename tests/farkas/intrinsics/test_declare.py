"""`fk.intrinsic`: what is declared, what is refused, and what schedules make of it."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import farkas as fk
from farkas.targets.find_target import text_target
from poly.errors import ArgumentError, IntrinsicError, LanguageError, ScheduleError
from poly.ir import instruction_tables
from poly.ir.instruction_tables import declare_intrinsic, dot_products
from poly.machine.cpu import host_machine
from poly.rewrites.integer_products import integer_products
from runtime.common.cache import Cache
from runtime.intrinsics import check as checking
from runtime.network.generate_kernels import generate_kernel

COPY = "def copy8(float32 x[8]) -> (float32 z[8]) { z[i] = x[i] }"
ADD = "def add8(float32 x[8], float32 z[8]) -> (z) { z[i] += x[i] }"
MULTIPLY = "def fma8(float32 a[1], float32 b[8], float32 c[8]) -> (c) { c[i] += a[0] * b[i] }"
DOTS = (
    "def dots(uint16 A[2], int16 B[16,2], int32 C[16]) -> (C) {"
    " C[j] += int32(A[k]) * int32(B[j,k]) }"
)
DOTS_TEXT = "for (int j = 0; j < 16; j++) {C}[j] += {A}[0] * {B}[2*j] + {A}[1] * {B}[2*j+1];"
SUMS = "def f(float32 X[9,64]) -> (Y) { s: Y[i] +=! X[k,i] }"
PRODUCT = "def f(float32 A[24,32], float32 B[32,64]) -> (C) { mm: C[i,j] +=! A[i,k] * B[k,j] }"


def loop(body: str, count: int = 8) -> str:
    return f"for (int i = 0; i < {count}; i++) {body};"


def add8() -> fk.Schedule:
    fk.intrinsic(ADD, loop("{z}[i] += {x}[i]"))
    return fk.Schedule.of(fk.parse(SUMS)).replay(SCRIPT)


SCRIPT = "split s: i by 8\nreorder s: i_o, k, i_i\ntensorize s: i_i as add8"


def test_an_instruction_prints_its_meaning() -> None:
    made = fk.intrinsic(ADD, loop("{z}[i] += {x}[i]"))
    assert str(made) == "add8: z[i] += x[i] where i in 0:8"
    assert repr(made) == "<VectorIntrinsic add8: z[i] += x[i] where i in 0:8; checked>"
    assert made.checked and made.by_user
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("layout", ["", "promote s: i_o as Y, register\n"])
@pytest.mark.parametrize("count", [2, 3, 8, 32])
def test_kernels_run_declared_instructions(count: int, layout: str) -> None:
    """With the target in memory, and in registers; of odd lengths as well."""
    meaning = f"def add(float32 x[{count}], float32 z[{count}]) -> (z) {{ z[i] += x[i] }}"
    fk.intrinsic(meaning, loop("{z}[i] += {x}[i]", count))
    text = SUMS.replace("64", str(4 * count))
    steps = f"split s: i by {count}\nreorder s: i_o, k, i_i\n{layout}tensorize s: i_i as add"
    kernel = fk.compile(text, schedule=steps)
    assert len(re.findall(r"^static inline .* void fk_user_add_", kernel.source, re.M)) == 1

    assert "loop" not in kernel.schedule.show and "[add]" in kernel.schedule.show
    assert kernel.verify().close(1e-6)
    again = pickle.loads(pickle.dumps(kernel))
    assert again.verify().close(1e-6)


def test_several_instructions_share_headers_and_setup() -> None:
    """The initialisation is one as well."""
    setup = "typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));"
    fk.intrinsic(
        MULTIPLY, "*(lanes *){c} += *{a} * *(const lanes *){b};", setup=setup,
        headers=["stdlib.h"], reorders=True,
    )  # fmt: skip
    fk.intrinsic(
        "def zero() -> (float32 c[8]) { c[i] = 0.0 where i in 0:8 }", "*(lanes *){c} = (lanes){0};",
        setup=setup, headers=["stdlib.h"],
    )  # fmt: skip
    kernel = fk.compile(PRODUCT, schedule="""\
split mm_init: j by 8
tensorize mm_init: j_i as zero
tile mm: i, j by 4, 8
reorder mm: i_o, j_o, k, i_i, j_i
promote mm: j_o as C, register, 0, 1
tensorize mm: j_i as fma8
unroll mm: i_i""")  # fmt: skip
    assert kernel.verify().close(1e-5)
    for once in (setup, "#include <stdlib.h>"):
        assert kernel.source.count(once) == 1
    assert "vector of" not in kernel.source


def test_names_of_templates_are_not_those_of_kernels() -> None:
    """The template's i is not the kernel's."""
    fk.intrinsic(COPY, "int i = 7, X = 0, Y = 0; for (; i >= X + Y; i--) {z}[i] = {x}[i];")
    text = "def f(float32 X[6,16]) -> (Y) { s: Y[i,k] = X[i,k] }"
    kernel = fk.compile(text, schedule="split s: k by 8\ntensorize s: k_i as copy8")
    assert kernel.verify().exact


def test_one_name_with_two_texts() -> None:
    """Schedules keep the one that they were made with; digests and sources differ."""
    first = add8()
    fk.intrinsic(ADD, loop("{z}[i] = {x}[i] + {z}[i]"))
    second = fk.Schedule.of(first.program).replay(str(first))
    assert str(first) == str(second) and first.digest != second.digest
    texts = [fk.compile(SUMS, schedule=s).source for s in (first, second)]
    assert "{z}" not in texts[0] + texts[1]
    assert "fk_z[i] += fk_x[i];" in texts[0] and "fk_z[i] = fk_x[i] + fk_z[i];" in texts[1]


def test_a_script_needs_its_instruction() -> None:
    with pytest.raises(ScheduleError, match=r"there is no instruction add8; .*fk.intrinsic"):
        fk.Schedule.of(fk.parse(SUMS)).replay(SCRIPT)
    assert str(add8()) == SCRIPT
    with pytest.raises(ScheduleError, match=r"did you mean add8\?"):
        fk.Schedule.of(fk.parse(SUMS)).replay(SCRIPT.replace("add8", "add"))


def test_one_that_was_not_checked_is_not_used() -> None:
    made = fk.intrinsic(ADD, loop("{z}[i] += {x}[i]"), feature="no_such")
    assert not made.checked and repr(made).endswith("not checked on this machine>")
    with pytest.raises(ScheduleError, match=r"not compared with its meaning.*lacks no_such"):
        fk.Schedule.of(fk.parse(SUMS)).replay(SCRIPT)
    fk.intrinsic(DOTS, DOTS_TEXT, feature="no_such")
    assert all(i.name != "dots" for i in dot_products(host_machine().extensions))


def test_a_refused_one_is_not_declared() -> None:
    with pytest.raises(IntrinsicError) as caught:
        fk.intrinsic(ADD, loop("{z}[i] = {x}[i]"))
    error = caught.value
    assert error.name == "add8" and error.witness.startswith("z[0] is 1, expected 102")
    assert "with z[0] = 101, x[0] = 1" in str(error)
    assert "add8: it does something else than `z[i] += x[i] where i in 0:8`" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.witness == error.witness
    with pytest.raises(ScheduleError, match="there is no instruction add8"):
        fk.Schedule.of(fk.parse(SUMS)).replay(SCRIPT)


def test_exact_schedules_refuse_other_roundings() -> None:
    fk.intrinsic(MULTIPLY, loop("{c}[i] += *{a} * {b}[i]"), reorders=True)
    steps = "reorder mm: k, j\nsplit mm: j by 8\ntensorize mm: j_i as fma8"
    assert fk.compile(PRODUCT, schedule=steps).verify().close(1e-5)
    with pytest.raises(ScheduleError, match=r"fma8 rounds otherwise than .* exact"):
        fk.compile(PRODUCT, schedule=steps, exact=True)
    add8()
    assert fk.compile(SUMS, schedule=SCRIPT, exact=True).verify().exact


@pytest.mark.parametrize("name", ["cuda", "opencl"])
def test_gpus_refuse_instructions_of_cpus(name: str) -> None:
    program = fk.parse(SUMS)
    steps = "map_blocks s_init: i\nsplit s: i by 8\nreorder s: i_o, k, i_i\nmap_blocks s: i_o\n"
    add8()
    schedule = fk.Schedule.of(program).replay(steps + "tensorize s: i_i as add8")
    with pytest.raises(ScheduleError, match=r"add8: an instruction of CPUs, .*wmma_f16"):
        text_target(name).emit(schedule, program)


def test_views_of_a_schedule() -> None:
    schedule = add8()
    assert "part of an instruction: z[i] += x[i]" in fk.show(schedule)._repr_html_()
    kernel = fk.compile(SUMS, schedule=schedule)
    assert "add8 x = X[k, 8 * i_o], z = Y[8 * i_o]" in kernel.loops
    assert "operations" in str(kernel.explain())


# --- automatic schedules ---------------------------------------------------------------------


def test_automatic_schedules_use_dot_products() -> None:
    value = "int32(A[i,k]) * int32(B[k,j])"
    text = f"def f(uint16 A[40,64], int16 B[64,48]) -> (C) {{ C[i,j] +=! {value} }}"
    assert "tensorize" not in str(fk.compile(text).schedule)
    fk.intrinsic(DOTS, DOTS_TEXT)
    kernel = fk.compile(text)
    assert "as dots" in str(kernel.schedule) and "fk_user_dots_" in kernel.source
    assert kernel.verify().exact


PAIRS = "def pairs(float32 A[2], float32 B[16,2], float32 C[16]) -> (C) { C[j] += A[k] * B[j,k] }"
PAIRS_TEXT = "for (int j = 0; j < 16; j++) {C}[j] += {A}[0] * {B}[2*j] + {A}[1] * {B}[2*j+1];"


def test_what_was_rewritten_before_is_rewritten_anew() -> None:
    """Products of bytes are products of 16 bits, unless there is an instruction for bytes."""
    text = "def f(int8 A[40,64], int8 B[64,48]) -> (C) { C[i,j] +=! int32(A[i,k]) * int32(B[k,j]) }"
    program = fk.parse(text)
    assert len(integer_products(program, ("avx2",)).statements) > 1
    fk.intrinsic(
        "def bytes4(int8 A[4], int8 B[16,4], int32 C[16]) -> (C) {"
        " C[j] += int32(A[k]) * int32(B[j,k]) }",
        "for (int n = 0; n < 64; n++) {C}[n / 4] += {A}[n % 4] * {B}[n];",
    )
    assert integer_products(program, ("avx2",)) is program


def _network() -> bytes:
    """A product of floats, for which there is no instruction of ours."""
    f32 = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"])], "g",
        [helper.make_tensor_value_info("a", f32, [40, 64]),
         helper.make_tensor_value_info("b", f32, [64, 48])],
        [helper.make_tensor_value_info("y", f32, [40, 48])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()  # type: ignore[no-any-return]


def test_networks_use_them_and_their_cache_knows(tmp_path: Path) -> None:
    """A network in the cache was made with other instructions, or with another text of them."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, s).astype(np.float32) for s in ((40, 64), (64, 48)))
    right = a @ b
    sources = []
    for text in (None, PAIRS_TEXT, f"{PAIRS_TEXT} /* another */"):
        if text is not None:
            fk.intrinsic(PAIRS, text, reorders=True)
        network = fk.compile_onnx(_network(), cache=str(tmp_path / "cache"))
        assert np.array_equal(network.run({"a": a, "b": b})["y"], right)
        sources.append("\n".join(network.source.values()))
    assert ["fk_user_pairs_" in s for s in sources] == [False, True, True]
    assert "another" in sources[2] and "another" not in sources[1]


def test_worker_processes_are_told() -> None:
    """They do not share this process's instructions; what they generate can be sent back."""
    made = fk.intrinsic(PAIRS, PAIRS_TEXT, reorders=True)
    del instruction_tables._KNOWN["pairs"]
    program = fk.parse(PRODUCT)
    assert not generate_kernel(program, "fk_k0", host_machine()).function.instructions
    kernel = generate_kernel(program, "fk_k0", host_machine(), (made,))
    assert pickle.loads(pickle.dumps(kernel)).function.instructions == (made,)


def test_another_compiler_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What agrees with one compiler may not with the next one, which compiles the kernel."""
    schedule = add8()

    def check(intrinsics: list, toolchain: object, cache: object) -> list:  # type: ignore[type-arg]
        return [checking.Verdict(i, refused="z[0] is 1, expected 2") for i in intrinsics]

    monkeypatch.setattr(checking, "check", check)
    with pytest.raises(IntrinsicError, match=r"with gcc|with clang"):
        fk.compile(SUMS, schedule=schedule, cache=Cache(tmp_path / "cache"))


# --- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meaning", "message"),
    [
        ("def g(float32 A[8]) -> (float32 B[8]) { B[i] = A[i }", "where ',' or ']' is expected"),
        ("B[i] = A[i]", "has a name and declares its tensors"),
        ("ij,jk->ik", "found"),
        ("def vpdpbusd_16_b(float32 A[8]) -> (float32 B[8]) { B[i] = A[i] }", "choose another"),
        ("def g(float32 A[N]) -> (float32 B[N]) { B[i] = A[i] }", "are numbers, and N is a size"),
        ("def g(float32 A[8]) -> (B) { B[i] = A[i]\n B[i] = 2 * A[i] }", "a single statement"),
        ("def g(float32 A[8]) -> (B, C) { B[i] = A[i]\n C[i] = A[i] }", "a single statement"),
        ("def g(float32 A[8]) -> (B) { B[] +=! A[i] }", r"write \+= instead of \+=!"),
        ("def g(float32 A[8]) -> (float32 B[7]) { B[i] = A[i+1] }", "sum of multiples of loops"),
        ("def g(float32 A[8]) -> (float32 B[8]) { B[i] = A[7-i] }", "sum of multiples of loops"),
        ("def g(float32 A[4]) -> (float32 B[8]) { B[i] = A[i//2] }", "sum of multiples of loops"),
        ("def g(float32 A[9]) -> (float32 B[8]) { B[i] = A[i] where i in 0:8 }", "A has 9 elem"),
        ("def g(float32 A[8], float32 X[2]) -> (float32 B[8]) { B[i] = A[i] }", "X is not used"),
        ("def g(int64 A[8]) -> (B) { B[i] = A[i] * i }", "i is used as a value"),
        ("def g(float32 A[15]) -> (B) { B[i] = A[2*i] + A[i] }", r"as A\[2 \* i\] and as A\[i\]"),
        ("def g(float32 A[8], int64 P[8]) -> (B) { B[i] = A[P[i]] }", "sum of multiples"),
        ("def g(float32 C[8]) -> (C) { C[i] += 1 where i < 5 }", "no conditions|from 0|accesses"),
        ("def g(float32 C[8]) -> (C) { C[i] = C[0] }", "C is accessed as"),
    ],
)  # fmt: skip
def test_mistakes_in_a_meaning(meaning: str, message: str) -> None:
    with pytest.raises(LanguageError, match=message) as caught:
        fk.intrinsic(meaning, "{A}{B}")
    assert "^" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (" ", "the template is empty"),
        ("{z}[0] = {y}[0];", "copy8 has no tensor y; it has x, z"),
        ("{z}[0] = 0;", "the template does not use x"),
        ("int v[2] = {0}; v[0] = {v}[1]; {z}[0] = {x}[0];", "no tensor v"),
    ],
)
def test_mistakes_in_a_template(template: str, message: str) -> None:
    with pytest.raises(LanguageError, match=message):
        fk.intrinsic(COPY, template)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"setup": 3}, "setup is a int"),
        ({"feature": ["avx"]}, "feature is a list"),
        ({"headers": "immintrin.h"}, "headers is a string"),
        ({"headers": ["a b>"]}, "not the name of a header"),
        ({"reorders": "yes"}, "reorders is a str"),
    ],
)
def test_arguments_of_other_types(given: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        fk.intrinsic(COPY, loop("{z}[i] = {x}[i]"), **given)  # type: ignore[arg-type]


def test_one_of_ours_cannot_be_replaced() -> None:
    made = fk.intrinsic(COPY, loop("{z}[i] = {x}[i]"))
    with pytest.raises(AssertionError):
        declare_intrinsic(replace(made, meaning=replace(made.meaning, name="vpdpbusd_16_b")))


def test_what_runs_beyond_the_end_needs_room_in_the_buffer_that_it_writes_to() -> None:
    """That is the innermost one: here of two rows of three elements, inside one of registers."""
    fk.intrinsic(
        "def add4(float32 C[4], float32 A[4]) -> (C) { C[j] += A[j] }",
        loop("{C}[i] += {A}[i]", 4),
    )
    text = (
        "def f(float32 A[2,5,4]) -> (float32 C[2,3]) "
        "{ C[i,j] +=! A[i,k,j] where i in 0:2, j in 0:3, k in 0:5 }"
    )
    script = "split S0: k by 5\nreorder S0: k_o, k_i, i, j\n"
    end = "promote S0: k_o as C, register\ntensorize S0: j as add4"
    given = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)
    kernel = fk.compile(text, schedule=script + end)
    np.testing.assert_allclose(kernel(given), given.sum(1)[:, :3], rtol=1e-5)
    with pytest.raises(ScheduleError, match="not every tile is known to be full"):
        fk.compile(text, schedule=f"{script}promote S0: k_i as C, local\n{end}")
