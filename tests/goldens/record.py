"""`Record`: the digests of a case's texts and the schedules behind them, and their file form.

    [rn_64x64_k3s1_56]
    fk_k0_conv.c 0c5f6fa6b1c3d1de
        tile S0: k, q by 16, 8
    network.c 2f8a83c1e0a5c7b4

A text is named by its file or dialect; the schedule is its script, a line a step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent / "recorded"
#: The libraries that have a say in what is generated; their versions are recorded, too.
LIBRARIES = ("islpy", "numpy", "onnx", "opt_einsum")
_VERSIONS = FOLDER.parent / "versions.txt"
_INDENT = "    "


@dataclass(frozen=True)
class Record:
    """What was generated for one case.

    generated : by name, each text and the script of its schedule, "" if it has none
    """

    generated: Mapping[str, tuple[str, str]]

    def __or__(self, other: Record) -> Record:
        return Record({**self.generated, **other.generated})

    def __str__(self) -> str:
        """Digests of the texts, each above its script, as a file has them."""
        found = []
        for name, (text, script) in self.generated.items():
            found.append(f"{name} {hashlib.sha256(text.encode()).hexdigest()[:16]}")
            found += [_INDENT + line for line in script.strip().splitlines()]
        return "\n".join(found)


def file_text(records: Mapping[str, Record]) -> str:
    """The file of a group's records."""
    return "\n\n".join(f"[{name}]\n{record}" for name, record in records.items()) + "\n"


def versions() -> str:
    """The versions of the libraries that have a say, a line each."""
    return "".join(f"{name} {version(name)}\n" for name in LIBRARIES)


def recorded_versions() -> str:
    """The same when the goldens were recorded."""
    return _VERSIONS.read_text()


def renew(group: str, records: Mapping[str, Record]) -> None:
    """Write the file of a group."""
    (FOLDER / f"{group}.txt").write_text(file_text(records))


def renew_versions() -> None:
    """Write the versions, which is right if all groups are renewed."""
    _VERSIONS.write_text(versions())


def stored(group: str) -> str:
    """The file of a group as it was recorded; empty if it was not."""
    path = FOLDER / f"{group}.txt"
    return path.read_text() if path.exists() else ""


def difference(group: str, records: Mapping[str, Record]) -> str:
    """What differs from the file of a group, as a unified diff; empty if nothing does."""
    before, now = stored(group), file_text(records)
    names = (f"{group}, recorded", f"{group}, now")
    return "\n".join(unified_diff(before.splitlines(), now.splitlines(), *names, lineterm="", n=1))
