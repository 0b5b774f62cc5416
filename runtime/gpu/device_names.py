"""Parse device names: which device, and which options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches

from poly.errors import ArgumentError
from poly.machine.gpu import ANY, NAMED, GpuMachine

CUDA, OPENCL, EMULATOR = "cuda", "opencl", "cuda-emulator"
KINDS = (CUDA, OPENCL, EMULATOR)
#: An option: factors of type float32 may be rounded to the 10 bits of TF32.
TF32 = "tf32"


@dataclass(frozen=True)
class DeviceName:
    """A parsed name.

    kind : of `KINDS`
    which : of that kind: a number, a part of a name, or a machine; "" for the default
    rounded : whether factors of type float32 may be rounded
    """

    kind: str
    which: str = ""
    rounded: bool = False

    def __str__(self) -> str:
        name = f"{self.kind}:{self.which}" if self.which else self.kind
        return f"{name},{TF32}" if self.rounded else name

    def machine(self, found: GpuMachine) -> GpuMachine:
        """The machine with the options of this name, for a device that is `found`.

        Raises
        ------
        ArgumentError : factors may be rounded, but the machine has no instruction for it.
        """
        if not self.rounded:
            return found
        if found.tensor_cores:
            return replace(found, rounded_float32=True)
        why, advice = {
            CUDA: ("which devices have from sm_80 on", replace(self, rounded=False)),
            OPENCL: ("which OpenCL does not reach", DeviceName(CUDA, rounded=True)),
            EMULATOR: ("which no machine was named for", replace(self, which=[*NAMED][-1])),
        }[self.kind]
        raise ArgumentError(
            f"{str(self)!r} needs tensor cores, {why}; did you mean {str(advice)!r}?"
        )


def read_name(name: str) -> DeviceName:
    """Parse a device name.

    Raises
    ------
    ArgumentError : it is not a device name, or has an option that is unknown or impossible.
    """
    device, *options = name.split(",")
    kind, colon, which = device.partition(":")
    if kind not in KINDS or (colon and not which):
        raise ArgumentError(f"there is no device {name!r}; {_near(kind)}")
    if kind == CUDA and colon and not which.isdecimal():
        raise ArgumentError(f"there is no device {name!r}; use cuda, cuda:1, cuda:2, …")
    if kind == EMULATOR and colon and which not in NAMED:
        near = get_close_matches(which, NAMED, n=1)
        advice = f"did you mean {f'{kind}:{near[0]}'!r}?" if near else f"of {', '.join(NAMED)}"
        raise ArgumentError(f"there is no device {name!r}: unknown machine; {advice}")
    for option in options:
        if option != TF32:
            advice = "did you mean" if get_close_matches(option.lower(), [TF32]) else "there is"
            raise ArgumentError(f"{name!r} has an unknown option {option!r}; {advice} {TF32!r}")
    which = which.lstrip("0") if which.isdecimal() else which
    found = DeviceName(kind, which, bool(options))
    if kind == OPENCL:
        found.machine(ANY)  # refused by name, whether or not there is a device
    return found


def emulated(name: DeviceName) -> GpuMachine:
    """The machine that the emulator emulates.

    Raises
    ------
    ArgumentError : see `DeviceName.machine`.
    """
    return name.machine(NAMED[name.which] if name.which else ANY)


def _near(kind: str) -> str:
    near = get_close_matches(kind.lower(), KINDS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(KINDS)}"
