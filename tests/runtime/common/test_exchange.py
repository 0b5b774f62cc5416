"""Arrays of other libraries: what is taken, what is refused, and what comes back."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import farkas as fk
from runtime.common import exchange
from runtime.common.exchange import Library, host_array

AXPY = "def axpy(float32 a[], float32 X[N], float32 Y[N]) -> (Z) { Z[i] = a[] * X[i] + Y[i] }"
X = np.arange(5, dtype=np.float32)


class Lent:
    """An array that only DLPack reaches."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


class Described:
    """An array with numpy's own interface; it is written to where it is."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


class Converted:
    """A thing that becomes an array when it is asked."""

    def __init__(self, array: np.ndarray, null_count: int = 0) -> None:
        self.array, self.null_count = array, null_count

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


@pytest.fixture(scope="module")
def axpy() -> fk.Kernel:
    return fk.compile(AXPY)


@pytest.mark.parametrize("wrap", [Lent, Described, Converted, list, tuple])
def test_what_is_like_an_array_is_one(wrap: Any, axpy: fk.Kernel) -> None:
    given = wrap([float(x) for x in X]) if wrap in (list, tuple) else wrap(X)
    for _ in range(2):
        result = axpy(2.0, given, Y=X)
        assert type(result) is np.ndarray and np.array_equal(result, 3 * X)


def test_memory_is_shared() -> None:
    assert np.shares_memory(host_array("x", Lent(X)), X)
    assert np.shares_memory(host_array("x", Described(X)), X)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (True, "a is True, which float32 cannot hold"),
        (1j, "a is a complex, expected a numpy array"),
        ("2", "a is a str, expected a numpy array"),
        ([[1, 2], [3]], "a is no array: setting an array element"),
        (Lent(X, device=2), "a is a Lent, expected a numpy array"),
        (Converted(X, null_count=2), "a has 2 missing values: fill them"),
        (Converted(np.ones((), np.float64)), "a has dtype float64, expected float32"),
        ([np.float64(1)], "a has dtype float64, expected float32"),
    ],
)
def test_what_is_none_is_refused(number: Any, message: str, axpy: fk.Kernel) -> None:
    with pytest.raises(fk.ArgumentError, match=message):
        axpy(number, X, X)


def test_numbers_that_integers_cannot_hold() -> None:
    add = fk.compile("def f(int8 a[], int8 X[N]) -> (Y) { Y[i] = a[] + X[i] }")
    x = np.arange(3, dtype=np.int8)
    assert add(2, x).tolist() == [2, 3, 4] and add(2, [0, 1, 2]).dtype == np.int8
    double = fk.compile("def f(uint8 X[N]) -> (Y) { Y[i] = X[i] + X[i] }")
    assert double([]).dtype == np.uint8 and double([1, 2]).tolist() == [2, 4]
    with pytest.raises(fk.ArgumentError, match="which uint8 cannot hold"):
        double([-1])
    for number in (1.0, 300, -129, [1.5]):
        with pytest.raises(fk.ArgumentError, match="which int8 cannot hold"):
            add(number, x) if not isinstance(number, list) else add(1, number)


@pytest.mark.parametrize(
    ("number", "dtype", "expected"),
    [(2.5, "float32", "float32"), (2, "float32", "float32"), (2, "int64", "int64"),
     (2.5, "float64", "float64"), (2, "int8", "int8")],
)  # fmt: skip
def test_numbers_take_the_type_of_arrays(number: Any, dtype: str, expected: str) -> None:
    scale = fk.compile("Y[i] = a[] * X[i]")
    result = scale(number, np.arange(3).astype(dtype))
    assert result.dtype == expected and result.tolist() == [0, number, 2 * number]


def test_out_is_what_was_passed(axpy: fk.Kernel) -> None:
    memory = np.zeros(5, np.float32)
    out = Described(memory)
    for given in (out, (out,), {"Z": out}):
        memory[:] = 0
        assert axpy(2, X, X, out=given) is out
        assert np.array_equal(memory, 3 * X)
    assert axpy(2, Lent(X), X, out=memory) is memory


@pytest.mark.parametrize("out", [0.0, [0.0] * 5, Converted(np.zeros(5, np.float32)), np.float32(0)])
def test_out_has_memory_of_its_own(out: Any, axpy: fk.Kernel) -> None:
    with pytest.raises(fk.ArgumentError, match=r"out .*(to write to|cannot be written to)"):
        axpy(2, X, X, out=out)


def test_numbers_are_finite_where_they_were() -> None:
    double = fk.compile("def f(float32 X[N]) -> (Y) { Y[i] = X[i] + X[i] }")
    with pytest.raises(fk.ArgumentError, match="which float32 cannot hold"):
        double([1e300])
    assert double([float("inf")]).tolist() == [float("inf")]


def test_results_are_as_the_first_of_another_library(
    monkeypatch: pytest.MonkeyPatch, axpy: fk.Kernel
) -> None:
    class Tensor(Converted):
        pass

    library = Library(
        "builtins", "Tensor", lambda name, value: value.array, lambda array: Tensor(array)
    )
    monkeypatch.setattr("builtins.Tensor", Tensor, raising=False)
    monkeypatch.setattr(exchange, "LIBRARIES", (library,))
    monkeypatch.setattr(exchange, "_LIBRARY_OF", {})
    result = axpy(2, X, Tensor(X))
    assert type(result) is Tensor and np.array_equal(result.array, 3 * X)
    assert type(axpy(2, X, Tensor(X), like="numpy")) is np.ndarray
    assert type(axpy(2, X, Tensor(X), like=X)) is np.ndarray
    assert type(axpy(np.float32(2), X, X, like=Tensor(X))) is Tensor
    with pytest.raises(
        fk.ArgumentError, match="like='tensorflow' is neither of 'numpy', 'builtins"
    ):
        axpy(2, X, X, like="tensorflow")


def test_networks_take_them(axpy: fk.Kernel) -> None:
    from onnx import TensorProto, helper

    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", ports[:1], ports[1:])
    network = fk.compile_onnx(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    for given in (Lent(X), Described(X), Converted(X), [0, 1, 2, 3, 4]):
        assert np.array_equal(network.run({"x": given})["y"], -X)
    out = Described(np.zeros(5, np.float32))
    assert network.run({"x": Lent(X)}, out={"y": out})["y"] is out
    assert np.array_equal(out.array, -X)
    with pytest.raises(fk.ArgumentError, match="x is no array"):
        network.run({"x": [[1], 2]})


# --- the libraries themselves, where they are installed -------------------------------------------


def _library(name: str) -> Any:
    pytest.importorskip(name, reason=f"{name} is not installed")
    return importlib.import_module(name)


def test_torch(axpy: fk.Kernel) -> None:
    torch = _library("torch")
    x = torch.arange(5, dtype=torch.float32)
    result = axpy(2, x, X)
    assert isinstance(result, torch.Tensor) and torch.equal(result, 3 * x)
    assert axpy(2, x[::1], x, out=result) is result
    assert torch.equal(axpy(2, torch.arange(10.0)[::2], x), torch.arange(5) * 5.0)
    half = fk.compile("def f(bfloat16 X[N]) -> (Y) { Y[i] = X[i] + X[i] }")
    assert torch.equal(half(x.bfloat16()), (x + x).bfloat16())
    weight = torch.ones(5)
    product = (torch.ones(5, requires_grad=True) * weight).sum()
    axpy(2, x, x, out=weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(fk.ArgumentError, match="X has a tangent"):
            axpy(2, dual, x)
    with torch.no_grad():
        assert torch.equal(axpy(2, torch.nn.Parameter(x), x), 3 * x)
    for bad, message in (
        (x.clone().requires_grad_(), r"requires a gradient.*pass X\.detach\(\)"),
        (x.to_sparse(), "no memory that can be read"),
        (x.to("meta"), "is a tensor on meta, but this runs on the CPU"),
        (x.double(), r"has dtype float64, expected float32; use \.to\(torch\.float32\)"),
    ):
        with pytest.raises(fk.ArgumentError, match=message):
            axpy(2, bad, x)


def test_jax(axpy: fk.Kernel) -> None:
    jax = _library("jax")
    x = jax.numpy.arange(5, dtype="float32")
    result = axpy(2, x, X)
    assert isinstance(result, jax.Array) and np.array_equal(np.asarray(result), 3 * X)
    count = fk.compile("def f(float32 X[N]) -> (Y) { Y[i] = int64(X[i]) }")
    assert count(x).dtype == np.int64  # not halved
    with pytest.raises(fk.ArgumentError, match="is traced by JAX"):
        jax.jit(lambda x: axpy(2, x, x))(x)
    with pytest.raises(fk.ArgumentError, match="out is an array of jax, which never changes"):
        axpy(2, x, x, out=x + 1)


@pytest.mark.parametrize("name", ["pandas", "xarray", "pyarrow"])
def test_others(name: str, axpy: fk.Kernel) -> None:
    library = _library(name)
    make = {"pandas": "Series", "xarray": "DataArray", "pyarrow": "array"}[name]
    given = getattr(library, make)(X)
    assert np.array_equal(axpy(2, given, X), 3 * X)
