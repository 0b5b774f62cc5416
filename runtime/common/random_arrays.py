"""Arrays of made-up elements that almost any program accepts."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def random_array(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Floats from 0 to 1, integers 0 and 1, which are valid indices into almost any table."""
    if dtype.kind in "biu":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.random(shape, np.float32).astype(dtype)
