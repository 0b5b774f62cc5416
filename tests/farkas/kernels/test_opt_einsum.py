"""opt_einsum's own tests, with Farkas in place of numpy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Tests that do not pass, each with the reason; none of them compares results.
KNOWN = {
    "test_contract_expression_checks": "wrong ranks are an ArgumentError, where numpy's is another",
    "test_type_errors": "out= that is not an array is an ArgumentError, not a TypeError",
    "test_auto_backend_custom_array_no_tensordot": "the plugin names another backend than numpy",
}


@pytest.mark.slow
def test_its_tests(tmp_path: Path) -> None:
    pytest.importorskip("opt_einsum.tests", reason="opt_einsum is installed without its tests")
    command = [
        sys.executable, "-m", "pytest", "--pyargs", "opt_einsum", "-p",
        "tests.farkas.kernels.opt_einsum_plugin", "-p", "no:cacheprovider", "-rfE", "-q",
        "-k", "not jax",  # which compare JAX with numpy
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=3600
    )
    failed = re.findall(r"^(?:FAILED|ERROR) \S*::(.*?)(?: - .*)?$", ran.stdout, re.MULTILINE)
    assert {*failed} == {*KNOWN}, ran.stdout
    (passed,) = re.findall(r"(\d+) passed", ran.stdout)
    assert int(passed) > 7000
    (einsums, dots) = map(int, re.findall(r"calls of Farkas: (\d+), (\d+)", ran.stdout)[0])
    assert einsums > 10_000 and dots > 1000
