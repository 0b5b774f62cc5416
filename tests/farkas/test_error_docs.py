"""docs/errors.md lists every error with its docstring."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import farkas as fk
from farkas import errors as own
from poly import errors

DOCS = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")


def listed() -> str:
    """The list in the documentation, as it follows from the code."""
    found = {
        name: value
        for module in (errors, own)
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, fk.FarkasError)
    }
    lines = []
    for name, value in found.items():
        base = value.__bases__[0].__name__
        text = (inspect.getdoc(value) or "").replace("``", "`")
        head, _, attributes = text.partition("\n\nAttributes\n----------\n")
        kind = "" if name == "FarkasError" else f", a `{base}`"
        lines += [f"### {name}", "", f"`fk.{name}`{kind}: {' '.join(head.split())}", ""]
        if attributes:
            lines += ["```text", attributes, "```", ""]
    return "\n".join(lines)


def test_every_error_is_listed_and_says_what_to_do() -> None:
    start = DOCS.index("-->", DOCS.index("<!-- errors:")) + 4
    section = DOCS[start : DOCS.index("<!-- end of errors")]
    advice = re.compile(r"^\*\*What to do\.\*\* .*\n\n?", re.MULTILINE)
    assert advice.sub("", section).rstrip() == listed().rstrip()
    assert len(advice.findall(section)) == section.count("### ")


def test_every_error_is_public() -> None:
    for name in re.findall(r"^### (\w+)", DOCS, re.MULTILINE):
        assert issubclass(getattr(fk, name), fk.FarkasError)
