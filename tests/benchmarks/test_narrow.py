"""Suite narrow: texts, models and peers in narrow types, the networks' forms, and the goals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from rich.console import Console

import farkas as fk
from benchmarks import report, runner, suites
from benchmarks.__main__ import _is_wrong
from benchmarks.kernel import Kernel, Product
from benchmarks.measure import QUICK
from benchmarks.narrow import goals, models, networks
from benchmarks.narrow.forms import FORMS, plain_results, write_form
from benchmarks.narrow.kernels import ELEMENTS, Narrow, has_integers, is_product, kernels, narrowed
from benchmarks.narrow.networks import NETWORKS, inputs_of
from benchmarks.peers import PEERS
from benchmarks.results import Results, Row
from benchmarks.task import UnavailableError, kernel_task
from benchmarks.worker import difference
from tests.benchmarks.test_kernels import SMALL, named

#: The networks with few and small layers.
TINY: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": lambda: networks.resnet50(32, (1, 1, 1, 1), 8, 10),
    "mobilenetv2": lambda: networks.mobilenetv2(
        size=32, classes=10, blocks=((1, 8, 1, 1), (6, 8, 2, 2)), head=32
    ),
    "efficientnet_b0": lambda: networks.efficientnet_b0(
        32, ((1, 3, 1, 8, 1), (6, 5, 2, 8, 2)), 32, 10
    ),
    "vit_small": lambda: networks.vit_small(32, 1, 24, 3, 10),
    "distilbert": lambda: networks.distilbert(7, 1, 24, 3, 50),
    "whisper_tiny": lambda: networks.whisper_tiny(9, 1, 24, 3, 8),
    "lstm_tagger": lambda: networks.lstm_tagger(5, 50, 12, 8, 4),
}
CASES = [
    narrowed(k, e)
    for e in ELEMENTS
    for k in SMALL
    if k.name != "transposed" and (e != "int8" or has_integers(k))
]


def test_the_suite_has_what_types_give_a_meaning() -> None:
    found = {e: {k.source.name for k in kernels() if k.element == e} for e in ELEMENTS}
    assert len(found["bfloat16"]) == len(found["float16"]) == 74
    without = found["float16"] - found["int8"]
    assert without == {
        "softmax12x128x128", "layernorm128x768", "bilinear64", "kru3_256", "mttkrp256_r32",
        "attn12x128x64",
    }  # fmt: skip
    assert {"mm512", "rn_64x64_k3s1_56"} <= found["int8"]
    items = suites.items_of("narrow")
    assert len(items) == len(kernels()) + len(models.names())
    assert {i.suite for i in items} == set(goals.SUITES)
    assert [i.name for i in suites.items_of("narrow", "mm512 int8|tagger dynamic")] == [
        "mm512 int8", "lstm_tagger dynamic",
    ]  # fmt: skip


def test_bytes_are_those_of_the_types() -> None:
    product = Product("mm", "matmul", "ij,jk->ik", {"i": 3, "j": 5, "k": 7})
    assert narrowed(product, "int8").bytes == 3 * 5 + 5 * 7 + 4 * 3 * 7
    assert narrowed(product, "float16").bytes == 2 * (3 * 5 + 5 * 7 + 3 * 7)


def test_texts() -> None:
    product = Product("mm", "matmul", "ij,jk->ik", {"i": 3, "j": 5, "k": 7})
    texts = {e: narrowed(product, e).text for e in ELEMENTS}
    for element, parts in {
        "int8": ("uint8 A[Ni,Nj], int8 B[Nj,Nk]", "Y[i,k] +=! int32(A[i,j]) * int32(B[j,k])"),
        "bfloat16": ("total_[i,k] +=! float32(A[i,j])", "Y[i,k] = bfloat16(total_[i,k])"),
    }.items():
        text = texts[element]
        assert text is not None and all(p in text.text for p in parts)
    copy = next(k for k in SMALL if k.name == "transpose")
    text = narrowed(copy, "float16").text
    assert text is not None and "Y[j,i] = X[i,j]" in text.text and "float16 X[N,M]" in text.text


@pytest.mark.parametrize("kernel", CASES, ids=named)
def test_small_ones_agree(kernel: Narrow) -> None:
    """Farkas from the comprehension and from ONNX, and the source on float32."""
    arrays = kernel.draw(1)
    expected = kernel.reference(arrays)
    results = []
    if kernel.text is not None:
        given = [arrays[n].reshape(s) for n, s in kernel.text.shapes.items()]
        results.append(fk.compile(kernel.text.text, sizes=kernel.text.sizes)(*given))
    if not kernel.native:
        model = kernel.model(arrays)
        onnx.checker.check_model(model, full_check=kernel.element != "bfloat16")
        results.append(fk.compile_onnx(model).run({n: arrays[n] for n in kernel.inputs})["Y"])
    assert results
    for result in results:
        assert isinstance(result, np.ndarray) and result.dtype == kernel.result_type
        assert difference([result], [expected]) <= kernel.tolerance
    wrong = expected.copy()
    wrong.reshape(-1)[0] += np.asarray(0.1 * np.abs(expected).max() + 1, expected.dtype)
    assert difference([wrong], [expected]) > kernel.tolerance


#: Small kernels for which libraries have sums of integers.
SUMS = ("product", "linear", "conv")


@pytest.mark.parametrize("name", [*SUMS, "maxpool", "transpose"])
@pytest.mark.parametrize("element", ELEMENTS)
def test_peers_agree_or_say_why_not(name: str, element: str, tmp_path: Path) -> None:
    source: Kernel = next(k for k in SMALL if k.name == name)
    task = kernel_task(narrowed(source, element), "narrow", tmp_path)
    assert task.reference is not None and task.element == element
    expected, right = task.reference(), set()
    for peer in PEERS.values():
        if peer.is_slow or peer.ours or peer.missing() or not peer.suits(task):
            continue
        peer.load()
        try:
            prepared = peer.prepare(task, 1)
        except Exception as error:
            assert peer.name == "ort" and "NOT_IMPLEMENTED" in str(error)
            continue
        assert difference(prepared.fetch(prepared.call()), expected) <= task.tolerance
        right.add(peer.name)
    if PEERS["openvino"].missing() is None:
        assert "openvino" in right
        assert ("openvino-fq" in right) == (element == "int8" and name in SUMS)
    if PEERS["torch"].missing() is None:
        assert ("torch-int8" in right) == (element == "int8" and name in SUMS)
        assert ("torch" in right) == (element != "int8")
    ours = [n for n in ("farkas-float32", "farkas-text") if PEERS[n].suits(task)]
    assert ("farkas-text" in ours) == (name != "product") and "farkas-float32" in ours
    for peer_name in ours:
        prepared = PEERS[peer_name].prepare(task, 1)
        assert difference(prepared.fetch(prepared.call()), expected) <= task.tolerance


def test_other_suites_have_no_narrow_contenders(tmp_path: Path) -> None:
    task = kernel_task(SMALL[0], "K", tmp_path)
    suited = {n for n, p in PEERS.items() if p.suits(task)}
    assert not suited & {"farkas-float32", "farkas-text", "ort-qdq", "openvino-fq", "torch-int8"}


# --- networks -----------------------------------------------------------------------------------


def test_all_networks_have_a_small_form() -> None:
    assert set(TINY) == set(NETWORKS)
    assert models.names()[0] == "resnet50 qdq" and len(models.names()) == len(NETWORKS) * len(FORMS)


@pytest.mark.parametrize("name", NETWORKS)
def test_small_networks_agree_in_float32_and_16_bits(name: str, tmp_path: Path) -> None:
    model = TINY[name]()
    onnx.checker.check_model(model, full_check=True)
    inputs = inputs_of(model, 0)
    wide = tmp_path / "wide.onnx"
    onnx.save(model, wide)
    expected = plain_results(wide, inputs)
    assert 0.02 < float(np.std(expected[0])) < 20
    assert difference(list(fk.compile_onnx(wide).run(inputs).values()), expected) < 1e-3
    half = tmp_path / "half.onnx"
    write_form(FORMS["float16"], wide, half)
    assert {p.type.tensor_type.elem_type for p in onnx.load(half).graph.output} == {1}
    assert difference(plain_results(half, inputs), expected) < FORMS["float16"].tolerance
    write_form(FORMS["bfloat16"], wide, half)
    stored = onnx.load(half).graph.initializer
    kinds = {onnx.numpy_helper.to_array(t).dtype for t in stored}
    assert np.dtype(ml_dtypes.bfloat16) in kinds and np.dtype(np.float32) not in kinds


@pytest.mark.parametrize("form", [f for f in FORMS if not FORMS[f].element])
def test_forms_of_a_small_network(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NETWORKS, "resnet50", TINY["resnet50"])  # type: ignore[misc]
    name = f"resnet50 {form}"
    models.make(name, tmp_path)
    path = models.write(name, tmp_path)
    task = models.task(name, path)
    assert task.reference is not None and task.tolerance >= 0.02
    graph = onnx.load(path).graph
    operators = {n.op_type for n in graph.node}
    wanted = {"qdq": "QuantizeLinear", "qoperator": "QLinearConv", "dynamic": "ConvInteger"}
    assert wanted[form.split()[0]] in operators
    domains = {n.domain for n in graph.node} - {"", "ai.onnx"}
    assert bool(domains) == (form == "qoperator")
    if form.startswith("qdq"):
        scales = [t for t in graph.initializer if t.name.endswith("_scale") and len(t.dims)]
        assert (max(t.dims[0] for t in scales) > 1) == ("channel" in form)
    for peer in ("ort", "farkas"):
        if peer == "farkas" and domains:
            continue
        PEERS[peer].load()
        prepared = PEERS[peer].prepare(task, 1)
        assert difference(prepared.fetch(prepared.call()), task.reference()) <= task.tolerance
        assert (prepared.weights or 0) > 0 or peer == "ort"


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="KeyError"):
        models.write("no_such_network qdq", tmp_path)
    assert not list(tmp_path.glob("*.onnx"))


# --- goals and tables ---------------------------------------------------------------------------


def row(name: str, family: str, suite: str = "narrow", **values: Any) -> Row:
    return Row(suite, name, family, 2, 10**9, 10**6, **values)


def results() -> Results:
    rows = [
        row("mm512 int8", "matmul int8", times={"farkas": [1.0], "farkas-float32": [4.0],
            "ort": [2.0]}),
        row("attn12x128x64 float16", "custom float16", times={"farkas": [3.0],
            "farkas-float32": [1.0], "ort": [2.0]}),
        row("rn int8", "resnet50 int8", failures={"farkas": "UnsupportedModelError: no"},
            times={"ort": [1.0]}),
        row("resnet50 qdq", "qdq", "narrow-networks", times={"farkas": [1.0], "ort": [2.0],
            "openvino": [4.0]}, weights={"farkas": 3 << 20}),
    ]  # fmt: skip
    return Results({"time": "now"}, {"ort": "1"}, {}, {}, rows)


def test_goals_and_tables() -> None:
    console = Console(width=220, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.finish(results(), results(), None, console, goals.show)
    lines = console.export_text().splitlines()

    def cells(start: str) -> list[str]:
        return next(" ".join(x.split()) for x in lines if x.startswith(start)).split(" ")

    assert "met" in cells("int8 products, each") and "missed" in cells("int8 convolutions, each")
    assert {"0.25", "met", "mm512"} <= set(cells("int8 products over float32"))
    assert {"3.00", "missed"} <= set(cells("float16 over float32, each"))
    assert {"0.50", "met"} <= set(cells("networks, each"))
    text = "\n".join(lines)
    assert "narrow/wide" in text and "weights, MiB" in text and "3.00" in text
    assert "UnsupportedModelError: no" in text


def test_rows_of_goals() -> None:
    found = results()
    by_name = {g.what: [r.name for r in goals.rows_of(g, found)] for g in goals.GOALS}
    assert by_name["kernels in float16"] == ["attn12x128x64 float16"]
    assert by_name["kernels in bfloat16"] == []
    assert len(by_name["all kernels"]) == 3
    families = {k.name: k for k in kernels() if k.element == "bfloat16"}
    for name, kernel in families.items():
        kind = goals.kind(row(name, kernel.family))
        assert (kind == "product") == (is_product(kernel.source) and "attn" not in name)


def test_only_what_is_refused_is_no_failure_of_the_run() -> None:
    assert not any(map(_is_wrong, results().rows))
    wrong = row("mm", "matmul int8", failures={"farkas": "wrong result: relative difference 1"})
    assert _is_wrong(wrong)
    refused = row("mm", "matmul", "K", failures={"farkas": "UnsupportedModelError: no"})
    assert _is_wrong(refused)


def test_weights_reach_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = [
        {"prepared": "farkas", "seconds": 1.0, "difference": 0.0, "weights": 5},
        {"prepared": "ort", "seconds": 1.0, "difference": 0.0, "weights": None},
        {"times": {"farkas": 1.0, "ort": 1.0}},
    ]
    monkeypatch.setattr(runner, "start", lambda job, folder: (lines, None))
    plan = runner.Plan(("farkas", "ort"), 1, 2.0, QUICK, tmp_path, memory=False)
    found = runner.measure_item(suites.Item("K", "mm", "matmul", 1, 1), 1, plan)
    assert found.weights == {"farkas": 5}


def test_one_real_run(tmp_path: Path) -> None:
    """The command on the kernel that does nothing, in all types."""
    keep, stem = tmp_path / "now.json", tmp_path / "plot"
    line = [sys.executable, "-m", "benchmarks", "--quick", "--suite", "narrow", "--only", "relu16",
            "--threads", "1", "--peers", "ort", "--json", str(keep),
            "--plot", str(stem)]  # fmt: skip
    done = subprocess.run(line, cwd=runner.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(keep.read_text())["rows"]
    assert [r["name"] for r in rows] == [f"overhead_relu16 {e}" for e in ELEMENTS]
    assert all({"farkas", "farkas-float32"} <= set(r["times"]) for r in rows)
    assert "goals for narrow types" in done.stdout and "NOT_IMPLEMENTED" in done.stdout
    again = [sys.executable, "-m", "benchmarks", "--show", str(keep)]
    text = subprocess.run(again, cwd=runner.ROOT, capture_output=True, text=True, check=True).stdout
    assert "goals for narrow types" in text
