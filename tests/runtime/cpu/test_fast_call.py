"""Quick calls: which calls are, that they do what careful ones do, and that bad ones never run."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import farkas as fk
from poly.ir.dtypes import DTYPES
from runtime.common.cache import Cache
from runtime.cpu import fast_call as quick
from runtime.cpu.loaded_kernel import LoadedKernel, load_kernel
from runtime.cpu.toolchain import Toolchain
from runtime.network.cpu_model import CpuModel
from tests.runtime.cpu.test_loaded_kernel import outputs_by_workspace, source
from tests.runtime.programs import N, add_source, i, program, read, span, statement, tensor

#: In these tests, `LoadedKernel._plan` or `CpuModel._given` set to None fails what is not
#: a quick call.
Array = np.ndarray[Any, np.dtype[Any]]
X = np.arange(5, dtype=np.float32)


@pytest.fixture(scope="module")
def add(toolchain: Toolchain, cache: Cache) -> LoadedKernel:
    """A kernel that has been called with vectors of five elements."""
    kernel = load_kernel(add_source(), toolchain, cache)
    kernel(X, X)
    return kernel


@pytest.fixture(scope="module")
def careful(add: LoadedKernel) -> LoadedKernel:
    """The same, without quick calls."""
    return LoadedKernel(
        add.source, add.toolchain, add.entry, add.threads, add._function, quick.never, []
    )


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns or how it fails, such that it can be compared."""
    try:
        result = call()
    except fk.ArgumentError as error:
        return str(error)
    return [(r.dtype, r.tolist()) for r in (result if isinstance(result, tuple) else (result,))]


# --- which calls are quick ------------------------------------------------------------------


def test_repeated_calls_are_quick(add: LoadedKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadedKernel, "_plan", None)
    out = np.empty(5, np.float32)
    for result in (add(X, X), add(X, B=X), add(B=X, A=X), add(X, X, threads=2), add(X, X + 0)):
        assert type(result) is np.ndarray and np.array_equal(result, X + X)
    assert add(X, X, out=out) is out and np.array_equal(out, X + X)
    out[:] = 0
    assert add(X, X, out=(out,)) is out and np.array_equal(out, X + X)


@pytest.mark.parametrize("name", DTYPES)
def test_scalars_and_arrays_of_all_types(
    name: str, monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain, cache: Cache
) -> None:
    kind = DTYPES[name]
    s = statement("S", read("Y", i), "=", read("X"), span(i=3))
    prog = program([s], [tensor("X", dtype=kind)], [tensor("Y", 3, dtype=kind)])
    size = kind.bytes
    body = f"""
    for (int i = 0; i < 3; i++)
        __builtin_memcpy((char *)tensors[1] + i * {size}, tensors[0], {size});"""
    fn = load_kernel(source(prog, body), toolchain, cache)
    value = np.array(1, kind.numpy)
    first = fn(value)
    monkeypatch.setattr(LoadedKernel, "_plan", None)
    for given in (value, value[()]):
        again = fn(given)
        assert isinstance(again, np.ndarray) and again.dtype == kind.numpy
        assert again.tobytes() == first.tobytes() == np.full(3, value).tobytes()  # type: ignore[union-attr]


def test_sizes_by_name(monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain, cache: Cache) -> None:
    s = statement("S", read("Y", i), "=", 7.0, span(i=N))
    prog = program([s], [], [tensor("Y", N)], sizes="N")
    body = "float *y = tensors[0]; for (int64_t i = 0; i < sizes[0]; i++) y[i] = 7;"
    fn = load_kernel(source(prog, body), toolchain, cache)
    for size in (3, 1, 0):
        assert fn(N=size).shape == (size,)  # type: ignore[union-attr]
    for bad in ({"N": True}, {"N": 1.0}, {"N": 2**70}, {"M": 1}, {"N": 1, "M": 1}, {}):
        with pytest.raises(fk.ArgumentError):
            fn(**bad)
    with pytest.raises(fk.ArgumentError, match="takes 0 arrays"):
        fn(3)
    assert fn(N=np.int64(3)).shape == (3,)  # type: ignore[union-attr]
    monkeypatch.setattr(LoadedKernel, "_plan", None)
    for size in (3, 1, 0):
        assert np.array_equal(fn(N=size), np.full(size, 7))


def test_several_outputs_and_workspace(
    monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain, cache: Cache
) -> None:
    fn = outputs_by_workspace(toolchain, cache)
    sizes = (5, 3, 0, 1000)
    for size in (*sizes, 10**5):
        fn(np.zeros(size, np.float32))
    assert len(fn._quick_plans) == len(sizes)  # the last needs too large a block
    monkeypatch.setattr(LoadedKernel, "_plan", None)
    for size in sizes:
        x = np.arange(size, dtype=np.float32)
        out = (np.empty(size, np.float32), np.empty(size))
        for result in (fn(x), fn(x, out=out)):
            assert isinstance(result, tuple) and len(result) == 2
            assert np.array_equal(result[0], x + 1) and np.array_equal(result[1], x * 2.0)
            assert result[1].dtype == np.float64
        assert result[0] is out[0] and result[1] is out[1]


def updating(toolchain: Toolchain, cache: Cache) -> LoadedKernel:
    y = tensor("Y", N)
    s = statement("S", read("Y", i), "+=", read("X", i), span(i=N))
    prog = program([s], [y, tensor("X", N)], [y], sizes="N")
    body = """
    const float *x = tensors[0]; float *y = tensors[1];
    for (int64_t i = 0; i < sizes[0]; i++) y[i] += x[i];"""
    return load_kernel(source(prog, body), toolchain, cache)


def test_an_updated_tensor(
    monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain, cache: Cache
) -> None:
    fn = updating(toolchain, cache)
    before, x = np.arange(5, dtype=np.float32), np.full(5, 3, np.float32)
    expected = before + x
    fn(before, x)
    long = np.zeros(9, np.float32)
    for y, other, out in ((before, before, before), (long[:5], x, long[1:6])):
        with pytest.raises(fk.ArgumentError, match="overlaps"):
            fn(y, other, out=out)
    monkeypatch.setattr(LoadedKernel, "_plan", None)
    out = np.empty(5, np.float32)
    assert np.array_equal(fn(before, x), expected) and np.array_equal(before, np.arange(5))
    assert fn(before, x, out=out) is out and np.array_equal(out, expected)
    assert np.array_equal(before, np.arange(5))
    assert fn(before, x, out=before) is before and np.array_equal(before, expected)


def test_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = fk.compile("C[i,j] +=! A[i,k] * B[k,j]")
    squares = [np.ones((n, n), dtype) for dtype in (np.float32, np.int64) for n in (2, 3)]
    for a in squares:
        kernel(a, a)
    monkeypatch.setattr(LoadedKernel, "_plan", None)
    for a in squares:
        for c in (kernel(a, a), kernel(a, B=a), kernel(B=a, A=a)):
            assert isinstance(c, np.ndarray) and c.dtype == a.dtype and (c == a @ a).all()


def test_plans_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain, cache: Cache
) -> None:
    monkeypatch.setattr("runtime.cpu.loaded_kernel._MAX_PLANS", 3)
    fn = load_kernel(add_source(), toolchain, cache)
    for size in [*range(10), 5, 6, 5, 0]:
        a = np.full(size, 2, np.float32)
        assert np.array_equal(fn(a, a), a + a)
        assert 0 < len(fn._quick_plans) == len(fn._plans) <= 3


# --- the same outcome as without them -------------------------------------------------------


class Subclass(np.ndarray[Any, np.dtype[Any]]):
    pass


def masked() -> Any:
    return np.ma.masked_array(X, mask=[1, 0, 0, 0, 0])


def readonly() -> Array:
    a = X.copy()
    a.flags.writeable = False
    return a


def misaligned() -> Array:
    raw = np.zeros(21, np.uint8)
    a = raw[1:].view(np.float32)
    a[:] = X
    return a


ODD: dict[str, Callable[[], Any]] = {
    "a list": lambda: [1.0] * 5,
    "None": lambda: None,
    "a number": lambda: 1.5,
    "a scalar": lambda: np.float32(1),
    "a class": lambda: np.ndarray,
    "a dtype": lambda: X.astype(np.float64),
    "as wide": lambda: X.view(np.int32),
    "a rank": lambda: X[np.newaxis],
    "no rank": lambda: X[0, ...],
    "a shape": lambda: X[:4],
    "nothing": lambda: X[:0],
    "strides": lambda: np.repeat(X, 2)[::2],
    "backwards": lambda: X[::-1],
    "a broadcast": lambda: np.broadcast_to(np.float32(3), 5),
    "byte order": lambda: X.astype(">f4"),
    "equal dtype": lambda: X.view(np.dtype("f4", metadata={"a": 1})),
    "objects": lambda: X.astype(object),
    "a record": lambda: np.zeros(5, [("x", "f4")]),
    "a subclass": lambda: X.view(Subclass),
    "a mask": masked,
    "read-only": readonly,
    "misaligned": misaligned,
    "fine": lambda: X.copy(),
}


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("what", ODD)
def test_odd_inputs(add: LoadedKernel, careful: LoadedKernel, what: str, copy: bool) -> None:
    value = ODD[what]()
    for call in (
        lambda f: f(X, value, copy=copy),
        lambda f: f(value, X, copy=copy),
        lambda f: f(X, B=value, copy=copy),
        lambda f: f(X, X, value, copy=copy),
        lambda f: f(X, C=value, copy=copy),
    ):
        assert outcome(lambda call=call: call(add)) == outcome(lambda call=call: call(careful))  # type: ignore[misc]
    assert np.array_equal(add(X, X), X + X)


@pytest.mark.parametrize("what", ODD)
def test_odd_outputs(add: LoadedKernel, careful: LoadedKernel, what: str) -> None:
    for given in (lambda a: a, lambda a: (a,), lambda a: [a], lambda a: {"Y": a}, lambda a: (a, a)):
        mine, other = ODD[what](), ODD[what]()
        found = outcome(lambda: add(X, X, out=given(mine)))  # noqa: B023
        assert found == outcome(lambda: careful(X, X, out=given(other)))  # noqa: B023
        # What was refused has not been written to.
        assert not isinstance(mine, np.ndarray) or repr(mine) == repr(other)


@pytest.mark.parametrize("threads", [0, -1, 4097, 2**40, 2**70, True, 1.0, "2", np.int64(2), 1])
def test_odd_threads(add: LoadedKernel, careful: LoadedKernel, threads: Any) -> None:
    assert outcome(lambda: add(X, X, threads=threads)) == outcome(
        lambda: careful(X, X, threads=threads)
    )


def test_overlaps(add: LoadedKernel, careful: LoadedKernel) -> None:
    memory = np.zeros(20, np.float32)
    for start in range(12):
        for first, second in ((0, 10), (10, 0), (0, 0), (3, 5)):
            a, b, out = (memory[n : n + 5] for n in (first, second, start))
            memory[:] = np.arange(20)
            expected = outcome(lambda: careful(a, b, out=out))  # noqa: B023
            memory[:] = np.arange(20)
            assert outcome(lambda: add(a, b, out=out)) == expected  # noqa: B023
            if isinstance(expected, str):
                assert "overlaps" in expected and np.array_equal(memory, np.arange(20))


def test_nothing_is_leaked(add: LoadedKernel) -> None:
    out = np.empty(5, np.float32)
    held: list[Any] = [X, out, X.dtype, None, NotImplemented, np.ndarray, add._quick_plans[0]]

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(value) for value in held]

    def calls() -> None:
        for _ in range(1000):
            add.quick((X, X), None, None, None)
            add.quick((X, X), out, 2, None)
            add.quick((X, X), (out,), None, None)
            add.quick((X, X), (out, out), None, None)
            add.quick((X, X), X, None, None)
            add.quick((X, X[:2]), None, 2**70, None)
            add.quick((X,), None, None, (3,))

    calls()
    before = counts()
    calls()
    assert max(abs(a - b) for a, b in zip(before, counts(), strict=True)) < 100


def test_many_threads(add: LoadedKernel) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        out = np.empty(40, np.float32)
        for n in range(3000):
            a = np.full(n % 40, seed, np.float32)
            if (
                not (add(a, a) == 2 * seed).all()
                or not (add(a, a, out=out[: n % 40]) == 2 * seed).all()
            ):
                wrong.append(seed)
            if n % 500 == 499:  # what runs elsewhere is forgotten
                add._plans.clear()
                add._quick_plans.clear()

    running = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert wrong == []
    add._plans.clear()
    add(X, X)


def test_other_threads_run_beside_a_kernel_with_work(toolchain: Toolchain, cache: Cache) -> None:
    size = 20000
    s = statement("S", read("Y", i), "=", read("X", i), span(i=size))
    prog = program([s], [tensor("X", size)], [tensor("Y", size)])
    body = """
    for (int64_t n = 0; n < 2000000000 && !*(volatile float *)tensors[0]; n++);
    *(float *)tensors[1] = *(float *)tensors[0];"""
    fn = load_kernel(source(prog, body), toolchain, cache)
    x = np.ones(size, np.float32)
    fn(x)
    x[0] = 0
    timer = threading.Timer(0.05, lambda: x.__setitem__(0, 1))
    timer.start()
    assert fn(x)[0] == 1  # it waits for the other thread


# --- models ---------------------------------------------------------------------------------


def small_model(folder: Path) -> fk.Network:
    """Two inputs, three outputs of which one is an input again."""
    kinds = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "abxyz"}
    nodes = [
        helper.make_node("Add", ["a", "b"], ["x"]),
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Identity", ["a"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "g", [kinds[n] for n in "ab"], [kinds[n] for n in "xyz"])
    opset = [helper.make_opsetid("", 17)]
    return fk.compile_onnx(helper.make_model(graph, opset_imports=opset), cache=folder, threads=2)


def test_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(tmp_path / "cache")
    given = {n: np.random.default_rng(0).standard_normal((2, 3)).astype("f4") for n in "ab"}
    with monkeypatch.context() as patch:
        patch.setattr(CpuModel, "_given", None)
        out = {n: np.empty((2, 3), np.float32) for n in "zyx"}
        for result in (model.run(given), model.run(given, threads=2), model.run(given, out=out)):
            assert list(result) == ["x", "y", "z"]
            np.testing.assert_array_equal(result["x"], given["a"] + given["b"])
            np.testing.assert_array_equal(result["y"], np.maximum(result["x"], 0))
            np.testing.assert_array_equal(result["z"], given["a"])
        assert all(result[n] is out[n] for n in "xyz")
    cases = (
        *({"a": given["a"], "b": ODD[what]()} for what in ODD),
        {"a": given["a"]},
        {**given, "c": given["a"]},
        {"a": given["a"], "b": given["b"].T.copy()},
        {"a": given["a"], "b": given["b"].T.copy().T},
        given,
    )
    written = (None, {"x": np.empty((2, 3), "f4")}, {"x": given["a"]}, {"q": given["a"]})
    whole = {n: np.empty((2, 3), np.float32) for n in "xyz"}
    outs = (*written, whole, {**whole, "y": whole["x"]}, {**whole, "z": given["b"]})
    found = [outcome(lambda: tuple(model.run(x, out=y).values())) for x in cases for y in outs]  # noqa: B023
    monkeypatch.setattr(model.compiled[0], "_quick", quick.never)
    slow = [outcome(lambda: tuple(model.run(x, out=y).values())) for x in cases for y in outs]  # noqa: B023
    assert found == slow and sum(isinstance(x, list) for x in found) > 5


# --- where there are none -------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had been loaded yet."""
    monkeypatch.setattr(quick, "_makers", {})


def works(toolchain: Toolchain, cache: Cache) -> bool:
    """Whether quick calls are made; a kernel gives the right results in either case."""
    fn = load_kernel(add_source(), toolchain, cache)
    for _ in range(2):
        assert np.array_equal(fn(X, X), X + X)
    with pytest.raises(fk.ArgumentError, match=r"B\.shape\[0\] is 4"):
        fn(X, X[:4])
    return fn.quick is not quick.never


def test_they_work_here(toolchain: Toolchain, cache: Cache, fresh: None) -> None:
    assert works(toolchain, cache)
    assert set(DTYPES) - {"bfloat16"} <= quick._scalars


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("sys.implementation.name", "pypy"),
        ("sys.abiflags", "t"),
        ("sys.platform", "darwin"),
        ("runtime.cpu.fast_call._ABI", (1,)),
        ("runtime.cpu.fast_call._HEAD", 10**6),
        ("runtime.cpu.fast_call._array_is_known", lambda array: array.ndim != 3),
        ("runtime.cpu.fast_call._trial", lambda maker, probe: False),
    ],
)
def test_other_builds(
    where: str,
    what: Any,
    toolchain: Toolchain,
    cache: Cache,
    fresh: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(where, what)
    scalars = where.endswith("_HEAD")  # which go the careful way, and nothing else does
    monkeypatch.setattr(quick, "_scalars", set())
    assert works(toolchain, cache) == scalars and not quick._scalars


def test_a_compiler_that_cannot(
    toolchain: Toolchain, tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise fk.ToolchainError("no")

    with monkeypatch.context() as patch:
        patch.setattr(quick, "open_library", fail)
        assert not works(toolchain, Cache(tmp_path / "one"))
    assert not works(toolchain, Cache(tmp_path / "one"))  # it is not asked again
    assert works(toolchain, Cache(tmp_path / "two"))


def test_what_is_no_plan() -> None:
    assert quick.plan_bytes(None, 1, True, [], [], more=range(5000)) is None
    assert quick.plan_bytes(None, 1, True, [], [], workspace=1 << 20) is None
