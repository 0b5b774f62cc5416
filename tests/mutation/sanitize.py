"""What mutants compile to, run again under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import farkas as fk
import runtime.network.compile_cpu
from runtime.cpu.toolchain import find_toolchain
from runtime.network.built import scratch_bytes
from runtime.network.compile_cpu import compile_graph
from runtime.network.cpu_model import CpuModel
from runtime.network.pointer_order import pointer_order
from tests.mutation.workers import Answer, Arrays, error_text
from tests.robustness.sanitized import Array, Batch, Run


def run_sanitized(data: bytes, inputs: Arrays) -> Answer:
    """Run a model, and each call of each network that it is compiled to under the sanitizers."""
    calls: list[tuple[CpuModel, Run]] = []

    def recording(graph: Any, **options: Any) -> Any:
        compiled: Any = compile_graph(graph, **options)
        plain = compiled.run

        def run(given: Arrays, *rest: Any, **more: Any) -> Any:
            arguments = _open_call if compiled.graph.sizes else _closed_call
            results = plain(given, *rest, **more)
            calls.append((compiled, arguments(compiled, given, results)))
            return results

        compiled.run = run
        return compiled

    runtime.network.compile_cpu.compile_graph = recording
    try:
        with np.errstate(all="ignore"):
            fk.compile_onnx(data, threads=1).run(dict(inputs))
        for compiled, call in calls:
            batch = Batch()
            batch.add("fk_network", compiled.source)
            batch.runs.append(call)
            with tempfile.TemporaryDirectory() as folder:
                code, errors, _ = batch.execute(find_toolchain(), Path(folder))
            if code:
                return Answer("error", errors[-3000:])
        return Answer("ran", f"{len(calls)} networks")
    except fk.FarkasError as error:
        return Answer("refused", f"{type(error).__name__}: {error}")
    except BaseException as error:
        return Answer("error", error_text(error))
    finally:
        runtime.network.compile_cpu.compile_graph = compile_graph


def _closed_call(model: CpuModel, given: Arrays, results: Arrays) -> Run:
    """The call of a network of fixed shapes: inputs, outputs, constants, the arena."""
    arrays = [_given(given[n]) for n in model.input_names]
    arrays += [Array(results[n].nbytes, results[n].itemsize) for n in model.output_names]
    arrays += [_held(model.graph.constants[n]) for n in sorted(model.graph.constants)]
    arrays.append(Array(model.plan().memory.arena, 1, None, False, True))
    return Run("fk_network", (), tuple(arrays), 2)


def _open_call(model: CpuModel, given: Arrays, results: Arrays) -> Run:
    """The call of a network of open sizes, every storage in a block of its own."""
    sizes = model._sizes([array.shape for array in model._given(given)])
    plan, built, graph = model.plan(sizes), model.built, model.graph
    environment = graph.environment(dict(zip(graph.sizes, sizes, strict=True)))
    counts = dict(plan.memory.sharing.bytes)
    for call, own in scratch_bytes(built.scratch, environment).items():
        counts |= {f"{call}/{name}": count for name, count in own.items()}
    places = pointer_order(graph, built.sharing, built.scratch).positions
    # An output that is filled after the call has a place that no storage has.
    arrays = [Array(0, 1)] * (max(places.values(), default=-1) + 1)
    for name, place in places.items():
        if name in graph.inputs:
            arrays[place] = _given(given[graph.label(name)])
        elif name in graph.constants:
            arrays[place] = _held(graph.constants[name])
        elif name in plan.memory.direct:
            made = results[graph.label(plan.memory.direct[name])]
            arrays[place] = Array(made.nbytes, made.itemsize)
        else:
            arrays[place] = Array(counts.get(name, 0), 1, None, False, True)
    return Run("fk_network", plan.arguments, tuple(arrays), 2)


def _given(array: Any) -> Array:
    array = np.ascontiguousarray(array)
    return Array(array.nbytes, array.itemsize, array.tobytes())


def _held(array: np.ndarray) -> Array:
    return Array(array.nbytes, array.itemsize, array.tobytes(), False, True)
