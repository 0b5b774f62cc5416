"""Samples for calibration: the forms in which they are given, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farkas as fk
from farkas.quantize.calibration import read_samples, same_shapes, spread
from poly.errors import FarkasError
from poly.ir.port import Port

F32, I64 = fk.DTYPES["float32"], fk.DTYPES["int64"]
X, MASK = Port("x", F32, ("n", 4)), Port("mask", I64, (1, "n"))
FIXED = Port("x", F32, (1, 3))


def arrays(count: int, rows: int = 2) -> dict[str, np.ndarray]:
    return {
        "x": np.arange(count * rows * 4, dtype=np.float32).reshape(count, rows, 4),
        "mask": np.ones((count, 1, rows), np.int64),
    }


def test_an_array_with_one_axis_more_holds_several_samples() -> None:
    samples = read_samples(arrays(3), (X, MASK))
    assert len(samples) == 3 and samples[2]["x"].shape == (2, 4)
    assert np.array_equal(samples[2]["x"], arrays(3)["x"][2])
    (one,) = read_samples({n: a[0] for n, a in arrays(1).items()}, (X, MASK))
    assert one["x"].shape == (2, 4)


def test_samples_of_scalars_and_of_unknown_shapes() -> None:
    scalar, unknown = Port("t", F32, ()), Port("u", F32, None)
    found = read_samples({"t": np.arange(3, dtype="f")}, (scalar,))
    assert [s["t"].shape for s in found] == [()] * 3 and isinstance(found[0]["t"], np.ndarray)
    (one,) = read_samples({"u": np.array(2, "f")}, (unknown,))
    assert one["u"].shape == ()


def test_files_and_folders(tmp_path: Path) -> None:
    for k, rows in enumerate((2, 5)):
        np.savez(tmp_path / f"{k}.npz", **{n: a[0] for n, a in arrays(1, rows).items()})
    np.savez(tmp_path / "many.npz", **arrays(3))
    found = read_samples(tmp_path, (X, MASK))
    assert [s["x"].shape[0] for s in found] == [2, 5, 2, 2, 2] and not same_shapes(found)
    named = [str(tmp_path / "many.npz"), tmp_path / "0.npz"]
    assert len(read_samples(named, (X, MASK))) == 4
    assert [s["x"].shape[0] for s in spread(found, 2)] == [2, 2]


@pytest.mark.parametrize(
    ("data", "ports", "message"),
    [
        ({"y": np.ones((1, 1, 3), "f")}, (FIXED,), r"not inputs: 'y'; no arrays for: 'x'; the"),
        ({"x": np.ones((2, 1, 3))}, (FIXED,), r"float64, the input of float32; convert it with"),
        ({"x": np.ones((2, 1, 4), "f")}, (FIXED,), r"shape \[2, 1, 4\]; a sample is float32 x\[1,"),
        ({"x": np.ones((7, 3), "f")}, (FIXED,), r"add an axis .* x\[:, None\]"),
        ({"x": np.ones(3, "f")}, (FIXED,), r"several have one more axis"),
        ({"x": np.array([[[1, 2, np.nan]]], "f")}, (FIXED,), r"value nan at \[0, 0, 2\]"),
        ({"x": np.array([[1, -np.inf, 0]], "f")}, (FIXED,), r"value -inf at \[0, 1\]"),
        ({"x": np.ones((0, 1, 3), "f")}, (FIXED,), "there are no samples"),
        ({"x": np.ones((0, 4), "f"), "mask": np.ones((1, 0), "q")}, (X, MASK), "without elements"),
        ({"x": [np.ones((3, 4), "f"), np.ones((2, 4), "f")]}, (X,), "'x' is no array: .*of dicts"),
        ([], (FIXED,), "there are no samples"),
        (3, (FIXED,), "not a int"),
        (arrays(3) | {"mask": np.ones((2, 1, 2), "q")}, (X, MASK), "3 of 'x', 2 of 'mask'"),
        (arrays(1) | {"mask": np.ones((1, 1, 7), "q")}, (X, MASK), "'n' is 2 in 'x', 7 in 'mask'"),
    ],
)
def test_data_that_does_not_fit(data: Any, ports: tuple[Port, ...], message: str) -> None:
    with pytest.raises(fk.ArgumentError, match=message):
        read_samples(data, ports)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "one.npy", np.ones(3))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object))
    whole = tmp_path / "whole.npz"
    np.savez(whole, x=np.ones((50, 1, 3), "f"))
    (tmp_path / "cut.npz").write_bytes(whole.read_bytes()[:300])
    data = bytearray(whole.read_bytes())
    data[200] ^= 255
    (tmp_path / "bits.npz").write_bytes(data)
    packed = tmp_path / "packed.npz"
    np.savez_compressed(packed, x=np.arange(3000, dtype="f").reshape(1000, 1, 3))
    data = bytearray(packed.read_bytes())
    data[60:400] = bytes(340)
    packed.write_bytes(data)
    (tmp_path / "empty").mkdir()
    for name, message in {
        "text.npz": "not a .npz file; numpy.savez writes one",
        "one.npy": "not a .npz file",
        "cut.npz": "not a .npz file",
        "bits.npz": "cannot read .*bits.npz: ",
        "packed.npz": "cannot read .*packed.npz: ",
        "objects.npz": "cannot read .*objects.npz: ",
        "missing.npz": "cannot read .*missing.npz: No such file",
        "empty": "has no .npz files",
    }.items():
        with pytest.raises(FarkasError, match=message):
            read_samples(str(tmp_path / name), (FIXED,))
