"""The operators that are measured in JAX compute the same as jnp."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import farkas as fk
from benchmarks.jax_kernels import OPERATORS, TOLERANCE, error

pytest.importorskip("jax", reason="jax is not installed")
jax: Any = importlib.import_module("jax")
jax.config.update("jax_platforms", "cpu")


@pytest.mark.parametrize("name", OPERATORS)
def test_results(name: str) -> None:
    operator = OPERATORS[name]
    given = operator.inputs(operator.small)
    found = jax.jit(fk.jax.op(operator.text))(*given)
    assert error(found, operator.jnp(*given)) < TOLERANCE


def test_differences_are_seen() -> None:
    assert error([1.0, 2.0], [1.0, 2.001]) > TOLERANCE
    assert not error([1.0, float("nan")], [1.0, 2.0]) < TOLERANCE
    assert not error([1.0, 2.0], [1.0]) < TOLERANCE
