"""Who is measured on a GPU: Farkas, torch with NVIDIA's libraries, its compiler, Triton, CuPy."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.gpu.cases import text_of
from benchmarks.gpu.clock import Call, Clock
from benchmarks.kernel import Array, Kernel, Product
from benchmarks.peers.base import Package
from benchmarks.task import kernel_task
from benchmarks.translate.network import read_network
from benchmarks.translate.torch_graph import torch_module


@dataclass(frozen=True)
class Work:
    """One kernel on a device.

    dtype : ``float32`` or ``float16``
    arrays : inputs and weights in that type; sets : of inputs, each in memory of its own
    device : as `runtime.devices` calls it; clock : of that; folder : for files
    """

    kernel: Kernel
    dtype: str
    arrays: dict[str, Array]
    sets: int
    device: str
    clock: Clock
    folder: Path


@dataclass(frozen=True)
class Rotation:
    """A call for each set of inputs, and what makes a numpy array of the result of one."""

    calls: tuple[Call, ...]
    fetch: Callable[[Any], Array]


class GpuPeer(Package):
    """One implementation on a device.

    kinds : of devices that it knows
    """

    kinds: tuple[str, ...] = ("cuda",)

    def suits(self, kernel: Kernel) -> bool:
        """Whether it takes part in a kernel."""
        return True

    @abstractmethod
    def prepare(self, work: Work) -> Rotation:
        """Compile a kernel, so that the first call is like any other."""


class Farkas(GpuPeer):
    """The comprehension, compiled for its sizes; arrays stay on the device."""

    name = "farkas"
    package = "farkas"
    ours = True
    kinds = ("cuda", "opencl", "cuda-emulator")

    def prepare(self, work: Work) -> Rotation:
        import farkas as fk
        from farkas.device_target import DeviceTarget

        text = text_of(work.kernel, work.dtype)
        kernel = fk.compile(text.text, sizes=text.sizes, target=work.device)
        assert isinstance(kernel.target, DeviceTarget)
        device, stream = kernel.target.device, work.clock.stream

        def put(name: str) -> Any:
            return device.put(work.arrays[name].reshape(text.shapes[name]), stream)

        weights = {n: put(n) for n in work.kernel.weights}
        calls = []
        for _ in range(work.sets):
            own = {**{n: put(n) for n in work.kernel.inputs}, **weights}
            given = tuple(own[n] for n in text.shapes)
            calls.append(partial(kernel, *given, stream=stream))
        return Rotation(tuple(calls), lambda y: np.asarray(y.numpy().reshape(work.kernel.output)))


class Torch(GpuPeer):
    """torch as it is: cuBLAS and cuDNN, without the shortened multiplications of TF32."""

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
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        place = work.device
        task = kernel_task(work.kernel, "gpu", work.folder)
        module = torch_module(read_network(task.path), self.channels_last)
        module = module.to(place, getattr(torch, work.dtype))
        call = self.compiled(torch, module)

        def put(name: str) -> Any:
            found = torch.from_numpy(work.arrays[name]).to(place)
            last = torch.channels_last if self.channels_last else torch.contiguous_format
            return found.clone(memory_format=last)

        sets = [tuple(put(n) for n in work.kernel.inputs) for _ in range(work.sets)]
        calls = tuple(partial(call, *given) for given in sets)
        return Rotation(calls, lambda y: np.asarray(y[0].contiguous().cpu().numpy()))

    def compiled(self, torch: Any, module: Any) -> Callable[..., Any]:
        """The function to be called."""
        return module.forward  # type: ignore[no-any-return]


class TorchChannelsLast(Torch):
    """Images and filters with their channels innermost."""

    name = "torch-cl"
    channels_last = True

    def suits(self, kernel: Kernel) -> bool:
        shapes = kernel.inputs.values()
        return not isinstance(kernel, Product) and all(len(s) == 4 for s in shapes)


class TorchCompile(Torch):
    """``torch.compile``, which tries what is fastest."""

    name = "compile"
    options: ClassVar[dict[str, Any]] = {"max_autotune": True}

    def compiled(self, torch: Any, module: Any) -> Callable[..., Any]:
        return torch.compile(  # type: ignore[no-any-return]
            module, fullgraph=True, dynamic=False, options=self.options
        )


class Triton(TorchCompile):
    """The same with Triton's kernels alone, also for products and convolutions."""

    name = "triton"
    modules = ("torch", "triton")
    package = "triton"
    options: ClassVar[dict[str, Any]] = {
        **TorchCompile.options,
        "max_autotune_gemm_backends": "TRITON",
        "max_autotune_conv_backends": "TRITON",
    }

    def suits(self, kernel: Kernel) -> bool:
        return kernel.family in ("matmul", "resnet50", "custom")


class CuPy(GpuPeer):
    """Products by CuPy: ``matmul`` and ``einsum``."""

    name = "cupy"
    modules = ("cupy",)

    def version(self) -> str:
        # Its distribution is called after the version of CUDA.
        return str(importlib.import_module("cupy").__version__)

    def suits(self, kernel: Kernel) -> bool:
        return isinstance(kernel, Product)

    def prepare(self, work: Work) -> Rotation:
        cupy = importlib.import_module("cupy")
        assert isinstance(work.kernel, Product)
        spec = work.kernel.spec
        plain = spec in ("ij,jk->ik", "bij,bjk->bik")
        sets = [tuple(map(cupy.asarray, work.arrays.values())) for _ in range(work.sets)]

        def call(given: tuple[Any, ...]) -> Any:
            return cupy.matmul(*given) if plain else cupy.einsum(spec, *given, optimize=True)

        calls = tuple(partial(call, given) for given in sets)
        return Rotation(calls, lambda y: np.asarray(cupy.asnumpy(y)))


PEERS: dict[str, GpuPeer] = {
    peer.name: peer
    for peer in (Farkas(), Torch(), TorchChannelsLast(), TorchCompile(), Triton(), CuPy())
}
