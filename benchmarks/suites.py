"""The suites by name, and the computations of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from benchmarks.heldout import heldout
from benchmarks.kernel import Kernel
from benchmarks.kernels import suite_k
from benchmarks.narrow.kernels import kernels
from benchmarks.task import Task

#: Descriptions of the suites.
SUITES = {
    "K": "73 kernels and the cost of a call",
    "E": "whole networks at batch 1",
    "public": "trained models out of packages, at three sizes each",
    "trained": "models of scikit-learn, LightGBM and XGBoost for 1, 100 and 10,000 rows",
    "recurrent": "RNN, GRU and LSTM",
    "heldout": "40 shapes that nothing was tuned for",
    "narrow": "kernels of suite K and networks, in int8, bfloat16 and float16",
    "files": "the networks of a folder, see benchmarks/files.py",
    "symbolic": "comprehensions with open sizes beside the same with fixed ones",
}

#: The modules of suites whose computations are models in files; each is `Models`.
_MODELS = {
    "E": "benchmarks.models",
    "public": "benchmarks.public",
    "trained": "benchmarks.trained",
    "recurrent": "benchmarks.recurrent",
    "files": "benchmarks.files",
    "narrow-networks": "benchmarks.narrow.models",
}
#: Suites of kernels with networks: those of a suite of their own.
_NETWORKS = {"narrow": "narrow-networks"}


class Models(Protocol):
    """A suite of models."""

    def names(self) -> Sequence[str]:
        """The names in the tables."""

    def size(self, name: str) -> tuple[int, int]:
        """Floating-point operations, and bytes of inputs, weights and outputs; 0 if not counted."""

    def write(self, name: str, folder: Path) -> Path:
        """Write the file of a model, if it does not exist; raises `UnavailableError`."""

    def task(self, name: str, path: Path) -> Task:
        """The task of a model whose file has been written."""


@dataclass(frozen=True)
class Item:
    """One computation of a suite; bytes are those of inputs, weights and outputs."""

    suite: str
    name: str
    family: str
    flops: int
    bytes: int


def kernels_of(suite: str) -> Sequence[Kernel]:
    """The kernels of a suite; none for networks."""
    if suite == "K":
        return suite_k()
    if suite == "narrow":
        return kernels()
    if suite == "symbolic":
        return [k for k in suite_k() if k.text is not None]
    return heldout() if suite == "heldout" else ()


def models_of(suite: str) -> Models | None:
    """The models of a suite; None for suites of kernels."""
    module = _MODELS.get(suite)
    return None if module is None else cast(Models, import_module(module))


def items_of(suite: str, only: str = "") -> list[Item]:
    """The computations of a suite with matching names, in the order of its table."""
    models = models_of(suite)
    if suite in _NETWORKS:
        return [*_kernel_items(suite, only), *items_of(_NETWORKS[suite], only)]
    if models is not None:
        found = [n for n in models.names() if re.search(only, n)]
        return [Item(suite, n, _family(suite, n), *models.size(n)) for n in found]
    return _kernel_items(suite, only)


def _family(suite: str, name: str) -> str:
    """The family of a network: in suite narrow the form, which is the end of its name."""
    return name.partition(" ")[2] if suite == "narrow-networks" else "models"


def _kernel_items(suite: str, only: str) -> list[Item]:
    found = [k for k in kernels_of(suite) if re.search(only, k.name)]
    return [Item(suite, k.name, k.family, k.flops, k.bytes) for k in found]
