"""`Task`: the computation that one process measures: a file, its arrays, and a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from benchmarks.kernel import Array, Kernel


@dataclass(frozen=True)
class Task:
    """One computation, ready to be handed to every peer.

    Attributes
    ----------
    name, suite : as shown in the tables
    path : the ONNX file
    inputs : arrays by input name, in the order of the file
    outputs : names of the outputs, in the order of the file
    tolerance : greatest difference between results, relative to the greatest magnitude
    kernel, arrays : for kernels, the definition and the arrays of inputs and weights
    reference : the outputs, in the order of the file; None leaves it to the first peer
    element : the type that it is about; wide : the same kernel on float32, if that is another
    forms : files of other models of the same, see `Kernel.forms`
    """

    name: str
    suite: str
    path: Path
    inputs: dict[str, Array]
    outputs: tuple[str, ...]
    kernel: Kernel | None = None
    arrays: dict[str, Array] | None = None
    reference: Callable[[], Sequence[Array]] | None = None
    tolerance: float = 1e-3
    element: str = "float32"
    wide: Task | None = None
    forms: Mapping[str, Path] = field(default_factory=dict)

    @property
    def is_translated(self) -> bool:
        """Whether `benchmarks.translate` knows its operators, for libraries without ONNX."""
        return self.kernel is not None or self.suite == "E"


class UnavailableError(OSError):
    """A computation that is not available here, and why."""


def kernel_task(kernel: Kernel, suite: str, folder: Path) -> Task:
    """The task of a kernel, with its ONNX file written to a folder."""
    arrays = kernel.draw()
    made = _kernel_task(kernel, suite, folder, arrays)
    if kernel.wide is None:
        return made
    wide = _kernel_task(kernel.wide, suite, folder, kernel.widened(arrays))
    paths = {}
    for form, model in kernel.forms(arrays).items():
        paths[form] = folder / f"{kernel.name}, {form}.onnx"
        onnx.save(model, paths[form])
    return replace(made, wide=wide, forms=paths, element=kernel.name.rpartition(" ")[2])


def _kernel_task(kernel: Kernel, suite: str, folder: Path, arrays: dict[str, Array]) -> Task:
    path = folder / f"{kernel.name}.onnx"
    onnx.save(kernel.model(arrays), path)
    inputs = {n: arrays[n] for n in kernel.inputs}

    def reference() -> list[Array]:
        return [kernel.reference(arrays)]

    return Task(
        kernel.name, suite, path, inputs, ("Y",), kernel, arrays, reference, kernel.tolerance
    )
