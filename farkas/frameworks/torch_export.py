"""`compile_torch`: a program that torch exported, as a network."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy as np

from farkas.frameworks.torch_graph import computes, why_kept
from farkas.frameworks.torch_program import torch_module
from farkas.frameworks.torch_table import decompositions
from farkas.networks.compile_onnx import compile_onnx
from farkas.networks.network import Network
from frontends.aten.convert import Converted, convert, has_lowering, is_getitem
from frontends.aten.values import Unsupported
from poly.errors import ArgumentError, ModelError, UnsupportedModelError, UnsupportedNode
from runtime.common.exchange import memory_of_torch


def compile_torch(exported: Any, **options: Any) -> Network:
    """Compile a program of ``torch.export``.

    >>> exported = torch.export.export(model.eval(), (image,))
    >>> network = fk.compile_torch(exported)
    >>> network.run({"x": image})

    The result is a network like that of `farkas.compile_onnx`: it can be explained, saved, and
    exported as C.  Weights are part of it.  Inputs have the names of the function's arguments;
    dynamic dimensions are open sizes, with the names that torch gives them.  An index that is out
    of range reads the nearest element.

    options : as for `farkas.compile_onnx`

    Raises
    ------
    ArgumentError : something else than an exported program.
    ToolchainError : torch is not installed.
    UnsupportedModelError : operators without a lowering; it names all.
    ModelError : a program that changes its inputs or buffers, or returns something else than
        tensors.
    Otherwise as `farkas.compile_onnx`.
    """
    torch_module()
    if not hasattr(exported, "graph_signature"):
        raise ArgumentError(
            f"compile_torch takes what torch.export.export returns, not a {type(exported).__name__}"
        )
    return compile_onnx(_converted(exported).model, **options)


def _converted(exported: Any) -> Converted:
    """The program as a model."""
    torch = import_module("torch")
    table = torch.export.default_decompositions()
    for target in [*table]:
        if has_lowering(str(target)) or torch.Tag.nondeterministic_seeded in target.tags:
            table.pop(target)
    table.update(decompositions())
    with warnings.catch_warnings():
        # torch warns of its own use of what it deprecates
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        program = exported.run_decompositions(table)
    graph, kinds = program.graph, import_module("torch.export.graph_signature").InputKind
    named = {n.name: n for n in graph.nodes}
    inputs, constants = [], {}
    stored = {**program.state_dict, **program.constants}
    for spec in program.graph_signature.input_specs:
        node = named[spec.arg.name]
        if spec.kind == kinds.USER_INPUT:
            if not hasattr(node.meta.get("val"), "shape"):
                raise ModelError(f"input {node.name} is {node.meta.get('val')!r}, not a tensor")
            inputs.append(node)
        elif spec.target in stored:
            constants[node] = np.asarray(memory_of_torch(node.name, stored[spec.target]), order="C")
    outputs = []
    for spec in program.graph_signature.output_specs:
        if spec.kind.name != "USER_OUTPUT":
            raise ModelError(f"the program changes {spec.target}, which a network cannot")
        if spec.arg.name not in named:
            raise ModelError("an output is not a tensor")
        outputs.append(named[spec.arg.name])
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    wrong = [
        UnsupportedNode(n.name, str(n.target), 0, why)
        for n in nodes
        if computes(n) and (why := why_kept(n)) is not None
    ]
    if wrong:
        raise UnsupportedModelError(tuple(wrong))
    used = {g for n in nodes for g in n.all_input_nodes} | {*outputs}
    constants = {n: a for n, a in constants.items() if n in used}
    nodes = [n for n in nodes if computes(n) or is_getitem(n)]
    try:
        return convert(nodes, inputs, outputs, constants=constants, checked=False)
    except Unsupported as reason:
        raise ModelError(f"the program cannot be compiled: {reason}") from None
