"""`compile` and `Kernel`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import codegen.pipeline
import farkas as fk
from codegen.c.kernel_unit import generate
from farkas.kernels.example_sizes import small_sizes

MATMUL = "C[i,j] +=! A[i,k] * B[k,j]"
DEFINITION = "def f(float32 A[N,K], float32 B[K,M]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"
RNG = np.random.default_rng(0)


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("text", [MATMUL, DEFINITION, "ij,jk->ik"])
def test_products(text: str) -> None:
    kernel = fk.compile(text)
    for n, k, m in ((3, 4, 5), (65, 33, 40), (1, 0, 2), (0, 3, 3)):
        a, b = random(n, k), random(k, m)
        np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(kernel(B=b, A=a), a @ b)
    np.testing.assert_allclose(kernel(a, B=b), a @ b)


def test_out_threads_and_copy() -> None:
    kernel = fk.compile(MATMUL, threads=1)
    a, b = random(4, 5), random(5, 6)
    out = np.empty((4, 6), np.float32)
    assert kernel(a, b, out=out, threads=2) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(kernel(b.T, a.T), b.T @ a.T, rtol=1e-5, atol=1e-5)
    with pytest.raises(fk.ArgumentError, match="copy"):
        kernel(b.T, a.T, copy=False)


def test_one_compilation_a_combination_of_dtypes() -> None:
    kernel = fk.compile(MATMUL)
    assert "not compiled yet" in repr(kernel)
    assert kernel.dtypes == ()
    for attribute in ("program", "schedule", "source", "tree", "library"):
        with pytest.raises(fk.UntypedError, match="dtypes="):
            getattr(kernel, attribute)
    with pytest.raises(fk.UntypedError):
        kernel.verify()
    kernel(random(2, 2), random(2, 2))
    program = kernel.program
    kernel(random(3, 2), random(2, 2))
    assert kernel.program is program
    assert repr(kernel).startswith("<Kernel f(float32 A[I,K], float32 B[K,J]) -> (float32 C")
    ints = np.arange(4, dtype=np.int32).reshape(2, 2)
    assert (kernel(ints, ints) == ints @ ints).all()
    assert [[d.name for d in key] for key in kernel.dtypes] == [["float32"] * 2, ["int32"] * 2]
    assert "compiled for (float32, float32) and (int32, int32)" in repr(kernel)
    with pytest.raises(fk.UntypedError, match="2 combinations"):
        _ = kernel.source


def test_looking_inside() -> None:
    kernel = fk.compile(DEFINITION, name="mm")
    assert kernel.program.name == "mm"
    assert str(kernel.program) in kernel.source.replace("\n * ", "\n")
    assert isinstance(kernel.schedule, fk.Schedule)
    assert kernel.tree == kernel.schedule.show
    assert kernel.library.is_file()
    assert kernel.text == DEFINITION
    assert kernel.toolchain == fk.find_toolchain()


def test_fixed_sizes() -> None:
    kernel = fk.compile(DEFINITION, sizes={"K": 3})
    assert kernel.program.sizes == ("N", "M")
    a, b = random(2, 3), random(3, 4)
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-5)
    with pytest.raises(fk.ArgumentError, match="must be 3"):
        kernel(random(2, 5), random(5, 4))


def test_schedules() -> None:
    written = fk.compile(DEFINITION, schedule="written")
    assert str(written.schedule) == ""
    script = "tile S0: i, j by 8, 8\nparallelize S0: i_o"
    tiled = fk.compile(DEFINITION, schedule=script)
    assert str(tiled.schedule) == script
    again = fk.compile(DEFINITION, schedule=tiled.schedule)
    assert again.schedule is tiled.schedule
    other = fk.compile(DEFINITION, sizes={"K": 5}, schedule=tiled.schedule)
    assert str(other.schedule) == script
    for kernel in (written, tiled, again, other):
        assert kernel.verify({"N": 17, "K": 5, "M": 9} if kernel is not other else None).close(1e-5)


CHAIN = """def f(float32 A[N,M], float32 B[M,K], float32 C[K,L]) -> (Y) {
    Y[i,l] +=! A[i,j] * B[j,k] * C[k,l]
}"""


def test_products_of_three_tensors_are_split() -> None:
    kernel = fk.compile(CHAIN)
    assert str(kernel.program) == str(fk.parse(CHAIN))
    assert "float32 A_B[N,K]" in str(kernel.schedule.program)
    a, b, c = random(20, 30), random(30, 25), random(25, 22)
    np.testing.assert_allclose(kernel(a, b, c), a @ b @ c, rtol=1e-4, atol=1e-4)
    report = kernel.verify()
    assert report.close(1e-5) and set(report.sizes) == {"N", "M", "K", "L"}
    einsum = fk.compile("bi,oij,bj->bo", dtypes="float64")
    assert len(einsum.schedule.program.statements) == 2 and einsum.verify().close(1e-12)


ROWS = "def f(float32 X[N,C,H,W], float32 B[C]) -> (Y) { Y[n,c,h,w] = X[n,c,h,w] + B[c] }"


def test_dimensions_that_are_one_are_joined_for_the_schedule_alone() -> None:
    kernel = fk.compile(ROWS)
    assert str(kernel.schedule.program.outputs[0]) == "float32 Y[N,C,H_W]"
    assert [str(c) for c in kernel.schedule.program.constraints] == ["H_W == H * W"]
    assert str(kernel.program) == str(fk.parse(ROWS))
    for shape in ((2, 3, 4, 5), (1, 2, 17, 9), (3, 1, 0, 5), (2, 2, 1, 1)):
        x, b = random(*shape), random(shape[1])
        np.testing.assert_array_equal(kernel(x, b), x + b[:, None, None])
    assert kernel.verify().exact
    with pytest.raises(fk.ArgumentError, match="Y"):
        kernel(random(2, 3, 4, 5), random(3), out=np.empty((2, 3, 20), np.float32))
    # A script may speak of the loops of either program.
    script = str(kernel.schedule)
    assert "h_w" in script
    assert str(fk.compile(ROWS, schedule=script).schedule) == script
    for own in ("tile S0: h, w by 4, 4", "split S0: h by 4 as h_w, h_i", ""):
        other = fk.compile(ROWS, schedule=own)
        assert str(other.schedule) == own and other.schedule.program == kernel.program
        assert other.verify().exact
    with pytest.raises(fk.ScheduleError, match="there is no loop hw around S0"):
        fk.compile(ROWS, schedule="tile S0: hw by 4")
    with pytest.raises(fk.IllegalScheduleError, match="parallelize S0: h_w is illegal"):
        fk.compile(ROWS.replace("Y[n,c,h,w] =", "Y[n,c] +=!"), schedule="parallelize S0: h_w")


def test_a_schedule_of_the_program_as_written_is_used_on_it() -> None:
    kernel = fk.compile(CHAIN)
    for schedule in (
        "tile S0: i, l by 4, 4",
        lambda s: s.tile("S0", ["i", "l"], [4, 4]),
        "written",
    ):
        other = kernel.with_schedule(schedule)
        program = other.schedule.program
        assert [s.name for s in program.statements] == ["S0"] and not program.temps
        assert other.verify().close(1e-5)
        again = fk.compile(CHAIN, schedule=other.schedule)
        assert again.schedule == other.schedule
    exact = fk.compile(CHAIN, exact=True)
    assert not exact.schedule.program.temps and exact.verify().exact
    # What the compiler made of it can be edited and replayed, too.
    for schedule in (str(kernel.schedule), kernel.schedule):
        assert str(fk.compile(CHAIN, schedule=schedule).schedule) == str(kernel.schedule)
    fixed = fk.compile(CHAIN, sizes={"K": 40}, schedule=kernel.schedule)
    assert str(fixed.schedule) == str(kernel.schedule) and fixed.verify().close(1e-5)


def test_with_schedule() -> None:
    kernel = fk.compile(DEFINITION)
    tiled = kernel.with_schedule(lambda s: s.tile("S0", ["i", "j"], [4, 4]))
    assert str(tiled.schedule) == "tile S0: i, j by 4, 4"
    assert tiled.program == kernel.program
    assert tiled.verify().close(1e-5)
    with pytest.raises(fk.IllegalScheduleError, match="parallelize S0: k is illegal"):
        kernel.with_schedule("parallelize S0: k")
    with pytest.raises(fk.ScheduleError, match="did not return"):
        kernel.with_schedule(lambda s: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(fk.ArgumentError, match="schedule is a int"):
        kernel.with_schedule(3)  # type: ignore[arg-type]


def test_with_schedule_before_and_after_the_first_call() -> None:
    lazy = fk.compile(MATMUL)
    illegal = lazy.with_schedule("parallelize S0: k")  # nothing to compile yet
    with pytest.raises(fk.IllegalScheduleError):
        illegal(random(2, 2), random(2, 2))
    lazy(random(2, 2), random(2, 2))
    with pytest.raises(fk.IllegalScheduleError):
        lazy.with_schedule("parallelize S0: k")
    assert str(lazy.with_schedule("reverse S0: i").schedule) == "reverse S0: i"


def test_exact_results_equal_the_reference() -> None:
    kernel = fk.compile(DEFINITION, exact=True)
    assert kernel.schedule.exact
    for seed in range(3):
        assert kernel.verify(seed=seed, threads=2).exact
    fast = fk.compile(DEFINITION)
    assert fk.compile(DEFINITION, exact=True, schedule=fast.schedule.replay("")).schedule.exact


def test_verify_reports() -> None:
    kernel = fk.compile(MATMUL, dtypes="float32")
    report = kernel.verify({"I": 3, "K": 4, "J": 5}, seed=3)
    assert report.sizes == {"I": 3, "K": 4, "J": 5} and report.seed == 3
    assert report.close(1e-5)
    with pytest.raises(fk.ArgumentError, match="no value is given for K"):
        kernel.verify({"I": 3, "J": 3})
    with pytest.raises(fk.ArgumentError, match="size I = -3 is not in the range"):
        kernel.verify({"I": -3, "J": 3, "K": 1})


def test_small_sizes_meet_preconditions() -> None:
    program = fk.parse("Y[p] +=! X[p+r] * F[r]", "float32")
    sizes = small_sizes(program)
    inputs = {t.name: np.ones([sizes[str(e)] for e in t.shape], np.float32) for t in program.inputs}
    assert fk.evaluate(program, inputs)["Y"].size >= 0
    assert fk.compile("Y[p] +=! X[p+r] * F[r]", dtypes="float32").verify().close(1e-5)


def test_sizes_that_no_shape_determines() -> None:
    kernel = fk.compile("def iota[N]() -> (int32 X[N]) { X[i] = i }")
    assert kernel(N=4).tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]
    with pytest.raises(fk.ArgumentError, match="pass N="):
        kernel()


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [
        ((random(2, 2),), {}, "needs B, not given"),
        ((random(2, 2), random(2, 2), random(2, 2)), {}, "takes 2 arrays .A, B., but 3"),
        ((random(2, 2), "a"), {}, "B is a str, expected a numpy array"),
        ((random(2, 2), random(2)), {}, "B has rank 1"),
        ((random(2, 2), random(3, 2)), {}, "is 3 but"),
        ((random(2, 2), np.ones((2, 2), complex)), {}, "B: there is no element type"),
        ((random(2, 2), random(2, 2)), {"Q": 1}, "no input or size 'Q'"),
        ((random(2, 2), random(2, 2)), {"threads": 0}, "threads=0"),
        ((random(2, 2), random(2, 2)), {"A": random(2, 2)}, "A is given twice"),
        ((random(2, 2).astype(">f4"), random(2, 2)), {}, "byte order"),
        ((random(2, 2), random(2, 2, dtype=np.int32)), {"out": 3}, "."),
    ],
)
def test_bad_calls(arrays: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises(fk.ArgumentError, match=message):
        fk.compile(MATMUL)(*arrays, **named)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Y[i] = sqroot(X[i])", "there is no function 'sqroot'"),
        ("Y[batch] +=! X[bacth,k]", "misspelt batch"),
        ("Y[i] = X[i] + Z", "Z appears only on the right"),
        ("Y[i] +=! X[i*j]", "range of i cannot be inferred"),
        ("Y[i] = X[i-1] where i in 0:4", "is out of bounds"),
        ("Y[i] = int8(300) + X[i]", "does not fit int8"),
    ],
)
def test_a_mistake_is_found_before_types_are_known(text: str, message: str) -> None:
    with pytest.raises(fk.LanguageError, match=message):
        fk.compile(text)


def test_what_depends_on_types_is_left_to_the_first_call() -> None:
    """Element types that no guess has are no mistake of the text."""
    for text in ("Y[i] = select(M[i], X[i] / 2, sqrt(X[i])) * T[I[i]]", "Y[i] = A[i] & 3"):
        assert fk.compile(text).dtypes == ()
    with pytest.raises(fk.ArgumentError, match="no size 'Q'"):
        fk.compile(MATMUL, sizes={"Q": 3})
    with pytest.raises(fk.ArgumentError, match="name"):
        fk.compile("ij,jk->ik", name="a b")
    either = fk.compile("Y[i] = A[i] and B[i]")  # of bool alone
    with pytest.raises(fk.LanguageError):
        either(random(3), random(3))


def test_bad_arguments_of_compile(tmp_path: Path) -> None:
    with pytest.raises(fk.LanguageError):
        fk.compile("C[i,j] +=! A[i,k * B[k,j]")
    with pytest.raises(fk.ArgumentError, match="threads"):
        fk.compile(MATMUL, threads=0)
    with pytest.raises(fk.ToolchainError, match="does not exist"):
        fk.compile(MATMUL, cc=str(tmp_path / "gcc"))
    with pytest.raises(fk.ArgumentError, match="cc is a int"):
        fk.compile(MATMUL, cc=3)  # type: ignore[arg-type]
    with pytest.raises(fk.ArgumentError, match="cache is a int"):
        fk.compile(MATMUL, cache=3)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(fk.CacheError, match="not a directory"):
        fk.compile(MATMUL, cache=tmp_path / "file")
    with pytest.raises(fk.ScheduleError, match="line 1"):
        fk.compile(DEFINITION, schedule="fly S0")


def test_a_cache_of_its_own(tmp_path: Path) -> None:
    kernel = fk.compile(DEFINITION, cache=tmp_path / "cache", cc=fk.find_toolchain())
    assert kernel.library.is_relative_to(tmp_path / "cache")
    again = fk.compile(DEFINITION, cache=fk.Cache(tmp_path / "cache"))
    assert again.library == kernel.library


def test_first_calls_from_several_threads() -> None:
    kernel = fk.compile(MATMUL)
    a, b = random(20, 30), random(30, 10)
    results: list[Any] = []
    workers = [
        threading.Thread(target=lambda: results.append(kernel(a, b, threads=1))) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4 and len(kernel.dtypes) == 1
    for result in results:
        np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-4)


def test_loops_without_tiles_where_isl_cannot_generate_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = []

    def emit(schedule: fk.Schedule, **names: Any) -> Any:
        if "isolate" in str(schedule):
            refused.append(str(schedule))
            raise fk.ScheduleError("isl gives up")
        return generate(schedule, **names)

    monkeypatch.setattr(codegen.pipeline, "generate", emit)
    text = "C[i,j] +=! A[i,k] * B[k,j]"
    kernel = fk.compile(text, threads=1)
    a, b = np.ones((9, 33), np.float32), np.ones((33, 20), np.float32)
    np.testing.assert_array_equal(kernel(a, b), a @ b)
    assert refused and "isolate" not in str(kernel.schedule)
    with pytest.raises(fk.ScheduleError, match="gives up"):
        fk.compile(text, dtypes={"A": "float32", "B": "float32"}, schedule=refused[0], threads=1)


def test_its_name() -> None:
    """Libraries that take functions ask for it; dask takes no name with a hyphen, as in `->`."""
    text = "def twice(float32 X[N]) -> (Y) { Y[i] = 2 * X[i] }"
    assert fk.compile(text).__name__ == "twice"
    assert fk.compile(text, name="doubled").__name__ == "doubled"
    assert fk.compile("Y[i] = 2 * X[i]").__name__ == "kernel"


def test_integers_of_any_length_for_floats() -> None:
    kernel = fk.compile("def f(float32 a[], float32 X[N]) -> (Y) { Y[i] = a[] * X[i] }")
    np.testing.assert_array_equal(kernel(2**70, np.ones(2, np.float32)), np.full(2, 2.0**70, "f"))
    with pytest.raises(fk.ArgumentError, match="which float32 cannot hold"):
        kernel(2**200, np.ones(2, np.float32))


def test_what_is_part_of_a_target_is_not_given_beside_it() -> None:
    kernel = fk.compile("Y[i] = X[i]", dtypes="float32")
    assert fk.compile("Y[i] = 2 * X[i]", target=kernel.target).target is kernel.target
    for given in ({"threads": 1}, {"cc": "gcc"}, {"cache": "somewhere"}):
        with pytest.raises(fk.ArgumentError, match="is part of the target that is given"):
            fk.compile("Y[i] = 2 * X[i]", target=kernel.target, **given)


def test_sizes_of_numpy_are_saved(tmp_path: Path) -> None:
    text, sizes = "C[i,j] +=! A[i,k] * B[k,j]", {"K": np.int64(3)}
    fk.compile(text, dtypes="float32", sizes=sizes).save(tmp_path / "k.fkm")
    found = fk.load(tmp_path / "k.fkm")(np.ones((2, 3), "f"), np.ones((3, 4), "f"))
    np.testing.assert_array_equal(found, np.full((2, 4), 3))
