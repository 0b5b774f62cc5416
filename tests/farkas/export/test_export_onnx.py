"""Networks as C: they compile alone and without warnings, and compute the same."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto, TensorProto, helper, numpy_helper

import farkas as fk
from farkas.cli.main import main
from farkas.networks.export_network import exported
from poly.errors import ArgumentError, FarkasError, ModelError
from poly.machine.isa import ISAS, find_isa
from tests.conformance.exported import FLAGS, build, run

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
HOST = "x86-64-v3" if "avx2" in Path("/proc/cpuinfo").read_text() else "generic"
DRAW = np.random.default_rng(3)


def network(batch: int | str = 2) -> ModelProto:
    """A convolution, a product, a softmax; and an output that is a constant."""
    weights = {
        "W": DRAW.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "M": DRAW.standard_normal((8 * 36, 10)).astype(np.float32),
        "K": np.arange(6, dtype=np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["a-b", "W"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "M"], ["work"]),
        helper.make_node("Softmax", ["work"], ["double"]),
        helper.make_node("Identity", ["K"], ["k"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("a-b", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [
            helper.make_tensor_value_info("work", TensorProto.FLOAT, [batch, 10]),
            helper.make_tensor_value_info("double", TensorProto.FLOAT, [batch, 10]),
            helper.make_tensor_value_info("k", TensorProto.INT64, [6]),
        ],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODEL = network()
INPUTS = {"a-b": DRAW.standard_normal((2, 3, 8, 8)).astype(np.float32)}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("isa", sorted({"generic", HOST}))
def test_it_computes_the_same(compiler: str, isa: str, tmp_path: Path) -> None:
    made = exported(MODEL, "small", isa=isa)
    results = run(made, build(made, [compiler], tmp_path), INPUTS)
    for found, (name, want) in zip(
        results, fk.compile_onnx(MODEL).run(INPUTS).items(), strict=True
    ):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5, err_msg=name)


def test_names_are_those_of_the_network_as_far_as_c_has_them() -> None:
    made = exported(MODEL, "small")
    assert made.inputs == {"a-b": "a_b"}
    assert made.outputs == {"work": "work_2", "double": "v_double", "k": "k"}
    assert "input a_b[2][3][8][8], called 'a-b'" in made.header


def test_it_needs_nothing_but_the_library_of_mathematics(tmp_path: Path) -> None:
    made = exported(MODEL, "small", isa="generic")
    build(made, ["gcc"], tmp_path)
    subprocess.run(["gcc", *FLAGS, "-c", "small.c"], cwd=tmp_path, check=True)
    listed = subprocess.run(
        ["nm", "-u", "small.o"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert {*listed.stdout.split()} - {"U", "_GLOBAL_OFFSET_TABLE_"} <= {"memcpy", "expf"}
    everything = subprocess.run(
        ["nm", "small.o"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    lines = [line.split() for line in everything.stdout.splitlines()]
    assert {x[-1] for x in lines if x[-2] == "T"} == {"small_run", "small_error"}
    assert not [x for x in lines if x[-2] in "bBdDC"], "there is state"


def test_several_fit_into_one_program(tmp_path: Path) -> None:
    for name in ("one", "two"):
        exported(MODEL, name, isa="generic").write(tmp_path / f"{name}.c")
    (tmp_path / "main.c").write_text(
        '#include "one.h"\n#include "two.h"\n'
        "int main(void) { return one_error(0) == two_error(0) ? ONE_OK : TWO_OK; }\n"
    )
    line = ["gcc", *FLAGS, "main.c", "one.c", "two.c", "-lm", "-o", "main"]
    subprocess.run(line, cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "main")]).returncode == 0


def test_the_same_network_gives_the_same_bytes() -> None:
    first, second = (exported(MODEL, "m", isa="x86-64-v4") for _ in range(2))
    assert (first.code, first.header) == (second.code, second.header)


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    path, weights = tmp_path / "small.c", tmp_path / "small.bin"
    made = fk.export_onnx(MODEL, path, weights=weights, isa="generic")
    assert weights.read_bytes() == made.weights and len(made.weights) >= 8 * 36 * 10 * 4
    assert len(path.read_text()) < 60_000 and "const void *weights" in made.header
    build(made, ["gcc"], tmp_path)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"a_b": None}, 1, "null"),
        ({"k": None}, 1, "null"),
        ({"a_b": 2}, 2, "multiple of the size"),
        ({"workspace": None}, 3, "too small"),
        ({"bytes": -1}, 3, "too small"),
    ],
)
def test_bad_calls_return_a_code(
    change: dict[str, int | None], code: int, message: str, tmp_path: Path
) -> None:
    made = exported(MODEL, "small", isa="generic")
    library = ctypes.CDLL(str(build(made, ["gcc"], tmp_path)))
    arrays = {"a_b": INPUTS["a-b"]}
    arrays |= {n: np.zeros(*r) for n, r in zip(made.outputs.values(), made.results, strict=True)}
    arrays["workspace"] = np.zeros(made.workspace, np.uint8)
    passed = []
    for name, array in arrays.items():
        moved = change.get(name, 0)
        passed.append(ctypes.c_void_p(None if moved is None else array.ctypes.data + moved))
    size = ctypes.c_size_t(made.workspace + (change.get("bytes") or 0))
    assert library.small_run(*passed, size) == code
    library.small_error.restype = ctypes.c_char_p
    assert message in library.small_error(code).decode()
    assert library.small_error(17) == b"not an error code"
    assert not arrays["v_double"].any()


@pytest.mark.parametrize("name", ["int", "a b", "fk_x", "_x", "7x", ""])
def test_names_that_c_does_not_have(name: str) -> None:
    with pytest.raises(ArgumentError, match="has to be an identifier of C"):
        exported(MODEL, name)


def test_shapes_that_depend_on_elements_are_named() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"], name="where")]
    ports = [
        helper.make_tensor_value_info(n, t, s)
        for n, t, s in (("x", TensorProto.FLOAT, [4]), ("y", TensorProto.INT64, [1, "n"]))
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ModelError, match=r"cannot be exported:\s+NonZero 'where'.*has no C form"):
        exported(model, "m")


def test_instruction_sets() -> None:
    assert find_isa("x86-64-v4+avx512_vnni").machine.extensions[-1] == "sse2"
    assert "avx512vnni" in find_isa("x86-64-v4+avx512_vnni").features
    arm = find_isa("aarch64+asimddp+i8mm")
    assert arm.features == ("dotprod", "i8mm") and arm.name == "aarch64+asimddp+i8mm"
    for wrong in ("x86", "x86-64-v4+sse9", "aarch64+avx_vnni", "generic+i8mm"):
        with pytest.raises(ArgumentError, match=r"there is no .*; there are "):
            find_isa(wrong)
    assert all(isa.machine.cores == 1 for isa in ISAS.values())


def test_another_machine_is_refused_when_it_is_compiled(tmp_path: Path) -> None:
    for isa, message in (("aarch64", "is for aarch64"), ("wasm", "compile it with -msimd128")):
        exported(MODEL, "m", isa=isa).write(tmp_path / "m.c")
        done = subprocess.run(["gcc", "-c", "m.c"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode and message in done.stderr


def test_nothing_is_left_of_files_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "m.h").mkdir()
    with pytest.raises(FarkasError, match="cannot write"):
        fk.export_onnx(MODEL, tmp_path / "m.c")
    assert [p.name for p in tmp_path.iterdir()] == ["m.h"]


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(network("N").SerializeToString())
    words = ["export", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "net.c"), "--shape", "N=1"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0 and re.search(r"net for x86-64-v3: .*workspace \d+", done.output)
    assert "net_run(" in (tmp_path / "net.h").read_text()


@pytest.mark.parametrize("threads", ["none", "pthread", "openmp"])
@pytest.mark.parametrize("separate", [False, True])
def test_the_selftest(separate: bool, threads: str, tmp_path: Path) -> None:
    """It passes, and fails on other weights."""
    path, weights = tmp_path / "net.c", tmp_path / "net.bin"
    made = fk.export_onnx(
        MODEL, path, isa="generic", selftest=INPUTS, weights=weights if separate else None,
        threads=threads,
    )  # fmt: skip
    line = ["gcc", *FLAGS, "net.c", "net_test.c", "-pthread", "-lm", "-o", "net"]
    subprocess.run(line, cwd=tmp_path, check=True)
    words = [str(tmp_path / "net"), *([str(weights)] if separate else [])]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and "passed" in done.stdout and "ms each" in done.stdout
    assert re.search(r"work_2: difference \S+, largest value [1-9]", done.stdout)
    if separate:
        weights.write_bytes(bytes(len(made.weights)))
        assert subprocess.run(words, capture_output=True).returncode == 1
        assert subprocess.run(words[:1], capture_output=True).returncode == 2


@pytest.mark.parametrize(
    ("given", "made"),
    [("template", "new"), ("index", "n"), ("time", "start"), ("bad", "a"), ("class", "bool"),
     ("nullptr", "y"), ("printf", "difference")],
)  # fmt: skip
def test_names_of_c_and_cpp(given: str, made: str, tmp_path: Path) -> None:
    """Words of C++ and of later C, functions of C, and names in the selftest."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", [given], [made])], "g",
        [info(given, TensorProto.FLOAT, [4])], [info(made, TensorProto.FLOAT, [4])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    fk.export_onnx(model, tmp_path / "net.c", isa="generic", selftest=True)
    line = ["gcc", *FLAGS, "net.c", "net_test.c", "-lm", "-o", "net"]
    subprocess.run(line, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "net"], capture_output=True).returncode == 0
    words = ["g++", "-fsyntax-only", "-x", "c++", "-"]
    subprocess.run(words, cwd=tmp_path, input=b'#include "net.h"', check=True)


def test_a_selftest_of_another_rank(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"'a-b' has 4 dimensions, and not the shape \[3\]"):
        fk.export_onnx(MODEL, tmp_path / "net.c", selftest={"a-b": np.zeros(3, np.float32)})
    assert not list(tmp_path.iterdir())


def test_a_file_that_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(MODEL.SerializeToString())
    compiled = fk.compile_onnx(file)
    file.write_bytes(network(3).SerializeToString())
    with pytest.raises(ModelError, match="has changed since it was loaded"):
        compiled.export(tmp_path / "net.c", isa="generic")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def reshaping() -> ModelProto:
    """A network whose second input decides about the shape of its output."""
    node = helper.make_node("Reshape", ["x", "to"], ["y"])
    ports = [
        helper.make_tensor_value_info(n, t, s)
        for n, t, s in (
            ("x", TensorProto.FLOAT, [6]), ("to", TensorProto.INT64, [2]),
            ("y", TensorProto.FLOAT, None),
        )
    ]  # fmt: skip
    graph = helper.make_graph([node], "g", ports[:2], ports[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_inputs_that_decide_about_shapes_are_fixed(tmp_path: Path) -> None:
    model = reshaping()
    with pytest.raises(ModelError, match=r"elements of 'to' decide about shapes, first in Reshape"):
        exported(model, "m")
    made = exported(model, "m", isa="generic", values={"to": np.array([3, 2])})
    assert "input to[2], always with the same elements" in made.header
    library = build(made, ["gcc"], tmp_path)
    x = np.arange(6, dtype=np.float32)
    (y,) = run(made, library, {"x": x, "to": np.array([3, 2])})
    np.testing.assert_array_equal(y, x.reshape(3, 2))
    with pytest.raises(AssertionError, match="returned 4"):
        run(made, library, {"x": x, "to": np.array([2, 3])})
    for wrong, message in ((np.array([3.0]), "float64"), (np.array([1, 2, 3]), "shape")):
        with pytest.raises(ArgumentError, match=message):
            exported(model, "m", values={"to": wrong})


def test_the_command_for_definitions(tmp_path: Path) -> None:
    (tmp_path / "k.fk").write_text("def k(float32 A[N]) -> (B) { B[i] = 2 * A[i] }")
    words = ["export", str(tmp_path / "k.fk"), "-o", str(tmp_path / "k.c")]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0 and "int k_run(int64_t N," in (tmp_path / "k.h").read_text()
    refused = CliRunner().invoke(main, [*words, "--weights", "w.bin"])
    assert refused.exit_code == 2 and "--name and --cc alone" in refused.output


def test_where_a_line_comes_from(tmp_path: Path) -> None:
    made = exported(MODEL, "small", isa="generic")
    made.write(tmp_path / "small.c")
    number = next(n for n, x in enumerate(made.code.splitlines(), 1) if "E_p[0]" in x and "+=" in x)
    words = ["why", str(tmp_path / "small.c"), str(number)]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0 and "statement  S2: update of S[i] +=! E[i, j]" in done.output
    # Nothing of the other kernels in the file.
    assert re.findall(r"node +(\w+)", done.output) == ["Softmax"]


@pytest.mark.parametrize(
    ("isa", "compiler", "emulator"),
    [
        ("aarch64", "aarch64-linux-gnu-gcc", "qemu-aarch64-static"),
        ("rv64gcv", "riscv64-linux-gnu-gcc", "qemu-riscv64-static"),
        ("generic", "gcc", "qemu-x86_64-static -cpu qemu64"),
        ("x86-64-v2", "gcc", "qemu-x86_64-static -cpu Nehalem"),
        ("x86-64-v3", "gcc", "qemu-x86_64-static -cpu Haswell"),
    ],
)
def test_other_machines(isa: str, compiler: str, emulator: str, tmp_path: Path) -> None:
    """The selftest passes on an emulated processor that has just these instructions."""
    words = emulator.split()
    if not (shutil.which(compiler) and shutil.which(words[0])):
        pytest.skip(f"{compiler} or {words[0]} is not installed")
    made = fk.export_onnx(MODEL, tmp_path / "net.c", isa=isa, selftest=INPUTS)
    line = [compiler, *FLAGS, *made.flags, "-static", "net.c", "net_test.c", "-lm", "-o", "net"]
    subprocess.run(line, cwd=tmp_path, check=True)
    done = subprocess.run([*words, str(tmp_path / "net")], capture_output=True, text=True)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr
