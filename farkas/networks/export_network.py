"""`exported`: an ONNX network of fixed sizes as the texts of a C file and of its header."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farkas.export.build_wasm import check_wasm
from farkas.export.build_wheel import VERSION, check_package
from farkas.export.exported import Exported, convention_of, named_after
from farkas.export.forms import check_form, write_form
from farkas.networks.given_shapes import plain_shapes
from farkas.networks.open_stage import open_stage
from frontends.onnx import (
    Given,
    Source,
    Stage,
    open_model,
)
from poly.errors import ArgumentError, ModelError
from poly.ir.size_values import by_name, whole_number
from poly.machine.isa import DEFAULT_ISA, find_isas
from runtime.common.arguments import check_names
from runtime.common.compile_report import Progress
from runtime.common.random_arrays import random_array

if TYPE_CHECKING:
    from farkas.export.graph_module import Whole

Array = np.ndarray[Any, np.dtype[Any]]
#: A network as a function of its inputs by name.
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def export_network(
    source: Any,
    path: str | os.PathLike[str],
    run: Run,
    *,
    weights: str | os.PathLike[str] | None,
    selftest: bool | Mapping[str, Any],
    name: str | None,
    to: str = "c",
    version: str | None = None,
    cc: str | None = None,
    isa: str | Sequence[str] | None = None,
    **options: Any,
) -> Exported:
    """Write the files; see `farkas.export_onnx`.

    run : computes what the selftest expects; options : as for `exported`
    """
    check_form(
        to, path, selftest=selftest is not False, weights=weights is not None,
        version=version is not None, cc=cc is not None,
    )  # fmt: skip
    name = name or _named(source, path, to)
    isa = isa or ("wasm" if to == "wasm" else DEFAULT_ISA)
    if to == "wheel":
        check_package(name, version or VERSION)
    if to == "wasm":
        check_wasm([x.name for x in find_isas(isa)], options.get("threads", "none"))
    made = exported(source, name, isa=isa, is_separate=weights is not None, **options)
    apart = None if weights is None else Path(weights)
    if to != "c":
        return write_form(made, to, Path(path), apart, version, cc)
    test = ""
    if selftest is not False:
        given = {} if selftest is True else dict(by_name("selftest", selftest))
        test = _selftest(made, run, given, options.get("values") or {})
    return made.write(Path(path), apart, test)


def _named(source: Any, path: str | os.PathLike[str], to: str) -> str:
    """The name of a network: that of what is written; for a wheel, of the file of the network.

    Raises
    ------
    ArgumentError : a wheel of a network that has no file needs a name.
    """
    if to != "wheel":
        return named_after(path, to)
    if not isinstance(source, (str, os.PathLike)):
        raise ArgumentError("a wheel needs a name: pass name=…")
    return named_after(source)


def _selftest(made: Exported, run: Run, given: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """The text of a program that compares exported code with what a function computes.

    given : arrays for inputs; others are made up, with the example sizes
    """
    from codegen.c.selftest_text import selftest_text

    check_names("input", given, made.inputs)
    fixed = {n: np.asarray(a) for n, a in {**given, **values}.items()}
    sizes: dict[str, int] = {**made.examples}
    for port in made.module.inputs:
        if port.label in fixed:
            if fixed[port.label].ndim != len(port.shape):
                given_shape = list(fixed[port.label].shape)
                raise ArgumentError(
                    f"selftest: input '{port.label}' has {len(port.shape)} dimensions, and not the "
                    f"shape {given_shape}"
                )
            pairs = zip(port.shape, fixed[port.label].shape, strict=True)
            sizes |= {e: n for e, n in pairs if isinstance(e, str)}
    draw = np.random.default_rng(0)
    arrays = {
        p.label: fixed[p.label]
        if p.label in fixed
        else random_array(draw, p.dtype.numpy, tuple(_size(e, sizes) for e in p.shape))
        for p in made.module.inputs
    }
    results = run(arrays)
    expected = [results[p.label] for p in made.module.outputs]
    return selftest_text(made.module, [*sizes.values()], list(arrays.values()), expected)


def _size(extent: int | str, sizes: Mapping[str, int]) -> int:
    return extent if isinstance(extent, int) else sizes[extent]


def exported(
    source: str | os.PathLike[str] | bytes | Any,
    name: str,
    *,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    values: Mapping[str, Any] | None = None,
    examples: Mapping[str, int] | None = None,
    isa: str | Sequence[str] = DEFAULT_ISA,
    threads: str = "none",
    is_separate: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """What `export_onnx` writes; `is_separate` says whether each run is passed the weights."""
    from farkas.export.constant_pool import ConstantPool
    from farkas.export.graph_module import graph_module
    from farkas.export.joined import joined

    chosen, convention, pool = find_isas(isa), convention_of(threads), ConstantPool()
    fixed = {n: np.array(a, order="C") for n, a in by_name("values", values or {}).items()}
    tried = {n: whole_number(f"examples[{n!r}]", e) for n, e in (examples or {}).items()}
    whole = whole_network(open_model(source), plain_shapes(shapes or {}), fixed, tried)
    modules = [
        graph_module(whole, name, one, is_separate, convention, progress, pool) for one in chosen
    ]
    module = joined(modules)
    return Exported(module, dict(zip(module.sizes, whole.examples, strict=True)))


def whole_network(
    source: Source,
    shapes: Mapping[str, tuple[int, ...] | int],
    values: Mapping[str, Array],
    examples: Mapping[str, int],
) -> Whole:
    """A model as one graph.

    values : of inputs that are the same in every run; examples : of open sizes

    Raises
    ------
    ModelError : parts that only a run knows.
    UnsupportedModelError : nodes that cannot be compiled.
    ArgumentError : `shapes`, `values` or `examples` that do not match the model.
    """
    from farkas.export.graph_module import Whole

    ports = {p.name: p for p in source.input_ports(shapes)}
    check_names("input", values, ports)
    sizes: dict[str, int] = {}
    for name, array in values.items():
        if array.dtype != ports[name].dtype.numpy:
            raise ArgumentError(f"values: {name!r} is {array.dtype}, expected {ports[name]}")
        ports[name].check(array.shape, sizes)
    shapes = {**{n: a.shape for n, a in values.items()}, **shapes}
    known = {name: Given.of(array, known=True) for name, array in values.items()}
    ports = {p.name: p for p in source.input_ports(shapes)}
    stage, tried = open_stage(
        source, [p for n, p in ports.items() if n not in known], known, examples
    )
    if not stage.is_whole or stage.graph is None:
        raise ModelError(_why_not_whole(source, stage))
    order = [info.name for info in source.inputs]
    labels = {size: stage.sizes[size] for size in stage.graph.sizes}
    own = tuple(tried[labels[size]] for size in stage.graph.sizes)
    return Whole(stage.graph, order, values, labels, own, stage.conditions)


def _why_not_whole(source: Source, stage: Stage) -> str:
    """What keeps a network from being compiled before it runs."""
    reasons = [f"{call.origin}: numpy computes it, and has no C form" for call in stage.opaque]
    if stage.demands:
        inputs = _inputs_of(source, stage.demands)
        what = ", ".join(f"'{name}'" for name in inputs) or "values that are computed"
        first = stage.rest[0].node.op_type if stage.rest else "the outputs"
        reasons.append(
            f"the elements of {what} decide about shapes, first in {first}: if they are the same "
            "in every run, give them as values=, or as --value NAME=FILE.npy"
        )
    if not reasons:
        reasons = ["its outputs are not computed by kernels alone"]
    return "\n  ".join(["the network cannot be exported:", *reasons])


def _inputs_of(source: Source, names: Collection[str]) -> list[str]:
    """The inputs on which values depend, in order; those of bodies belong to the node."""
    makers = {output: p.node for p in source.nodes for output in p.node.output if output}
    seen: set[str] = set()
    work = [*names]
    while work:
        name = work.pop().split(source.separator)[0]
        if name not in seen:
            seen.add(name)
            work += [n for n in makers[name].input if n] if name in makers else []
    return [info.name for info in source.inputs if info.name in seen]
