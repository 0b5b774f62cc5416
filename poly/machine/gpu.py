"""Machine parameters of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Threads that run in step, and can read each other's registers.
WARP = 32
#: Dimensions of a grid, and of a block of threads.
DIMENSIONS = 3
#: The most threads of a block on every GPU, and in z.
BLOCK_THREADS, BLOCK_THREADS_Z = 1024, 64
#: Bytes that the threads of a block may share on every GPU.
SHARED_BYTES = 48 << 10
#: Banks of shared memory, each this many bytes wide, which serve one access each at a time.
BANKS, BANK_BYTES = 32, 4


@dataclass(frozen=True)
class GpuMachine:
    """A GPU.

    name : its name; for CUDA its architecture
    processors : streaming multiprocessors, each of which runs blocks of its own
    warp : threads that run in step
    shared_bytes : memory that the threads of a block may share
    tensor_cores : whether warps multiply matrices, see `poly.ir.intrinsics`
    rounded_float32 : whether factors of type float32 may be rounded to 10 bits for that
    """

    name: str
    processors: int
    warp: int = WARP
    shared_bytes: int = SHARED_BYTES
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
    def exact(self) -> GpuMachine:
        """The machine without instructions that round otherwise than is written."""
        return replace(self, tensor_cores=False)

    @property
    def caches(self) -> tuple[tuple[str, int], ...]:
        """None: threads come and go, so that nothing is sure to stay in a cache between them."""
        return ()

    @property
    def parallelism(self) -> int:
        """How many iterations of a loop run at once: there must be blocks for all processors."""
        return self.processors


#: The first CUDA architecture whose tensor cores support `poly.ir.intrinsics`.
_TENSOR_CORES = 80


def cuda_machine(architecture: str, processors: int) -> GpuMachine:
    """A CUDA device.

    architecture : as in ``sm_90``; processors : streaming multiprocessors
    """
    capability = int(architecture.removeprefix("sm_").rstrip("af"))
    return GpuMachine(architecture, processors, tensor_cores=capability >= _TENSOR_CORES)


#: GPUs that can be compiled for by name without a device: A100 and H100.
NAMED = {m.name: m for m in (cuda_machine("sm_80", 108), cuda_machine("sm_90", 132))}
#: The stand-in for a GPU with unknown parameters.
ANY = GpuMachine("gpu", 64)
