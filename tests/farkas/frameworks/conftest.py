"""State of torch that tests begin without."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import farkas as fk


@pytest.fixture
def fresh_torch() -> None:
    """Nothing is compiled or reported, and random numbers are the same."""
    torch: Any = importlib.import_module("torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
    fk.torch.reports.clear()
