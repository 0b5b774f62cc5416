"""Farkas, through its public interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.kernel import Array, aligned
from benchmarks.peers.base import Peer, Prepared
from benchmarks.task import Task

#: Outputs of fewer bytes are allocated by the call, which is cheaper than checking given ones.
SMALL = 1 << 16


class Farkas(Peer):
    """As a user would: comprehensions for their sizes where they are natural, else ONNX."""

    name = "farkas"
    modules = ("farkas.kernels.kernel", "farkas.networks.import_and_compile")
    package = "farkas"
    ours = True

    def missing(self) -> str | None:
        import farkas as fk

        try:
            fk.find_toolchain()
        except fk.ToolchainError as error:
            return str(error)
        return None

    def version(self) -> str:
        import farkas as fk

        return fk.__version__

    def prepare(self, task: Task, threads: int) -> Prepared:
        if task.kernel is not None and task.kernel.native:
            return prepare_text(task, threads, specialised=True)
        import farkas as fk

        return prepare_model(fk.compile_onnx(task.path, threads=threads), task)


class FarkasFloat32(Farkas):
    """The same kernel on float32, where a task is one on a narrower type."""

    name = "farkas-float32"

    def suits(self, task: Task) -> bool:
        return task.wide is not None

    def prepare(self, task: Task, threads: int) -> Prepared:
        assert task.wide is not None
        return super().prepare(task.wide, threads)


class FarkasText(Farkas):
    """The comprehension on a narrow type with its weights given in every call."""

    name = "farkas-text"

    def suits(self, task: Task) -> bool:
        kernel = task.kernel
        if kernel is None or task.wide is None:
            return False
        return not kernel.native and kernel.text is not None

    def prepare(self, task: Task, threads: int) -> Prepared:
        return prepare_text(task, threads, specialised=True)


def _values(results: Mapping[str, Array]) -> Sequence[Array]:
    return list(results.values())


class FarkasSymbolic(Farkas):
    """The comprehension compiled once for all sizes."""

    name = "farkas-symbolic"

    def suits(self, task: Task) -> bool:
        if task.kernel is None or task.kernel.text is None:
            return False
        return task.kernel.native or task.suite == "symbolic"

    def prepare(self, task: Task, threads: int) -> Prepared:
        return prepare_text(task, threads, specialised=False)


class FarkasFixed(Farkas):
    """Compiled for the sizes of its inputs, which other contenders of Farkas leave open."""

    name = "farkas-fixed"

    def suits(self, task: Task) -> bool:
        return task.kernel is None or task.kernel.text is not None

    def prepare(self, task: Task, threads: int) -> Prepared:
        if task.kernel is not None:
            return prepare_text(task, threads, specialised=True)
        import farkas as fk

        shapes = {name: array.shape for name, array in task.inputs.items()}
        model = fk.compile_onnx(task.path, shapes=shapes, threads=threads)
        return prepare_model(model, task)


def prepare_text(task: Task, threads: int, specialised: bool) -> Prepared:
    """Prepare a task's comprehension; a result that is not small reuses one array."""
    import farkas as fk

    assert task.kernel is not None and task.kernel.text is not None and task.arrays is not None
    text = task.kernel.text
    kernel = fk.compile(text.text, sizes=text.sizes if specialised else None, threads=threads)
    arrays = [task.arrays[n].reshape(s) for n, s in text.shapes.items()]
    out = aligned(np.zeros(task.kernel.output, task.kernel.result_type))
    if out.nbytes < SMALL:
        return Prepared(lambda: kernel(*arrays), lambda result: [result])
    return Prepared(lambda: kernel(*arrays, out=out), lambda result: [result])


def prepare_model(model: Any, task: Task) -> Prepared:
    """Prepare a compiled network of any kind, with the task's inputs."""
    inputs = task.inputs
    if model.is_whole:
        out = {p.name: aligned(np.zeros(p.shape, p.dtype.numpy)) for p in model.outputs}
        return Prepared(lambda: model.run(inputs, out=out), _values, _weights(model, task))
    model.run(inputs)  # compiles the parts that need shapes
    return Prepared(lambda: model.run(inputs), _values, _weights(model, task))


def _weights(model: Any, task: Task) -> int | None:
    """Bytes of the constants of a compiled network; None for kernels."""
    if task.kernel is not None:
        return None
    return sum(int(a.nbytes) for graph in model.graphs for a in graph.constants.values())
