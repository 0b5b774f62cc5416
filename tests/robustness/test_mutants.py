"""Broken models and texts, all the way: only the project's own errors, and soon."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import farkas as fk
from farkas.kernels.example_sizes import small_sizes
from runtime.common.arguments import shape_of, undetermined
from tests.robustness.mutation import broken_models, broken_texts, random_array
from tests.robustness.watchdog import at_most

#: No mutant may take longer, from the file to the result.
SECONDS = 10.0

#: What dimensions are that a mutant has left open.
OPEN = 3

#: What is larger is compiled, but not run: its arrays would only cost time.
ELEMENTS = 1 << 20


def _too_large(shape: Sequence[int | str | None] | None) -> bool:
    return math.prod(e for e in shape or () if isinstance(e, int)) > ELEMENTS


def _fits(shape: tuple[int, ...], known: Sequence[int | str | None]) -> bool:
    return len(shape) == len(known) and all(
        e == k for e, k in zip(shape, known, strict=True) if isinstance(k, int)
    )


def _at_some_size(shape: Sequence[int | str | None] | None) -> tuple[int, ...]:
    """The shape with a number for open dimensions."""
    return tuple(e if isinstance(e, int) else OPEN for e in shape or ())


def attempt_model(source: onnx.ModelProto | bytes, cache: Path) -> str:
    """Compile and run a model: how it ended."""
    rng = np.random.default_rng(0)
    try:
        with at_most(SECONDS), np.errstate(all="ignore"):
            model = fk.compile_onnx(source, cache=cache, threads=1)
            if any(_too_large(p.shape) for p in (*model.inputs, *model.outputs)):
                return "compiled"
            if any(p.shape is None for p in model.inputs):
                return "compiled"  # not even the number of dimensions is known
            shapes = {p.name: _at_some_size(p.shape) for p in model.inputs}
            inputs = {
                p.name: random_array(rng, p.dtype.numpy, shapes[p.name]) for p in model.inputs
            }
            try:
                results = model.run(inputs)
            except fk.ArgumentError:
                if all(shapes[p.name] == p.shape for p in model.inputs):
                    raise
                return "another size"  # a condition on open sizes does not hold
            for port, array in zip(model.outputs, results.values(), strict=True):
                # What depends on data is not known before.
                assert port.shape is None or _fits(array.shape, port.shape)
                assert port.dtype is None or array.dtype == port.dtype.numpy
            return "ran"
    except fk.FarkasError as error:
        assert "defect of Farkas" not in str(error), error
        assert type(error) in (fk.ModelError, fk.UnsupportedModelError), (type(error), error)
        return type(error).__name__


def attempt_text(text: str, dtypes: str | None, cache: Path) -> str:
    """Compile and run a text: how it ended."""
    rng = np.random.default_rng(0)
    try:
        with at_most(SECONDS):
            kernel = fk.compile(text, dtypes=dtypes, cache=cache, threads=1)
            program = kernel.program
            sizes = small_sizes(program)
            shapes = {t.name: shape_of(t, sizes) for t in (*program.inputs, *program.outputs)}
            if any(math.prod(shape) > ELEMENTS for shape in shapes.values()):
                return "compiled"
            arrays = [random_array(rng, t.dtype.numpy, shapes[t.name]) for t in program.inputs]
            kernel(*arrays, **{name: sizes[name] for name in undetermined(program)})
            return "ran"
    except fk.FarkasError as error:
        assert "defect of Farkas" not in str(error), error
        assert not isinstance(error, fk.ToolchainError), error  # then bad C was generated
        return type(error).__name__


def check_models(count: int, seed: int, folder: Path) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for number, source in enumerate(broken_models(count, seed)):
        try:
            outcomes[attempt_model(source, folder)] += 1
        except BaseException as error:
            error.add_note(f"mutant {number} of seed {seed}")
            raise
    return outcomes


def check_texts(count: int, seed: int, folder: Path) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for number, (text, dtypes) in enumerate(broken_texts(count, seed)):
        try:
            outcomes[attempt_text(text, dtypes, folder)] += 1
        except BaseException as error:
            error.add_note(f"mutant {number} of seed {seed}, dtypes={dtypes!r}:\n{text!r}")
            raise
    return outcomes


def test_mutated_models(tmp_path: Path) -> None:
    outcomes = check_models(60, 1, tmp_path)
    assert outcomes["ran"] > 5 and outcomes["ModelError"] > 10, outcomes


def test_mutated_texts(tmp_path: Path) -> None:
    outcomes = check_texts(60, 1, tmp_path)
    assert outcomes["ran"] > 5 and outcomes["LanguageError"] > 10, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_many_mutated_models(tmp_path: Path, seed: int) -> None:
    print(check_models(250, seed, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 204))
def test_many_mutated_texts(tmp_path: Path, seed: int) -> None:
    print(check_texts(250, seed, tmp_path))
