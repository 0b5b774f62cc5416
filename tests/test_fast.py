"""The list of fast tests: its files exist, in order, and every stage has one."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent
LISTED = (ROOT / "fast.txt").read_text(encoding="utf-8").splitlines()
#: Folders of packages whose rooms are each to have a fast test.
STAGES = ("codegen", "frontends", "poly", "runtime")
#: Rooms that a fast test reaches only through others.
COVERED = {"poly/graph_passes", "runtime/cuda", "runtime/intrinsics"}


def test_the_files_exist() -> None:
    assert sorted(LISTED) == LISTED
    assert [name for name in LISTED if not (ROOT / name).is_file()] == []


def test_every_stage_has_one() -> None:
    rooms = {
        path.parent.relative_to(ROOT).as_posix()
        for stage in STAGES
        for path in (ROOT / stage).rglob("test_*.py")
    }
    top = {"/".join(room.split("/")[:2]) for room in rooms}
    assert top - {"/".join(name.split("/")[:2]) for name in LISTED} <= COVERED | set(STAGES)
