"""Kernels as functions of xarray and dask, which call them from several threads at once."""

from __future__ import annotations

import importlib
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import farkas as fk
from docs.tools.blocks import ROOT, blocks_of

pytest.importorskip("xarray", reason="xarray is not installed")
pytest.importorskip("dask.array", reason="dask is not installed")
xr: Any = importlib.import_module("xarray")
da: Any = importlib.import_module("dask.array")
DRAW = np.random.default_rng(0)

AVERAGE = """def average(float32 X[N,T]) -> (Y) {
    Y[n,0] = X[n,0]
    for t in 1:T { Y[n,t] = 0.9 * Y[n,t-1] + 0.1 * X[n,t] }
}"""
L1 = "def l1(float32 X[N,K], float32 Y[M,K]) -> (D) { D[i,j] +=! abs(X[i,k] - Y[j,k]) }"
BLUR = "def blur(float32 X[N+2,M+2]) -> (Y) { Y[i,j] +=! X[i+u,j+v] where u in 0:3, v in 0:3 }"


def draw(*shape: int) -> Any:
    return DRAW.random(shape, np.float32)


def averages(x: Any) -> Any:
    found = x.copy()
    for t in range(1, x.shape[-1]):
        found[..., t] = 0.9 * found[..., t - 1] + 0.1 * x[..., t]
    return found


def close(found: Any, want: Any) -> None:
    assert found.dtype == want.dtype
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_arrays_of_xarray() -> None:
    x = xr.DataArray(draw(20, 6), dims=("day", "place"), coords={"place": list("abcdef")})
    average = fk.compile(AVERAGE)
    days = {"input_core_dims": [["day"]], "output_core_dims": [["day"]]}
    found = xr.apply_ufunc(average, x, **days)
    assert found.dims == ("place", "day") and list(found.place.values) == list("abcdef")
    close(found.values, averages(x.values.T))
    whole = xr.Dataset({"rain": x, "wind": 2 * x})
    both = xr.apply_ufunc(average, whole, **days)
    close(both["wind"].values, averages(2 * x.values.T))


def test_other_ranks_are_loops() -> None:
    """A kernel has a fixed number of dimensions; `vectorize` calls it for each of the others."""
    x = xr.DataArray(draw(2, 3, 4, 20), dims=("run", "level", "place", "day"))
    average = fk.compile(AVERAGE)
    core = {"input_core_dims": [["place", "day"]], "output_core_dims": [["place", "day"]]}
    found = xr.apply_ufunc(average, x, vectorize=True, **core)
    close(found.values, averages(x.values))
    with pytest.raises(fk.ArgumentError, match="X has rank 4"):
        xr.apply_ufunc(average, x, **core)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_chunks_of_xarray(scheduler: str) -> None:
    x = xr.DataArray(draw(37, 50), dims=("place", "day"))
    found = xr.apply_ufunc(
        fk.compile(AVERAGE, threads=1), x.chunk(place=5),
        input_core_dims=[["day"]], output_core_dims=[["day"]],
        dask="parallelized", output_dtypes=[np.float32],
    )  # fmt: skip
    assert found.chunks == ((5,) * 7 + (2,), (50,))
    close(found.compute(scheduler=scheduler, num_workers=2).values, averages(x.values))


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_dask_in_many_threads(threads: int) -> None:
    """Blocks have four shapes; a kernel whose text leaves types open is compiled by the first."""
    x = draw(203, 101)
    blocks = da.from_array(x, chunks=(10, 10))
    double = fk.compile("Y[i,j] = 2 * X[i,j]", threads=threads)
    for _ in range(3):
        found = blocks.map_blocks(double, dtype=np.float32)
        close(found.compute(scheduler="threads", num_workers=8), 2 * x)
    distance = fk.compile(L1, threads=threads)
    pairs = da.blockwise(
        distance, "ij", da.from_array(x, chunks=(17, 50)), "ik",
        da.from_array(x[:90], chunks=(31, 50)), "jk", concatenate=True, dtype=np.float32,
    )  # fmt: skip
    want = abs(x[:, None] - x[None, :90]).sum(-1)
    close(pairs.compute(scheduler="threads", num_workers=8), want)


def test_blocks_that_overlap() -> None:
    x = draw(64, 48)
    blocks = da.from_array(x, chunks=(16, 12))
    found = blocks.map_overlap(
        fk.compile(BLUR), depth=1, boundary="nearest", trim=False,
        chunks=blocks.chunks, dtype=np.float32,
    )  # fmt: skip
    padded = np.pad(x, 1, mode="edge")
    want = sum(padded[u : u + 64, v : v + 48] for u in range(3) for v in range(3))
    close(found.compute(scheduler="threads", num_workers=4), want)


def test_threads_that_begin_together() -> None:
    """Each thread has a shape of its own, temporaries, and calls again and again."""
    softmax = fk.compile("""def s(float32 X[N,M]) -> (Y) {
        float32 e[N,M]; float32 t[N]
        e[i,j] = exp(X[i,j])
        t[i] +=! e[i,j]
        Y[i,j] = e[i,j] / t[i]
    }""")
    start = threading.Barrier(8)

    def run(n: int) -> None:
        x = draw(n + 1, 40 * n + 7)
        want = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        start.wait()
        for _ in range(50):
            close(softmax(x), want)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))


def test_the_page_runs() -> None:
    """The code under "xarray and dask" in the guide."""
    text = (ROOT / "docs" / "guides" / "frameworks.md").read_text(encoding="utf-8")
    section = text.partition("\n## xarray and dask\n")[2].partition("\n## ")[0]
    code = [textwrap.dedent(b.body) for b in blocks_of(section) if b.kind == "text"]
    assert len(code) == 2
    names: dict[str, Any] = {"np": np, "fk": fk}
    for block in code:
        exec(block, names)
    smooth, rain = names["smooth"], names["rain"].values
    close(names["found"].values, smooth(rain))
    close(names["chunked"].compute().values, smooth(rain))
    close(names["distances"].compute(), abs(names["x"][:, None] - names["x"][None]).sum(-1))
