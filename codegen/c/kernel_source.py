"""`KernelSource`: the C text of one program, with all that is needed to build and call it."""

from __future__ import annotations

from dataclasses import dataclass

from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.program import Program, Tensor

#: The C name of the entry point of a whole graph, ``(threads, sizes, arrays)``.
NETWORK_ENTRY = "fk_network"


@dataclass(frozen=True)
class KernelSource:
    """One program as a complete C translation unit.

    The entry point is ``void SYMBOL(int32_t threads, const int64_t *sizes, void *const *tensors)``.

    * ``sizes`` holds one value for each of ``program.sizes``, in that order;
    * ``tensors`` points to the program's inputs that are not updated, then to its outputs (an
      updated tensor already holds a copy of its input), then to `workspace`, each row-major;
    * inputs and outputs are aligned to their element type; workspace is aligned to 64 bytes and
      uninitialised;
    * a tensor without elements still has a pointer, which must not be dereferenced.

    Attributes
    ----------
    program : Program                the program as callers see it; determines argument checks
    symbol : str                     the C name of the entry point
    text : str                       the translation unit
    flags : tuple of str             compiler flags in addition to the toolchain's own
    workspace : tuple of Tensor      temporaries that the caller allocates, in order
    units : tuple of str             a long text divided into several units that give the same
                                     library, to be compiled at once; none if it is short
    instructions : tuple             the instructions of users that it runs
    """

    program: Program
    symbol: str
    text: str
    flags: tuple[str, ...] = ()
    workspace: tuple[Tensor, ...] = ()
    units: tuple[str, ...] = ()
    instructions: tuple[VectorIntrinsic, ...] = ()

    @property
    def files(self) -> dict[str, str]:
        """What is compiled, by the name of its file."""
        if not self.units:
            return {"kernel.c": self.text}
        return {f"kernel_{n}.c": text for n, text in enumerate(self.units, 1)}
