from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runtime.common.cache
from poly.errors import CacheError, CacheWarning
from runtime.common.cache import ENVIRONMENT, Cache, digest

KEY = digest("a key")
FILES = {"kernel.so": b"\x7fELF" + bytes(1000), "kernel.c": b"int x;"}


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_put_and_get(store: Cache) -> None:
    assert store.get(KEY) is None
    entry = store.put(KEY, FILES)
    found = store.get(KEY)
    assert found == entry and found is not None
    assert found.files == ("kernel.c", "kernel.so")
    assert {name: found.read(name) for name in found.files} == FILES
    with pytest.raises(CacheError, match=r"has no other\.so"):
        found.file("other.so")


def test_get_or_build_builds_once(store: Cache) -> None:
    calls = []

    def build() -> dict[str, bytes]:
        calls.append(1)
        return FILES

    assert store.get_or_build(KEY, build) == store.get_or_build(KEY, build)
    assert len(calls) == 1


def test_keys_differ_by_parts() -> None:
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest(b"ab", b"", b"c")}) == 4


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif how == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "extend":
        path.write_bytes(data + b"\0")
    elif how == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
    else:
        path.unlink()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(("kernel.so", how) for how in ("flip", "truncate", "empty", "extend", "remove", "link")),
        *(("manifest.json", how) for how in ("flip", "truncate", "empty", "remove")),
    ],
)
def test_a_damaged_entry_is_built_again(store: Cache, name: str, how: str) -> None:
    entry = store.put(KEY, FILES)
    if name == "manifest.json" and how == "flip":
        text = (entry.path / name).read_text()
        (entry.path / name).write_text(text.replace('"sha256": "', '"sha256": "0', 1))
    else:
        damage(entry.path / name, how)
    assert store.get(KEY) is None
    assert not entry.path.exists()
    assert store.get_or_build(KEY, lambda: FILES).read("kernel.so") == FILES["kernel.so"]
    assert list((store.directory / "temporary").iterdir()) == []


def test_what_processes_left_behind_is_removed_once_they_have_ended(store: Cache) -> None:
    folders = [store.directory / "temporary" / f"{n}-x" for n in (os.getpid(), 4000000000)]
    for folder in folders:
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - 7200,) * 2)
    store._remove_stale()
    assert [f.exists() for f in folders] == [True, False]
    os.utime(folders[0], (0, 0))  # the process of this number is another one by now
    store._remove_stale()
    assert not folders[0].exists()


@pytest.mark.parametrize(
    "text", ["[]", "null", "{}", '{"key": 3}', '{"key": "KEY", "files": {"../x": {}}}', "\xff"]
)
def test_a_foreign_manifest_is_not_believed(store: Cache, text: str) -> None:
    entry = store.put(KEY, FILES)
    (entry.path / "manifest.json").write_text(text.replace("KEY", KEY))
    assert store.get(KEY) is None


def test_an_entry_under_a_wrong_key_is_not_believed(store: Cache) -> None:
    entry = store.put(KEY, FILES)
    other = digest("another")
    (entry.path.parent.parent / other[:2]).mkdir(exist_ok=True)
    entry.path.rename(entry.path.parent.parent / other[:2] / other)
    assert store.get(other) is None


def test_put_replaces_a_damaged_entry_and_keeps_a_sound_one(store: Cache) -> None:
    entry = store.put(KEY, FILES)
    damage(entry.path / "kernel.so", "flip")
    assert store.put(KEY, FILES).read("kernel.so") == FILES["kernel.so"]
    inode = (entry.path / "kernel.so").stat().st_ino
    store.put(KEY, FILES)
    assert (entry.path / "kernel.so").stat().st_ino == inode


def test_put_replaces_a_file_where_an_entry_belongs(store: Cache) -> None:
    place = store.put(KEY, FILES).path
    store.clear()
    place.write_text("in the way")
    assert store.put(KEY, FILES).read("kernel.c") == b"int x;"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "manifest.json"])
def test_file_names_are_checked(store: Cache, name: str) -> None:
    with pytest.raises(CacheError, match="not a valid file name"):
        store.put(KEY, {name: b""})


@pytest.mark.parametrize("key", ["", "short", "../../etc/passwd", "G" * 64])
def test_keys_are_checked(store: Cache, key: str) -> None:
    with pytest.raises(CacheError, match="not a valid cache key"):
        store.get(key)


# --- permissions ---------------------------------------------------------------------------


def test_directories_are_private(store: Cache) -> None:
    path = store.put(KEY, FILES).path
    for folder in (store.directory, store.directory / "v1", path.parent, path):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(CacheError, match=r"other users may write(?s:.*)chmod go-w"):
        Cache(folder)


def test_a_directory_of_someone_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(CacheError, match="belongs to another user"):
        Cache(tmp_path)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot make the cache directory"):
        Cache(tmp_path / "file" / "cache")
    with pytest.raises(CacheError, match="not a directory"):
        Cache(tmp_path / "file")


# --- directories that cannot be written to ---------------------------------------------------


def refuse(monkeypatch: pytest.MonkeyPatch, *below: Path) -> None:
    """Let nothing be written below some directories, as on a full disk."""

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Path, *args: Any, **named: Any) -> Any:
            if any(self.is_relative_to(folder) for folder in below):
                raise OSError(errno.ENOSPC, "No space left on device")
            return method(self, *args, **named)

        return call

    for name in ("mkdir", "write_bytes", "write_text", "rename"):
        monkeypatch.setattr(Path, name, guarded(getattr(Path, name)))


def files_of(store: Cache) -> list[Path]:
    return [p for p in store.directory.rglob("*") if p.is_file()]


def test_on_a_full_disk_results_are_kept_until_the_process_ends(
    store: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.put(digest("before"), FILES)
    held = files_of(store)
    refuse(monkeypatch, store.directory)
    with pytest.warns(CacheWarning, match=r"No space left.*free some space") as caught:
        entry = store.put(KEY, FILES)
    assert len(caught) == 1
    assert {name: entry.read(name) for name in entry.files} == FILES
    assert files_of(store) == held
    # Whoever asks next finds both, and is not warned again.
    again = Cache(store.directory)
    assert again.get(KEY) == entry and again.get(digest("before")) == before
    assert again.get_or_build(digest("next"), lambda: FILES).files == entry.files
    again.discard(KEY)
    assert store.get(KEY) is None


def test_a_workspace_on_a_full_disk_is_elsewhere(
    store: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, store.directory)
    with pytest.warns(CacheWarning), store.workspace() as folder:
        (folder / "x").write_text("")
        assert not folder.is_relative_to(store.directory)
    assert not folder.exists()


def test_a_workspace_needs_room(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(store.directory)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    full = pytest.raises(CacheError, match="No space left")
    with pytest.warns(CacheWarning), full, store.workspace():
        pass


def test_what_nobody_waits_for_is_left_out(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, store.directory)
    with pytest.warns(CacheWarning):
        store.keep(KEY, FILES)
    store.keep(KEY, FILES)
    assert store.get(KEY) is None and files_of(store) == []


def test_temporary_directories_may_be_full_too(
    store: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(prefix: str) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    refuse(monkeypatch, store.directory)
    with pytest.raises(
        CacheError, match=r"cannot write to the cache.*nor to a temporary directory"
    ):
        store.put(KEY, FILES)


def test_the_user_s_cache_directory_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    refuse(monkeypatch, tmp_path / "home")
    with pytest.warns(CacheWarning, match="home/farkas"):
        store = Cache()
    assert store.get(KEY) is None
    assert store.get_or_build(KEY, lambda: FILES) == store.get(KEY)
    with pytest.raises(CacheError, match=r"No space left.*choose another"):
        Cache(tmp_path / "home" / "chosen")


def test_what_stands_in_is_removed_when_the_process_ends(tmp_path: Path) -> None:
    code = f"""
import os, warnings
from pathlib import Path
from runtime.common.cache import Cache
warnings.simplefilter("ignore")
store = Cache({str(tmp_path / "cache")!r})

def refuse(path, target):
    if path.is_relative_to(store.directory):
        raise OSError(28, "No space left on device")
    os.rename(path, target)

Path.rename = refuse
entry = store.put("{KEY}", {{"a": b"b"}})
if os.fork() == 0:
    raise SystemExit(0)
os.wait()
assert entry.read("a") == b"b"
print(entry.path)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()
    assert [p.name for p in tmp_path.iterdir()] == ["cache"]


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "a"))
    assert Cache().directory == tmp_path / "a"
    assert Cache(tmp_path / "b").directory == tmp_path / "b"
    monkeypatch.delenv(ENVIRONMENT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert Cache().directory == tmp_path / "c" / "farkas"


# --- size ----------------------------------------------------------------------------------


def key_of(number: int) -> str:
    return digest("entry", str(number))


def fill(store: Cache, count: int) -> None:
    for number in range(count):
        entry = store.put(key_of(number), {"blob": bytes(1000)})
        os.utime(entry.path, (1000 + number, 1000 + number))


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache", limit=8000)
    fill(store, 5)
    assert store.get(key_of(0)) is not None  # used now, so it stays
    fill_more = [store.put(key_of(n), {"blob": bytes(1000)}) for n in (10, 11, 12)]
    assert store.info().bytes <= 8000
    assert store.get(key_of(0)) is not None
    assert store.get(key_of(1)) is None
    assert store.get(fill_more[-1].key) is not None


def test_the_entry_just_written_stays(tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache", limit=500)
    store.put(key_of(1), {"blob": bytes(1000)})
    store.put(key_of(2), {"blob": bytes(1000)})
    assert store.get(key_of(1)) is None and store.get(key_of(2)) is not None


def test_a_limit_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="must be positive"):
        Cache(tmp_path / "cache", limit=0)


def test_info_and_clear(store: Cache) -> None:
    fill(store, 3)
    info = store.info()
    assert info.entries == 3 and info.bytes > 3000 and "3 entries" in str(info)
    assert store.clear() == info
    assert (store.info().entries, store.info().bytes) == (0, 0)
    fill(store, 1)
    assert store.info().entries == 1


def test_what_a_killed_process_left_is_removed(store: Cache) -> None:
    old = store.directory / "temporary" / "123-abc"
    old.mkdir()
    (old / "kernel.so").write_bytes(b"half")
    os.utime(old, (1, 1))
    young = store.directory / "temporary" / "124-abc"
    young.mkdir()
    store.put(KEY, FILES)
    assert not old.exists() and young.exists()


# --- processes -----------------------------------------------------------------------------


def worker(directory: str, number: int, rounds: int, failures: object) -> None:
    store = Cache(directory)
    for step in range(rounds):
        key = key_of(step % 7)
        data = {"blob": key.encode() * 500}
        entry = store.get_or_build(key, lambda data=data: data)  # type: ignore[misc]
        if number == 0 and step % 5 == 0:
            store.clear()
            continue
        try:
            if entry.read("blob") != data["blob"]:
                failures.put("wrong content")  # type: ignore[attr-defined]
        except CacheError:
            pass  # cleared meanwhile


def test_processes_race(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    failures = context.Queue()
    directory = str(tmp_path / "cache")
    running = [context.Process(target=worker, args=(directory, n, 60, failures)) for n in range(4)]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
    assert [p.exitcode for p in running] == [0] * 4
    assert failures.empty()
    assert list((tmp_path / "cache" / "temporary").iterdir()) == []


def slow_writer(directory: str, ready: object) -> None:
    def dawdle(path: Path, data: bytes) -> dict[str, int | str]:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            ready.set()  # type: ignore[attr-defined]
            time.sleep(60)
        raise AssertionError("it was not killed")

    runtime.common.cache._write_file = dawdle  # type: ignore[assignment]
    Cache(directory).put(KEY, FILES)


def test_a_process_killed_half_way(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    directory = str(tmp_path / "cache")
    process = context.Process(target=slow_writer, args=(directory, ready))
    process.start()
    assert ready.wait(30)
    store = Cache(directory)
    assert store.get(KEY) is None  # the half-written entry is not visible
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert store.get_or_build(KEY, lambda: FILES).read("kernel.so") == FILES["kernel.so"]
    left = list((store.directory / "temporary").iterdir())
    assert len(left) == 1
    os.utime(left[0], (1, 1))
    Cache(directory).put(digest("another"), FILES)
    assert list((store.directory / "temporary").iterdir()) == []


def test_threads_race(store: Cache) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for step in range(40):
                store.get_or_build(key_of(step), lambda: FILES).read("kernel.c")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and store.info().entries == 40


def test_the_manifest_says_what_is_there(store: Cache) -> None:
    entry = store.put(KEY, FILES)
    manifest = json.loads((entry.path / "manifest.json").read_text())
    assert manifest["key"] == KEY
    assert manifest["files"]["kernel.so"]["size"] == 1004


def test_a_workspace_is_removed(store: Cache) -> None:
    with store.workspace() as folder:
        (folder / "x").write_text("")
    assert not folder.exists()
