"""Reading and writing files: nothing unpickled, nothing half-written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from farkas.console.files import (
    FileError,
    file_names,
    load_array,
    npy_bytes,
    output_folder,
    read_text_file,
    write_file,
)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3)),
        np.zeros((0, 3), np.float64),
        np.float32(3.5) * np.ones(()),
        np.array([True, False]),
    ],
)
def test_arrays_survive(tmp_path: Path, array: np.ndarray) -> None:
    path = tmp_path / "a.npy"
    write_file(path, npy_bytes(array))
    loaded = load_array(str(path))
    assert type(loaded) is np.ndarray
    assert loaded.dtype == array.dtype and np.array_equal(loaded, array)


def huge_header() -> bytes:
    """A file of some bytes that claims to hold an array of 8 TB."""
    text = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }"
    header = text.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"1234"


def pickled(tmp_path: Path) -> bytes:
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    return (tmp_path / "o.npy").read_bytes()


def test_arrays_that_are_refused(tmp_path: Path) -> None:
    whole = npy_bytes(np.ones(100))
    for number, data in enumerate(
        [
            b"",
            b"\x93NUM",
            b"PK\x03\x04 not an array",
            whole[:60],
            whole[:-8],
            huge_header(),
            pickled(tmp_path),
            b"\x93NUMPY\x09\x00" + whole[8:],
            b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 1000,
        ]
    ):
        path = tmp_path / f"{number}.npy"
        path.write_bytes(data)
        with pytest.raises(FileError) as caught:
            load_array(str(path))
        assert path.name in str(caught.value)
    for path in (tmp_path, tmp_path / "nothing.npy"):
        with pytest.raises(FileError):
            load_array(str(path))


def test_text_files(tmp_path: Path) -> None:
    path = tmp_path / "a.fk"
    path.write_bytes(b"\xef\xbb\xbfC[i] = A[i]")
    assert read_text_file(str(path)) == "C[i] = A[i]"
    for data, message in (
        (b"\xff\xfe\x00", "UTF-8"),
        (b"x" * ((1 << 20) + 1), "longer than 1 MiB"),
    ):
        path.write_bytes(data)
        with pytest.raises(FileError, match=message):
            read_text_file(str(path))
    for name in (str(tmp_path), str(tmp_path / "no"), "a\0b"):
        with pytest.raises(FileError, match="cannot read"):
            read_text_file(name)


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.c"
    write_file(path, b"one")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    path.chmod(0o640)
    write_file(path, b"two")
    assert path.read_bytes() == b"two" and path.stat().st_mode & 0o777 == 0o640

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(FileError, match="No space left"):
        write_file(path, b"three")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["out.c"]


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_file(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"x"
    write_file("/dev/null", b"x")
    assert not Path("/dev/null").is_file()


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "no" / "x", tmp_path / "file" / "x", Path("a\0b")):
        with pytest.raises(FileError, match="cannot write"):
            write_file(path, b"x")
    for path in (tmp_path / "file", tmp_path / "file" / "x" / "y", "a\0b"):
        with pytest.raises(FileError, match="cannot make the folder"), output_folder(path):
            pass


def test_a_folder_that_was_made_in_vain_goes_again(tmp_path: Path) -> None:
    with output_folder(tmp_path / "a" / "b") as folder:
        assert folder.is_dir()
    with pytest.raises(KeyError), output_folder(tmp_path / "a" / "b" / "c" / "d") as folder:
        raise KeyError
    assert not (tmp_path / "a" / "b" / "c").exists() and (tmp_path / "a" / "b").is_dir()
    with pytest.raises(KeyError), output_folder(tmp_path / "e") as folder:
        (folder / "result").touch()
        raise KeyError
    assert os.listdir(tmp_path / "e") == ["result"]


def test_names_of_files_are_harmless_and_different() -> None:
    names = ("a/b", "a_b", "../../etc/passwd", "", "A_B", "x" * 500, ".hidden")
    found = file_names(names, ".npy")
    assert len({f.lower() for f in found.values()}) == len(names)
    for file in found.values():
        assert "/" not in file and not file.startswith(".") and len(file) < 120


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
