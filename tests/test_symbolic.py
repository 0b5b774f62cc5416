"""One compiled kernel serves every size: nothing is compiled again, and all results are right."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import farkas as fk
import runtime.cpu.shared_library
from runtime.common.arguments import bind, shape_of


@dataclass(frozen=True)
class Case:
    """A text with its element types, the greatest value of each size, and the error allowed."""

    text: str
    largest: dict[str, int]
    dtypes: str | None = None
    error: float = 2e-5


CASES = {
    "matmul": Case("C[i,j] +=! A[i,k] * B[k,j]", {"I": 90, "J": 90, "K": 90}, "float32"),
    "convolution": Case(
        """def conv_relu(float32 X[N,C,H,W], float32 F[K,C,3,3], float32 B[K]) -> (Y) {
            T[n,k,p,q] +=! X[n,c,p+r-1,q+s-1] * F[k,c,r,s]
                where p in 0:H, q in 0:W, 0 <= p+r-1 < H, 0 <= q+s-1 < W
            Y[n,k,p,q] = max(T[n,k,p,q] + B[k], 0)
        }""",
        {"N": 2, "C": 5, "H": 20, "W": 40, "K": 36},
    ),
    "pooling": Case(
        """def maxpool(float32 X[N,C,H,W]) -> (Y) {
            Y[n,c,p,q] max=! X[n,c,2*p+r,2*q+s] where r in 0:3, s in 0:3
        }""",
        {"N": 3, "C": 4, "H": 40, "W": 70},
    ),
    "softmax": Case(
        """def softmax(float32 X[N,M]) -> (Y) {
            top[i] max=! X[i,j]
            E[i,j] = exp(X[i,j] - top[i])
            total[i] +=! E[i,j]
            Y[i,j] = E[i,j] / total[i]
        }""",
        {"N": 40, "M": 200},
    ),
    "scan": Case(
        "def scan(float64 X[N]) -> (S) {\n S[0] = 0\n S[i+1] = S[i] + X[i]\n}", {"N": 5000},
        error=1e-13,
    ),
}  # fmt: skip


@dataclass
class Counter:
    compiled: int = 0


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """How often the C compiler is started for a kernel."""
    counter = Counter()
    real = runtime.cpu.shared_library.compile_shared

    def counted(*words: object, **more: object) -> str:
        counter.compiled += 1
        return real(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime.cpu.shared_library, "compile_shared", counted)
    yield counter


def sizes_for(program: fk.Program, case: Case, rng: random.Random) -> dict[str, int]:
    """Random sizes that the program accepts, small ones more often than large ones."""
    while True:
        sizes = {n: int(case.largest[n] * rng.random() ** 2 + 0.5) for n in program.sizes}
        try:
            bind(program, {t.name: shape_of(t, sizes) for t in program.inputs}, sizes)
        except fk.ArgumentError:
            continue
        return sizes


def kernels_in(folder: Path) -> int:
    """How many kernels a cache holds; the library of the threads may be there too."""
    return len([*folder.rglob(runtime.cpu.loaded_kernel.LIBRARY)])


def check(name: str, count: int, folder: Path, compilations: Counter) -> None:
    case = CASES[name]
    kernel = fk.compile(case.text, dtypes=case.dtypes, cache=folder)
    assert compilations.compiled == 1 and kernels_in(folder) == 1
    rng = random.Random(name)
    seen = set()
    for number in range(count):
        sizes = sizes_for(kernel.program, case, rng)
        seen.add(tuple(sizes.values()))
        report = kernel.verify(sizes, seed=number, threads=rng.choice((1, 2)))
        assert report.close(case.error), report
    assert len(seen) > count // 2
    assert compilations.compiled == 1 and kernels_in(folder) == 1


@pytest.mark.parametrize("name", CASES)
def test_some_sizes(name: str, tmp_path: Path, compilations: Counter) -> None:
    check(name, 8, tmp_path / "cache", compilations)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_hundred_sizes(name: str, tmp_path: Path, compilations: Counter) -> None:
    check(name, 200, tmp_path / "cache", compilations)
