"""Compilers for the tests of helpers."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from codegen.c.prelude import prelude_for
from runtime.cpu.compile_c import compile_shared
from runtime.cpu.toolchain import Toolchain, find_toolchain
from tests.codegen.c.helpers_support import LEVELS, Load


@pytest.fixture(scope="module", params=["gcc", "clang"])
def compiler(request: pytest.FixtureRequest, toolchain: Toolchain) -> Toolchain:
    if toolchain.kind != request.param and shutil.which(request.param) is None:
        pytest.skip(f"there is no {request.param}")
    return toolchain if toolchain.kind == request.param else find_toolchain(request.param)


@pytest.fixture(scope="module", params=[*LEVELS])
def load(
    request: pytest.FixtureRequest, compiler: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> Load:
    """Compiles code with the helpers that it uses; no warning is allowed."""
    folder: Path = tmp_path_factory.mktemp("helpers")
    using = replace(compiler, flags=(*compiler.flags, *LEVELS[request.param]))

    def loaded(code: str) -> ctypes.CDLL:
        library = folder / f"helpers{len([*folder.iterdir()])}.so"  # not one that is loaded
        text = f"{prelude_for(code)}\n{code}"
        assert compile_shared(using, {"helpers.c": text}, (), library) == ""
        return ctypes.CDLL(str(library))

    return loaded
