"""C files for several instruction sets: a run takes the best that the machine has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import farkas as fk
from codegen.c.machine_check import machine_check
from codegen.c.section_text import needed_of
from farkas.cli.main import main
from farkas.networks.export_network import exported
from poly.errors import ArgumentError
from poly.machine.isa import find_isa, find_isas
from tests.conformance.exported import FLAGS, build, run
from tests.farkas.export.test_export_onnx import COMPILERS, INPUTS, MODEL

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
    fk.compile(KERNEL).export(tmp_path / "k.c", isa=("generic", "x86-64-v3"))
    (tmp_path / "main.c").write_text(MAIN)
    flags = [*FLAGS, "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *flags, "main.c", "k.c", "-lm", "-o", "k"], cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "k")]).returncode == 0
