"""Operators without comprehensions are routines in C, where these are faster than numpy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import farkas as fk
from farkas.targets.cpu import CpuRunner
from farkas.views.networks import networks_view
from frontends.onnx import Routines
from poly.ir.graph import Routine
from runtime.network.cpu_model import CpuModel
from tests.routine_cases import (
    CASES,
    Array,
    by_numpy,
    few,
    floats,
    model_of,
    scatter,
    ties,
    top_k,
)

#: Types for which there is no routine: numpy computes them.
NO_ROUTINE = ("float16", "bool")


#: Pooling that is undone, to the shape that there was or to what follows from the windows.
UNPOOLING = """
    unpooling (float[1,2,h,w] x) => (y) {{
        p, i = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]> (x)
        s = Shape(x)
        y = MaxUnpool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]> ({})
    }}
"""


@pytest.mark.parametrize("operands", ["p, i", "p, i, s"])
@pytest.mark.parametrize("kinds", [Routines.NONE, Routines.FAST])
def test_unpooling_of_any_size(
    operands: str, kinds: Routines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuRunner, "routines", kinds)
    network = fk.compile_onnx(model_text(UNPOOLING.format(operands)), cache=tmp_path)
    assert not network.is_whole
    for shape in ((4, 6), (8, 4), (2, 2)):
        x = floats(1, 2, *shape)
        largest = x.reshape(1, 2, shape[0] // 2, 2, shape[1] // 2, 2).max((3, 5))
        found = network.run({"x": x})["y"]
        np.testing.assert_array_equal(np.sort(found[found != 0]), np.sort(largest.reshape(-1)))
        np.testing.assert_array_equal(found[found != 0], x[found != 0])
        assert found.shape == x.shape


def routines(network: fk.Network) -> list[str]:
    return [n.kind for g in network.graphs for n in g.nodes if isinstance(n, Routine)]


def model_text(text: str, opset: int = 18) -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["": {opset}]>'
    return onnx.parser.parse_model(head + text)


#: Sums over the edges of a graph, between two products.
EDGES = model_text(
    """
    edges (float[n,8] x, int64[e,8] at, float[e,8] u, float[8,8] w) => (float[n,8] y) {
        xw = MatMul(x, w)
        sums = ScatterElements <axis: int = 0, reduction: string = "add"> (xw, at, u)
        r = Relu(sums)
        y = MatMul(r, w)
    }
    """
)


def edges(rows: int, count: int) -> dict[str, Array]:
    draw = np.random.default_rng(rows)
    return {
        "x": few(rows, 8),
        "at": np.repeat(draw.integers(-rows, rows, (count, 1)), 8, axis=1),
        "u": few(count, 8),
        "w": few(8, 8),
    }


def expected(given: Mapping[str, Array]) -> Array:
    sums = given["x"] @ given["w"]
    np.add.at(sums, given["at"][:, 0], given["u"])
    result: Array = np.maximum(sums, 0) @ given["w"]
    return result


@pytest.mark.parametrize(("operator", "inputs", "attributes"), CASES)
def test_they_compute_what_numpy_does(
    operator: str, inputs: Mapping[str, Array], attributes: dict[str, Any], tmp_path: Path
) -> None:
    model = model_of(operator, inputs, 1, **attributes)
    network = fk.compile_onnx(model)
    found = network.run(inputs)
    with_mode = attributes.get("reduction", "none") != "none"
    narrow = with_mode and inputs["x"].dtype.name in NO_ROUTINE
    assert bool(network.opaque_operators) == narrow != bool(routines(network))
    for name, want in by_numpy(model, inputs, tmp_path).items():
        assert found[name].dtype == want.dtype
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 4, 2), (4, 5, 2), (4, 2, 3), (3, 5, 3)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_updates_of_a_part_or_of_whole_slices(
    axis: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    operator, inputs, attributes = scatter(np.float32, "add", axis)
    draw = np.random.default_rng(axis)
    end = (4, 5, 3)[axis]
    inputs = {"x": inputs["x"], "i": draw.integers(-end, end, shape), "u": few(*shape)}
    model = model_of(operator, inputs, 1, **attributes)
    found = fk.compile_onnx(model).run(inputs)["y0"]
    np.testing.assert_array_equal(found, by_numpy(model, inputs, tmp_path)["y0"])


def test_the_network_is_one_graph() -> None:
    network = fk.compile_onnx(EDGES)
    for rows, count in ((5, 30), (17, 3), (64, 1000), (5, 30)):
        given = edges(rows, count)
        np.testing.assert_array_equal(network.run(given)["y"], expected(given))
    assert routines(network) == ["scatter_elements"] and not network.opaque_operators
    assert len(network.graphs) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failure_says_which_node_and_ends_the_run(threads: int) -> None:
    network = fk.compile_onnx(EDGES, threads=threads)
    given = edges(300, 5000)
    wrong = dict(given, at=given["at"].copy())
    wrong["at"][4000] = 300
    for _ in range(3):
        np.testing.assert_array_equal(network.run(given)["y"], expected(given))
        with pytest.raises(fk.ModelError, match=r"ScatterElements .*: an index is out of range"):
            network.run(wrong)


def test_each_routine_has_its_own_failure() -> None:
    """The second one fails after the first one has, and has not, in runs before."""
    network = fk.compile_onnx(
        model_text(
            """
            two (float[4] x, int64[2] i, int64[2,1] j, float[2] u) => (float[4] y) {
                first = ScatterElements <axis: int = 0> (x, i, u)
                doubled = Add(first, first)
                y = ScatterND (doubled, j, u)
            }
            """
        )
    )
    good, bad = np.array([0, 1]), np.array([0, 9])
    given = {"x": floats(4), "u": floats(2)}
    for i, j, named in (
        (good, good, ""), (bad, good, "ScatterElements"), (good, bad, "ScatterND"),
        (bad, bad, "ScatterElements"), (good, good, ""), (good, bad, "ScatterND"),
    ):  # fmt: skip
        run = {**given, "i": i, "j": j.reshape(2, 1)}
        if not named:
            np.testing.assert_array_equal(network.run(run)["y"][:2], given["u"])
            continue
        with pytest.raises(fk.ModelError, match=named):
            network.run(run)


def test_they_are_profiled_like_calls() -> None:
    network = fk.compile_onnx(EDGES)
    timings = network.profile(edges(50, 200), repeat=2)
    (own,) = (t for t in timings if t.kernel.startswith("fk_step_"))
    assert own.origin.startswith("ScatterElements") and own.seconds > 0


def test_a_second_network_of_the_same_file_has_them(tmp_path: Path) -> None:
    given = edges(20, 50)
    fk.compile_onnx(EDGES, cache=tmp_path).run(given)
    again = fk.compile_onnx(EDGES, cache=tmp_path)
    np.testing.assert_array_equal(again.run(given)["y"], expected(given))
    assert again.report.from_cache and routines(again) == ["scatter_elements"]
    given["at"][0] = -21
    with pytest.raises(fk.ModelError, match="an index is out of range"):
        again.run(given)


@pytest.mark.parametrize(("count", "is_little"), [(50, True), (50_000, False)])
def test_other_python_threads_do_not_wait_for_many_elements(count: int, is_little: bool) -> None:
    network = fk.compile_onnx(top_k(floats(count), 3))
    (graph,) = network.compiled
    assert isinstance(graph, CpuModel) and graph.plan().little == is_little


def test_most_of_many_elements_are_sorted_by_numpy() -> None:
    x = floats(30_000)
    network = fk.compile_onnx(top_k(x, 20_000))
    np.testing.assert_array_equal(network.run({"x": x})["y0"], np.sort(x)[::-1][:20_000])
    assert network.opaque_operators == ("TopK",)


def test_large_matrices_are_left_to_lapack() -> None:
    for size, kinds in ((4, ["determinant"]), (64, [])):
        inputs = {"x": floats(2, size, size, dtype=np.float64)}
        network = fk.compile_onnx(model_of("Det", inputs, 1))
        np.testing.assert_allclose(network.run(inputs)["y0"], np.linalg.det(inputs["x"]))
        assert routines(network) == kinds


@pytest.mark.parametrize("largest", [0, 1])
def test_the_greatest_of_equals_are_the_first(largest: int, tmp_path: Path) -> None:
    inputs = {"x": ties(3, 200)}
    model = top_k(inputs["x"], 7, axis=1, largest=largest)
    found = fk.compile_onnx(model).run(inputs)
    for name, want in by_numpy(model, inputs, tmp_path).items():
        np.testing.assert_array_equal(found[name], want)


def updates(indices: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    inputs = {"x": few(4, 3), "i": np.array([[1], [3]], indices), "u": few(2, 1)}
    return model_of("ScatterElements", inputs, 1, axis=0, reduction="add"), inputs


def test_types_of_operands_are_part_of_what_is_compiled(tmp_path: Path) -> None:
    for indices in (np.int64, np.int32, np.int64):
        model, inputs = updates(indices)
        found = fk.compile_onnx(model, cache=tmp_path).run(inputs)["y0"]
        wanted = inputs["x"].copy()
        wanted[[1, 3], 0] += inputs["u"][:, 0]
        np.testing.assert_array_equal(found, wanted)


def test_they_are_saved_with_the_network(tmp_path: Path) -> None:
    model, inputs = updates(np.int64)
    network = fk.compile_onnx(model)
    network.save(tmp_path / "network.fkm")
    again = fk.load(tmp_path / "network.fkm")
    np.testing.assert_array_equal(again.run(inputs)["y0"], network.run(inputs)["y0"])
    with pytest.raises(fk.ModelError, match="an index is out of range"):
        again.run({**inputs, "i": inputs["i"] + 4})


def test_they_are_explained_and_drawn() -> None:
    network = fk.compile_onnx(top_k(floats(50), 5))
    assert network.is_whole
    lines = network.explain().text.splitlines()
    assert any(line.startswith("TopK") and "100%" in line for line in lines)
    assert "0 kernel calls, 0 distinct kernels, 1 routines" in networks_view(network.graphs).text
    wrong = fk.compile_onnx(updates(np.int64)[0])  # made-up indices are out of range, or not
    assert "ScatterElements" in wrong.explain().text


def test_bits_that_become_two_types_are_two_values() -> None:
    text = """
        bits (int32[6] x) => (float[2] f, uint32[2] u) {
            a = BitCast <to: int = 1> (x)
            b = BitCast <to: int = 12> (x)
            k = Constant <value_ints: ints = [2]> ()
            f, i = TopK (a, k)
            u, j = TopK (b, k)
        }
    """
    x = np.array([1, -5, 7, 1 << 30, 3, -2], np.int32)
    found = fk.compile_onnx(model_text(text, 26)).run({"x": x})
    np.testing.assert_array_equal(found["u"], np.sort(x.view(np.uint32))[::-1][:2])
    np.testing.assert_array_equal(found["f"], np.sort(x.view(np.float32))[::-1][:2])


def test_a_number_of_elements_that_is_not_known_compiles_nothing_again() -> None:
    model = model_text(
        """
        some (float[n] x, int64[1] k) => (float[m] y) {
            t, i = TopK (x, k)
            y = Relu (t)
        }
        """
    )
    network = fk.compile_onnx(model)
    x = floats(30)
    for k in (3, 5, 7, 11):
        wanted = np.maximum(np.sort(x)[::-1][:k], 0)
        np.testing.assert_array_equal(network.run({"x": x, "k": np.array([k])})["y"], wanted)
    assert network.opaque_operators == ("TopK",)
    assert network.report.kernels <= 2


def test_profiling_says_what_failed() -> None:
    network = fk.compile_onnx(updates(np.int64)[0])
    inputs = updates(np.int64)[1]
    with pytest.raises(fk.ModelError, match="ScatterElements"):
        network.profile({**inputs, "i": inputs["i"] + 4})


def test_samples_of_regions_whose_extent_is_rounded(tmp_path: Path) -> None:
    """7.3 - 0.3 is 7 in float32, which is one sample for each of seven cells."""
    inputs = {
        "x": floats(1, 2, 9, 9), "r": np.array([[0.3, 0.3, 7.3, 7.3]], np.float32),
        "b": np.array([0]),
    }  # fmt: skip
    for mode in ("half_pixel", "output_half_pixel"):
        model = model_of("RoiAlign", inputs, 1, output_height=7, output_width=7,
                         coordinate_transformation_mode=mode)  # fmt: skip
        expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)[0]
        for compute in (fk.compile_onnx(model).run, partial(by_numpy, model, cache=tmp_path)):
            (found,) = compute(inputs).values()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_regions_of_an_image_without_elements_are_refused() -> None:
    inputs = {
        "x": np.zeros((1, 2, 0, 4), np.float32),
        "r": np.array([[0, 0, 1, 1]], np.float32), "b": np.array([0]),
    }  # fmt: skip
    with pytest.raises(fk.FarkasError):
        fk.compile_onnx(model_of("RoiAlign", inputs, 1)).run(inputs)


def test_positions_are_given_for_each_batch() -> None:
    inputs = {"x": floats(3, 4, 2), "u": floats(3, 1, 2), "w": np.array([1])}
    with pytest.raises(fk.ModelError, match="1] positions for 3 batches"):
        fk.compile_onnx(model_of("TensorScatter", inputs, 1, 24))


def test_updates_beyond_the_end_of_another_axis_are_refused() -> None:
    network = fk.compile_onnx(
        model_text(
            """
            wide (float[n,m] x, int64[n,e] i, float[n,e] u) => (float[n,m] y) {
                y = ScatterElements <axis: int = 0> (x, i, u)
            }
            """
        )
    )
    given = {"x": floats(4, 3), "i": np.zeros((4, 3), np.int64), "u": floats(4, 3)}
    assert network.run(given)["y"].shape == (4, 3)
    with pytest.raises(fk.ModelError, match="ScatterElements"):
        network.run({**given, "i": np.zeros((4, 5), np.int64), "u": floats(4, 5)})
