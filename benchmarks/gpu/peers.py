"""Contenders on a GPU: Farkas, torch with NVIDIA's libraries, its compiler, Triton, CuPy."""

from __future__ import annotations

import importlib
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.gpu import networks
from benchmarks.gpu.cases import MODES, Mode, text_of
from benchmarks.gpu.clock import Call, Clock
from benchmarks.kernel import Array, Product
from benchmarks.peers.base import Package
from benchmarks.task import Task
from benchmarks.translate.network import read_network
from benchmarks.translate.torch_graph import torch_module


@dataclass(frozen=True)
class Work:
    """One computation on a device.

    task : in float32; mode : of `MODES`
    sets : sets of inputs, each in memory of its own
    device : its name for `runtime.find_device`; clock : that of the device; folder : for files
    """

    task: Task
    mode: str
    sets: int
    device: str
    clock: Clock
    folder: Path

    @property
    def how(self) -> Mode:
        """The mode."""
        return MODES[self.mode]

    def given(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays in the type in which every contender gets them."""
        return {n: a.astype(self.how.element) for n, a in arrays.items()}


@dataclass(frozen=True)
class Rotation:
    """A call for each set of inputs, and a function that fetches the results of one.

    peak : runs the given second call, and returns the computation's peak of device memory in bytes;
        None if unknown
    """

    calls: tuple[Call, ...]
    fetch: Callable[[Any], Sequence[Array]]
    peak: Callable[[Call], int] | None = None


class GpuPeer(Package):
    """One implementation on a device.

    kinds : supported kinds of devices
    """

    kinds: tuple[str, ...] = ("cuda",)

    def suits(self, task: Task) -> bool:
        """Whether it takes part in a task."""
        return True

    @abstractmethod
    def prepare(self, work: Work) -> Rotation:
        """Compile a task, so that the first call is like any other, or one of the first."""


class Farkas(GpuPeer):
    """The comprehension, compiled for its sizes, or the network; arrays stay on the device."""

    name = "farkas"
    package = "farkas"
    ours = True
    kinds = ("cuda", "opencl", "cuda-emulator")

    def prepare(self, work: Work) -> Rotation:
        target = f"{work.device},tf32" if work.how.rounds else work.device
        return self._network(work, target) if work.task.kernel is None else _kernel(work, target)

    def _network(self, work: Work, target: str) -> Rotation:
        import farkas as fk

        half = work.how.element == "float16"
        path = networks.write_half(work.task, work.folder) if half else work.task.path
        model: Any = fk.compile_onnx(path, target=target)
        device, stream = model.device, work.clock.stream
        calls = []
        for _ in range(work.sets):
            arrays = work.given(work.task.inputs).items()
            own = {n: device.put(a, stream) for n, a in arrays}
            calls.append(partial(model.run, own, stream=stream))
        ends = sum(a.nbytes for a in work.given(work.task.inputs).values())

        def peak(second: Call) -> int:
            results: Any = second()
            made = sum(y.nbytes for y in results.values())
            constants, block = model.report.constant_bytes, model.compiled[0].plan().bytes
            return int(constants + block + work.sets * ends + made)

        return Rotation(tuple(calls), lambda y: [a.numpy() for a in y.values()], peak)


def _kernel(work: Work, target: str) -> Rotation:
    import farkas as fk

    definition, arrays = work.task.kernel, work.task.arrays
    assert definition is not None and arrays is not None
    text, given = text_of(definition, work.how.element), work.given(arrays)
    kernel = fk.compile(text.text, sizes=text.sizes, target=target)
    device, stream = kernel.target.device, work.clock.stream

    def put(name: str) -> Any:
        return device.put(given[name].reshape(text.shapes[name]), stream)

    weights = {n: put(n) for n in definition.weights}
    calls = []
    for _ in range(work.sets):
        own = {**{n: put(n) for n in definition.inputs}, **weights}
        calls.append(partial(kernel, *(own[n] for n in text.shapes), stream=stream))
    return Rotation(tuple(calls), lambda y: [y.numpy().reshape(definition.output)])


class Torch(GpuPeer):
    """torch as installed: cuBLAS and cuDNN, with TF32 where requested."""

    name = "torch"
    modules: tuple[str, ...] = ("torch",)
    package = "torch"
    channels_last = False

    def missing(self) -> str | None:
        found = super().missing()
        if found is None and not importlib.import_module("torch").cuda.is_available():
            return "torch finds no CUDA device"
        return found

    def prepare(self, work: Work) -> Rotation:
        torch = importlib.import_module("torch")
        torch.set_grad_enabled(False)
        _allow_tf32(torch, work.how.rounds)
        torch.backends.cudnn.benchmark = True
        device = torch.device(work.device)
        peak = _peak_of(torch.cuda, device) if device.type == "cuda" else None
        module = torch_module(read_network(work.task.path), self.channels_last)
        module = module.to(device, getattr(torch, work.how.element))
        call = self.compiled(torch, module, whole=work.task.kernel is None)

        def put(array: Array) -> Any:
            found = torch.from_numpy(array).to(device)
            last = torch.channels_last if self.channels_last else torch.contiguous_format
            return found.clone(memory_format=last)

        inputs = work.given(work.task.inputs).values()
        calls = tuple(partial(call, *map(put, inputs)) for _ in range(work.sets))

        def fetch(results: Any) -> list[Array]:
            return [np.asarray(y.contiguous().cpu().numpy()) for y in results]

        return Rotation(calls, fetch, peak)

    def compiled(self, torch: Any, module: Any, whole: bool) -> Callable[..., Any]:
        """The function to call; `whole` for networks."""
        return module.forward  # type: ignore[no-any-return]


def _peak_of(cuda: Any, device: Any) -> Callable[[Call], int]:
    """The `Rotation.peak` of what will be prepared, measured by torch."""
    before = cuda.memory_allocated(device)

    def peak(second: Call) -> int:
        cuda.synchronize(device)
        cuda.reset_peak_memory_stats(device)
        second()  # records the graphs
        cuda.synchronize(device)
        return int(cuda.max_memory_allocated(device) - before)

    return peak


def _allow_tf32(torch: Any, allowed: bool) -> None:
    """Allow or forbid rounding products and convolutions of float32 to TF32."""
    if hasattr(torch.backends.cudnn, "fp32_precision"):
        # Triton's convolutions use this one, which the older flag does not set.
        torch.backends.cudnn.fp32_precision = "tf32" if allowed else "ieee"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


class TorchChannelsLast(Torch):
    """Images and filters with their channels innermost."""

    name = "torch-cl"
    channels_last = True

    def suits(self, task: Task) -> bool:
        images = all(a.ndim == 4 for a in task.inputs.values())
        return images and not isinstance(task.kernel, Product)


class TorchCompile(Torch):
    """``torch.compile`` with autotuning; networks as CUDA graphs."""

    name = "compile"
    options: ClassVar[dict[str, Any]] = {}

    def compiled(self, torch: Any, module: Any, whole: bool) -> Callable[..., Any]:
        # Kernels are without graphs: the host's time is not measured there.
        mode = "max-autotune" if whole else "max-autotune-no-cudagraphs"
        chosen = importlib.import_module("torch._inductor").list_mode_options(mode)
        options = {**chosen, **self.options}
        return torch.compile(  # type: ignore[no-any-return]
            module, fullgraph=True, dynamic=False, options=options
        )


class Triton(TorchCompile):
    """The same with Triton's kernels only, also for products and convolutions."""

    name = "triton"
    modules = ("torch", "triton")
    package = "triton"
    options: ClassVar[dict[str, Any]] = {
        "max_autotune_gemm_backends": "TRITON",
        "max_autotune_conv_backends": "TRITON",
    }

    def suits(self, task: Task) -> bool:
        kernel = task.kernel
        return kernel is not None and kernel.family in ("matmul", "resnet50", "custom")


class CuPy(GpuPeer):
    """Products by CuPy: ``matmul`` and ``einsum``."""

    name = "cupy"
    modules = ("cupy",)

    def version(self) -> str:
        # Its distribution is named after the version of CUDA.
        return str(importlib.import_module("cupy").__version__)

    def suits(self, task: Task) -> bool:
        return isinstance(task.kernel, Product)

    def prepare(self, work: Work) -> Rotation:
        # It is read at the first product of a type; a process has one mode.
        os.environ["CUPY_TF32"] = str(int(work.how.rounds))
        cupy = importlib.import_module("cupy")
        kernel = work.task.kernel
        assert isinstance(kernel, Product)
        spec = kernel.spec
        plain = spec in ("ij,jk->ik", "bij,bjk->bik")
        arrays = work.given(work.task.inputs).values()
        sets = [tuple(map(cupy.asarray, arrays)) for _ in range(work.sets)]

        def call(given: tuple[Any, ...]) -> Any:
            return cupy.matmul(*given) if plain else cupy.einsum(spec, *given, optimize=True)

        calls = tuple(partial(call, given) for given in sets)
        return Rotation(calls, lambda y: [np.asarray(cupy.asnumpy(y))])


PEERS: dict[str, GpuPeer] = {
    peer.name: peer
    for peer in (Farkas(), Torch(), TorchChannelsLast(), TorchCompile(), Triton(), CuPy())
}
