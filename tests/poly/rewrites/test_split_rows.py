"""Weighted sums along rows in parts: when, and that they are the same."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.ir.row_chains import row_chain
from poly.rewrites import split_rows as in_parts
from poly.rewrites.split_rows import split_rows, weighted_rows
from runtime.reference.evaluate import run

HEAD = "def f(float32 Q[B,I,20], float32 K[B,J,20], float32 V[B,J,24], float32 W[I,J]) -> (Y)"
SCORES = "S[b,i,j] +=! Q[b,i,d] * K[b,j,d]; T[b,i,j] = S[b,i,j] * 0.5 + W[i,j]"
MOST = "M[b,i] max=! T[b,i,j]"
WEIGHTS = "P[b,i,j] = exp(T[b,i,j] - M[b,i])"
SUMS = "Z[b,i] +=! P[b,i,j]"
LAST = "O[b,i,e] +=! P[b,i,j] * V[b,j,e]"
END = "Y[b,i,e] = O[b,i,e] / Z[b,i]"
WHOLE = f"{HEAD} {{ {SCORES}; {MOST}; {WEIGHTS}; {SUMS}; {LAST}; {END} }}"
GUARDED = WHOLE.replace(LAST, "N[b,i,j] = select(isnan(P[b,i,j] / Z[b,i]), 0.0, P[b,i,j] / Z[b,i])")
GUARDED = GUARDED.replace(END, "Y[b,i,e] +=! N[b,i,j] * V[b,j,e]")
CAUSAL = WHOLE.replace("+ W[i,j]", "+ select(j <= i, W[i,j], -inf)")
TEXTS = pytest.mark.parametrize(
    "text", [WHOLE, GUARDED, CAUSAL], ids=["whole", "guarded", "causal"]
)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, w: np.ndarray, text: str) -> np.ndarray:
    if text is CAUSAL:
        w = np.where(np.tri(*w.shape, dtype=bool), w, np.float32(-np.inf))
    with np.errstate(invalid="ignore"):
        scores = (q @ k.swapaxes(1, 2)) * np.float32(0.5) + w
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
    return np.asarray((np.nan_to_num(weights, nan=0.0) if text is GUARDED else weights) @ v)


def inputs(rows: int, length: int, seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    shapes = [(2, rows, 20), (2, length, 20), (2, length, 24), (rows, length)]
    return [draw.standard_normal(s).astype(np.float32) for s in shapes]


def test_rows_of_unknown_length_are_in_parts() -> None:
    made = split_rows(fk.parse(WHOLE))
    found = row_chain(made)
    assert not isinstance(found, str) and found.length == in_parts.PART and found.depth == 3
    shown = str(made)
    assert "M_bounded[b, j_part, i] = max(M_parts[b, j_part, i], -3.4028234663852886e+38)" in shown
    assert "P_of_parts[b, j_part, i] = exp(M_bounded[b, j_part, i] - M[b, i])" in shown
    assert "O[b, i, e] +=! O_parts[b, j_part, i, e] * P_of_parts[b, j_part, i]" in shown
    assert "[I,J]" not in shown.replace("W[I,J]", ""), "nothing as large as all scores is left"


@pytest.mark.parametrize("sizes", [{"J": 2048}, {"I": 8, "J": 40_000}, {"I": 8}])
def test_short_and_few_rows_stay_whole(sizes: dict[str, int]) -> None:
    program = fk.parse(WHOLE, sizes=sizes)
    assert split_rows(program) is program


def test_long_rows_of_known_length_are_in_parts_without_conditions() -> None:
    made = split_rows(fk.parse(WHOLE, sizes={"J": 1 << 15}))
    assert "j_part in 0:4" in str(made) and "<" not in str(made)


@pytest.mark.parametrize("text", [
    WHOLE.replace(WEIGHTS, "P[b,i,j] = exp(T[b,i,j] - M[b,i] * 2)"),
    WHOLE.replace(WEIGHTS, "P[b,i,j] = exp(T[b,i,j] * M[b,i] - M[b,i])"),
    WHOLE.replace(WEIGHTS, "P[b,i,j] = max(T[b,i,j] - M[b,i], 0)"),
    WHOLE.replace(MOST, "M[b,i] min=! T[b,i,j]"),
    WHOLE.replace(SUMS, "Z[b,i] +=! P[b,i,j] * P[b,i,j]"),
    WHOLE.replace(SUMS, "Z[b,i] +=! P[b,i,j] + 1"),
    WHOLE.replace(SUMS, "Z[b,i] max=! P[b,i,j]"),
    WHOLE.replace(MOST, f"{MOST}; A[b,i] +=! T[b,i,j]").replace(END, f"{END} + A[b,i]"),
    WHOLE.replace(LAST, "R[b,i,j] = P[b,i,j] * 2; O[b,i,e] +=! R[b,i,j] * V[b,j,e]"),
    WHOLE.replace(SUMS, f"{SUMS} where j in 1:J"),
    WHOLE.replace(SUMS, f"{SUMS}; H[b,i] +=! P[b,i,j] * (T[b,i,j] - M[b,i])")
    .replace(END, f"{END} + H[b,i]"),
    WHOLE.replace(MOST, "M[b,i] max=! T[b,i,j] + W[i,j]"),
    WHOLE.replace(MOST, f"{MOST} where j in 1:J"),
    WHOLE.replace("-> (Y)", "-> (Y, T)"),
])  # fmt: skip
def test_other_sums_stay_whole(text: str) -> None:
    program = fk.parse(text)
    assert weighted_rows(program) is None and split_rows(program) is program


def test_values_of_unknown_size_stay_whole() -> None:
    program = fk.parse(WHOLE.replace("24", "E").replace("20", "D"))
    assert weighted_rows(program) is not None and split_rows(program) is program


@TEXTS
@pytest.mark.parametrize("length", [1, 15, 16, 33, 80])
def test_parts_are_the_same(text: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With masks of -inf and of the least number, in whole rows, parts and single places."""
    monkeypatch.setattr(in_parts, "PART", 16)
    program = fk.parse(text)
    made = split_rows(program)
    assert made is not program
    q, k, v, w = inputs(6, length)
    w[1, ::2], w[2, :17], w[3], w[4, 16:] = -np.inf, -np.inf, -np.inf, np.finfo(np.float32).min
    given = dict(zip("QKVW", (q, k, v, w), strict=True))
    sizes = {"B": 2, "I": 6, "J": length}
    with np.errstate(all="ignore"):
        before, after = (run(p, given, sizes).values["Y"] for p in (program, made))
    np.testing.assert_allclose(after, before, 1e-5, 1e-6)
    np.testing.assert_allclose(after, attention(q, k, v, w, text), 1e-4, 1e-5)
    assert np.isnan(after[:, 3]).all() == (text is not GUARDED)


def test_maxima_and_sums_that_are_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a row of nothing but -inf, they are -inf and NaN, in parts, too."""
    monkeypatch.setattr(in_parts, "PART", 16)
    program = fk.parse(WHOLE.replace("-> (Y)", "-> (Y, M, Z, O)"))
    made = split_rows(program)
    assert made is not program
    q, k, v, w = inputs(6, 40)
    w[2, :17], w[3] = -np.inf, -np.inf
    given = dict(zip("QKVW", (q, k, v, w), strict=True))
    with np.errstate(all="ignore"):
        before, after = (run(p, given, {"B": 2, "I": 6, "J": 40}).values for p in (program, made))
    for name in "YMZO":
        np.testing.assert_allclose(after[name], before[name], 1e-5, 1e-6)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_no_number_spoils_its_row_alone(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v, w = inputs(40, 1500)
    monkeypatch.setattr(in_parts, "PART", 1024)
    w[7, 3] = value
    found = fk.compile(WHOLE)(q, k, v, w)
    assert np.isnan(found[:, 7]).all()
    assert np.isfinite(np.delete(found, 7, 1)).all()


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (3, 130), (33, 1024), (70, 1025), (31, 2500)])
@TEXTS
def test_kernels_of_open_sizes(
    text: str, rows: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_parts, "PART", 1024)
    given = inputs(rows, length)
    given[3][0, 1:] = -np.inf
    kernel = fk.compile(text)
    np.testing.assert_allclose(kernel(*given), attention(*given, text), 2e-4, 2e-5)
