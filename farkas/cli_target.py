"""``--target``: texts for a CPU or a GPU, for which neither device nor compiler is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from farkas.build import ScheduleLike
    from poly.program import Program
    from poly.schedule import Schedule

_Command = TypeVar("_Command", bound=Callable[..., Any])

CPU = "cpu"


def target_option(command: _Command) -> _Command:
    """The option ``--target``, which arrives as `target`."""
    option = click.option(
        "--target",
        type=click.Choice([CPU, "cuda", "opencl"]),
        default=CPU,
        show_default=True,
        help="For what; no GPU is needed, nor anything of CUDA or OpenCL.",
    )
    return option(command)


@dataclass(frozen=True)
class TextTarget:
    """What texts are made for: ``cpu``, or a dialect, for a GPU of which nothing is known."""

    name: str = CPU

    @property
    def language(self) -> str:
        """What highlights the text."""
        return "c" if self.name == CPU else "cpp"

    def schedule(self, program: Program, wanted: ScheduleLike, exact: bool) -> Schedule:
        """The schedule that was asked for.  Raises as `farkas.build.schedule_for`."""
        from farkas.build import schedule_for

        if self.name == CPU or wanted not in (None, "auto"):
            return schedule_for(program, wanted, exact)
        from farkas.prepared import automatic_on_gpu
        from poly.gpu_machine import ANY

        return automatic_on_gpu(program, exact, ANY, self.name)[0]

    def text(self, schedule: Schedule, program: Program) -> str:
        """The C, CUDA C or OpenCL C of a schedule of a program, or of what is prepared of it.

        Raises
        ------
        ScheduleError : the schedule has what the target has not.
        """
        if self.name == CPU:
            from codegen.emit import generate

            return generate(schedule, written=program).text
        from codegen.gpu import generate_gpu

        return generate_gpu(schedule, self.name, written=program).text
