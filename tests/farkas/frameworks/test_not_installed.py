"""What needs a library that is not installed says which, and how it is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import farkas as fk


@pytest.mark.parametrize(
    ("module", "use", "message"),
    [
        (
            "torch",
            lambda: fk.torch.op("Y[i] = X[i]"),
            r"torch: pip install '\.\[torch\]' in a clone",
        ),
        ("torch", lambda: fk.compile_torch(None), r"torch: pip install '\.\[torch\]' in a clone"),
        ("jax", lambda: fk.jax.op("Y[i] = X[i]"), r"JAX: pip install '\.\[jax\]' in a clone"),
    ],
)
def test_the_message_names_the_extra(
    module: str, use: Callable[[], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(fk.ToolchainError, match=message):
        use()
