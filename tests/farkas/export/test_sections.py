"""C files for several instruction sets: a run takes the best that the machine has."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto, TensorProto, helper, numpy_helper

import farkas as fk
from codegen.c.machine_check import machine_check
from codegen.c.section_text import needed_of
from farkas.cli.main import main
from farkas.networks.export_network import exported
from poly.errors import ArgumentError
from poly.machine.isa import find_isa, find_isas
from tests.conformance.exported import FLAGS, build, check_exported, run
from tests.conformance.official import cases
from tests.farkas.export.test_export_onnx import COMPILERS, INPUTS, MODEL

HAS_ZIG = importlib.util.find_spec("ziglang") is not None
DRAW = np.random.default_rng(5)
SEVERAL = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
#: A processor as QEMU has it, and the best section that it can run.
PROCESSORS = {"qemu64": "", "Nehalem": "v2", "Haswell": "v3"}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("threads", ["none", "pthread"])
def test_each_machine_runs_its_best_section(compiler: str, threads: str, tmp_path: Path) -> None:
    """It is seen by the sections' results, one of which is made wrong; without any flags."""
    if shutil.which("qemu-x86_64-static") is None:
        pytest.skip("qemu-x86_64-static is not installed")
    made = fk.export_onnx(
        MODEL, tmp_path / "net.c", isa=SEVERAL, threads=threads, selftest=INPUTS
    )  # fmt: skip
    assert made.isa == "x86-64-v4, x86-64-v3, x86-64-v2" and not made.flags
    for spoilt in ("", "v2", "v3"):
        kind, back = ("int", " 0") if threads == "none" else ("void", "")
        head = rf"\n(static {kind} fk_{spoilt}_calls\(.*\)\n\{{)"
        code = re.sub(head, rf"\n\1 if (1) return{back};", made.code) if spoilt else made.code
        assert (code == made.code) == (not spoilt)
        (tmp_path / "net.c").write_text(code)
        line = [compiler, *FLAGS, "-Wno-declaration-after-statement", "-static", "-pthread"]
        line += ["net.c", "net_test.c", "-lm", "-o", "net"]
        subprocess.run(line, cwd=tmp_path, check=True)
        for processor, best in PROCESSORS.items():
            words = ["qemu-x86_64-static", "-cpu", processor, str(tmp_path / "net")]
            done = subprocess.run(words, capture_output=True, text=True)
            if not best:
                assert done.returncode == 2 and "lacks instructions" in done.stderr
            else:
                assert done.returncode == int(best == spoilt), (spoilt, processor, done.stdout)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_machine_without_the_instructions_is_told(compiler: str, tmp_path: Path) -> None:
    if shutil.which("qemu-x86_64-static") is None:
        pytest.skip("qemu-x86_64-static is not installed")
    fk.export_onnx(MODEL, tmp_path / "net.c", isa="x86-64-v4", selftest=INPUTS)
    line = [compiler, *FLAGS, "-static", "net.c", "net_test.c", "-lm", "-o", "net"]
    subprocess.run(line, cwd=tmp_path, check=True)
    words = ["qemu-x86_64-static", "-cpu", "Haswell", str(tmp_path / "net")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "the machine lacks instructions that the code needs" in done.stderr


@pytest.mark.parametrize("compiler", COMPILERS)
def test_it_has_no_undefined_behaviour(compiler: str, tmp_path: Path) -> None:
    fk.export_onnx(MODEL, tmp_path / "net.c", isa=("generic", *SEVERAL), selftest=INPUTS)
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    line = [compiler, *FLAGS, *sanitizers, "net.c", "net_test.c", "-lm", "-o", "net"]
    subprocess.run(line, cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "net")], capture_output=True, text=True)
    assert done.returncode == 0 and "passed" in done.stdout, done.stderr[:2000]


def narrow(name: str) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A product in 8 bits, or in 16, and an input."""
    weights = DRAW.integers(-99, 99, (64, 96))
    x = DRAW.integers(0, 99, (32, 64))
    if name == "MatMulInteger":
        kinds, arrays = (
            (TensorProto.UINT8, TensorProto.INT32),
            (x.astype("u1"), weights.astype("i1")),
        )
    else:
        kinds = (TensorProto.FLOAT16, TensorProto.FLOAT16)
        arrays = ((x / 64).astype("f2"), (weights / 99).astype("f2"))
    graph = helper.make_graph(
        [helper.make_node(name, ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kinds[0], [32, 64])],
        [helper.make_tensor_value_info("y", kinds[1], [32, 96])],
        [numpy_helper.from_array(arrays[1], "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), {"x": arrays[0]}


ZIG = [f"{sys.executable} -m ziglang cc -target {{}}-linux-musl"] * HAS_ZIG


@pytest.mark.parametrize("name", ["MatMulInteger", "MatMul"])
@pytest.mark.parametrize("compiler", ["gcc", "clang", *ZIG])
def test_narrow_types_on_x86(name: str, compiler: str, tmp_path: Path) -> None:
    """Sections that differ in their dot products and conversions alone."""
    model, inputs = narrow(name)
    more = ("x86-64-v3+avx_vnni", "x86-64-v4+avx512_vnni", "x86-64-v4+avx512_vnni+avx512_bf16")
    fk.export_onnx(model, tmp_path / "net.c", isa=(*SEVERAL, *more), selftest=inputs)
    passes(compiler.format("x86_64"), "qemu-x86_64-static", ["Nehalem", "Haswell"], tmp_path)


@pytest.mark.parametrize("name", ["MatMulInteger", "MatMul"])
@pytest.mark.parametrize(
    "compiler", ["aarch64-linux-gnu-gcc", "clang --target=aarch64-linux-gnu", *ZIG]
)
def test_narrow_types_on_arm(name: str, compiler: str, tmp_path: Path) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:  # whose library clang uses
        pytest.skip("aarch64-linux-gnu-gcc is not installed")
    model, inputs = narrow(name)
    isas = ("aarch64", "aarch64+asimddp", "aarch64+asimddp+i8mm+bf16")
    fk.export_onnx(model, tmp_path / "net.c", isa=isas, selftest=inputs)
    processors = ["cortex-a53", "neoverse-n1", "max"]
    passes(compiler.format("aarch64"), "qemu-aarch64-static", processors, tmp_path)


def passes(compiler: str, emulator: str, processors: list[str], folder: Path) -> None:
    """Compile what was exported, and run it on emulated processors."""
    if not (shutil.which(compiler.split()[0]) and shutil.which(emulator)):
        pytest.skip(f"{compiler} or {emulator} is not installed")
    line = [*compiler.split(), *FLAGS, "-static", "net.c", "net_test.c", "-lm", "-o", "net"]
    subprocess.run(line, cwd=folder, check=True)
    for processor in processors:
        words = [emulator, "-cpu", processor, str(folder / "net")]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr


CHECKS = """\
#include <cpuid.h>
#include <stdio.h>
%s
int main(void) { return fk_library() == fk_asked() ? fk_asked() : 2; }
"""


@pytest.mark.parametrize("processor", ["", *PROCESSORS, "SandyBridge", "IvyBridge", "EPYC", "max"])
@pytest.mark.parametrize("isa", [*SEVERAL, "x86-64-v3+avx_vnni", "x86-64-v4+avx512_vnni"])
def test_the_processor_says_what_the_library_says(isa: str, processor: str, tmp_path: Path) -> None:
    words = ["qemu-x86_64-static", "-cpu", processor] if processor else []
    if words and shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    text = machine_check(find_isa(isa), "fk_library")
    asked = machine_check(find_isa(isa), "fk_asked").replace(
        'supports("sse2")', 'supports("sse2") && 0'
    )
    (tmp_path / "m.c").write_text(CHECKS % (text + asked))
    subprocess.run(["gcc", *FLAGS, "-static", "m.c", "-o", "m"], cwd=tmp_path, check=True)
    assert subprocess.run([*words, str(tmp_path / "m")], capture_output=True).returncode < 2


def test_16_bit_floats_are_asked_about_where_they_are_converted() -> None:
    v3 = find_isa("x86-64-v3")
    assert "f16c" in needed_of(v3, "#if defined(__F16C__)").features
    assert "f16c" not in needed_of(v3, "").features


def test_sections_share_weights() -> None:
    one, several = (exported(MODEL, "m", isa=isa) for isa in ("x86-64-v3", SEVERAL))
    sizes = [len(x.module.weights) for x in (one, several)]
    assert sizes[0] <= sizes[1] < 3 * sizes[0]
    assert several.workspace == max(x.workspace for x in several.module.sections)
    twice = exported(MODEL, "m", isa="x86-64-v3,x86-64-v3+avx512_vnni")
    assert len(twice.module.weights) == sizes[0]


def test_a_file_may_be_for_several_architectures(tmp_path: Path) -> None:
    made = fk.export_onnx(
        MODEL, tmp_path / "net.c", isa="aarch64+asimddp,aarch64,x86-64-v3", selftest=INPUTS
    )
    assert "#ifdef __aarch64__" in made.code and "#ifdef __x86_64__" in made.code
    (result, *_) = run(made, build(made, ["gcc"], tmp_path), INPUTS)
    want = next(iter(fk.compile_onnx(MODEL).run(INPUTS).values()))
    np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)
    compiler, emulator = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
    if not (shutil.which(compiler) and shutil.which(emulator)):
        pytest.skip(f"{compiler} or {emulator} is not installed")
    line = [compiler, *FLAGS, "-static", "net.c", "net_test.c", "-lm", "-o", "net"]
    subprocess.run(line, cwd=tmp_path, check=True)
    for processor in ("cortex-a53", "max"):  # the first has no dot products
        words = [emulator, "-cpu", processor, str(tmp_path / "net")]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr


def test_names_of_instruction_sets() -> None:
    names = [isa.name for isa in find_isas(["generic", "x86-64-v3, x86-64-v4", "x86-64-v3"])]
    assert names == ["x86-64-v4", "x86-64-v3", "generic"]
    for wrong in ([], "", "x86-64-v3,"):
        with pytest.raises(ArgumentError, match="there are generic, "):
            find_isas(wrong)


def test_the_command_takes_several(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(MODEL.SerializeToString())
    words = ["export", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "net.c")]
    words += ["--isa", "generic,x86-64-v2", "--isa", "x86-64-v3"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0 and "net for x86-64-v3, x86-64-v2, generic: " in done.output
    code = (tmp_path / "net.c").read_text()
    number = next(n for n, x in enumerate(code.splitlines(), 1) if "E_p[0]" in x and "+=" in x)
    why = CliRunner().invoke(main, ["why", str(tmp_path / "net.c"), str(number)])
    assert "statement  S2: update of S[i] +=! E[i, j]" in why.output
    assert re.search(r"function +fk_v3_k\d_softmax", why.output), why.output


KERNEL = """def twice(float32 A[2*N,M], float32 B[M,M]) -> (Y) {
    float32 T[2*N,M]
    T[i,j] +=! A[i,k] * B[k,j]
    Y[i,j] +=! T[i,k] * B[k,j]
}"""
MAIN = """\
#include "k.h"
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
  float a[2 * 7 * 40], b[40 * 40], y[2 * 7 * 40];
  for (int n = 0; n < 2 * 7 * 40; n++) a[n] = 1;
  for (int n = 0; n < 40 * 40; n++) b[n] = 0.5f;
  size_t bytes = k_workspace_bytes(7, 40);
  void *memory = malloc(bytes);
  int code = k_run(7, 40, a, b, y, memory, bytes);
  free(memory);
  return code != K_OK || y[0] != 400 || y[2 * 7 * 40 - 1] != 400;
}
"""


def test_kernels(tmp_path: Path) -> None:
    """The workspace is that of the section which needs most."""
    fk.compile(KERNEL).export(tmp_path / "k.c", isa=("generic", "x86-64-v2", "x86-64-v3"))
    (tmp_path / "main.c").write_text(MAIN)
    subprocess.run(["gcc", *FLAGS, "main.c", "k.c", "-lm", "-o", "k"], cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "k")]).returncode == 0


@pytest.mark.parametrize("compiler", COMPILERS)
def test_instructions_of_users(compiler: str, tmp_path: Path) -> None:
    """Their headers may use what the machine has; a setup would be there twice."""
    meaning = "def %s(float32 a[8], float32 c[8]) -> (c) { c[i] = a[i] }"
    template = "_mm256_storeu_ps({c}, _mm256_loadu_ps({a}));"
    fk.intrinsic(meaning % "move8", template, headers=["immintrin.h"], feature="avx2")
    fk.intrinsic(meaning % "moved8", template, headers=["immintrin.h"], feature="avx2",
                 setup="typedef int moved;")  # fmt: skip
    text = "def k(float32 A[64]) -> (B) { B[i] = A[i] }"
    kernel = fk.compile(text, schedule="split S0: i by 8\ntensorize S0: i_i as move8")
    made = kernel.export(tmp_path / "k.c", isa="x86-64-v3,x86-64-v4")
    (tmp_path / "main.c").write_text(
        '#include "k.h"\nint main(void) { float a[64], b[64];\n'
        "  for (int n = 0; n < 64; n++) a[n] = (float)n;\n"
        "  return k_run(a, b, 0, 0) != K_OK || b[63] != 63; }\n"
    )
    line = [compiler, *FLAGS, "main.c", "k.c", "-lm", "-o", "k"]
    subprocess.run(line, cwd=tmp_path, check=True)
    assert "_mm256_loadu_ps" in made.code
    if "avx2" in Path("/proc/cpuinfo").read_text():
        assert subprocess.run([str(tmp_path / "k")]).returncode == 0
    kernel = fk.compile(text, schedule="split S0: i by 8\ntensorize S0: i_i as moved8")
    kernel.export(tmp_path / "k.c", isa="x86-64-v3")
    with pytest.raises(ArgumentError, match="'moved8' has a setup"):
        kernel.export(tmp_path / "k.c", isa="x86-64-v3,x86-64-v4")


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("isa", ["generic", *SEVERAL])
def test_functions_of_the_library_on_vectors(isa: str, compiler: str) -> None:
    """clang passes vectors to them as its flags say, whatever the attributes of functions are."""
    flags = Path("/proc/cpuinfo").read_text()
    if {"x86-64-v3": "avx2", "x86-64-v4": "avx512vl"}.get(isa, "") not in flags:
        pytest.skip(f"this machine lacks {isa}")
    (case,) = (c for c in cases("test_lrn") if c.name == "test_lrn")  # it has a power
    check_exported(case, [compiler], isa)
