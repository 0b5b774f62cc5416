"""Random quantised graphs: compiled networks give what ONNX's reference and ONNX Runtime give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import farkas as fk
from tests.differential.quantised import SHARE, Array, Case, random_case

onnxruntime.set_default_logger_severity(4)

#: The relative rounding of one product or sum of float32.
_ULP = 3e-7


def by_reference(case: Case) -> list[Array]:
    found = ReferenceEvaluator(case.model).run(None, case.inputs)
    return [np.asarray(a) for a in found]


def by_runtime(case: Case) -> list[Array]:
    """ONNX Runtime node by node: nothing is fused or moved."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, case.inputs))


def results_of(case: Case) -> dict[str, list[Array]]:
    """The results of those of the two that can run the model."""
    found = {}
    runs: dict[str, Callable[[Case], list[Array]]] = {"onnx": by_reference, "ort": by_runtime}
    for name, run in runs.items():
        try:
            found[name] = run(case)
        except Exception:  # whatever it does not have; another test counts how often
            continue
    return found


def differs(case: Case, ours: list[Array], theirs: list[Array]) -> str:
    """How results differ by more than is allowed; empty if they do not."""
    for a, b, apart in zip(ours, theirs, case.allowed, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype}{list(a.shape)} for {b.dtype}{list(b.shape)}"
        wide = b.astype(np.float64)
        off = np.abs(a.astype(np.float64) - wide)
        limit = apart * (1 + 1e-6) + (_ULP * np.abs(wide) if b.dtype.kind == "f" else 0.0)
        if (off > limit).any():
            return f"{int((off > limit).sum())} of {off.size} elements, at most by {off.max():g}"
        changed = int((off > _ULP * np.abs(wide)).sum())
        if changed > max(2, SHARE * off.size):
            return f"{changed} of {off.size} elements are off"
    return ""


def failure(case: Case, tally: Counter[str]) -> str:
    """What is wrong with a case; it has to agree with one of the two that can run it."""
    expected = results_of(case)
    tally.update([f"run by {' and '.join(expected) or 'none'}", *case.operations, case.form])
    if not expected:
        return ""
    try:
        onnx.checker.check_model(case.model)
        ours = list(fk.compile_onnx(case.model).run(case.inputs).values())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    reasons = {n: differs(case, ours, theirs) for n, theirs in expected.items()}
    return "" if "" in reasons.values() else str(reasons)


def sweep(seeds: range) -> tuple[list[str], Counter[str]]:
    """The failures of the cases of seeds, and a count of what they had."""
    tally: Counter[str] = Counter()
    failures = []
    for seed in seeds:
        case = random_case(seed)
        found = failure(case, tally)
        if found:
            failures.append(f"seed {seed}, {case.form}, {'-'.join(case.operations)}: {found}")
    return failures, tally


def test_seeded() -> None:
    failures, tally = sweep(range(24))
    assert not failures, "\n".join(failures)
    assert tally["run by none"] <= 1, tally


def test_a_wrong_result_is_found() -> None:
    for seed in (1, 2, 3):
        case = random_case(seed)
        (right,) = by_runtime(case)
        assert differs(case, [right], [right]) == ""
        wrong = right.copy()
        step = case.allowed[0] + (0.5 if wrong.dtype.kind == "f" else 1)
        wrong.reshape(-1)[0] += np.asarray(step * 2).astype(wrong.dtype)
        assert "1 of" in differs(case, [wrong], [right])
        assert differs(case, [right.astype(np.float64)], [right])
        assert differs(case, [right[..., None]], [right])


@pytest.mark.slow
def test_five_hundred(capsys: pytest.CaptureFixture[str]) -> None:
    """Five hundred graphs; every kind of operation occurs."""
    failures, tally = sweep(range(1000, 1500))
    with capsys.disabled():
        print(f"\n{dict(tally)}", flush=True)
    assert not failures, "\n".join(failures)
    assert tally["run by none"] < 25
    wanted = (
        "Conv Gemm MatMul Add Mul Concat MaxPool AveragePool GlobalAveragePool Relu Clip Sigmoid "
        "Softmax Resize Transpose Reshape QLinearConv QLinearMatMul ConvInteger MatMulInteger "
        "DynamicQuantizeLinear QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu "
        "QLinearAveragePool QLinearGlobalAveragePool QGemm"
    ).split()
    assert not [n for n in wanted if not tally[n]]
