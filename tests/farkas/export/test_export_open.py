"""Networks of open sizes as C: sizes are arguments, and checked."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import farkas as fk
from farkas.networks.export_network import exported
from poly.errors import ArgumentError, ModelError
from tests.conformance.exported import FLAGS, build, run
from tests.farkas.export.test_forms import needs_zig

DRAW = np.random.default_rng(5)
SIZE_ERROR, WORKSPACE_ERROR = 5, 3


def of(
    nodes: list[Any], inputs: Mapping[str, Any], outputs: list[str], **weights: Any
) -> ModelProto:
    """A model of inputs of float32 with these shapes."""
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "open",
        [helper.make_tensor_value_info(n, float32, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, float32, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


#: A strided convolution; what is pooled of it; and both as an output.
IMAGE = of(
    [
        helper.make_node(
            "Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
        ),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Softmax", ["f"], ["o"]),
    ],
    {"x": ["batch", 3, "height", "width"]},
    ["o", "r"],
    w=DRAW.standard_normal((8, 3, 3, 3)).astype(np.float32),
)
#: Attention with a residue, through views whose shapes follow from the sizes.
TEXT = of(
    [
        helper.make_node("MatMul", ["x", "q"], ["a"]),
        helper.make_node("Reshape", ["a", "heads"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["b"], ["d"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["c", "d"], ["e"]),
        helper.make_node("Softmax", ["e"], ["g"]),
        helper.make_node("MatMul", ["g", "c"], ["h"]),
        helper.make_node("Transpose", ["h"], ["i"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["i", "flat"], ["j"]),
        helper.make_node("Add", ["j", "x"], ["y"]),
        helper.make_node("Identity", ["x"], ["z"]),
    ],
    {"x": ["batch", "length", 32]},
    ["y", "z"],
    q=DRAW.standard_normal((32, 32)).astype(np.float32),
    heads=np.array([0, 0, 4, 8]),
    flat=np.array([0, 0, 32]),
)


def draw(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (IMAGE, [(2, 3, 9, 8), (1, 3, 1, 1), (1, 3, 40, 17), (5, 3, 2, 3)]),
        (TEXT, [(2, 5, 32), (1, 1, 32), (3, 64, 32), (1, 33, 32)]),
    ],
)
def test_one_text_serves_all_sizes(
    model: ModelProto, shapes: list[tuple[int, ...]], compiler: str, tmp_path: Path
) -> None:
    made = exported(model, "net", isa="generic")
    checked = ["-fsanitize=undefined"] if compiler == "gcc" else []
    library = build(made, [compiler, *checked], tmp_path)
    network = fk.compile_onnx(model)
    for shape in shapes:
        x = draw(*shape)
        wanted = network.run({"x": x}).values()
        for found, want in zip(run(made, library, {"x": x}), wanted, strict=True):
            # Both sum in orders of their own, and what they sum is as large as the largest result.
            largest = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4 * largest)


def test_the_header_says_what_sizes_decide() -> None:
    made = exported(IMAGE, "net")
    assert made.sizes == {"batch": "batch", "height": "height", "width": "width"}
    assert "output r[batch][8][(height + 1) // 2][(width + 1) // 2]" in made.header
    assert " *   width >= 1\n */\nsize_t net_workspace_bytes(int64_t batch," in made.header
    assert (
        "int net_shapes(int64_t batch, int64_t height, int64_t width, int64_t o[2]," in made.header
    )
    assert exported(IMAGE, "net", shapes={"batch": 3}).sizes.keys() == {"height", "width"}
    assert exported(IMAGE, "net", shapes={"x": (3, 3, 8, 8)}).results[0][0] == (3, 8)


@pytest.mark.parametrize("size", [0, -1, 1 << 40, (1 << 63) - 1])
def test_sizes_out_of_range(size: int, tmp_path: Path) -> None:
    made = exported(IMAGE, "net", isa="generic")
    library = ctypes.CDLL(str(build(made, ["gcc", "-fsanitize=undefined"], tmp_path)))
    sizes = [ctypes.c_int64(n) for n in (2, size, 8)]
    library.net_workspace_bytes.restype = ctypes.c_size_t
    assert library.net_workspace_bytes(*sizes) == 0
    memory = [ctypes.c_void_p(64)] * 4  # which is not touched
    assert library.net_run(*sizes, *memory, ctypes.c_size_t(1 << 62)) == SIZE_ERROR
    good = [ctypes.c_int64(n) for n in (2, 8, 8)]
    assert library.net_run(*good, *memory, ctypes.c_size_t(8)) == WORKSPACE_ERROR


def test_conditions_are_checked(tmp_path: Path) -> None:
    """The sum is of equal shapes; for a size of 1, it would be another network."""
    model = of([helper.make_node("Add", ["x", "y"], ["z"])], {"x": ["n"], "y": ["m"]}, ["z"])
    made = exported(model, "net", isa="generic")
    assert " *   m == n\n" in made.header
    library = build(made, ["gcc"], tmp_path)
    x, y = draw(7), draw(7)
    np.testing.assert_array_equal(run(made, library, {"x": x, "y": y})[0], x + y)
    loaded = ctypes.CDLL(str(library))
    sizes = [ctypes.c_int64(n) for n in (7, 1)]
    memory = [ctypes.c_void_p(64)] * 4
    assert loaded.net_run(*sizes, *memory, ctypes.c_size_t(0)) == SIZE_ERROR


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ({"depth": 4}, "'depth' is not an open size; there are 'batch', 'height', 'width'"),
        ({"width": 1}, "'width' is 1; open sizes are at least 2"),
        ({"width": 2.5}, "width.*2.5"),
    ],
)
def test_examples_that_cannot_be(examples: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        exported(IMAGE, "net", examples=examples)


def test_an_input_of_unknown_rank() -> None:
    model = of([helper.make_node("Relu", ["x"], ["y"])], {"x": None}, ["y"])
    with pytest.raises(ModelError, match="the shape of input float32 x is not known"):
        exported(model, "net")
    assert exported(model, "net", shapes={"x": (2, 3)}).results[0][0] == (2, 3)


@pytest.mark.parametrize("threads", ["none", "pthread"])
def test_the_selftest(threads: str, tmp_path: Path) -> None:
    path = tmp_path / "net.c"
    fk.compile_onnx(TEXT).export(
        path, isa="generic", threads=threads, selftest=True, examples={"length": 6}
    )
    assert "x[12288]" in (tmp_path / "net_test.c").read_text()  # 64 by 6 by 32
    line = ["gcc", *FLAGS, "-fsanitize=address,undefined", "net.c", "net_test.c", "-lm", "-pthread"]
    subprocess.run([*line, "-o", "net"], cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "net")], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("passed\n"), done.stdout + done.stderr


USES_WHEEL = """\
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import net
assert net.INPUTS == {"x": ("float32", ("batch", 3, "height", "width"))}
assert net.OUTPUTS["r"][1] == ("batch", 8, "(height + 1) // 2", "(width + 1) // 2")
for shape in ((2, 3, 9, 8), (1, 3, 40, 17), (2, 3, 9, 8)):
    found = net.run(np.ones(shape, np.float32))
    assert found["o"].shape == (shape[0], 8) and np.allclose(found["o"].sum(1), 1)
    np.save(sys.argv[2], found["r"])
for wrong in ((2, 4, 9, 8), (2, 3, 9)):
    try:
        net.run(np.ones(wrong, np.float32))
    except ValueError as error:
        assert "expected float32[batch, 3, height, width]" in str(error), error
    else:
        raise AssertionError("a wrong shape was taken")
try:
    net.run(np.ones((0, 3, 9, 8), np.float32))
except ValueError as error:
    assert "a size is out of range" in str(error), error
else:
    raise AssertionError("a batch of none was taken")
"""


@pytest.mark.parametrize("threads", ["none", "pthread"])
def test_a_wheel_takes_arrays_of_any_size(threads: str, tmp_path: Path) -> None:
    made = fk.export_onnx(IMAGE, tmp_path, to="wheel", name="net", isa="generic", threads=threads)
    (path,) = made.files
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "use.py").write_text(USES_WHEEL)
    line = [sys.executable, "use.py", "site", "r.npy"]
    subprocess.run(line, cwd=tmp_path, check=True)
    x = np.ones((2, 3, 9, 8), np.float32)
    want = fk.compile_onnx(IMAGE).run({"x": x})["r"]
    np.testing.assert_allclose(np.load(tmp_path / "r.npy"), want, rtol=1e-4, atol=1e-5)


USES_WASM = """\
import { load, inputs } from "./net.mjs";
const net = await load();
const found = [];
for (const [batch, height, width] of [[2, 9, 8], [1, 40, 17], [2, 9, 8]]) {
  const x = new Float32Array(batch * 3 * height * width).fill(1);
  const { o, r } = net.run({ x }, { batch, height });
  found.push([[...o.shape], [...r.shape], [...r]]);
}
let message = "";
try { net.run({ x: new Float32Array(12) }); } catch (error) { message = error.message; }
console.log(JSON.stringify([inputs.x.shape, found, message]));
"""


@needs_zig
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_webassembly_takes_arrays_of_any_size(tmp_path: Path) -> None:
    fk.export_onnx(IMAGE, tmp_path / "net.wasm", to="wasm")
    (tmp_path / "use.mjs").write_text(USES_WASM)
    done = subprocess.run(["node", "use.mjs"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown, found, message = json.loads(done.stdout)
    assert shown == ["batch", 3, "height", "width"] and "pass it" in message
    network = fk.compile_onnx(IMAGE)
    for (batch, height, width), (o, r, elements) in zip(
        ((2, 9, 8), (1, 40, 17), (2, 9, 8)), found, strict=True
    ):
        want = network.run({"x": np.ones((batch, 3, height, width), np.float32)})["r"]
        assert o == [batch, 8] and r == [*want.shape]
        np.testing.assert_allclose(np.reshape(elements, r), want, rtol=1e-4, atol=1e-5)
