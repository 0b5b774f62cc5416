from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from poly.errors import ArgumentError
from poly.ir.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT8
from poly.ir.expr import Size
from runtime.common.arguments import (
    READABLE,
    WRITEABLE,
    address,
    allocate,
    bind,
    check_input,
    check_output,
    check_overlaps,
    check_threads,
    clash,
    fits,
    match_arguments,
    match_outputs,
    shape_of,
    undetermined,
)
from tests.runtime.programs import (
    H,
    K,
    M,
    N,
    R,
    elementwise,
    i,
    matmul,
    op,
    program,
    read,
    scan,
    span,
    statement,
    tensor,
)

A = tensor("A", N, K)


def refused(message: str) -> Any:
    return pytest.raises(ArgumentError, match="^" + re.escape(message))


def shapes_program(*inputs: Any, sizes: str, constraints: Any = ()) -> Any:
    s0 = statement("S", read("Y", i), "=", 1.0, span(i=3))
    return program([s0], list(inputs), [tensor("Y", 3)], sizes=sizes, constraints=constraints)


# --- sizes ---------------------------------------------------------------------------------


def test_sizes_come_from_shapes() -> None:
    binding = bind(matmul(), {"A": (2, 3), "B": (3, 5)}, {})
    assert binding.sizes == {"N": 2, "M": 5, "K": 3}
    assert binding.shapes == {"A": (2, 3), "B": (3, 5), "C": (2, 5)}


def test_shapes_that_disagree_are_both_named() -> None:
    with refused("B.shape[0] is 7 but A.shape[1] makes K = 8"):
        bind(matmul(), {"A": (2, 8), "B": (7, 5)}, {})


def test_a_shape_that_disagrees_with_a_given_size() -> None:
    with refused("A.shape[0] is 2 but N = 3 was given"):
        bind(matmul(), {"A": (2, 8), "B": (8, 5)}, {"N": 3})


def test_compound_extents_are_checked_and_solved() -> None:
    f = shapes_program(tensor("X", op("add", N, 1)), tensor("Z", N), sizes="N")
    assert bind(f, {"X": (5,), "Z": (4,)}, {}).sizes == {"N": 4}
    with refused("X.shape[0] is 6 but must be N + 1 = 5 (N=4)"):
        bind(f, {"X": (6,), "Z": (4,)}, {})
    g = shapes_program(tensor("X", op("add", op("mul", 2, N), M)), tensor("Z", M), sizes="NM")
    assert bind(g, {"X": (11,), "Z": (3,)}, {}).sizes == {"N": 4, "M": 3}
    with refused("X.shape[0] is 12, which is 2 * N + M for no N (M=3)"):
        bind(g, {"X": (12,), "Z": (3,)}, {})
    with refused("X.shape[0] is 1, which is 2 * N + M for no N (M=3)"):
        bind(g, {"X": (1,), "Z": (3,)}, {})
    assert undetermined(f) == undetermined(g) == ()


def test_literal_extents() -> None:
    f = shapes_program(tensor("X", 4), sizes="")
    with refused("X.shape[0] is 5 but must be 4"):
        bind(f, {"X": (5,)}, {})


def test_sizes_in_no_shape_are_given_by_name() -> None:
    s0 = statement("S", read("Y", i), "=", 1.0, span(i=N))
    f = program([s0], [], [tensor("Y", N)], sizes="N")
    assert undetermined(f) == ("N",)
    assert bind(f, {}, {"N": np.int32(4)}).shapes == {"Y": (4,)}
    with refused("no input's shape determines N: pass N=…"):
        bind(f, {}, {})
    with refused("f has no input or size 'Q'; it has N"):
        bind(f, {}, {"Q": 1})
    for value in (True, 2.0, "3", None):
        with refused("size N must be an integer, not"):
            bind(f, {}, {"N": value})
    for number in (-1, 2**38 + 1):
        with refused(f"size N = {number} is not in the range 0 to 2**38"):
            bind(f, {}, {"N": number})
    with refused("sizes are given by name, as in {'name': …}, not as list"):
        bind(f, {}, [4])  # type: ignore[arg-type]


def test_sizes_that_shapes_show_have_the_same_range() -> None:
    f = shapes_program(tensor("X", 0, N), sizes="N")
    assert bind(f, {"X": (0, 2**38)}, {}).sizes == {"N": 2**38}
    with refused(f"size N = {2**38 + 1} is not in the range 0 to 2**38"):
        bind(f, {"X": (0, 2**38 + 1)}, {})


@pytest.mark.parametrize("name", ["threads", "out", "copy", "stream"])
def test_sizes_that_calls_have_another_word_for(name: str) -> None:
    s0 = statement("S", read("Y", i), "=", 1.0, span(i=Size(name)))
    f = program([s0], [], [tensor("Y", Size(name))], sizes=[name])
    with refused(f"no input's shape determines {name}: compile with sizes={{'{name}': …}}"):
        bind(f, {}, {})


def test_an_extent_that_cannot_be_inverted_needs_the_size() -> None:
    f = shapes_program(tensor("X", op("floordiv", N, 2)), sizes="N")
    assert undetermined(f) == ("N",)
    assert bind(f, {"X": (3,)}, {"N": 7}).sizes == {"N": 7}
    with refused("X.shape[0] is 4 but must be N // 2 = 3 (N=7)"):
        bind(f, {"X": (4,)}, {"N": 7})


def test_constraints_are_shown_with_values() -> None:
    f = shapes_program(tensor("X", R), tensor("Z", H), sizes="RH", constraints=(op("le", R, H),))
    assert bind(f, {"X": (3,), "Z": (3,)}, {}).sizes == {"R": 3, "H": 3}
    with refused("precondition R <= H does not hold: R=5, H=3"):
        bind(f, {"X": (5,), "Z": (3,)}, {})


def test_absurd_tensors_are_refused_before_anything_is_allocated() -> None:
    s0 = statement("S", read("Y", i, i, i), "=", 1.0, span(i=N))
    f = program([s0], [], [tensor("Y", N, N, N)], sizes="N")
    with refused("Y would have shape (4194304, 4194304, 4194304): too large to be addressed"):
        bind(f, {}, {"N": 2**22})
    with refused("Y.shape[0] would be N - 1 = -1: N=0"):
        shape_of(tensor("Y", op("sub", N, 1)), {"N": 0})
    with refused("Y would have shape (0, 4611686018427387903)"):
        shape_of(tensor("Y", 0, 2**62 - 1), {})
    # As many as a size can be: dimensions may be joined.
    assert shape_of(tensor("Y", N, N), {"N": 2**19}) == (2**19, 2**19)
    with refused("Y would have shape (524288, 524289): too large to be addressed"):
        shape_of(tensor("Y", N, op("add", N, 1)), {"N": 2**19})
    assert shape_of(tensor("Y", 2**40), {}) == (2**40,)


def test_not_enough_memory() -> None:
    with refused("there is not enough memory for Y of shape (1125899906842624,)"):
        allocate(tensor("Y", N), (2**50,))


# --- arrays --------------------------------------------------------------------------------


def test_a_good_array_is_passed_as_it_is() -> None:
    array = np.zeros((2, 3), np.float32)
    assert check_input(A, array) is array


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1.0]], "A is a list, expected a numpy array of float32; pass numpy.asarray"),
        (None, "A is a NoneType, expected a numpy array of float32"),
        (1.0, "A is a float, expected a numpy array of float32"),
        (np.zeros((2, 3)), "A has dtype float64, expected float32"),
        (np.zeros((2, 3), np.int32), "A has dtype int32, expected float32"),
        (np.zeros((2, 3), object), "A has dtype object, expected float32"),
        (np.zeros((2, 3), "U2"), "A has dtype str64, expected float32"),
        (np.zeros((2, 3), ">f4"), "A has float32 elements in foreign byte order"),
        (np.zeros(3, np.float32), "A has rank 1 (shape (3,)), expected rank 2: float32 A[N,K]"),
        (np.float32(3), "A has rank 0 (shape ()), expected rank 2"),
        (np.ma.zeros((2, 3), np.float32), "A is a masked array"),
    ],
)
def test_unfit_arrays(value: Any, message: str) -> None:
    with refused(message):
        check_input(A, value)


@pytest.mark.parametrize(
    ("dtype", "good"),
    [(BOOL, np.bool_), (FLOAT16, np.float16), (BFLOAT16, ml_dtypes.bfloat16), (INT8, np.int8)],
)
def test_other_element_types(dtype: Any, good: Any) -> None:
    declared = tensor("X", N, dtype=dtype)
    assert check_input(declared, np.zeros(3, good)).dtype == good
    for bad in (np.uint8, np.uint16, np.float32):
        with refused(f"X has dtype {np.dtype(bad).name}, expected {dtype}"):
            check_input(declared, np.zeros(3, bad))


def test_a_numpy_scalar_is_an_array_of_rank_0() -> None:
    assert check_input(tensor("X", dtype=FLOAT64), np.float64(3)).shape == ()


def test_arrays_that_are_not_contiguous_are_copied_unless_forbidden() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for array in (base.T, base[:, ::2], base[::-1], np.broadcast_to(base[0], (3, 6))):
        got = check_input(A, array)
        assert got.flags.c_contiguous and np.array_equal(got, array)
        with refused("A is not C-contiguous and would be copied; copy=False forbids"):
            check_input(A, array, copy=False)


def misaligned(shape: tuple[int, ...]) -> Any:
    count = int(np.prod(shape))
    return np.zeros(4 * count + 1, np.uint8)[1:].view(np.float32).reshape(shape)


def test_a_copy_that_has_no_room() -> None:
    wide = np.broadcast_to(np.float32(1), (2**24, 2**20))
    with refused("there is not enough memory to copy X of shape (16777216, 1048576), which is not"):
        check_input(tensor("X", N, N), wide)


def test_misaligned_arrays_are_copied_unless_forbidden() -> None:
    array = misaligned((2, 3))
    got = check_input(A, array)
    assert got.flags.aligned and got is not array
    with refused("A is not aligned and would be copied"):
        check_input(A, array, copy=False)


def test_subclasses_are_taken_as_arrays() -> None:
    class Special(np.ndarray):  # type: ignore[type-arg]
        pass

    assert type(check_input(A, np.zeros((2, 3), np.float32).view(Special))) is np.ndarray


def test_zero_size_arrays_are_fine() -> None:
    assert check_input(A, np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert bind(matmul(), {"A": (0, 3), "B": (3, 2)}, {}).shapes["C"] == (0, 2)


# --- outputs -------------------------------------------------------------------------------


def test_outputs_must_be_exactly_right() -> None:
    good = np.zeros((2, 3), np.float32)
    assert check_output(A, good, (2, 3)) is good
    frozen = good.copy()
    frozen.flags.writeable = False
    for value, message in [
        (frozen, "out A is read-only"),
        (np.zeros((3, 2), np.float32).T, "out A is not C-contiguous"),
        (misaligned((2, 3)), "out A is not aligned to its elements"),
        (np.zeros((2, 4), np.float32), "out A has shape (2, 4), expected (2, 3)"),
        (np.zeros((2, 3)), "A has dtype float64, expected float32"),
        ([0.0], "A is a list"),
    ]:
        with refused(message):
            check_output(A, value, (2, 3))


def test_arrays_that_fit_as_they_are() -> None:
    a = np.zeros((2, 3), np.float32)
    kind = np.dtype(np.float32)
    assert fits(a, kind, (2, 3), WRITEABLE)
    assert not fits(a, kind, (3, 2), READABLE)
    assert not fits(a, np.dtype(np.float64), (2, 3), READABLE)
    assert not fits(a.T, kind, (3, 2), READABLE)
    assert not fits(np.ma.masked_array(a), kind, (2, 3), READABLE)
    assert not fits(np.zeros(25, np.uint8)[1:].view(kind).reshape(2, 3), kind, (2, 3), READABLE)
    a.flags.writeable = False
    assert fits(a, kind, (2, 3), READABLE)
    assert not fits(a, kind, (2, 3), WRITEABLE)


def test_clashes_of_contiguous_arrays() -> None:
    block = np.zeros(12, np.float32)

    def found(first: int, *arrays: np.ndarray[Any, Any]) -> tuple[int, int] | None:
        return clash(arrays, [address(a) for a in arrays], first)

    assert found(1, block[:6], block[6:]) is None
    assert found(1, block[:7], block[6:]) == (0, 1)
    assert found(2, block[:7], block[6:]) is None  # inputs may share memory
    assert found(1, block[:6], block[2:2], block[6:9], block[8:]) == (2, 3)


def test_overlaps() -> None:
    f = matmul()
    block = np.zeros(100, np.float32)
    a, c = block[:6].reshape(2, 3), block[4:10].reshape(2, 3)
    with refused("out C overlaps A in memory"):
        check_overlaps(f, {"A": a}, {"C": c})
    check_overlaps(f, {"A": a}, {"C": block[6:12]})
    check_overlaps(f, {"A": a}, {"C": block[2:2]})
    with refused("out D overlaps out C in memory"):
        check_overlaps(f, {}, {"C": c, "D": block[9:12]})


def test_an_updated_tensor_may_be_its_own_output() -> None:
    f = scan()
    block = np.zeros(20, np.float32)
    check_overlaps(f, {"H": block[:8], "V": block[8:12]}, {"H": block[:8]})
    with refused("out H overlaps H in memory"):
        check_overlaps(f, {"H": block[:8]}, {"H": block[1:9]})
    with refused("out H overlaps V in memory"):
        check_overlaps(f, {"H": block[:8], "V": block[4:8]}, {"H": block[:8]})


# --- calls ---------------------------------------------------------------------------------


def test_positional_and_named_arguments() -> None:
    f = matmul()
    assert match_arguments(f, (1,), {"B": 2, "K": 3}) == ({"A": 1, "B": 2}, {"K": 3})
    for args, named, message in [
        ((1, 2, 3), {}, "f takes 2 arrays (A, B), but 3 were given"),
        ((1,), {}, "f needs B, not given"),
        ((), {}, "f needs A, B, not given"),
        ((1,), {"A": 1}, "A is given twice"),
        ((1, 2), {"X": 1}, "f has no input or size 'X'; it has A, B, N, M, K"),
    ]:
        with refused(message):
            match_arguments(f, args, named)  # type: ignore[arg-type]


def test_outputs_by_position_or_name() -> None:
    f = matmul()
    x = np.zeros(1)
    assert match_outputs(f, None) == {}
    assert match_outputs(f, x)["C"] is x and match_outputs(f, (x,))["C"] is x
    assert match_outputs(f, {"C": x})["C"] is x
    with refused("out= has 2 arrays, but f has 1 outputs (C)"):
        match_outputs(f, (x, x))
    with refused("f has no output 'D'; it has C"):
        match_outputs(f, {"D": x})


def test_threads() -> None:
    assert check_threads(np.int64(3)) == 3
    for value in (0, -1, 5000):
        with refused(f"threads={value} is not in the range 1 to 4096"):
            check_threads(value)
    for odd in (True, 1.5, "2", None):
        with refused("threads must be an integer"):
            check_threads(odd)


def test_sizes_may_be_mixed_with_other_inputs() -> None:
    f = elementwise(op("add", read("A", i), Size("N")), FLOAT32, "A")
    assert bind(f, {"A": (4,)}, {"N": 4}).sizes == {"N": 4}
