"""A change of a schedule or of generated text is always seen.

Where one is meant: ``python -m tests.goldens --renew``, and say in the commit why it changed.
"""

from __future__ import annotations

import pytest

from tests.goldens.cases import groups
from tests.goldens.record import (
    FOLDER,
    Record,
    difference,
    file_text,
    recorded_versions,
    versions,
)

#: Whose kernels are much like those of the other networks, and take a quarter of the time.
LARGE = ("light_densenet121", "light_inception_v2")


@pytest.mark.parametrize(
    "group",
    [pytest.param(g, marks=pytest.mark.slow if g in LARGE else ()) for g in groups()],
)
def test_nothing_generated_has_changed(group: str) -> None:
    found = difference(group, groups()[group]())
    assert not found, (
        f"{found}\nIf that is meant: python -m tests.goldens {group} --renew\n"
        f"Recorded with:\n{recorded_versions()}now with:\n{versions()}"
    )


def test_every_file_has_a_group() -> None:
    assert sorted(p.stem for p in FOLDER.glob("*.txt")) == sorted(groups())


def test_a_changed_text_and_a_changed_step_are_seen(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("tests.goldens.record.FOLDER", tmp_path)
    recorded = Record({"a.c": ("int a;", "split S0: i by 4"), "b.c": ("int b;", "")})
    (tmp_path / "group.txt").write_text(file_text({"case": recorded}))
    assert difference("group", {"case": recorded}) == ""
    text = Record({"a.c": ("int c;", "split S0: i by 4"), "b.c": ("int b;", "")})
    assert "+a.c" in difference("group", {"case": text})
    step = Record({"a.c": ("int a;", "split S0: i by 8"), "b.c": ("int b;", "")})
    assert "+    split S0: i by 8" in difference("group", {"case": step})
    fewer = Record({"a.c": ("int a;", "split S0: i by 4")})
    assert "-b.c" in difference("group", {"case": fewer})
