"""Tests that name a compiler are skipped where it is not installed."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(autouse=True)
def compiler_is_there(request: pytest.FixtureRequest) -> None:
    """Skip a test for a compiler that this machine does not have."""
    callspec = getattr(request.node, "callspec", None)
    name = str(callspec.params.get("compiler", "gcc")).split()[0] if callspec else "gcc"
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
