"""What a schedule for a GPU needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuMachine:
    """A GPU.

    name : what it is called, for CUDA its architecture
    processors : those that each run blocks of their own (streaming multiprocessors)
    warp : threads that run in step
    shared_bytes : memory that the threads of a block may share
    tensor_cores : whether warps multiply matrices, see `poly.ir.intrinsics`
    rounded_float32 : whether factors of type float32 may be rounded to 10 bits for that
    """

    name: str
    processors: int
    warp: int = 32
    shared_bytes: int = 48 << 10
    tensor_cores: bool = False
    rounded_float32: bool = False

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.processors} processors, warps of {self.warp} threads, "
            f"{self.shared_bytes >> 10} KiB shared by a block"
            + (", tensor cores" if self.tensor_cores else "")
            + (" that round float32 to 10 bits" if self.rounded_float32 else "")
        )

    @property
    def caches(self) -> tuple[tuple[str, int], ...]:
        """None: threads come and go, so that nothing is sure to stay in a cache between them."""
        return ()

    @property
    def parallelism(self) -> int:
        """How many iterations of a loop run at once: blocks for all processors have to be left."""
        return self.processors


#: The first architecture of CUDA whose tensor cores multiply what `poly.ir.intrinsics` has.
_TENSOR_CORES = 80


def cuda_machine(architecture: str, processors: int) -> GpuMachine:
    """A CUDA device.

    architecture : as in ``sm_90``; processors : streaming multiprocessors
    """
    capability = int(architecture.removeprefix("sm_").rstrip("af"))
    return GpuMachine(architecture, processors, tensor_cores=capability >= _TENSOR_CORES)


#: GPUs by the names under which they may be compiled for where there is none: A100 and H100.
NAMED = {m.name: m for m in (cuda_machine("sm_80", 108), cuda_machine("sm_90", 132))}
#: What stands for a GPU of which nothing is known.
ANY = GpuMachine("gpu", 64)
