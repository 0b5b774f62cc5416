"""The files in ``cases``: one schedule each that must be refused, and a near twin that is legal.

A file begins with a comment that says why.  Its sections:

* ``program:`` and ``script:``  the last step of the script is the one that is refused
* ``refused:``                  kind, source, sink, element and smallest sizes
* ``legal program:``, ``legal script:``, ``legal mode:``  what to change for the twin
* ``mode:``                     ``exact`` or ``relaxed``, which is the default
* ``replay:``                   sizes at which the whole illegal order is run, not only the pair
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "cases"
_HEAD = re.compile(r"^([a-z ]+):[ ]*(.*)$")
_SECTIONS = {
    "program", "script", "refused", "legal program", "legal script", "legal mode", "mode", "replay"
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    name: str
    why: str
    program: str
    script: str
    mode: str
    kind: str
    source: str
    sink: str
    element: str
    sizes: dict[str, int]
    replay: dict[str, int]
    legal_program: str
    legal_script: str
    legal_mode: str

    @property
    def step(self) -> str:
        """The step that is refused."""
        return self.script.splitlines()[-1]


def read_case(path: Path) -> Case:
    """Parse one file; ValueError for anything that a case does not have."""
    comment: list[str] = []
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        head = _HEAD.match(line)
        if line.startswith("#") and current is None:
            comment.append(line.lstrip("# "))
        elif head and head[1] in _SECTIONS and head[1] not in sections:
            current = sections[head[1]] = [head[2]] if head[2] else []
        elif line.startswith("    ") and current is not None:
            current.append(line[4:])
        elif line.startswith("# ") and comment:
            comment.append(line[2:])
        else:
            raise ValueError(f"{path.name}, line {number}: {line}")
    text = {name: "\n".join(lines) for name, lines in sections.items()}
    refused = dict(line.split(": ", 1) for line in sections["refused"])
    if set(refused) != {"kind", "source", "sink", "element", "sizes"} or not comment:
        raise ValueError(f"{path.name}: a comment and five facts are needed")
    if not any(name.startswith("legal") for name in text):
        raise ValueError(f"{path.name}: the legal twin is missing")
    sizes = _sizes(refused["sizes"])
    return Case(
        path.stem, " ".join(comment), text["program"], text["script"],
        text.get("mode", "relaxed"), refused["kind"], refused["source"], refused["sink"],
        refused["element"], sizes, _sizes(text["replay"]) if "replay" in text else sizes,
        text.get("legal program", text["program"]), text.get("legal script", text["script"]),
        text.get("legal mode", text.get("mode", "relaxed")),
    )  # fmt: skip


def _sizes(text: str) -> dict[str, int]:
    return {n: int(v) for n, v in (part.split("=") for part in text.split(", "))}


CASES = [read_case(path) for path in sorted(FOLDER.glob("*.txt"))]
