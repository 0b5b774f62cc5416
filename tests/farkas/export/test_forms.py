"""Networks as libraries, wheels and WebAssembly: each computes the same, where it is used."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import farkas as fk
from codegen.c.selftest_text import selftest_text
from farkas.cli.main import main
from farkas.export.build_wheel import platform_tags
from farkas.export.compilers import find_compiler
from farkas.export.elf import needed_libraries, oldest_glibc
from poly.errors import ArgumentError, FarkasError, ToolchainError
from poly.machine.isa import find_isas
from tests.conformance.exported import FLAGS, run
from tests.farkas.export.test_export_onnx import INPUTS, MODEL, reshaping

HAS_ZIG = importlib.util.find_spec("ziglang") is not None
needs_zig = pytest.mark.skipif(not HAS_ZIG, reason="ziglang is not installed")
WANT = fk.compile_onnx(MODEL).run(INPUTS)


def compare(found: dict[str, np.ndarray]) -> None:
    assert [*found] == [*WANT]
    for name, want in WANT.items():
        assert found[name].dtype == want.dtype
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("cc", [None, pytest.param("zig", marks=needs_zig)])
@pytest.mark.parametrize("isa", [None, ("x86-64-v2", "x86-64-v3")])
def test_shared_libraries(cc: str | None, isa: tuple[str, ...] | None, tmp_path: Path) -> None:
    path = tmp_path / "libnet.so"
    made = fk.export_onnx(MODEL, path, to="shared", isa=isa, cc=cc)
    assert {*made.files} == {path, tmp_path / "net.h"} and " KiB" in str(made)
    assert "net_run(" in (tmp_path / "net.h").read_text()
    compare(dict(zip(WANT, run(made, path, INPUTS), strict=True)))


def test_weights_beside_a_library(tmp_path: Path) -> None:
    path, weights = tmp_path / "libnet.so", tmp_path / "net.bin"
    made = fk.export_onnx(MODEL, path, to="shared", weights=weights)
    assert weights.read_bytes() == made.weights
    assert path.stat().st_size < len(made.weights) + 20_000


def selftest(made: fk.export.exported.Exported, folder: Path) -> None:
    results = [WANT[p.label] for p in made.module.outputs]
    text = selftest_text(made.module, [], [*INPUTS.values()], results)
    (folder / "test.c").write_text(text)


def test_static_libraries(tmp_path: Path) -> None:
    made = fk.export_onnx(MODEL, tmp_path / "libnet.a", to="static", name="net")
    selftest(made, tmp_path)
    line = ["gcc", *FLAGS, "test.c", "-L.", "-lnet", "-lm", "-o", "net"]
    subprocess.run(line, cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "net")], capture_output=True, text=True)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr


@needs_zig
@pytest.mark.parametrize("isa", ["aarch64,aarch64+asimddp", "rv64gcv"])
def test_libraries_for_other_processors(isa: str, tmp_path: Path) -> None:
    made = fk.export_onnx(MODEL, tmp_path / "libnet.a", to="static", isa=isa)
    processor = "aarch64" if "aarch64" in isa else "riscv64"
    emulator = f"qemu-{processor}-static"
    if shutil.which(emulator) is None:
        pytest.skip(f"{emulator} is not installed")
    selftest(made, tmp_path)
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{processor}-linux-musl"]
    line = [*zig, "-O1", "-static", "test.c", "libnet.a", "-lm", "-o", "net"]
    subprocess.run(line, cwd=tmp_path, check=True)
    done = subprocess.run([emulator, str(tmp_path / "net")], capture_output=True, text=True)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr


# --- wheels ----------------------------------------------------------------------------------

USES_WHEEL = """\
import sys, threading
sys.path.insert(0, sys.argv[1])
import numpy as np
import net
given, want = dict(np.load(sys.argv[2])), dict(np.load(sys.argv[3]))
(x,) = given.values()

def check(found):
    assert [*found] == [*net.OUTPUTS]
    for name in want:
        assert found[name].dtype == want[name].dtype
        np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-5)

def refused(error, message, *arrays, **named):
    try:
        net.run(*arrays, **named)
    except error as e:
        assert message in str(e), e
    else:
        raise AssertionError("not refused")

for n in range(2):
    for found in (net.run(x), net.run(given), net.run(**given), net.run(np.asfortranarray(x))):
        check(found)
    if not hasattr(net, "set_threads"):
        raise AssertionError
    if sys.argv[4] == "none":
        break
    net.set_threads(n + 2)
refused(TypeError, "'a-b' is missing")
refused(TypeError, "2 arrays for 1 inputs", x, x)
refused(TypeError, "is float64[2, 3, 8, 8], expected float32[2, 3, 8, 8]", x.astype(float))
refused(ValueError, "is float32[1, 3, 8, 8], expected", x[:1])
refused(TypeError, "there is no input 'b'", b=x)
refused(TypeError, "has a mask, which would be ignored", np.ma.array(x, mask=False))
refused(TypeError, "given twice", x, **given)
threads = [threading.Thread(target=lambda: [check(net.run(x)) for _ in range(50)]) for _ in "abcd"]
failed = []
threading.excepthook = failed.append
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed
import os
child = os.fork()
if child == 0:
    check(net.run(x))
    os._exit(7)
assert os.waitpid(child, 0)[1] == 7 << 8
assert not {"farkas", "runtime", "codegen", "poly", "onnx"} & {*sys.modules}
print("right")
"""


def install(wheel: Path, folder: Path) -> None:
    options = ["--no-index", "--no-deps", "--no-compile", "-q", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)


@pytest.mark.parametrize("cc", [None, pytest.param("zig", marks=needs_zig)])
@pytest.mark.parametrize("threads", ["none", "pthread"])
def test_wheels_run_where_there_is_numpy_alone(
    threads: str, cc: str | None, tmp_path: Path
) -> None:
    made = fk.export_onnx(MODEL, tmp_path / "dist", to="wheel", name="net", threads=threads, cc=cc)
    (wheel,) = made.files
    assert wheel.name.startswith("net-0.1.0-py3-none-") and "linux" in wheel.name
    if cc:
        assert wheel.name.endswith("manylinux2014_x86_64.manylinux_2_17_x86_64.whl")
    install(wheel, tmp_path / "site")
    np.savez(tmp_path / "given.npz", **INPUTS)
    np.savez(tmp_path / "want.npz", **WANT)
    (tmp_path / "use.py").write_text(USES_WHEEL)
    names = (tmp_path / name for name in ("use.py", "site", "given.npz", "want.npz"))
    done = subprocess.run(
        [sys.executable, "-P", *map(str, names), threads], capture_output=True, text=True,
        cwd=tmp_path, env={"PATH": "/nonexistent"},
    )  # fmt: skip
    assert done.stdout == "right\n", done.stdout + done.stderr


def test_a_wheel_with_any_name(tmp_path: Path) -> None:
    made = fk.export_onnx(MODEL, tmp_path, to="wheel", name="more")
    install(*made.files, tmp_path / "site")
    library = tmp_path / "site" / "more" / "libmore.so"
    named = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True)
    assert " T more_run\n" in named.stdout


def test_a_wheel_is_what_it_says(tmp_path: Path) -> None:
    paths = []
    for n in "ab":
        made = fk.export_onnx(MODEL, tmp_path / n, to="wheel", name="My_Net", version="1.2.post3")
        paths += made.files
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].name.startswith("my_net-1.2.post3-py3-none-")
    with zipfile.ZipFile(paths[0]) as archive:
        names = archive.namelist()
        record = archive.read("my_net-1.2.post3.dist-info/RECORD").decode().splitlines()
        assert [line.split(",")[0] for line in record] == names
        for name, digest, size in (line.split(",") for line in record[:-1]):
            data = archive.read(name)
            own = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={own}", str(len(data)))
        tags = archive.read("my_net-1.2.post3.dist-info/WHEEL").decode().splitlines()
        own = {line.removeprefix("Tag: ") for line in tags if line.startswith("Tag: ")}
        platforms = paths[0].stem.split("-")[-1].split(".")
        assert own == {f"py3-none-{x}" for x in platforms}
        assert "Requires-Dist: numpy\n" in archive.read(names[3]).decode()
    assert names[:3] == ["My_Net/__init__.py", "My_Net/_face.py", "My_Net/libMy_Net.so"]


def test_inputs_that_are_fixed_need_not_be_passed(tmp_path: Path) -> None:
    model = reshaping()
    values = {"to": np.array([3, 2])}
    made = fk.export_onnx(model, tmp_path, to="wheel", name="net", values=values)
    install(next(iter(made.files)), tmp_path / "site")
    program = (
        "import net, numpy as np; x = np.arange(6, dtype=np.float32)\n"
        "assert net.run(x)['y'].shape == (3, 2)\n"
        "assert net.run(x, to=np.array([3, 2]))['y'].shape == (3, 2)\n"
        "try: net.run(x, to=np.array([2, 3]))\n"
        "except ValueError as e: print(e)\n"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, cwd=tmp_path / "site", capture_output=True, text=True)
    assert "an input whose elements are fixed has others" in done.stdout, done.stderr


def test_what_a_library_needs(tmp_path: Path) -> None:
    (tmp_path / "f.c").write_text("#include <math.h>\ndouble f(double x) { return exp2(x); }\n")
    line = ["gcc", "-O2", "-shared", "-fPIC", "f.c", "-lm", "-o", "f.so"]
    subprocess.run(line, cwd=tmp_path, check=True)
    data = (tmp_path / "f.so").read_bytes()
    assert "libm.so.6" in needed_libraries(data)
    found = oldest_glibc(data)
    assert found is not None and found >= (2, 2)
    (tmp_path / "g.c").write_text("double f(double x); double g(double x) { return f(x); }\n")
    line = ["gcc", "-shared", "-fPIC", "g.c", "-L.", "-l:f.so", "-o", "g.so"]
    subprocess.run(line, cwd=tmp_path, check=True)
    assert platform_tags((tmp_path / "g.so").read_bytes(), "x86_64") == ("linux_x86_64",)
    with pytest.raises(ToolchainError, match="no library of Linux"):
        oldest_glibc(b"no library")


# --- WebAssembly -----------------------------------------------------------------------------

USES_WASM = """\
import fs from "node:fs";
import { load, inputs, outputs } from "./net.mjs";
const given = new Float32Array(JSON.parse(fs.readFileSync("given.json")));
const bytes = fs.readFileSync("net.wasm");
const nets = [
  await load(), await load(process.argv[2] ? "net.wasm" : bytes),
  await load(new WebAssembly.Module(bytes)),
];
const shown = (found) => Object.fromEntries(
  Object.entries(found).map(([name, array]) => [name, [...array].map(Number)]));
const found = nets.map((net) => shown(net.run({ "a-b": given })));
const refused = [{}, { x: given }, { "a-b": new Float64Array(3) }, { "a-b": new Float32Array(3) }]
  .map((x) => { try { nets[0].run(x); return "?"; } catch (e) { return String(e); } });
const kinds = Object.values(nets[0].run({ "a-b": given })).map((x) => x.constructor.name);
console.log(JSON.stringify({ found, refused, kinds, inputs, outputs }));
"""


@needs_zig
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("separate", [False, True])
def test_webassembly(separate: bool, tmp_path: Path) -> None:
    weights = tmp_path / "net.bin" if separate else None
    made = fk.export_onnx(MODEL, tmp_path / "net.wasm", to="wasm", weights=weights)
    assert {p.name for p in made.files} == {"net.wasm", "net.mjs"} | (
        {"net.bin"} if separate else set()
    )
    (tmp_path / "given.json").write_text(json.dumps(INPUTS["a-b"].ravel().tolist()))
    (tmp_path / "use.mjs").write_text(USES_WASM)
    line = ["node", "use.mjs", *(["separate"] if separate else [])]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for found in said["found"]:
        compare({n: np.array(found[n], x.dtype).reshape(x.shape) for n, x in WANT.items()})
    assert said["inputs"] == {"a-b": {"type": "float32", "shape": [2, 3, 8, 8]}}
    assert said["outputs"]["k"] == {"type": "int64", "shape": [6]}
    assert said["kinds"] == ["Float32Array", "Float32Array", "BigInt64Array"]
    wanted = ["has to be a Float32Array", "no input 'x'", "be a Float32Array", "expected 384"]
    assert all(x in y for x, y in zip(wanted, said["refused"], strict=True)), said["refused"]


NUMBERED = """\
import { load } from "./net.mjs";
const net = await load(), x = new Float32Array([1, 2, 3]), y = new Float32Array([10]);
const found = net.run({ "@SIZES@": x, 7: y });
console.log(JSON.stringify({ 2: [...found[2]], 1: [...found[1]] }));
"""


def numbered(weights: bool) -> onnx.ModelProto:
    """A model of values whose names are numbers, in falling order, and of a mark in the text."""
    nodes = [
        onnx.helper.make_node("Add", ["@SIZES@", "7"], ["2"]),
        onnx.helper.make_node("Mul", ["7", "factor" if weights else "7"], ["1"]),
    ]
    port = onnx.helper.make_tensor_value_info
    factor = [onnx.numpy_helper.from_array(np.array([2, 3], np.float32), "factor")]
    graph = onnx.helper.make_graph(
        nodes, "net", [port("@SIZES@", 1, [3]), port("7", 1, [1])],
        [port("2", 1, [3]), port("1", 1, [2 if weights else 1])], factor if weights else [],
    )  # fmt: skip
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )


@needs_zig
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("has_weights", [False, True])
def test_webassembly_of_names_that_are_numbers(has_weights: bool, tmp_path: Path) -> None:
    """JavaScript has these in another order; there is a folder for weights, or for none."""
    (tmp_path / "my assets").mkdir()
    weights = tmp_path / "my assets" / "w#1.bin"
    fk.export_onnx(numbered(has_weights), tmp_path / "net.wasm", to="wasm", weights=weights)
    (tmp_path / "use.mjs").write_text(NUMBERED)
    done = subprocess.run(["node", "use.mjs"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    products = [20, 30] if has_weights else [100]
    assert json.loads(done.stdout) == {"2": [11, 12, 13], "1": products}


@pytest.mark.parametrize("to", ["shared", "static"])
def test_libraries_with_openmp_have_its_threads(to: str, tmp_path: Path) -> None:
    path = tmp_path / ("libnet.so" if to == "shared" else "libnet.a")
    fk.export_onnx(MODEL, path, to=to, threads="openmp")
    dynamic = ["-D"] if to == "shared" else []
    used = subprocess.run(["nm", *dynamic, path], capture_output=True, text=True, check=True).stdout
    assert "GOMP_parallel" in used or "__kmpc_fork_call" in used


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "dll"}, "to is 'dll'; there are c, shared, static, wheel, wasm"),
        ({"to": "shared", "selftest": True}, "a selftest is a C program"),
        ({"to": "wheel", "weights": "w.bin"}, "has its weights inside"),
        ({"to": "shared", "version": "1"}, "a version is for a wheel"),
        ({"cc": "zig"}, "cc is for libraries"),
        ({"to": "wheel"}, "pass name="),
        ({"to": "shared", "name": "fk"}, "'fk' cannot be the name of the exported functions"),
        ({"to": "wheel", "name": "class"}, "cannot be the name of a package"),
        ({"to": "wheel", "name": "m", "version": "one"}, "no version of a package"),
        ({"to": "wasm", "isa": "x86-64-v3"}, "has the instruction set wasm"),
        ({"to": "wasm", "threads": "pthread"}, "one thread"),
        ({"to": "shared", "isa": "aarch64,x86-64-v3"}, "of one kind"),
        ({"to": "shared", "cc": "/nonexistent/cc"}, "does not exist"),
    ],
)
def test_what_cannot_be_written(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(FarkasError, match=message):
        name = "net.wasm" if options.get("to") == "wasm" else "net"
        fk.export_onnx(MODEL, tmp_path / name, **options)  # type: ignore[arg-type]
    assert not [*tmp_path.iterdir()]


def test_without_a_compiler_for_the_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r"pip install '\.\[cross\]'"):
        fk.export_onnx(MODEL, tmp_path / "net.wasm", to="wasm")
    assert not [*tmp_path.iterdir()]
    assert find_compiler(find_isas("x86-64-v3")).processor == "x86_64"


@pytest.mark.parametrize("to", ["shared", "static"])
def test_nothing_is_left_of_a_compiler_that_fails(
    to: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "cc"
    script.write_text('#!/bin/sh\ncase "$*" in *net.c*) echo "no space" >&2; exit 1;; esac\n'
                      f'exec {shutil.which("gcc")} "$@"\n')  # fmt: skip
    script.chmod(0o755)
    (tmp_path / "out").mkdir()
    with pytest.raises(ToolchainError, match="failed:\nno space"):
        fk.export_onnx(MODEL, tmp_path / "out" / "net.so", to=to, cc=str(script))
    (tmp_path / "out" / "net.h").mkdir()
    with pytest.raises(FarkasError, match="cannot write"):
        fk.export_onnx(MODEL, tmp_path / "out" / "net.so", to=to)
    assert os.listdir(tmp_path / "out") == ["net.h"]


# --- kernels and the command -----------------------------------------------------------------


def test_kernels_become_libraries(tmp_path: Path) -> None:
    kernel = fk.compile("def double(float32 A[N]) -> (B) { B[i] = 2 * A[i] }")
    made = kernel.export(tmp_path / "libtwice.so", to="shared", isa="x86-64-v3")
    assert made.name == "twice" and (tmp_path / "twice.h").exists()
    with pytest.raises(ArgumentError, match="'shared' or 'static', not to 'wheel'"):
        kernel.export(tmp_path, to="wheel")


def test_the_command_writes_all_forms(tmp_path: Path) -> None:
    (tmp_path / "small.onnx").write_bytes(MODEL.SerializeToString())
    words = ["export", str(tmp_path / "small.onnx"), "--to"]

    def said(*more: str) -> str:
        done = CliRunner().invoke(main, [*words, *more], catch_exceptions=False)
        assert done.exit_code == 0
        return str(done.output)

    assert "libsmall.so: " in said("shared", "-o", str(tmp_path / "libsmall.so"))
    assert "small-2.0-py3-none-" in said("wheel", "--version", "2.0", "-o", str(tmp_path / "dist"))
    if HAS_ZIG:
        assert "small.mjs: " in said("wasm", "-o", str(tmp_path / "small.wasm"))
    refused = CliRunner().invoke(main, [*words, "exe", "-o", str(tmp_path / "small")])
    assert refused.exit_code == 1 and "to is 'exe'" in refused.output


@pytest.mark.parametrize(
    ("to", "name", "message"),
    [
        ("c", "net", r"net is a C file and a header: end its name in \.c"),
        ("wasm", "net.js", r"net\.js is a WebAssembly module, .*: end its name in \.wasm"),
        ("wheel", "net.whl", r"net\.whl is the folder of a wheel, which names itself"),
    ],
)
def test_names_of_files_say_what_they_are(to: str, name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        fk.export_onnx(MODEL, tmp_path / name, to=to)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("isa", "test", "expected"),
    [
        ("x86-64-v3", False, "cc -O2 -Wno-psabi -c net.c"),
        ("aarch64", False, "aarch64-linux-gnu-gcc -O2 -Wno-psabi -c net.c"),
        ("wasm", False, "clang --target=wasm32 -O2 -Wno-psabi -msimd128 -c net.c"),
        ("rv64gcv", True, "riscv64-linux-gnu-gcc -O2 -Wno-psabi net.c net_test.c -lm -o net"),
    ],
)
def test_what_is_written_says_how_to_compile_it(
    isa: str, test: bool, expected: str, tmp_path: Path
) -> None:
    made = fk.export_onnx(MODEL, tmp_path / "net.c", isa=isa, selftest=test)
    assert f"compile with: {expected}" in str(made).splitlines()


def test_files_may_be_named_otherwise(tmp_path: Path) -> None:
    made = fk.export_onnx(MODEL, tmp_path / "a.c", isa="generic", name="net", selftest=True)
    line = next(x for x in str(made).splitlines() if x.startswith("compile with: "))
    words = line.removeprefix("compile with: ").split()
    subprocess.run(words, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "net"]).returncode == 0


def test_other_orders_of_bytes_are_refused(tmp_path: Path) -> None:
    fk.export_onnx(MODEL, tmp_path / "net.c", isa="generic")
    words = ["gcc", "-E", "-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__", "net.c"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode and "for processors that store the least byte first" in done.stderr
