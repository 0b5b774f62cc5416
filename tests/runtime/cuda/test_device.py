"""CUDA devices by way of both packages, in processes where `cuda_driver.c` is the driver.

cuda-bindings is the real package.  So is pycuda where it is installed; else a small module stands
in for it, see `stand_in`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.cpu.toolchain import Toolchain
from runtime.cuda.find_launcher import ENVIRONMENT

HERE = Path(__file__).parent
#: Those of these files, which are not imported here: they change what they test.
FILES = [HERE / f"cuda_{name}.py" for name in ("scenarios", "arrays", "networks")]
SCENARIOS = [n for f in FILES for n in re.findall(r"@scenario\ndef (\w+)", f.read_text())]
PACKAGES = {"cuda-bindings": "cuda.bindings", "pycuda": "pycuda"}


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, toolchain: Toolchain) -> Path:
    """The folder of a ``libcuda.so.1``."""
    folder = tmp_path_factory.mktemp("driver")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    files = ["-o", folder / "libcuda.so.1", HERE / "cuda_driver.c", "-ldl", "-lpthread"]
    subprocess.run([*toolchain.command, *flags, "-Wl,-soname,libcuda.so.1", *files], check=True)
    return folder


@pytest.fixture(scope="module")
def outcomes(
    driver: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str | None]]:
    """What became of each scenario, by package: a traceback, None if all went well."""
    found, compiled = {}, tmp_path_factory.mktemp("compiled")
    for package, module in PACKAGES.items():
        path = [str(HERE.parents[2])]
        if package == "pycuda" and not installed(module):
            path.append(str(HERE / "stand_in"))
        elif not installed(module):
            continue
        library = [str(driver), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "LD_LIBRARY_PATH": os.pathsep.join(library),
            ENVIRONMENT: package,
            "FARKAS_STAND_IN_FOLDER": str(compiled),
        }
        command = [sys.executable, "-m", "tests.runtime.cuda.cuda_networks"]
        done = subprocess.run(
            command, cwd=path[0], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        found[package] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, package: str, outcomes: dict[str, dict[str, str | None]]) -> None:
    if package not in outcomes:
        pytest.skip(f"{package} is not installed")
    problem = outcomes[package][name]
    assert problem is None, problem


def test_there_are_scenarios() -> None:
    assert "what_the_driver_is_told" in SCENARIOS and len(SCENARIOS) > 10
