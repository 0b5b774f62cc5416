"""What is measured as one call computes the same in each way."""

from __future__ import annotations

import numpy as np

from benchmarks.call_overhead import ELEMENTS, calls


def test_all_ways_give_the_same() -> None:
    found = {name: np.asarray(call()) for name, call in calls().items()}
    assert len(found) >= 3
    for name, values in found.items():
        assert values.shape == (ELEMENTS,) and values.dtype == np.float32, name
        np.testing.assert_allclose(values, found["numpy: 2 * x + y"], rtol=1e-6, err_msg=name)
