"""`Network`: an ONNX network as a function of named arrays, on any target.

Code that reads models and compares values is loaded when it is needed.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from farkas.networks.executable import Executable, WholeGraph
from farkas.networks.given_shapes import plain_shapes
from farkas.targets.base import Target
from poly.errors import ArgumentError, ModelError, SavedFileError
from poly.ir.port import Port
from poly.ir.size_values import by_name
from runtime.common.compile_report import CompileReport, Progress
from runtime.common.exchange_call import exchange_call, is_foreign_run
from runtime.common.fingerprint import data_digest, file_digest
from runtime.network.profile import Timing, check_repeat

if TYPE_CHECKING:
    from farkas.export.exported import Exported
    from farkas.networks.compare import Comparison
    from farkas.views.page import View
    from frontends.onnx import Source
    from poly.ir.graph import Graph
    from runtime.gpu.device import Device
    from runtime.network.compiled_graph import CompiledGraph

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Origin:
    """What a model was compiled from: enough to compile it again in another way.

    compile : compiles an origin; model : a path, bytes or a message; a file is read again, so that
    no weights are kept; shapes : the given sizes; outputs : names of values that are returned in
    addition to the outputs; passed : names of inputs that are passed although they have defaults
    digest : of the file when it was compiled; None if that is not known
    files : the digests of the other files that it is made from, by name
    """

    compile: Callable[[Origin], Network]
    model: Any
    target: Target
    shapes: Mapping[str, Sequence[int] | int]
    progress: Progress | None = None
    outputs: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    digest: str | None = None
    files: Mapping[str, str | None] = field(default_factory=dict)

    def open(self) -> Source:
        """The model, read again.

        Raises
        ------
        ModelError : it cannot be read, or has changed since, so that its parts would not belong
            together.
        """
        from frontends.onnx import open_model

        self.check()
        return open_model(self.model).giving(self.outputs).taking(self.passed)

    def check(self) -> None:
        """Check that the model is what it was.

        Raises
        ------
        ModelError : it has changed since.
        """
        if self.digest is not None and model_digest(self.model) not in (self.digest, None):
            raise changed(self.model)
        self.check_files()

    def check_files(self) -> None:
        """The same for the other files alone."""
        for name, known in self.files.items():
            if self.file_digest(name) not in (known, None):
                raise changed(self.model)

    def file_digest(self, name: str) -> str | None:
        """The digest of a file beside the model's; None if it cannot be read."""
        if not isinstance(self.model, (str, os.PathLike)):
            return None
        return file_digest(Path(self.model).parent / name)

    def passing(self, names: Collection[str]) -> Origin | None:
        """The same with further inputs passed; None if not all are inputs with defaults."""
        known = {info.name for info in self.open().defaults}
        if not known.issuperset(names):
            return None
        return replace(self, passed=tuple(sorted({*self.passed, *names})))

    def specialized(self, sizes: Mapping[str, int]) -> Origin:
        """The same with named dimensions fixed.

        Raises
        ------
        ArgumentError : a name that is unknown or already fixed, or an invalid size.
        """
        source = self.open()
        known, free = (_names(source.input_ports(s)) for s in ({}, self.shapes))
        for name, size in sizes.items():
            if name not in free:
                reason = "is fixed already" if name in known else "is not a dimension of the inputs"
                raise ArgumentError(f"'{name}' {reason}; {_listed(free)}")
            try:
                is_size = not isinstance(size, bool) and operator.index(size) > 0
            except TypeError:
                is_size = False
            if not is_size:
                raise ArgumentError(f"'{name}' must be a positive integer, not {size!r}")
        fixed = {n: operator.index(s) for n, s in sizes.items()}
        return replace(self, shapes={**self.shapes, **fixed})


def changed(model: Any) -> ModelError:
    """The error that a file is not the one any more that was compiled."""
    return ModelError(
        f"{os.fspath(model)} has changed since it was loaded; load it again with compile_onnx"
    )


def model_digest(model: Any) -> str | None:
    """The digest of a file or of bytes; None for a message, or if the file cannot be read."""
    if isinstance(model, bytes):
        return data_digest(model)
    return file_digest(model) if isinstance(model, (str, os.PathLike)) else None


class Network:
    """A compiled ONNX network.

    With all shapes fixed it is compiled as a whole, before the first run.  Any other is compiled
    when arrays arrive, and the result serves all shapes that satisfy its `conditions`.  Where
    the shape of a value depends on elements, that is done stage by stage.

    Concurrent runs from several threads take turns: they share memory.  A copy is the network
    itself; an unpickled one is compiled again, or found in the cache.

    Attributes: `inputs` and `outputs`, with their types as far as these are known.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def __init__(self, origin: Origin, executable: Executable) -> None:
        self.origin, self._executable = origin, executable
        self.inputs, self.outputs = executable.inputs, executable.outputs
        #: The network that is passed further inputs, by their names.
        self._passed: dict[frozenset[str], Network] = {}
        self._passing = threading.Lock()
        #: Makes it again from the file that it was loaded from, if it was.
        self._again: tuple[Any, ...] | None = None

    def __repr__(self) -> str:
        calls = f"{self.report.calls} calls" if self.is_whole else "open sizes"
        return f"<Network of {calls}, for {self.origin.target.name}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._again is not None:
            return self._again
        return _restored, (replace(self.origin, progress=None, digest=None, files={}),)

    # --- running --------------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        stream: Any = None,
        like: Any = None,
    ) -> dict[str, Any]:
        """Run the network: arrays by input name in, arrays by output name out, in its order.

        Arrays are those of numpy, torch or JAX, or have ``__dlpack__``, ``__array_interface__`` or
        ``__array__``; on a GPU they may be on the device.  If all inputs are, so are outputs
        that are not given, as `runtime.gpu.device.DeviceArray`, and the call may return before they
        are done.  Shapes for which nothing is compiled yet are compiled first.

        Where the model lists an initializer as an input, too, an array may be given for it; the
        network is compiled once more then.

        Parameters
        ----------
        threads : of this run, on a CPU; default is what the network was compiled with
        out : arrays to write to, for some or all outputs by name
        stream : on a GPU, the stream to run on: CUDA's handle or an object that has one, or an
            OpenCL queue
        like : what outputs are: ``"numpy"``, ``"torch"``, ``"jax"``, or as an array of one of
            them; default is as the first input that is not numpy's

        Raises
        ------
        ArgumentError : an input is missing, unknown, or does not match the model's declaration; an
            array of `out` does not match the output, or shares memory with another one; `threads`
            on a GPU, `stream` on a CPU.
        ModelError : the model cannot be run on arrays of these shapes, or with these elements: an
            index is out of range, say.
        UnsupportedModelError : nodes that cannot be compiled for these shapes.
        ToolchainError : a kernel of a GPU failed.
        """
        if like is None and stream is None:
            again = self._executable.run_again(inputs, threads, out)
            if again is not None:
                return again
        network = self._passed_further(inputs) or self
        run = partial(network._executable.run, threads=threads, stream=stream)
        if like is None and not is_foreign_run(inputs, out):
            return run(inputs, out=out)
        dtypes = {p.name: p.dtype.numpy for p in network.inputs if p.dtype is not None}

        def call(ready: Mapping[str, Any], out: Any) -> dict[str, Any]:
            return run(ready, out=out)

        out = None if out is None else by_name("outputs", out)
        found: dict[str, Any] = exchange_call(
            call, by_name("inputs", inputs), out, like, dtypes, self.origin.target.runner
        )
        return found

    def _passed_further(self, inputs: Any) -> Network | None:
        """The network that takes arrays for some initializers, None if none are given."""
        if not isinstance(inputs, Mapping) or len(inputs) <= len(self.inputs):
            return None
        names = frozenset(n for n in inputs if isinstance(n, str))
        names -= {port.name for port in self.inputs}
        if not names:
            return None  # of another kind, which the call will say
        with self._passing:
            if names not in self._passed:
                try:
                    origin = self.origin.passing(names)
                except (ModelError, SavedFileError) as error:
                    raise ArgumentError(
                        f"there is no input {', '.join(map(repr, sorted(names)))}, unless the "
                        f"model has a default for it, which cannot be read: {error}"
                    ) from error
                if origin is None:
                    return None  # names that are unknown, which the call will say
                self._passed[names] = self.origin.compile(origin)
            return self._passed[names]

    def prepare(self, shapes: Mapping[str, Sequence[int] | int]) -> None:
        """Compile what runs on inputs of these shapes will need, unless it is there already.

        >>> model.prepare({"batch": 8, "length": 128})

        Stages that depend on elements of inputs, or follow operators that run as numpy, are
        compiled by the first run.

        shapes : as for `compile_onnx`, for all open dimensions

        Raises
        ------
        ArgumentError : sizes that are missing, unknown, or do not match the declarations.
        ModelError, UnsupportedModelError : the model cannot be compiled for these sizes.
        """
        self._executable.prepare(plain_shapes(shapes))

    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        """Median seconds of each compiled call, one after the other.

        On a CPU this uses one thread; on a GPU it includes the host's work.  Operators that run as
        numpy are run, but not measured.
        """
        check_repeat(repeat)
        return self._executable.profile(inputs, repeat)

    # --- what was compiled ----------------------------------------------------------------------

    @property
    def report(self) -> CompileReport:
        """What compiling has taken and produced so far."""
        return self._executable.report

    @property
    def compiled(self) -> tuple[CompiledGraph, ...]:
        """The graphs compiled so far: one of fixed shapes, or those of the stages."""
        return self._executable.compiled

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Kernels and values of everything compiled so far."""
        return tuple(c.graph for c in self.compiled)

    @property
    def source(self) -> dict[str, str]:
        """The generated text by file; with several stages, names begin with ``stage0/``…."""
        return _joined([c.source for c in self.compiled], "/")

    @property
    def schedules(self) -> dict[str, str]:
        """The schedule script of each kernel, by its name in the text."""
        return _joined([c.schedules for c in self.compiled], " ")

    @property
    def is_whole(self) -> bool:
        """Whether all shapes are fixed, and the network is compiled as a whole."""
        return isinstance(self._executable, WholeGraph)

    @property
    def threads(self) -> int | None:
        """The default number of threads of a run; None: all, or on a GPU no such number."""
        return self._executable.threads

    @property
    def device(self) -> Device:
        """The GPU that it runs on.  Raises `ArgumentError` for other targets."""
        return self.origin.target.device

    @property
    def conditions(self) -> tuple[str, ...]:
        """For each compiled stage, the conditions on sizes under which it is used again."""
        return self._executable.conditions

    @property
    def opaque_operators(self) -> tuple[str, ...]:
        """The operators run as numpy so far, each once."""
        return self._executable.opaque_operators

    def explain(self, run: bool = True) -> View:
        """Show what was fused and what that saves, what was not and why, and each kernel's cost.

        Bytes and times depend on sizes.  With open sizes there are none, and only the stages
        compiled so far are shown: ``network.specialize(batch=1).explain()`` shows all.

        run : time the kernels, on one thread and made-up inputs
        """
        from farkas.views.explain import explain_graphs, explain_network

        if not self.is_whole:
            return explain_graphs(self.graphs, self.origin.target.pipeline.lanes)
        return explain_network(self.origin.target, self.compiled[0], run)

    def _repr_html_(self) -> str:
        from farkas.views import show

        return show(self)._repr_html_()

    def specialize(self, **sizes: int) -> Network:
        """The model compiled for sizes of named dynamic dimensions; this one is unchanged.

        >>> one = model.specialize(batch=1)

        With no dynamic dimension left, it is compiled as a whole, at once.  For names that are not
        identifiers, write ``specialize(**{"batch size": 4})``.

        Raises
        ------
        ArgumentError : a name that is unknown or already fixed, or a size that is not positive.
        ModelError, UnsupportedModelError : the model cannot be compiled for these sizes.
        """
        return self.origin.compile(self.origin.specialized(sizes))

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        to: str = "c",
        isa: str | Sequence[str] | None = None,
        threads: str = "none",
        examples: Mapping[str, int] | None = None,
        name: str | None = None,
        weights: str | os.PathLike[str] | None = None,
        selftest: bool | Mapping[str, Any] = False,
        version: str | None = None,
        cc: str | None = None,
    ) -> Exported:
        """Write the network as a C file and a header that need nothing of Farkas; or as a library,
        a wheel or WebAssembly.

        >>> model.export("resnet50.c", isa="aarch64")

        Open sizes are arguments of each run; `specialize` fixes them.  See `farkas.export_onnx`,
        also for what is raised.
        """
        from farkas.networks.export_network import export_network

        self.origin.check()
        return export_network(
            self.origin.model, path, self.run, weights=weights, selftest=selftest, name=name,
            to=to, version=version, cc=cc, isa=isa, shapes=self.origin.shapes, examples=examples,
            threads=threads,
            progress=self.origin.progress,
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str], *, with_model: bool | None = None) -> None:
        """Write everything that is compiled to one file, for this kind of machine.

        >>> model.save("resnet50.fkm")

        `farkas.load` reads it, without a compiler and with an empty cache.  Of a network of open
        sizes, that is what has been compiled so far: `prepare` or `run` it first.

        path : the file, written as a whole or not at all
        with_model : whether the ONNX model is put in, too, so that other sizes, other outputs and C
            can be made of what is loaded; by default only of a network that is not compiled as a
            whole, which needs it

        Raises
        ------
        ArgumentError : a network on a GPU, or a model in memory that is too large to be written.
        ModelError : the ONNX file cannot be read any more, or has changed.
        SavedFileError : so does the file that the network was loaded from.
        FileError : the file cannot be written.
        CacheError : a library is not in the cache any more.
        """
        from farkas.networks.saved_network import Described, save_network

        o = self.origin
        about = Described(o.model, o.open, o.target, o.shapes, o.outputs, o.passed)
        save_network(about, self._executable.parts, path, with_model)

    def compare(
        self,
        reference: Any,
        inputs: Mapping[str, Any],
        *,
        rtol: float | None = None,
        atol: float = 1e-5,
    ) -> Comparison:
        """Find the first value of the model, in the order of its nodes, that differs.

        >>> print(model.compare("onnxruntime", inputs))

        The outputs are compared first, as the model computes them.  If one differs, or the
        reference names intermediate values, the model is compiled once more to return these as
        well; if all of them agree then, merging calls is to blame, and the value is found that must
        be stored for the outputs to agree.

        Parameters
        ----------
        reference : ``"onnxruntime"``, which is run for every value; a mapping from names of
            values to arrays; a function of the inputs by name that returns such a mapping, or the
            outputs in a list; or a session with ``run`` and ``get_outputs``
        rtol, atol : floats agree if no difference exceeds `atol` plus `rtol` times the largest
            magnitude in its tensor (0.001, more for types of few bits), integers if none exceeds
            `atol`

        Raises
        ------
        ArgumentError : another kind of reference, or one that names values not in the model.
        ModelError : ONNX Runtime cannot run the model.
        """

        from farkas.networks.compare import Tolerance, compare

        inputs = self.origin.target.runner.on_host(by_name("inputs", inputs))

        def values(names: tuple[str, ...]) -> Mapping[str, Array]:
            outputs = (*self.origin.outputs, *names)
            network = self.origin.compile(replace(self.origin, outputs=outputs)) if names else self
            return network.run(inputs, like="numpy")

        tolerance = Tolerance(rtol, atol)
        return compare(self.origin.open(), values, reference, inputs, tolerance)


def _restored(origin: Origin) -> Network:
    return origin.compile(origin)


def _joined(parts: list[Mapping[str, str]], separator: str) -> dict[str, str]:
    """Join mappings; names of several stages get the number of their stage."""
    if len(parts) == 1:
        return dict(parts[0])
    numbered = list(enumerate(parts))
    return {f"stage{n}{separator}{k}": text for n, part in numbered for k, text in part.items()}


def _names(ports: Sequence[Port]) -> dict[str, None]:
    """The names of dynamic dimensions, in order."""
    return {e: None for port in ports for e in port.shape or () if isinstance(e, str)}


def _listed(names: Mapping[str, None]) -> str:
    if not names:
        return "no named dimension is dynamic"
    return "the dynamic dimensions are " + ", ".join(f"'{n}'" for n in names)
