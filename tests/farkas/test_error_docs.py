"""docs/errors.md lists every error with its docstring."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

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


def test_every_error_is_listed() -> None:
    start = DOCS.index("-->", DOCS.index("<!-- errors:")) + 4
    assert DOCS[start : DOCS.index("<!-- end of errors")] == listed()


def test_every_error_is_public() -> None:
    for name in re.findall(r"^### (\w+)", DOCS, re.MULTILINE):
        assert issubclass(getattr(fk, name), fk.FarkasError)


def test_the_examples() -> None:
    blocks = re.findall(r"^```text\n(.*?)^```", DOCS.partition("## Examples")[2], re.S | re.M)
    with pytest.raises(fk.LanguageError) as caught:
        fk.compile("Y[i] = sqroot(X[i])", dtypes="float32")
    assert f"{caught.value}\n" == blocks[0]
    matmul = fk.compile("C[i,j] +=! A[i,k] * B[k,j]")
    with pytest.raises(fk.ArgumentError) as wrong:
        matmul(np.ones((3, 4), np.float32), np.ones((5, 2), np.float32))
    assert f"{wrong.value}\n" == blocks[2]
