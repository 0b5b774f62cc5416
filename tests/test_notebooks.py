"""The notebooks run from a clean kernel, and what is stored in them is small and no error."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 300_000
#: Libraries that are not among those of the tests; `make frameworks` runs these notebooks.
NEEDS = {"7_torch_operator": "torch"}


def test_there_are_nine() -> None:
    assert [p.stem[0] for p in NOTEBOOKS] == ["1", "2", "3", "4", "5", "6", "7", "8", "9"]
    assert NEEDS.keys() <= {p.stem for p in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem in NEEDS and not find_spec(NEEDS[path.stem]):
        pytest.skip(f"{NEEDS[path.stem]} is not installed; make frameworks has it")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        assert all(o.output_type != "error" for o in cell.get("outputs", ()))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_what_is_stored(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    texts = [str(o) for c in code for o in c.outputs]
    assert sum(bool(c.outputs) for c in code) > len(code) // 2
    # No output of errors, no colours of a terminal, no place of the machine that ran it.
    assert not any("'error'" in t or "\\x1b" in t or "/home/" in t or "/tmp/" in t for t in texts)
