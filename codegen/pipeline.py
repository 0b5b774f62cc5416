"""The pipeline of each kind of target, from a graph or a program to generated text.

Everything that runs is listed here, in order; docs/pipeline.md is generated from these lists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from codegen.c.function import c_loops
from codegen.c.kernel_source import KernelSource
from codegen.c.kernel_unit import generate
from codegen.c.loop_passes import C_LOOP_PASSES
from codegen.gpu.emit import GpuSource, generate_gpu, kernel_loops
from codegen.gpu.loop_passes import GPU_LOOP_PASSES
from codegen.loops.nodes import LoopNode
from poly.errors import ScheduleError
from poly.graph_passes.block_layouts import block_values
from poly.graph_passes.context import GraphContext
from poly.graph_passes.fold_calls import Evaluate, fold_constants, fold_factors
from poly.graph_passes.fuse_calls import merge_calls
from poly.graph_passes.merge_rows import merge_rows
from poly.graph_passes.quantised_products import quantised_products, unsigned_values
from poly.graph_passes.rewrite_calls import rewrite_calls
from poly.graph_passes.simplify_graph import (
    eliminate_common_calls,
    eliminate_dead_calls,
    simplify_views,
)
from poly.graph_passes.sink_dequantisations import sink_dequantisations
from poly.graph_passes.tabulate import tabulate
from poly.ir.graph import Graph, verify_graph
from poly.ir.program import Program, verify_program
from poly.machine.cpu import Machine
from poly.machine.gpu import GpuMachine
from poly.passes import Pass, run_passes
from poly.rewrites.contraction_path import split_products
from poly.rewrites.eliminate_dead import eliminate_dead
from poly.rewrites.group_operands import group_operands
from poly.rewrites.integer_products import integer_products
from poly.rewrites.join_dimensions import join_dimensions, join_in_graph, join_open_dimensions
from poly.rewrites.periodic import split_periodic
from poly.rewrites.polyphase import split_phases
from poly.rewrites.split_dimensions import split_in_graph
from poly.rewrites.split_reduction import share_reductions, split_reductions
from poly.rewrites.split_rows import split_rows
from poly.rewrites.widen_sums import widen_sums
from poly.schedule.schedule import Schedule
from poly.space.cost import Cost
from poly.space.estimate import estimate
from poly.space.estimate_gpu import estimate_gpu
from poly.strategy.common.apply_tactics import Strategy, apply_tactics
from poly.strategy.common.grouping import Parallel
from poly.strategy.common.tactic import Choice
from poly.strategy.cpu.auto_schedule import CPU_STRATEGY
from poly.strategy.cpu.widen_operands import widen_operands
from poly.strategy.gpu.auto_schedule import GPU_STRATEGY

M = TypeVar("M", bound=Parallel)
S = TypeVar("S")
T = TypeVar("T")

Rewrites = tuple[Pass[Program], ...]

#: The script that was tuned for a program in its written order, None if there is none.
Tuned = Callable[[Schedule], str | None]
#: What schedules a group of statements in place of a tactic.
TUNED = "a tuned schedule"
_LOG = logging.getLogger("farkas.tuning")


@dataclass(frozen=True)
class Generated(Generic[S]):
    """An automatic schedule and the code generated from it.

    choices : how each group of statements got its schedule
    fallbacks : schedules tried before, each with the reason why no code could be generated from it
    """

    schedule: Schedule
    source: S
    choices: tuple[Choice, ...]
    fallbacks: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Pipeline(Generic[M, S]):
    """Everything that a kind of target runs.

    Attributes
    ----------
    name : as ``target=`` takes it; language : of its generated text
    lanes : whether sums are kept in registers with several lanes of one type
    graph_passes : over a network
    graph_rewrites : of the programs of its calls, by one of these passes
    call_rewrites : of the program of a call, once the network is rewritten
    rewrites : of a single program
    strategy : from a program to a schedule
    estimate : of what a schedule costs, with a value for every size, for tuning
    loop_passes : over the loops that isl generates
    lower : from a schedule and these passes to the loops of each function or kernel
    printer : from a schedule, the program that callers see, and these passes to text
    """

    name: str
    language: str
    lanes: bool
    graph_passes: tuple[Pass[Graph], ...]
    graph_rewrites: Rewrites
    call_rewrites: Rewrites
    rewrites: Rewrites
    strategy: Strategy[M]
    estimate: Callable[[Schedule, Mapping[str, int], M], Cost]
    loop_passes: tuple[Pass[LoopNode], ...]
    lower: Callable[[Schedule, Sequence[Pass[LoopNode]]], tuple[LoopNode, ...]]
    printer: Callable[[Schedule, Program, Sequence[Pass[LoopNode]]], S]

    def optimise(self, graph: Graph, machine: M, evaluate: Evaluate) -> Graph:
        """Rewrite a graph to fewer, larger calls; `evaluate` computes constants."""
        context = GraphContext(machine, self.lanes, self.graph_rewrites, evaluate)
        return run_passes(graph, self.graph_passes, context, verify_graph)

    def prepare(self, program: Program, machine: M, exact: bool = False) -> Program:
        """Rewrite a user's program to the one that is scheduled.

        exact : only with rewrites that keep every bit of the results
        """
        passes = [p for p in self.rewrites if p.exact or not exact]
        return run_passes(program, passes, machine.exact if exact else machine, verify_program)

    def prepare_call(self, program: Program, machine: M) -> Program:
        """Rewrite the program of a call to the one that is scheduled."""
        return run_passes(program, self.call_rewrites, machine, verify_program)

    def loops(self, schedule: Schedule) -> tuple[LoopNode, ...]:
        """The loops of each function or kernel of a schedule, as they are printed.

        Raises
        ------
        ScheduleError : see `emit`.
        """
        return self.lower(schedule, self.loop_passes)

    def emit(self, schedule: Schedule, written: Program) -> S:
        """Generate text for a schedule of a program, or of what `prepare` made of it.

        Raises
        ------
        ScheduleError : the target does not support the schedule, or isl exceeded its budget.
        """
        return self.printer(schedule, written, self.loop_passes)

    def automatic(
        self, program: Program, machine: M, exact: bool = False, tuned: Tuned | None = None
    ) -> Generated[S]:
        """The automatic schedule of a program, or the one that was tuned, and its text.

        Raises
        ------
        ScheduleError : no text can be generated, for example for element types the target lacks.
        """
        start = Schedule.of(self.prepare(program, machine, exact), exact)
        return self.generate(start, machine, lambda schedule: self.emit(schedule, program), tuned)

    def automatic_call(
        self,
        program: Program,
        machine: M,
        emit: Callable[[Schedule], T],
        tuned: Tuned | None = None,
    ) -> Generated[T]:
        """The same for the program of a call; `emit` makes the result that is kept."""
        start = Schedule.of(self.prepare_call(program, machine))
        return self.generate(start, machine, emit, tuned)

    def generate(
        self,
        start: Schedule,
        machine: M,
        emit: Callable[[Schedule], T],
        tuned: Tuned | None = None,
    ) -> Generated[T]:
        """Try schedules from the fastest on until code can be generated.

        What was tuned is first, if every step of it still is legal.  Where isl cannot generate the
        remainders of tiles with open sizes, plain loops are tried, and then the written order.

        Raises
        ------
        ScheduleError : no code could be generated from the written order either.
        """
        fallbacks: list[tuple[str, str]] = []
        script = None if tuned is None else tuned(start)
        if script is not None:
            try:
                schedule = start.replay(script)
                choice = Choice(schedule.statements, TUNED, ())
                return Generated(schedule, emit(schedule), (choice,))
            except ScheduleError as error:
                fallbacks.append((TUNED, str(error)))
                _LOG.warning(
                    "%s: what was tuned for it no longer fits, so the automatic schedule is used; "
                    "`farkas tune` searches anew: %s", start.program.name, error,
                )  # fmt: skip
        for name, plain in (("all tactics", False), ("plain tactics", True)):
            try:
                found = apply_tactics(start, machine, self.strategy, plain)
                source = emit(found.schedule)
            except ScheduleError as error:
                fallbacks.append((name, str(error)))
            else:
                return Generated(found.schedule, source, found.choices, tuple(fallbacks))
        return Generated(start, emit(start), (), tuple(fallbacks))


def _c_loops(schedule: Schedule, passes: Sequence[Pass[LoopNode]]) -> tuple[LoopNode, ...]:
    return (c_loops(schedule, passes),)


def print_c(schedule: Schedule, written: Program, passes: Sequence[Pass[LoopNode]]) -> KernelSource:
    """One translation unit of C with OpenMP."""
    return generate(schedule, written=written, passes=passes)


def print_kernels(
    schedule: Schedule, written: Program, passes: Sequence[Pass[LoopNode]], dialect: str
) -> GpuSource:
    """One translation unit of kernels, and the host's loops around them."""
    return generate_gpu(schedule, dialect, written, passes)


_FUSE: tuple[Pass[Graph], ...] = (
    Pass(fold_constants, needs=("evaluate",)),
    Pass(simplify_views),
    Pass(eliminate_common_calls),
    Pass(merge_calls, needs=("lanes",)),
    Pass(simplify_views),
    Pass(fold_factors, needs=("evaluate",)),
    Pass(eliminate_common_calls),
    Pass(rewrite_calls, needs=("rewrites", "machine")),
    Pass(fold_constants, needs=("evaluate",)),
)
_SHAPE: tuple[Pass[Graph], ...] = (
    Pass(split_in_graph),
    Pass(join_in_graph),
    Pass(simplify_views),
    Pass(eliminate_dead_calls),
)
_SPLIT: Rewrites = (Pass(split_products), Pass(split_phases))

_INTEGERS: Rewrites = (Pass(integer_products, needs=("extensions",)),)

CPU: Pipeline[Machine, KernelSource] = Pipeline(
    name="cpu",
    language="C",
    lanes=True,
    graph_passes=(
        Pass(unsigned_values, needs=("machine",)),
        Pass(sink_dequantisations),
        Pass(quantised_products),
        *_FUSE,
        Pass(tabulate, needs=("evaluate",)),
        Pass(merge_rows),
        Pass(block_values, needs=("machine",)),
        *_SHAPE,
    ),
    graph_rewrites=(Pass(widen_sums), *_SPLIT, *_INTEGERS),
    call_rewrites=(
        Pass(split_periodic),
        Pass(split_rows),
        Pass(group_operands, needs=("extensions",)),
        Pass(join_open_dimensions),
        Pass(share_reductions),
        Pass(widen_operands, needs=("machine",)),
    ),
    rewrites=(
        Pass(eliminate_dead, exact=True),
        Pass(split_periodic, exact=True),
        Pass(widen_sums),
        *_SPLIT,
        *_INTEGERS,
        Pass(split_rows),
        Pass(join_dimensions),
        Pass(share_reductions),
        Pass(group_operands, needs=("extensions",)),
        Pass(widen_operands, needs=("machine",), exact=True),
    ),
    strategy=CPU_STRATEGY,
    estimate=estimate,
    loop_passes=C_LOOP_PASSES,
    lower=_c_loops,
    printer=print_c,
)

CUDA: Pipeline[GpuMachine, GpuSource] = Pipeline(
    name="cuda",
    language="CUDA C",
    lanes=False,
    graph_passes=(*_FUSE, *_SHAPE),
    graph_rewrites=_SPLIT,
    call_rewrites=(Pass(join_open_dimensions), Pass(split_reductions, needs=("processors",))),
    rewrites=(
        Pass(eliminate_dead, exact=True),
        *_SPLIT,
        Pass(join_dimensions),
        Pass(split_reductions, needs=("processors",)),
    ),
    strategy=GPU_STRATEGY,
    estimate=estimate_gpu,
    loop_passes=GPU_LOOP_PASSES,
    lower=kernel_loops,
    printer=partial(print_kernels, dialect="cuda"),
)

OPENCL = replace(
    CUDA, name="opencl", language="OpenCL C", printer=partial(print_kernels, dialect="opencl")
)

#: The GPU pipelines by dialect, and all pipelines.
GPU = {p.name: p for p in (CUDA, OPENCL)}
PIPELINES: dict[str, Pipeline[Any, Any]] = {CPU.name: CPU, **GPU}
