"""The official suite of the onnx package: a part of it always, all of it with the slow tests."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from tests.conformance import __main__ as command
from tests.conformance.official import Case, Outcome, cases, run_case

#: Tests in scope that do not pass, with the reason.
KNOWN = {
    "test_dft_inverse": "the stored zeros are rounding errors of 2e-7, the tolerance is 1e-7",
    "test_dft_inverse_opset19": "the stored zeros are rounding errors of 2e-7",
    "test_attention_4d_causal_fp16": "exp and sums in float32, stored ones are in float16",
    "test_attention_4d_causal_fp16_expanded": "exp and sums in float32, not in float16",
    "test_maxunpool_export_with_output_shape": "indices in the given shape, as for ONNX Runtime",
}

ALL = [c for c in cases() if not c.scope and c.name not in KNOWN]
#: One in so many is always run.
STEP = 47


def is_sample(case: Case) -> bool:
    """Whether a case is in the part that is always run: chosen by name, so that it stays."""
    return zlib.crc32(case.name.encode()) % STEP == 0


@pytest.mark.parametrize("case", [c for c in ALL if is_sample(c)], ids=lambda c: c.name)
def test_a_part_of_the_suite(case: Case) -> None:
    assert run_case(case).reason == ""


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in ALL if not is_sample(c)], ids=lambda c: c.name)
def test_the_rest_of_the_suite(case: Case) -> None:
    assert run_case(case).reason == ""


@pytest.mark.parametrize("name", ["test_relu", "test_softmax_axis_1", "test_matmul_2d"])
def test_open_sizes(name: str) -> None:
    (case,) = (c for c in ALL if c.name == name)
    assert run_case(case, is_open=True).reason == ""


def test_the_file_of_outcomes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its folder is made; where it cannot be written, no test runs."""
    runs = []

    def run_parts(*arguments: object) -> list[Outcome]:
        runs.append(arguments)
        return []

    monkeypatch.setattr(command, "run_parts", run_parts)
    file = tmp_path / "new" / "suite.json"
    monkeypatch.setattr("sys.argv", ["conformance", "--json", str(file)])
    assert command.main() == 0 and json.loads(file.read_text()) == []
    monkeypatch.setattr("sys.argv", ["conformance", "--json", str(file / "suite.json")])
    with pytest.raises(SystemExit):
        command.main()
    assert len(runs) == 1


def test_what_does_not_pass_is_in_the_suite() -> None:
    assert KNOWN.keys() <= {c.name for c in cases()}
