"""ONNX models on GPUs: equal to ONNX Runtime and to the CPU, weights that stay, arrays there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

import farkas as fk
from benchmarks.models import bare_model
from farkas.cli.demo import relative_error
from farkas.cli.main import main
from frontends.onnx.model.light_models import load_light, randomised
from runtime.common.cache import Cache
from runtime.find_device import find_device
from runtime.gpu.device import Device, DeviceArray
from runtime.network.cpu_model import CpuModel
from runtime.network.gpu_model import GpuModel
from tests.frontends.onnx.onnx_support import ort_run
from tests.gpu.networks import NETWORKS, Arrays, Network, attention, floats, image, joined
from tests.models.networks import NAMES, TOLERANCE


@pytest.fixture(params=["cuda-emulator", "opencl"])
def device(request: pytest.FixtureRequest, cache: Cache) -> Device:
    if request.param == "opencl":
        pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    return find_device(request.param, cache)


@pytest.fixture
def emulator(cache: Cache) -> Device:
    return find_device("cuda-emulator", cache)


def agree(found: Arrays, expected: Arrays, rtol: float = 1e-4) -> None:
    assert list(found) == list(expected)
    for name, array in found.items():
        wanted = expected[name]
        assert array.dtype == wanted.dtype and array.shape == wanted.shape, name
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(array, wanted, rtol=rtol, atol=rtol / 10, err_msg=name)
        else:
            np.testing.assert_array_equal(array, wanted, err_msg=name)


# --- what they compute ---------------------------------------------------------------------


#: On OpenCL for the CPU, the compiler takes seconds for each of the others.
QUICK = ("image", "scan", "edges", "quantised", "halves", "places", "no rows")
EVERYWHERE = [
    *(pytest.param("cuda-emulator", n) for n in NETWORKS),
    *(pytest.param("opencl", n, marks=() if n in QUICK else pytest.mark.slow) for n in NETWORKS),
]


@pytest.mark.parametrize(("device", "name"), EVERYWHERE, indirect=["device"])
def test_equals_onnx_runtime(name: str, device: Device) -> None:
    network = NETWORKS[name]()
    model = fk.compile_onnx(network.model, target=device.name)
    for arrays in network.arrays:
        agree(model.run(arrays), ort_run(network.model, arrays), network.rtol)
    assert getattr(model, "opaque_operators", ()) == network.opaque


@pytest.mark.parametrize("name", ["image", "attention", "quantised", "open batch"])
def test_equals_the_cpu(name: str, emulator: Device) -> None:
    network = NETWORKS[name]()
    here = fk.compile_onnx(network.model)
    there = fk.compile_onnx(network.model, target=emulator.name)
    for arrays in network.arrays:
        agree(there.run(arrays), here.run(arrays))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_light_models_equal_the_cpu(name: str, device: Device) -> None:
    path, inputs, _ = load_light(name)
    model = randomised(onnx.load(path), 1)
    draw = np.random.default_rng(1)
    images = {n: draw.uniform(0, 1, a.shape).astype(a.dtype) for n, a in inputs.items()}
    expected = fk.compile_onnx(model).run(images)
    found = fk.compile_onnx(model, target=device.name).run(images)
    assert relative_error(found, expected) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_base", "mobilenetv2"])
def test_whole_networks_equal_the_cpu(name: str) -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    model = bare_model(name)
    here, there = fk.compile_onnx(model), fk.compile_onnx(model, target="opencl")
    draw = np.random.default_rng(1)
    arrays = {p.name: draw.random(p.shape, np.float32) for p in here.inputs}
    expected = here.run(arrays)
    for _ in range(2):  # the second time as it was recorded
        assert relative_error(there.run(arrays), expected) < TOLERANCE


# --- where arrays lie ----------------------------------------------------------------------


def test_outputs_stay_on_the_device_if_all_inputs_lie_there(device: Device) -> None:
    network = NETWORKS["scan"]()
    (arrays,) = network.arrays
    model = fk.compile_onnx(network.model, target=device.name)
    there = {n: device.put(a) for n, a in arrays.items()}
    found = model.run(there)
    assert all(isinstance(a, DeviceArray) for a in found.values())
    again = model.run(there)  # which must not write to what was given away
    expected = ort_run(network.model, arrays)
    for results in (found, again):
        agree({n: a.numpy() for n, a in results.items()}, expected)
    agree(model.run({**arrays, "x": there["x"]}), expected)


def test_outputs_that_are_given(device: Device) -> None:
    network = NETWORKS["scan"]()
    (arrays,) = network.arrays
    model = fk.compile_onnx(network.model, target=device.name)
    expected = ort_run(network.model, arrays)
    last = np.zeros_like(expected["last"])
    rows = device.put(np.zeros_like(expected["rows"]))
    found = model.run(arrays, out={"last": last, "rows": rows})
    assert found["last"] is last and found["rows"] is rows
    agree({"last": last, "rows": rows.numpy()}, expected)


def test_open_sizes_take_arrays_of_the_device(device: Device) -> None:
    network = NETWORKS["open batch"]()
    model = fk.compile_onnx(network.model, target=device.name)
    assert not model.is_whole
    for arrays in network.arrays:
        expected = ort_run(network.model, arrays)
        out = device.put(np.zeros_like(expected["y"]))
        there = {n: device.put(a) for n, a in arrays.items()}
        found = model.run(there)
        assert isinstance(found["y"], DeviceArray)
        agree({"y": found["y"].numpy()}, expected)
        assert model.run(there, out={"y": out})["y"] is out
        agree({"y": out.numpy()}, expected)
        out = device.put(np.zeros_like(expected["y"]))
        assert model.run(arrays, out={"y": out})["y"] is out
        agree({"y": out.numpy()}, expected)
    assert model.report.kernels < 12  # not all of them for each batch


def test_stages_take_arrays_of_the_device(device: Device) -> None:
    network = NETWORKS["places"]()
    (arrays,) = network.arrays
    model = fk.compile_onnx(network.model, target=device.name)
    found = model.run({"x": device.put(arrays["x"])})
    assert all(isinstance(a, DeviceArray) for a in found.values())
    agree({n: a.numpy() for n, a in found.items()}, ort_run(network.model, arrays))


class Copies:
    """What is copied to a device, in bytes, and how many modules it builds."""

    def __init__(self, device: Device, patch: pytest.MonkeyPatch) -> None:
        self.written: list[int] = []
        self.built = 0
        write, build = device.write, device.build

        def counted(handle: Any, array: Any, stream: Any) -> None:
            self.written.append(array.nbytes)
            write(handle, array, stream)

        def made(*sources: Any) -> Any:
            self.built += 1
            return build(*sources)

        patch.setattr(device, "write", counted)
        patch.setattr(device, "build", made)


def test_weights_are_copied_once(emulator: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(emulator, monkeypatch)
    network = Network(image(channels=2), ({"x": floats(7, 1, 2, 8, 8)},))
    model = fk.compile_onnx(network.model, target=emulator.name)
    assert model.is_whole and sum(copies.written) == model.report.constant_bytes > 0
    # One for all kernels, and what the cache has is built again.
    assert copies.built == 1 < model.report.kernels
    copies.written.clear()
    for _ in range(3):
        model.run(network.arrays[0])
    assert copies.written == [4 * 2 * 64] * 3
    copies.written.clear()
    again = fk.compile_onnx(network.model, target=emulator.name)
    assert copies.written == []  # the same weights lie there
    agree(again.run(network.arrays[0]), model.run(network.arrays[0]))


def test_equal_programs_share_kernels(emulator: Device) -> None:
    nodes = [onnx.helper.make_node("MatMul", [f"v{n}", f"w{n}"], [f"v{n + 1}"]) for n in range(4)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            nodes, "chain",
            [onnx.helper.make_tensor_value_info("v0", 1, [4, 4])],
            [onnx.helper.make_tensor_value_info("v4", 1, [4, 4])],
            [onnx.numpy_helper.from_array(floats(n, 4, 4), f"w{n}") for n in range(4)],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    compiled = fk.compile_onnx(model, target=emulator.name)
    assert (compiled.report.kernels, compiled.report.calls) == (1, 4)
    arrays = {"v0": floats(9, 4, 4)}
    agree(compiled.run(arrays), ort_run(model, arrays))


def test_values_lie_where_memory_of_the_device_may_begin(device: Device) -> None:
    model = fk.compile_onnx(joined(), target=device.name)
    (graph,) = model.compiled
    assert isinstance(graph, GpuModel)
    plan = graph.plan()
    assert all(start % device.alignment == 0 for _, start, _ in plan.parts.values())
    ends = [start + count for memory, start, count in plan.parts.values() if not memory]
    assert max(ends) <= plan.bytes
    # What begins at a multiple is made in its place; the rest is put there.
    assert 0 < len(graph.sharing.joined) < 3


def test_runs_of_one_model_take_turns(emulator: Device) -> None:
    from concurrent.futures import ThreadPoolExecutor

    model = fk.compile_onnx(image(), target=emulator.name)
    inputs = [{"x": floats(n, 1, 3, 8, 8)} for n in range(8)]
    expected = [model.run(i) for i in inputs]
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(model.run, inputs), expected, strict=True):
            np.testing.assert_array_equal(found["y"], wanted["y"])


def test_kernels_come_from_the_cache(device: Device, tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache")
    arrays = {"x": floats(5, 1, 3, 8, 8)}
    first, again, other = (
        fk.compile_onnx(m, target=device.name, cache=store) for m in (image(), image(), image(2))
    )
    assert [m.report.from_cache for m in (first, again, other)] == [False, True, False]
    agree(again.run(arrays), first.run(arrays), 0)
    assert again.schedules == first.schedules and again.source == first.source


# --- what else they can do -----------------------------------------------------------------


def test_targets_are_not_confused(tmp_path: Path, emulator: Device) -> None:
    path = tmp_path / "image.onnx"
    onnx.save(image(), path)
    arrays = {"x": floats(90, 1, 3, 8, 8)}
    kinds = []
    for target in ("cpu", emulator.name, "cpu", emulator.name):
        model = fk.compile_onnx(path, target=target)
        kinds.append(type(model.compiled[0]))
        agree(model.run(arrays), ort_run(image(), arrays))
    assert kinds == [CpuModel, GpuModel, CpuModel, GpuModel]


def test_specialized_models_have_one_plan(emulator: Device) -> None:
    model = fk.compile_onnx(attention("rows"), target=emulator.name)
    fixed = model.specialize(rows=4)
    assert fixed.is_whole
    arrays = {"x": floats(3, 1, 4, 16)}
    agree(fixed.run(arrays), ort_run(attention("rows"), arrays))


def test_explain_has_the_launches(emulator: Device) -> None:
    model = fk.compile_onnx(image(), target=emulator.name)
    assert model.is_whole
    text = str(model.explain())
    for symbol in model.source:
        assert f"{symbol}: " in text
    assert "blocks of" in text and "roofline" not in text
    assert "ms" not in str(model.explain(run=False)).split("not fused")[0]
    assert all(s.replace("\n", "") for s in model.schedules.values())


def test_profile_has_a_time_for_each_call(device: Device) -> None:
    model = fk.compile_onnx(image(), target=device.name)
    timings = model.profile({"x": floats(1, 1, 3, 8, 8)}, 2)
    assert len(timings) == model.report.calls and all(t.seconds > 0 for t in timings)
    assert "Conv" in timings[0].origin


def counting(sizes: str) -> onnx.ModelProto:
    """A model of several stages."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["i"]),
        helper.make_node("Cast", ["i"], ["c"], to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["c"], ["y"], keepdims=0),
    ]
    info = helper.make_tensor_value_info
    ends = [info("x", onnx.TensorProto.FLOAT, [sizes])], [info("y", onnx.TensorProto.FLOAT, [])]
    return helper.make_model(helper.make_graph(nodes, "g", *ends), ir_version=10)


def test_stages_on_a_device(device: Device) -> None:
    model = fk.compile_onnx(counting("n"), target=device.name)
    x = floats(91, 7)
    there = model.device.put(x)
    for given in (x, there):
        timings = model.profile({"x": given}, 2)
        assert timings and all(t.seconds > 0 for t in timings)
        assert model.compare("onnxruntime", {"x": given}).agrees
    with pytest.raises(fk.ArgumentError, match="there is no output 'z'; there are y"):
        model.run({"x": x}, out={"z": there})
    for wrong in ([x], x, 3):
        with pytest.raises(fk.ArgumentError, match="inputs are given by name"):
            model.run(wrong)
        with pytest.raises(fk.ArgumentError, match="inputs are given by name"):
            model.profile(wrong)
        with pytest.raises(fk.ArgumentError, match="outputs are given by name"):
            model.run({"x": x}, out=wrong)
    with pytest.raises(fk.ArgumentError, match="repeat=0 must be at least 1"):
        model.profile({"x": x}, repeat=0)


@pytest.mark.parametrize("name", ["open batch", "places"])
def test_arrays_for_outputs_lie_apart(device: Device, name: str) -> None:
    network = NETWORKS[name]()
    model = fk.compile_onnx(network.model, target=device.name)
    (x,) = network.arrays[0].values()
    expected = {n: np.asarray(a) for n, a in model.run({"x": x}).items()}
    first = next(iter(expected))
    block = np.zeros(1 << 16, np.uint8)
    source, place = (block[: a.nbytes].view(a.dtype).reshape(a.shape) for a in (x, expected[first]))
    source[...] = x
    with pytest.raises(fk.ArgumentError, match=f"out {first} overlaps x in memory"):
        model.run({"x": source}, out={first: place})
    np.testing.assert_array_equal(source, x)


def test_arrays_for_outputs_lie_apart_on_the_device(device: Device) -> None:
    network = NETWORKS["places"]()
    (arrays,) = network.arrays
    model = fk.compile_onnx(network.model, target=device.name)
    there, out = device.put(arrays["x"]), device.put(np.zeros(4, np.int64))
    first, second, *_ = model.run(arrays)
    with pytest.raises(fk.ArgumentError, match=f"out {first} overlaps x in memory"):
        model.run({"x": there}, out={first: there})
    np.testing.assert_array_equal(there.numpy(), arrays["x"])
    with pytest.raises(fk.ArgumentError, match=f"out {second} overlaps out {first} in memory"):
        model.run({"x": there}, out={first: out, second: out})


def test_all_arrays_for_outputs_fit_or_none_is_written(device: Device) -> None:
    network = NETWORKS["places"]()
    (arrays,) = network.arrays
    model = fk.compile_onnx(network.model, target=device.name)
    assert not model.is_whole
    expected = model.run(arrays)
    *others, last = expected
    assert others
    for put in (np.array, device.put):
        out = {n: put(np.zeros_like(a)) for n, a in expected.items()}
        with pytest.raises(fk.ArgumentError, match=f"out {last} has shape"):
            model.run(arrays, out=out | {last: put(np.zeros_like(expected[last])[:-1])})
        kept = [a if isinstance(a, np.ndarray) else a.numpy() for a in out.values()]
        assert not any(map(np.any, kept))
        model.run(arrays, out=out)
        agree({n: a if isinstance(a, np.ndarray) else a.numpy() for n, a in out.items()}, expected)


def test_what_is_no_array_needs_none(emulator: Device) -> None:
    probabilities = helper.make_node("ZipMap", ["r"], ["p"], domain="ai.onnx.ml",
                                     classlabels_int64s=[0, 1])  # fmt: skip
    kind = helper.make_map_type_proto(
        onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), probabilities],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 2])],
        [helper.make_value_info("p", helper.make_sequence_type_proto(kind))],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = fk.compile_onnx(
        helper.make_model(graph, opset_imports=opsets, ir_version=8), target=emulator.name
    )
    x = floats(92, 2, 2)
    for out in (x.copy(), emulator.put(x)):
        with pytest.raises(fk.ArgumentError, match=r"p is a .* and needs no array"):
            model.run({"x": x}, out={"p": out})


def test_compare_names_what_diverges(emulator: Device) -> None:
    model = fk.compile_onnx(image(), target=emulator.name)
    arrays = {"x": floats(90, 1, 3, 8, 8)}
    assert model.compare("onnxruntime", arrays).agrees
    right = ort_run(image(), arrays)
    wrong = {n: a + 1 for n, a in right.items()}
    assert not model.compare(wrong, arrays).agrees
    there = {n: emulator.put(a) for n, a in arrays.items()}
    for reference in ("onnxruntime", right, lambda given: ort_run(image(), given)):
        assert model.compare(reference, there).agrees


def test_the_command_runs_on_a_target(tmp_path: Path, emulator: Device) -> None:
    path = tmp_path / "image.onnx"
    onnx.save(image(), path)
    command = ["run", str(path), "--random", "--target", emulator.name]
    done = CliRunner().invoke(main, [*command, "--compare", "onnxruntime"])
    assert done.exit_code == 0, done.output
    assert "compared" in done.output
    refused = CliRunner().invoke(main, [*command, "--threads", "2"])
    assert refused.exit_code == 1 and "threads is not supported" in refused.output
    rounded = CliRunner().invoke(main, [*command[:-1], "cuda-emulator:sm_90,tf32"])
    assert rounded.exit_code == 0, rounded.output
    refused = CliRunner().invoke(main, [*command[:-1], "cuda-emulator,tf32"])
    assert refused.exit_code == 1
    assert "did you mean 'cuda-emulator:sm_90,tf32'?" in " ".join(refused.output.split())


# --- what is refused -----------------------------------------------------------------------


def test_wrong_arrays_are_refused_as_on_the_cpu(emulator: Device) -> None:
    here = fk.compile_onnx(image())
    there = fk.compile_onnx(image(), target=emulator.name)
    x = floats(1, 1, 3, 8, 8)
    for inputs in (
        {}, {"x": x[:, :, :4]}, {"x": x.astype(np.float64)}, {"x": x[0]}, {"x": x, "z": x},
        {"x": [1.0]},
    ):  # fmt: skip
        with pytest.raises(fk.ArgumentError) as refused:
            here.run(inputs)
        with pytest.raises(fk.ArgumentError) as also:
            there.run(inputs)
        assert str(also.value) == str(refused.value)


def test_wrong_arrays_of_the_device_are_refused(emulator: Device) -> None:
    model = fk.compile_onnx(image(), target=emulator.name)
    x = emulator.put(floats(1, 1, 3, 8, 8))
    y = emulator.put(floats(1, 1, 5))
    for inputs, out, words in (
        ({"x": y}, {}, "rank 2"),
        ({"x": emulator.put(floats(1, 2, 3, 8, 8))}, {}, "shape"),
        ({"x": x}, {"y": x}, "rank 4"),
        ({"x": x}, {"y": emulator.put(floats(1, 2, 5))}, r"shape \(2, 5\), expected \(1, 5\)"),
        ({"x": x}, {"q": y}, "there is no output 'q'"),
    ):
        with pytest.raises(fk.ArgumentError, match=words):
            model.run(inputs, out=out)
    network = NETWORKS["scan"]()
    square = fk.compile_onnx(network.model, target=emulator.name)
    given = {n: emulator.put(a) for n, a in network.arrays[0].items()}
    with pytest.raises(fk.ArgumentError, match="out last overlaps h0"):
        square.run(given, out={"last": given["h0"]})


def test_there_are_no_threads_to_choose(emulator: Device) -> None:
    with pytest.raises(fk.ArgumentError, match="threads is not supported for target"):
        fk.compile_onnx(image(), target=emulator.name, threads=2)
    for batch in (1, "batch"):
        model = fk.compile_onnx(image(batch), target=emulator.name)
        with pytest.raises(fk.ArgumentError, match="threads= is not supported on cuda-emulator"):
            model.run({"x": floats(1, 1, 3, 8, 8)}, threads=2)
    with pytest.raises(fk.ArgumentError, match="did you mean 'opencl'"):
        fk.compile_onnx(image(), target="opencll")
