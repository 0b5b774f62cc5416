"""Networks in files: loaded without a compiler, equal bit for bit, or refused with a reason."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import farkas as fk
from farkas.targets import saved_code
from runtime.common.archive import MANIFEST
from tests.farkas.conftest import Cli, Command, model_of, save_apart
from tests.farkas.networks.test_open_sizes import NETWORKS
from tests.farkas.networks.test_stages import build
from tests.farkas.open_networks import random_inputs

F, L, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Arrays = dict[str, np.ndarray]
Away = Callable[[], None]
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
node = helper.make_node


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Away:
    """Take the compiler away, and what is in the cache."""

    def take() -> None:
        (tmp_path / "nothing").mkdir()
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("FARKAS_CACHE_DIR", str(tmp_path / "empty"))

    return take


def product(rows: int | str = "n") -> onnx.ModelProto:
    """``y = x w``, for any number of rows."""
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    return build(nodes, {"x": (F, [rows, 4])}, {"y": F}, {"w": WEIGHTS})


def rows(n: int) -> np.ndarray:
    return np.linspace(-1, 1, 4 * n, dtype=np.float32).reshape(n, 4)


def equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return [*one] == [*other] and all(np.array_equal(one[n], other[n]) for n in one)


def saved(model: fk.Network, path: Path, **options: Any) -> fk.Network:
    """The network after it was saved and loaded."""
    model.save(path, **options)
    made = fk.load(path)
    assert isinstance(made, fk.Network)
    return made


def test_a_network_of_fixed_sizes(tmp_path: Path, away: Away) -> None:
    model = fk.compile_onnx(product(5), threads=2)
    expected = model.run({"x": rows(5)})
    model.save(tmp_path / "m.fkm")
    away()
    made = fk.load(tmp_path / "m.fkm")
    assert isinstance(made, fk.Network) and made.is_whole and made.threads == 2
    for threads in (None, 1, 2):
        assert equal(made.run({"x": rows(5)}, threads), expected)
    assert (made.inputs, made.outputs) == (model.inputs, model.outputs)
    assert (made.source, made.schedules) == (model.source, model.schedules)
    assert made.graphs[0].nodes == model.graphs[0].nodes and made.report.from_cache
    out = np.empty((5, 3), np.float32)
    assert made.run({"x": rows(5)}, out={"y": out})["y"] is out
    assert len(made.profile({"x": rows(5)}, 1)) == len(model.profile({"x": rows(5)}, 1))
    assert "MatMul" in str(made.explain(run=False))
    other = fk.load(tmp_path / "m.fkm", threads=1, cache=tmp_path / "other")
    assert other.threads == 1 and equal(other.run({"x": rows(5)}), expected)


def test_a_network_of_open_sizes(tmp_path: Path, away: Away) -> None:
    model = fk.compile_onnx(product())
    expected = {n: model.run({"x": rows(n)}) for n in (7, 3, 1)}
    made = saved(model, tmp_path / "m.fkm")
    away()
    made = fk.load(tmp_path / "m.fkm")
    assert not made.is_whole and made.conditions == model.conditions
    for n, arrays in expected.items():
        assert equal(made.run({"x": rows(n)}), arrays)
    message = r"^something is not compiled yet, and no C compiler was found: install gcc or clang"
    with pytest.raises(fk.ToolchainError, match=message):
        made.specialize(n=2)


def test_shapes_for_which_nothing_is_compiled(tmp_path: Path, away: Away) -> None:
    model = fk.compile_onnx(product())
    first = model.run({"x": rows(1)})  # for one row alone
    model.save(tmp_path / "m.fkm")
    made = fk.load(tmp_path / "m.fkm")
    assert made.conditions == ("fixed sizes",)
    assert equal(made.run({"x": rows(6)}), model.run({"x": rows(6)}))
    assert len(made.conditions) == 2
    made.save(tmp_path / "n.fkm")  # with both
    away()
    again = fk.load(tmp_path / "n.fkm")
    assert equal(again.run({"x": rows(6)}), model.run({"x": rows(6)}))
    made = fk.load(tmp_path / "m.fkm")
    assert equal(made.run({"x": rows(1)}), first)
    with pytest.raises(fk.ToolchainError, match="not compiled yet, and no C compiler was found"):
        made.run({"x": rows(6)})
    assert equal(made.run({"x": rows(1)}), first)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_open_networks(name: str, tmp_path: Path, away: Away) -> None:
    network, rng = NETWORKS[name], np.random.default_rng(0)
    model = fk.compile_onnx(network.model)
    given = [random_inputs(network, rng) for _ in range(2)]
    expected = [model.run(arrays) for arrays in given]
    model.save(tmp_path / "m.fkm")
    away()
    made = fk.load(tmp_path / "m.fkm")
    for arrays, results in zip(given, expected, strict=True):
        assert equal(made.run(arrays), results)


def staged() -> tuple[onnx.ModelProto, Arrays]:
    """An operator that runs as numpy, kernels before and after it, and texts."""
    nodes = [
        node("Abs", ["x"], ["a"]), node("NonZero", ["a"], ["i"]), node("Cast", ["i"], ["c"], to=F),
        node("ReduceSum", ["c"], ["y"]), node("Reshape", ["x", "s"], ["z"]),
        node("Exp", ["z"], ["e"]),
    ]  # fmt: skip
    arrays = {"x": rows(6), "s": np.array([3, 8])}
    return build(nodes, {"x": (F, ["n", 4]), "s": (L, [2])}, {"y": F, "e": F}), arrays


def looped() -> tuple[onnx.ModelProto, Arrays]:
    """A loop whose body runs as often as an element says, and a branch."""
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Mul", ["a", "x"], ["b"]),
         node("NonZero", ["b"], ["z"])],
        "body",
        [helper.make_tensor_value_info("i", L, []), helper.make_tensor_value_info("c", B, []),
         helper.make_tensor_value_info("a", F, [3])],
        [helper.make_tensor_value_info("d", B, []), helper.make_tensor_value_info("b", F, [3]),
         helper.make_tensor_value_info("z", L, None)],
    )  # fmt: skip
    nodes = [node("Loop", ["k", "t", "x"], ["l", "zs"], body=body), node("Neg", ["l"], ["y"])]
    arrays = {"x": np.array([2, 0, 3], np.float32), "k": np.array(3)}
    model = build(nodes, {"x": (F, [3]), "k": (L, [])}, {"y": F, "zs": L}, {"t": np.array(True)})
    return model, arrays


@pytest.mark.parametrize("make", [staged, looped])
def test_operators_that_run_as_numpy(
    make: Callable[[], tuple[onnx.ModelProto, Arrays]], tmp_path: Path, away: Away
) -> None:
    proto, arrays = make()
    model = fk.compile_onnx(proto)
    expected = model.run(arrays)
    model.save(tmp_path / "m.fkm")
    away()
    made = fk.load(tmp_path / "m.fkm")
    assert equal(made.run(arrays), expected)
    assert made.opaque_operators == model.opaque_operators != ()


def test_the_model_beside_the_code(tmp_path: Path, away: Away) -> None:
    """The ONNX file and its weights are not needed any more."""
    (tmp_path / "files").mkdir()
    file = tmp_path / "files" / "network.onnx"
    save_apart(product(), file)
    model = fk.compile_onnx(file)
    expected = model.run({"x": rows(8)})
    made = saved(model, tmp_path / "m.fkm")
    whole = model.specialize(n=3)
    three = whole.run({"x": rows(3)})
    whole.save(tmp_path / "plain.fkm")
    whole = saved(whole, tmp_path / "whole.fkm", with_model=True)
    shutil.rmtree(tmp_path / "files")
    assert equal(made.run({"x": rows(1)}), made.specialize(n=1).run({"x": rows(1)}))
    assert equal(made.run({"x": rows(8)}), expected)
    assert made.compare(lambda given: {"y": given["x"] @ WEIGHTS}, {"x": rows(2)}).agrees
    assert equal(whole.run({"x": rows(3)}), three)
    whole.export(tmp_path / "c.c")
    assert (tmp_path / "c.c").exists()
    plain = fk.load(tmp_path / "plain.fkm")
    for use in (plain.specialize, lambda: plain.export(tmp_path / "d.c")):
        with pytest.raises(fk.ModelError, match="holds compiled code only; for other sizes"):
            use()
    whole = fk.load(tmp_path / "whole.fkm")
    shutil.copy(tmp_path / "plain.fkm", tmp_path / "whole.fkm")
    with pytest.raises(fk.SavedFileError, match="has changed since it was loaded: load it again"):
        whole.specialize()


def test_a_file_that_has_changed_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "network.onnx"
    onnx.save(product(), file)
    model = fk.compile_onnx(file)
    model.run({"x": rows(3)})
    onnx.save(build([node("Neg", ["x"], ["y"])], {"x": (F, ["n", 4])}, {"y": F}), file)
    with pytest.raises(fk.ModelError, match="has changed since it was loaded"):
        model.save(tmp_path / "m.fkm")
    assert sorted(os.listdir(tmp_path)) == ["network.onnx"]


# --- files that are refused --------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file."""
    path = tmp_path_factory.mktemp("small") / "m.fkm"
    model = fk.compile_onnx(product())
    model.run({"x": rows(4)})
    model.save(path)
    return path.read_bytes()


#: Removes an entry.
GONE = object()


def changed(data: bytes, **entries: Any) -> bytes:
    """The file with other entries of its manifest."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == MANIFEST:
                manifest = json.loads(content) | entries
                content = json.dumps({k: v for k, v in manifest.items() if v is not GONE}).encode()
            new.writestr(name, content)
    return made.getvalue()


def without(data: bytes, part: str) -> bytes:
    """The file without the members whose names have this in them."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            if part not in name:
                new.writestr(name, old.read(name))
    return made.getvalue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: b"", r"is not a file of Network\.save or Kernel\.save"),
        (lambda d: b"\x08\x07onnx", r"is not a file of Network\.save or Kernel\.save"),
        (lambda d: d[: len(d) // 2], "is truncated or damaged .*: copy it once more, or save it"),
        (lambda d: without(d, MANIFEST), "was not written by save: it has no farkas.json"),
        (lambda d: without(d, "constants"), "is truncated or damaged"),
        (lambda d: without(d, "kernel.so"), "truncated or damaged"),
        (lambda d: changed(d, format=99), "was saved by another state of Farkas .*: save it again"),
        (lambda d: changed(d, code="0"), "was saved by another state of Farkas"),
        (lambda d: changed(d, farkas="0.0.1"), r"by Farkas 0\.0\.1, and this is .*: save it again"),
        (lambda d: changed(d, system="Linux on mips"), "is for Linux on mips, and this is "),
        (lambda d: changed(d, features=["x87", "zmm9"], processor="A B C"),
         "is for the processor A B C; this one lacks x87, zmm9: compile it on such a machine as"),
        (lambda d: changed(d, kind="sonnet"), r"truncated or damaged \(an unknown kind, 'sonnet'"),
        (lambda d: changed(d, kind="kernel"), "truncated or damaged"),
        (lambda d: changed(d, record=GONE), "truncated or damaged"),
        (lambda d: changed(d, record={"classes": {}, "rows": [["pickle", 1]], "root": [0]}),
         "truncated or damaged .*unknown kind"),
        (lambda d: changed(d, toolchain={}), "truncated or damaged"),
        (lambda d: changed(d, own_threads=GONE), "truncated or damaged"),
        (lambda d: changed(d, threads="many"), "."),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded(
    change: Callable[[bytes], bytes], message: str, small: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.fkm"
    path.write_bytes(change(small))
    with pytest.raises((fk.SavedFileError, fk.ArgumentError), match=message):
        fk.load(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.fkm", tmp_path):
        with pytest.raises(fk.SavedFileError, match=r"does not exist|Is a directory"):
            fk.load(path)
    with pytest.raises(fk.ArgumentError, match="expected the path of a file"):
        fk.load(b"m.fkm")  # type: ignore[arg-type]


def test_every_damage_is_noticed(small: bytes, tmp_path: Path) -> None:
    """A file with one byte changed, or cut off anywhere, is refused, or as good as the whole."""
    path, rng = tmp_path / "m.fkm", np.random.default_rng(0)
    expected = rows(4) @ WEIGHTS
    for at in rng.integers(0, len(small), 60):
        other = bytearray(small)
        other[at] ^= 1 << int(rng.integers(8))
        for data in (bytes(other), small[:at]):
            path.write_bytes(data)
            try:
                found = fk.load(path).run({"x": rows(4)})["y"]
            except (fk.SavedFileError, fk.CacheError):
                continue
            np.testing.assert_allclose(found, expected, rtol=1e-5)
            assert data != small[:at]


def test_it_is_written_as_a_whole_or_not_at_all(
    small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fk.compile_onnx(product(2))
    path = tmp_path / "m.fkm"
    path.write_bytes(b"before")

    def fail(file: Any, *rest: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(saved_code, "write_archive", fail)
        with pytest.raises(fk.FarkasError, match=r"cannot write .*m\.fkm: No space left on device"):
            model.save(path)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["m.fkm"]
    with pytest.raises(fk.FarkasError, match="cannot write"):
        model.save(tmp_path / "none" / "m.fkm")
    model.save(path)
    assert isinstance(fk.load(path), fk.Network) and os.listdir(tmp_path) == ["m.fkm"]


def test_equal_networks_make_equal_files(tmp_path: Path) -> None:
    for name in ("a.fkm", "b.fkm"):
        model = fk.compile_onnx(product(2))
        model.compiled[0].report = (
            fk.compile_onnx(product(2)).compiled[0].report.__class__((), 1, 1, 0, 0, 0, True)
        )
        model.save(tmp_path / name)
    assert (tmp_path / "a.fkm").read_bytes() == (tmp_path / "b.fkm").read_bytes()


def test_networks_on_gpus_are_refused(tmp_path: Path) -> None:
    model = fk.compile_onnx(product(2), target="cuda-emulator")
    with pytest.raises(fk.ArgumentError, match="target 'cuda' cannot be saved; target 'cpu' can"):
        model.save(tmp_path / "m.fkm")
    assert not (tmp_path / "m.fkm").exists()


# --- other processes ---------------------------------------------------------------------------


def ran(model: fk.Network, n: int) -> Any:
    return model.run({"x": rows(n)})["y"]


def test_a_loaded_network_is_sent_to_another_process(
    small: bytes, tmp_path: Path, away: Away
) -> None:
    (tmp_path / "m.fkm").write_bytes(small)
    away()
    made = fk.load(tmp_path / "m.fkm")
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(ran(again, 5), ran(made, 5))
    with get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(ran, (made, 5)), ran(made, 5))


def test_neither_onnx_nor_isl_is_loaded(small: bytes, tmp_path: Path, command: Command) -> None:
    (tmp_path / "m.fkm").write_bytes(small)
    done = command(
        "-c",
        "import os, sys, numpy, farkas as fk\n"
        "os.environ['PATH'] = '/nowhere'\n"
        f"os.environ['FARKAS_CACHE_DIR'] = {str(tmp_path / 'empty')!r}\n"
        "model = fk.load('m.fkm')\n"
        "print(model.run({'x': numpy.ones((6, 4), 'f')})['y'].tolist()[5])\n"
        "print(sorted({'onnx', 'islpy', 'frontends.onnx.importer'} & {*sys.modules}))",
    )
    assert done.stdout == "[18.0, 22.0, 26.0]\n[]\n", done.stderr


def test_the_command_line(cli: Cli, tmp_path: Path, small: bytes, away: Away) -> None:
    onnx.save(product(), "m.onnx")
    np.save("x.npy", rows(4))
    made = cli("save", "m.onnx", "--prepare", "n=4", "-o", "m.fkm")
    assert made.exit_code == 0 and made.output.startswith("written   m.fkm, ")
    assert "compiled  for s_n >= 1" in made.output
    fk.compile("y[i] = x[i]", dtypes="float32").save("k.fkm")
    away()
    done = cli("run", "m.fkm", "--input", "x=x.npy", "--output-dir", "out")
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(np.load("out/y.npy"), rows(4) @ WEIGHTS, rtol=1e-5)
    assert cli("run", "m.fkm", "--random", "--shape", "n=9").exit_code == 0
    for words, message in (
        (["m.fkm", "--random"], "has the open dimension 'n'; fix it, as in --shape n=1"),
        (["m.fkm", "--cc", "gcc"], "m.fkm is compiled already; --cc and --target are for ONNX"),
        (["k.fkm"], "k.fkm is a kernel, which is loaded and called in Python"),
        (["none.fkm"], "none.fkm does not exist"),
        (["m.fkm", "--random", "--shape", "q=9"], "--shape names 'q'; the inputs are"),
        (["m.fkm", "--input", "x=x.npy", "--shape", "x=3,3"], "shape"),
        (["m.fkm", "--random", "--shape", f"n={10**18 - 1}"], "too large for memory"),
    ):
        failed = cli("run", *words)
        assert failed.exit_code in (1, 2) and message in failed.output


def test_sizes_of_saved_networks(cli: Cli, tmp_path: Path) -> None:
    """Several inputs, and a dimension that has no name."""
    nodes = [
        onnx.helper.make_node("Relu", ["a"], ["b"]), onnx.helper.make_node("Add", ["c", "d"], ["e"])
    ]  # fmt: skip
    model = model_of(
        nodes, {"a": ["", 4], "c": ["n", 4], "d": ["n", 4]}, {"b": ["", 4], "e": ["n", 4]}
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    fk.compile_onnx(model).save(tmp_path / "m.fkm", with_model=True)
    np.save("a.npy", np.ones((3, 4), np.float32))
    given = ("run", "m.fkm", "--input", "a=a.npy", "--random")
    for words in (["--shape", "n=2"], ["--shape", "c=2,4", "--shape", "d=2,4"]):
        done = cli(*given, *words)
        assert done.exit_code == 0, done.output
    failed = cli(*given, "--shape", "n=2", "--shape", "c=3,4")
    assert failed.exit_code == 1 and "'n' is 2" in failed.output


def test_the_model_is_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    onnx.save(product(), "m.onnx")
    before = Path("m.onnx").read_bytes()
    for words, message in (
        (["-o", "m.onnx"], "m.onnx is what is read, and would be lost"),
        (["-o", "none/m.fkm"], "there is no folder none"),
        (["-o", "."], "it is a folder"),
    ):
        failed = cli("save", "m.onnx", *words)
        assert failed.exit_code == 1 and message in failed.output
    assert Path("m.onnx").read_bytes() == before


def test_a_child_leaves_the_model_to_its_parent(tmp_path: Path) -> None:
    fk.compile_onnx(product()).save(tmp_path / "m.fkm", with_model=True)
    done = run_apart(
        "import os, sys, farkas as fk\n"
        "model = fk.load('m.fkm')\n"
        "path = os.fspath(model.origin.model)\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(os.path.exists(path))\n",
        tmp_path, FARKAS_CACHE_DIR=str(tmp_path / "cache"),
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr


def run_apart(text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process without a compiler."""
    environment = {**os.environ, "PATH": "/nowhere", **env}
    environment.pop("CC", None)
    environment["PYTHONPATH"] = str(Path(fk.__file__).parent.parent)
    if "FARKAS_CACHE_DIR" not in env:
        del environment["FARKAS_CACHE_DIR"]
    return subprocess.run(
        [sys.executable, "-c", text], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip


def test_a_home_that_cannot_be_written(small: bytes, tmp_path: Path) -> None:
    """Libraries are put into a temporary folder then."""
    (tmp_path / "m.fkm").write_bytes(small)
    (tmp_path / "file").touch()
    text = """if True:
        import numpy as np, farkas as fk
        print(fk.load("m.fkm").run({"x": np.ones((6, 4), np.float32)})["y"].tolist()[5])
    """
    done = run_apart(text, tmp_path, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.stdout == "[18.0, 22.0, 26.0]\n", done.stderr
    assert "CacheWarning" in done.stderr


def test_a_process_without_a_compiler(small: bytes, tmp_path: Path) -> None:
    """Threads and quick calls come from the file, too."""
    (tmp_path / "m.fkm").write_bytes(small)
    text = """if True:
        import os, numpy as np, farkas as fk
        model = fk.load("m.fkm", threads=2)
        x = np.ones((5000, 4), np.float32)
        before = len(os.listdir("/proc/self/task"))
        one, two = (model.run({"x": x}, threads=n)["y"] for n in (1, 2))
        assert np.array_equal(one, two)
        assert len(os.listdir("/proc/self/task")) == before + 1
        graph = model.compiled[0]
        assert graph._quick((x,), None, 1, None) is not NotImplemented
    """
    done = run_apart(text, tmp_path, FARKAS_CACHE_DIR=str(tmp_path / "empty"))
    assert done.returncode == 0, done.stderr
