"""Functions of torch beside the same compiled; importing it skips a module without torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

import farkas as fk

pytest.importorskip("torch", reason="torch is not installed")
torch: Any = importlib.import_module("torch")


def whole() -> None:
    """Nothing stayed with torch."""
    assert fk.torch.reports
    assert not any(r.left for r in fk.torch.reports), "\n".join(map(str, fk.torch.reports))


def agrees(
    function: Callable[..., Any],
    *given: Any,
    back: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Results and gradients are eager torch's, and nothing stayed with torch."""
    results = []
    torch._dynamo.reset()  # or sizes become open
    for call in (function, torch.compile(function, backend="farkas")):
        inputs = [x.clone().requires_grad_(back) for x in given]
        found = call(*inputs)
        found = [*found] if isinstance(found, tuple) else [found]
        if back:
            real = [f for f in found if f.requires_grad]
            seeds = [torch.linspace(0.5, 1.5, f.numel()).to(f.dtype).view(f.shape) for f in real]
            found += torch.autograd.grad(real, inputs, seeds)
        results.append(found)
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    whole()
