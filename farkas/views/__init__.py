"""Pictures of schedules, kernels and models: static HTML and SVG, and text in a terminal.

`show` takes any of them; each module has one kind of picture.  Nothing here needs a server, a
network or scripts, so that a saved notebook remains readable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farkas.views.page import View
from poly.errors import ArgumentError, IllegalScheduleError
from poly.ir.program import Program
from poly.schedule.schedule import Schedule

__all__ = ["View", "dataflow", "explore", "footprints", "show", "space", "steps"]


def show(what: Any, statement: str | None = None) -> View:
    """A picture of something on one page.

    A `Schedule` or a `Kernel`: its tree beside the text, with the lines of `statement` highlighted.
    An `IllegalScheduleError`: the pair of instances that would swap.  A `Network`: its kernels.

    Raises
    ------
    ArgumentError : there is no picture of it.
    """
    from farkas.views.iteration_space import chosen_statement
    from farkas.views.networks import networks_view
    from farkas.views.refusals import refusal
    from farkas.views.schedules import kernel_page, schedule_page

    if isinstance(what, Schedule):
        return schedule_page(what, statement and chosen_statement(what, statement))
    if isinstance(what, IllegalScheduleError):
        return refusal(what)
    what = getattr(what, "kernel", what)  # of a TunedKernel
    if isinstance(getattr(what, "schedule", None), Schedule):  # a Kernel, which imports this
        chosen = statement and chosen_statement(what.schedule, statement)
        if not hasattr(what, "source"):
            return schedule_page(what.schedule, chosen)  # of an Explorer
        return kernel_page(what.schedule, what.source, what.program, what.target.language, chosen)
    graphs = getattr(what, "graphs", None)
    if isinstance(graphs, tuple):  # of a Model, which imports this
        return networks_view(graphs)
    raise ArgumentError(
        f"there is no picture of a {type(what).__name__}; show takes a Schedule, a Kernel, a Model "
        "or an IllegalScheduleError"
    )


def space(
    what: Any,
    statement: str | None = None,
    loops: str | Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
    at: Mapping[str, int] | None = None,
    **named: int,
) -> View:
    """The iteration space of a statement over two of its loops, in the order of a schedule.

    Parameters
    ----------
    what : a `Schedule`, or a `Kernel`, whose schedule is used
    statement : default is the last one
    loops : the index that runs down and the one that runs to the right, by their names in the
        program; default is the first two
    sizes, named : values for sizes of the program; 8 for those without one, so that only tiles
        smaller than that are seen as tiles
    at : values of the other indices; default is the least

    Raises
    ------
    ArgumentError : an unknown statement, index or size.
    """
    from farkas.views.iteration_space import space_view

    names = [x.strip() for x in loops.split(",")] if isinstance(loops, str) else loops
    given = {**(sizes or {}), **named}
    return space_view(_schedule(what), statement, names, given, dict(at or {}))


def dataflow(
    what: Any, tensors: str | Sequence[str], sizes: Mapping[str, int] | None = None, **named: int
) -> View:
    """Which elements of a tensor are read to compute which others of the same tensor, as arrows.

    Several tensors are drawn in one picture, each in a colour of its own: the states of a
    recurrence and their gradient, say, of which one goes forwards and the other backwards.

    >>> decay = "def f(float32 X[N]) -> (L) { S[0] = 1; S[i+1] = S[i] * X[i]; L[] = S[N] }"
    >>> print(fk.dataflow(fk.grad(decay), "S, dS", N=3))
    S[0] -> S[1], S[1] -> S[2], S[2] -> S[3]
    dS[1] -> dS[0], dS[2] -> dS[1], dS[3] -> dS[2]
    elements of S and dS at N=3

    Parameters
    ----------
    what : a `Program`, or a `Schedule` or a `Kernel` of one
    tensors : of equal rank, with one or two dimensions, by name; each is written by the program
    sizes, named : values for sizes of the program; 8 for those without one

    Raises
    ------
    ArgumentError : there is no such tensor, one of another rank, or an unknown size.
    """
    from farkas.views.element_flow import dataflow_view

    names = [x.strip() for x in tensors.split(",")] if isinstance(tensors, str) else tensors
    return dataflow_view(_program(what), names, {**(sizes or {}), **named})


def steps(what: Any) -> View:
    """The script of a schedule step by step: what each changed in the tree and in the text.

    The text is C, or CUDA C if the schedule has blocks or threads.
    """
    from farkas.views.step_by_step import steps_view

    return steps_view(_schedule(what))


def footprints(
    what: Any, statement: str | None = None, sizes: Mapping[str, int] | None = None, **named: int
) -> View:
    """The memory that one iteration of each loop around a statement touches, against the caches.

    sizes, named : a value for every size of the program

    Raises
    ------
    ArgumentError : an unknown statement, or a size without a value.
    """
    from farkas.views.footprint_table import footprint_view

    return footprint_view(_schedule(what), statement, {**(sizes or {}), **named})


def explore(what: Any, **sizes: int) -> Any:
    """An interactive schedule in Jupyter: pick steps, move tile sizes, see what is legal.

    what : a `Schedule`, or a `Kernel`, whose target is used for timing
    sizes : for footprints and times, a value for every size
    The returned `Explorer` has the `schedule` so far and its `script`.

    Raises
    ------
    ArgumentError : ipywidgets is missing, or the arguments do not match.
    """
    from farkas.views.explorer import Explorer

    return Explorer(_schedule(what), sizes, getattr(what, "target", None))


def _program(what: Any) -> Program:
    found = what if isinstance(what, Program) else getattr(what, "program", None)
    if isinstance(found, Program):
        return found
    raise ArgumentError(f"expected a Program, a Schedule or a Kernel, not a {type(what).__name__}")


def _schedule(what: Any) -> Schedule:
    if isinstance(what, Schedule):
        return what
    found = getattr(what, "schedule", None)
    if isinstance(found, Schedule):
        return found
    raise ArgumentError(f"expected a Schedule or a Kernel, not a {type(what).__name__}")
