"""What all tests share: a cache of their own, the compiler, and reproducible random tests."""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from poly.errors import ToolchainError
from poly.ir import instruction_tables
from runtime.common.cache import ENVIRONMENT, Cache
from runtime.cpu.fast_call import quick_calls
from runtime.cpu.toolchain import Toolchain, find_toolchain
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.opencl import UNKNOWN_PROCESSOR

settings.register_profile(
    "farkas",
    deadline=None,  # the first example of a test may start a compiler
    derandomize=True,
    max_examples=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("farkas")


ROOT = Path(__file__).resolve().parent
#: Files of tests that together ask something of every stage, for `make test-fast`.
FAST = frozenset((ROOT / "fast.txt").read_text(encoding="utf-8").split())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its stage, the folder that it is in, and the fast ones."""
    for item in items:
        path = item.path.relative_to(ROOT)
        item.add_marker(path.parts[0] if len(path.parts) > 1 else "house")
        if path.as_posix() in FAST and item.get_closest_marker("slow") is None:
            item.add_marker("fast")


@pytest.fixture(scope="session")
def generators() -> list[np.random.Generator]:
    """All from which modules of tests draw numbers."""
    modules = [own for name, own in [*sys.modules.items()] if name.startswith("tests.")]
    return [g for own in modules for g in vars(own).values() if isinstance(g, np.random.Generator)]


@pytest.fixture(autouse=True)
def own_numbers(request: pytest.FixtureRequest, generators: list[np.random.Generator]) -> None:
    """What a test draws while it runs depends on its name, not on the tests that ran before it."""
    name = zlib.crc32(request.node.nodeid.encode())
    for generator in generators:
        seed = [name, generator.bit_generator.seed_seq.entropy]  # that of the module
        generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip what needs OpenCL where its compiler, which PyPI has, is older than the processor."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, ToolchainError) and UNKNOWN_PROCESSOR in str(error):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {error}")
    return report


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Point every cache of this session to a fresh folder, child processes included.

    What makes quick calls is compiled into it, so that no test has it compiled into another one.
    """
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = str(folder)
    with contextlib.suppress(ToolchainError):
        quick_calls([], find_toolchain(), Cache(folder))
    yield folder
    if before is None:
        del os.environ[ENVIRONMENT]
    else:
        os.environ[ENVIRONMENT] = before


@pytest.fixture(scope="session", autouse=True)
def no_warnings() -> Iterator[None]:
    """Text for GPUs is to compile without a warning."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuDevice, "strict", True)
        yield


@pytest.fixture(autouse=True)
def known_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the instructions that a test declares."""
    monkeypatch.setattr(instruction_tables, "_KNOWN", dict(instruction_tables.known_intrinsics()))


@pytest.fixture(scope="session")
def cache(cache_directory: Path) -> Cache:
    """A cache shared by the whole session."""
    return Cache(cache_directory)


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """The machine's C compiler."""
    return find_toolchain()
