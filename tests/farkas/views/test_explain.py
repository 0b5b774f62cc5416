"""What is said of fusion, bytes and rooflines, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

import farkas as fk
from farkas.views import explain
from farkas.views.explain import Figures, unfused
from poly.ir.cost import bytes_of_program, operations_of_program
from poly.schedule.fusion_report import handovers
from runtime.cpu.roofline import Roofline
from tests.machines import AVX512
from tests.poly.texts import PLAIN_SOFTMAX

TWO = """def two(float32 A[N,K], float32 B[K,M], float32 D[M,L]) -> (E) {
    C[i,j] +=! A[i,k] * B[k,j]
    E[i,l] +=! C[i,j] * D[j,l]
}"""
ROOF = Roofline(1, 100e9, 50e9, 40e9, 10e9, 1 << 20, 32 << 20)


def test_operations_and_bytes() -> None:
    sizes = {"N": 10, "M": 20, "K": 30, "L": 5}
    two = fk.parse(TWO)
    assert operations_of_program(two, sizes) == 2 * 10 * 30 * 20 + 2 * 10 * 20 * 5
    assert bytes_of_program(two, sizes) == 4 * (10 * 30 + 30 * 20 + 20 * 5 + 10 * 5)
    # The arithmetic of places is none of the program's.
    shifted = fk.parse("def f(float32 X[N]) -> (Y) { Y[i] = X[i+1] * 2 where i in 0:N-1 }")
    assert operations_of_program(shifted, {"N": 8}) == 7


def test_handovers_as_written_and_fused() -> None:
    sizes = {"N": 64, "M": 256}
    written = fk.Schedule.of(fk.parse(PLAIN_SOFTMAX))
    apart = {(x.tensor, x.user): x for x in handovers(written, sizes, AVX512)}
    assert set(apart) == {("top", "S1"), ("e", "S2"), ("e", "S3"), ("sum", "S3")}
    e = apart["e", "S3"]
    assert (e.loops, e.saved, e.bytes, e.kept) == ((), 0, 64 * 256 * 4, "memory")
    script = "fuse S1, S2_init: i\nfuse S1, S2: i\nfuse S1, S3: i"
    fused = {(x.tensor, x.user): x for x in handovers(written.replay(script), sizes, AVX512)}
    e = fused["e", "S3"]
    assert (e.loops, e.part, e.kept, e.saved) == (("i",), 256 * 4, "L1", 64 * 256 * 4)
    assert fused["top", "S1"].loops == ()


def test_the_obstacle_is_the_pair_that_would_swap() -> None:
    s = fk.Schedule.of(fk.parse("""def f(float32 X[N]) -> (U) {
        T[i] = 2 * X[i]
        U[i] = T[i] + T[i+1]
    }"""))  # fmt: skip
    (found,) = handovers(s, {"N": 100}, AVX512)
    assert found.obstacle.startswith("fuse S0, S1: i is illegal: S0[1] must come before S1[0]")


def test_figures() -> None:
    f = Figures(2_000_000, 1_000, 40e-6, ROOF)
    assert f.bound == "arithmetic" and f.intensity == 2000 and f.share == pytest.approx(0.5)
    assert Figures(10, 1_000, None, ROOF).bound == "L2"
    assert Figures(10, 20 << 20, None, ROOF).bound == "L3"
    assert Figures(10, 100 << 20, None, ROOF).bound == "memory"
    assert "50% of the roofline" in str(f) and Figures(0, 0, None, ROOF).share is None


def test_a_roofline_that_cannot_be_right_is_not_shown() -> None:
    """A busy machine gave "1557409% of the roofline"."""
    f = Figures(2_000_000, 1_000, 1e-6, ROOF)
    assert f.share is None and str(f).endswith("1 GB/s, roofline not measured")
    assert "roofline not measured" in str(Figures(2_000_000, 1_000, 40e-6, None))
    busy = replace(ROOF, l2=1e9)
    assert ROOF.is_plausible and not busy.is_plausible
    assert busy.best(replace(ROOF, flops=1e9)) == ROOF
    assert not replace(ROOF, flops=1e3).is_plausible


def test_a_roofline_is_measured_again_where_the_machine_was_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = iter([replace(ROOF, l2=1e9), replace(ROOF, flops=1e9)])
    monkeypatch.setattr(explain, "_measured", {})
    monkeypatch.setattr(explain, "measure", lambda *_, **__: next(results))
    assert explain.roofline(1) == explain.roofline(1) == ROOF
    monkeypatch.setattr(explain, "measure", lambda *_, **__: replace(ROOF, l2=1e9))
    assert explain.roofline(2) is None
    model = fk.compile_onnx(little())
    monkeypatch.setattr(explain, "_measured", {})
    told = model.explain(run=False)
    assert "roofline not measured" in told.text and "of roofline" not in told.html


def test_a_split_product_counts_what_is_computed() -> None:
    kernel = fk.compile("Y[i,l] +=! A[i,j] * B[j,k] * C[k,l]", dtypes="float32")
    sizes = dict.fromkeys("IJKL", 64)
    assert f"{2 * 2 * 64**3:,} operations" in kernel.explain(**sizes).text


@pytest.fixture
def known_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A roofline that nothing is faster than twice over, however busy the machine is."""
    monkeypatch.setattr(explain, "roofline", lambda threads: replace(ROOF, flops=1e15, l2=1e15))


@pytest.mark.usefixtures("known_roofline")
def test_a_kernel_explains_itself() -> None:
    kernel = fk.compile(PLAIN_SOFTMAX)
    told = kernel.explain(N=64, M=256)
    assert "softmax at N=64, M=256" in told.text and "of the roofline" in told.text
    assert "e (64 KiB), S1 to S3: fused in" in told.text
    assert "<table" in told.html
    # Without sizes nothing is timed.
    assert "GFLOP/s" not in kernel.explain().text
    with pytest.raises(fk.ArgumentError, match="no value is given for M"):
        kernel.explain(N=3)
    with pytest.raises(fk.ArgumentError, match="has no size 'Q'; it has N, M"):
        kernel.explain(Q=3)
    with pytest.raises(fk.ArgumentError, match="size N must be an integer, not '3'"):
        kernel.explain(N="3", M=4)
    with pytest.raises(fk.ArgumentError, match="not enough memory"):
        kernel.explain(N=10**5, M=10**6)
    with pytest.raises(fk.ArgumentError, match="too large to be addressed"):
        kernel.explain(N=10**7, M=10**7)
    assert "nothing to fuse" in fk.compile("C[i] = A[i] * 2", dtypes="float32").explain().text


def little(batch: int | str = 1) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    first = nh.from_array(rng.standard_normal((16, 3, 3, 3)).astype(np.float32), "w1")
    second = nh.from_array(rng.standard_normal((16, 16, 3, 3)).astype(np.float32), "w2")
    nodes = [
        h.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1] * 4),
        h.make_node("Relu", ["a"], ["r"], "relu"),
        h.make_node("Conv", ["r", "w2"], ["c"], "second", pads=[1] * 4),
        h.make_node("Add", ["c", "r"], ["y"], "skip"),
    ]
    ports = (
        [h.make_tensor_value_info("x", T.FLOAT, [batch, 3, 16, 16])],
        [h.make_tensor_value_info("y", T.FLOAT, [batch, 16, 16, 16])],
    )
    graph = h.make_graph(nodes, "little", *ports, [first, second])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


@pytest.mark.usefixtures("known_roofline")
def test_a_model_explains_itself() -> None:
    model = fk.compile_onnx(little())
    told = model.explain()
    assert told.text.startswith("little: 2 kernel calls for 4 nodes")
    assert "Conv 'first' + Relu 'relu'" in told.text
    ((value, size, _, user, why),) = unfused(model.graphs[0], lanes=True)
    assert (value, size) == ("r", 16 * 16 * 16 * 4)
    assert user == "Conv 'second' + Add 'skip'"
    assert why == "a contraction would compute the value again for each use"
    assert why in told.text
    shown = fk.show(model)
    assert shown.text.splitlines()[0] == "little: 2 kernel calls, 2 distinct kernels"
    assert "<svg" in (model._repr_html_() or "")


@pytest.mark.usefixtures("known_roofline")
def test_open_sizes() -> None:
    model = fk.compile_onnx(little("batch"))
    model.run({"x": np.zeros((2, 3, 16, 16), np.float32)})
    told = model.explain().text
    assert told.startswith("little: 2 kernel calls for 4 nodes")
    assert "not fused:\nr, Conv 'first' + Relu 'relu' to Conv 'second' + Add 'skip': a co" in told
    assert "2 distinct kernels" in fk.show(model).text
    assert "of roofline" in model.specialize(batch=1).explain().html


def test_the_c_of_a_model_names_its_nodes() -> None:
    model = fk.compile_onnx(little())
    text = "".join(model.source.values())
    first, second = (text.index(f"\nvoid fk_k{n}_") for n in (0, 1))
    assert " * Node: Conv 'first' + Relu 'relu'" in text[:first]
    assert " * Node: Conv 'second' + Add 'skip'" in text[first:second]
