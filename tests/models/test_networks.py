"""The light models that come with onnx, compiled and run."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import farkas as fk
from farkas.cli.demo import relative_error
from frontends.onnx import import_model
from frontends.onnx.model.light_models import load_light
from frontends.onnx.model.loading import live_nodes, used_names
from poly.ir.graph import Call, View
from poly.ir.program import verify_program
from tests.models.networks import HEADING, NAMES, TOLERANCE, measure, random_weights_error

#: Nodes that pass a value on without a trace in the compiled graph.
TRANSPARENT = {"Dropout", "Identity"}


@pytest.mark.parametrize("name", ["squeezenet", pytest.param("shufflenet", marks=pytest.mark.slow)])
def test_a_network_agrees_with_both_oracles(name: str, cache_directory: Path) -> None:
    path, inputs, expected = load_light(name)
    model = fk.compile_onnx(path)
    for threads in (1, 2):
        assert relative_error(model.run(inputs, threads=threads), expected) < TOLERANCE
    assert random_weights_error(path, inputs, cache_directory) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_every_node_is_a_comprehension(name: str) -> None:
    """What depends on an input is a call of a program or a view of the same bytes.

    There is no third kind of node, and nothing that depends on an input is left out or folded.
    """
    path, inputs, _ = load_light(name)
    graph = import_model(path)
    for node in graph.nodes:
        assert isinstance(node, Call | View)
        if isinstance(node, Call):
            verify_program(node.program)
    proto = onnx.load(path).graph
    computed, wanted = set(inputs), set()
    for node in live_nodes(proto.node, [o.name for o in proto.output]):
        if computed & set(used_names(node)):
            computed |= set(node.output)
            if node.op_type not in TRANSPARENT:
                wanted.add(next(o for o in node.output if o))
    made = {graph.label(name) for node in graph.nodes for name in node.outputs}
    assert wanted and wanted <= made


@pytest.mark.slow
def test_all_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints a table: ``python -m pytest -m slow tests/models -s``."""
    with capsys.disabled():
        print(f"\n{HEADING}", flush=True)
        rows = []
        for name in NAMES:
            rows.append(measure(name, tmp_path / name))
            print(rows[-1], flush=True)
    for row in rows:
        assert row.stored_error < TOLERANCE, row
        assert row.random_error < TOLERANCE, row
        assert row.cached < 5, row
