"""`Kernel.explain` and `Network.explain`: what was fused, what was not, why, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farkas.console.display import median_seconds, seconds, size_text
from farkas.views.page import View
from poly.errors import ArgumentError, ModelError, ToolchainError
from poly.graph_passes.fuse_calls import why_apart
from poly.ir.cost import bytes_of, bytes_of_program, operations_of_program
from poly.ir.graph import Call, Graph, Routine
from poly.ir.port import Port
from poly.ir.size_values import all_sizes
from poly.schedule.fusion_report import Handover, handovers
from poly.show.markup import Markup, element, table
from runtime.common.arguments import undetermined
from runtime.cpu.loaded_kernel import LoadedKernel
from runtime.cpu.roofline import Roofline, measure
from runtime.gpu.gpu_program import GpuProgram, Grid, launches_of
from runtime.reference.verify import random_inputs

if TYPE_CHECKING:
    from codegen.gpu.emit import GpuKernel
    from farkas.targets.base import Target
    from farkas.targets.compile_program import Compiled
    from poly.ir.program import Program
    from runtime.network.compiled_graph import CompiledGraph


#: An impossible share: a kernel at more than twice the roofline shows that the roofline was
#: measured while the machine was busy.
MOST = 2.0


@dataclass(frozen=True)
class Figures:
    """What a computation does, and how near it comes to the machine's limits.

    operations : arithmetic, an upper bound; bytes : of inputs and outputs; seconds : None if it
    was not run; roofline : None if it was not measured, for example on a GPU
    """

    operations: int
    bytes: int
    seconds: float | None
    roofline: Roofline | None

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes if self.bytes else 0.0

    @property
    def bound(self) -> str:
        """The limiting factor: ``arithmetic``, or the memory level that its data fit in."""
        r = self.roofline
        if r is None:
            return ""
        if self.operations / r.flops >= self.bytes / r.bandwidth(self.bytes):
            return "arithmetic"
        return next(
            (name for name, most in (("L2", r.l2_bytes), ("L3", r.l3_bytes)) if self.bytes <= most),
            "memory",
        )

    @property
    def share(self) -> float | None:
        """The least time that the roofline allows, divided by the measured time."""
        if not self.seconds or self.roofline is None:
            return None
        found = self.roofline.seconds(self.operations, self.bytes) / self.seconds
        return found if found < MOST else None

    def __str__(self) -> str:
        parts = [
            f"{self.operations:,} operations, {size_text(self.bytes)} of inputs and outputs: "
            f"{self.intensity:.3g} operations a byte"
            + (f", bound by {self.bound}" if self.bound else "")
        ]
        if self.seconds:
            share = self.share
            parts.append(
                f"{seconds(self.seconds)}: {self.operations / self.seconds / 1e9:.3g} GFLOP/s, "
                f"{self.bytes / self.seconds / 1e9:.3g} GB/s, "
                + ("roofline not measured" if share is None else f"{share:.0%} of the roofline")
                + (f" ({self.roofline})" if self.roofline and share is not None else "")
            )
        return "\n".join(parts)


def figures_of(program: Program, took: float | None, limit: Roofline | None) -> Figures:
    """Those of a program of fixed sizes."""
    return Figures(operations_of_program(program, {}), bytes_of_program(program, {}), took, limit)


def explain_kernel(compiled: Compiled, sizes: Mapping[str, int], run: bool) -> View:
    """Explain what the statements of a kernel share and what it costs; see `Kernel.explain`."""
    schedule, program = compiled.schedule, compiled.program
    found = handovers(schedule, all_sizes(schedule.program, sizes), compiled.target.machine)
    took = None
    loaded = compiled.loaded
    if run and isinstance(loaded, LoadedKernel):
        try:
            arrays = random_inputs(program, sizes)
        except MemoryError:
            raise ArgumentError("there is not enough memory for arrays of these sizes") from None
        given: dict[str, Any] = {**arrays, **{n: sizes[n] for n in undetermined(program)}}
        took = median_seconds(lambda: loaded(**given), budget=0.5)
    # Of the scheduled program: a product that was split has fewer operations than as written.
    scheduled = schedule.program
    figures = Figures(
        operations_of_program(scheduled, all_sizes(scheduled, sizes)),
        bytes_of_program(program, sizes), took,
        roofline(loaded.threads) if isinstance(loaded, LoadedKernel) else None,
    )  # fmt: skip
    at = ", ".join(f"{n}={v}" for n, v in sizes.items())
    head = f"{program.name}{f' at {at}' if at else ''}"
    launched = [] if isinstance(loaded, LoadedKernel) else launch_lines(loaded, sizes)
    chosen = _choice_lines(compiled)
    lines = [head, str(figures), *launched, *_handover_lines(found), *chosen]
    html = element(
        "div",
        element("b", head),
        element("div", *_paragraphs("\n".join([str(figures), *launched]))),
        _handover_table(found),
        element("pre", "\n".join(chosen)) if chosen else "",
    )
    return View(html, "\n".join(lines), f"Explained: {program.name}")


def _choice_lines(compiled: Compiled) -> list[str]:
    """How each group of statements got its schedule, and which attempts failed."""
    if not compiled.choices and not compiled.fallbacks:
        return []
    return ["scheduled by", *fallback_lines(compiled.fallbacks), *map(str, compiled.choices)]


def fallback_lines(fallbacks: Iterable[Sequence[str]]) -> list[str]:
    """The schedules for which no code could be generated, tried before the one that is used."""
    return [f"{tried}: given up, {' '.join(reason.split())}" for tried, reason in fallbacks]


def launch_lines(program: GpuProgram, sizes: Mapping[str, int]) -> list[str]:
    """The kernels that a GPU runs, launch by launch; repeated ones are counted."""
    launched = counted(launch_text(k, grid) for k, grid, _ in launches_of(program.source, sizes))
    return [f"on {program.device.name} ({program.device.machine})", *launched]


def launch_text(kernel: GpuKernel, grid: Grid) -> str:
    """Describe a launch: the kernel, its blocks and threads."""
    blocks, threads = (" x ".join(map(str, reversed(n))) for n in (grid, kernel.block))
    shared = f", {size_text(kernel.shared_bytes)} shared" if kernel.shared_bytes else ""
    return f"{kernel.symbol}: {blocks} blocks of {threads} threads{shared}"


def counted(texts: Iterable[str]) -> list[str]:
    """Each text once, with its number of occurrences."""
    found = Counter(texts)
    return [text if count == 1 else f"{text}, {count} times" for text, count in found.items()]


def _handover_lines(found: Sequence[Handover]) -> list[str]:
    if not found:
        return ["one comprehension: there is nothing to fuse"]
    lines = []
    for h in found:
        head = f"{h.tensor} ({size_text(h.bytes)}), {h.maker} to {h.user}: "
        if h.loops:
            lines.append(
                f"{head}fused in {', '.join(h.loops)}; {size_text(h.part)} at a time in {h.kept}, "
                f"which saves {size_text(h.saved)}"
            )
        else:
            lines.append(f"{head}not fused; {h.obstacle}")
    return lines


def _handover_table(found: Sequence[Handover]) -> str:
    if not found:
        return element("p", "One comprehension: there is nothing to fuse.")
    rows = [
        [h.tensor, f"{h.maker} → {h.user}", ", ".join(h.loops) or "not fused", h.obstacle or
         f"{size_text(h.part)} at a time in {h.kept}", size_text(h.bytes), size_text(h.saved)]
        for h in found
    ]  # fmt: skip
    return table(["tensor", "from, to", "shared loops", "", "size", "saved"], rows, left=4)


def explain_network(target: Target, model: CompiledGraph, run: bool) -> View:
    """What was fused in a network, what was not, and the time of each call; see `Network.explain`.

    model : of fixed sizes
    """
    took: dict[str, float] = {}
    untimed = ""
    if run:
        try:
            timings = model.profile(dict(map(_made_up, model.inputs)), 3)
        except ModelError as error:  # made-up elements may be no indices
            untimed = f"not timed on made-up inputs: {error}"
        else:
            took = {s.name: t.seconds for s, t in zip(model.nodes, timings, strict=True)}
    started = model.launches()
    launched = {
        name: "; ".join(counted(launch_text(kernel, grid) for kernel, grid in own))
        for name, own in started.items()
    }
    limit = roofline(1) if target.runner.has_roofline else None
    where = target.runner.where
    note = where or ("" if limit else "roofline not measured: no compiler, or a busy machine")
    note = "; ".join(filter(None, [untimed, note]))
    return _explained(
        model.graph, took, limit, lanes=target.pipeline.lanes, fallbacks=model.fallbacks,
        launched=launched, note=note,
    )  # fmt: skip


def _explained(
    graph: Graph,
    took: Mapping[str, float],
    limit: Roofline | None,
    lanes: bool,
    fallbacks: Mapping[str, Iterable[Sequence[str]]],
    launched: Mapping[str, str],
    note: str = "",
) -> View:
    """A table with a line for each call or routine, and what was not fused; lanes: see `unfused`.

    took : seconds of each call, by name, where they are known
    fallbacks : for kernels whose first schedules could not be generated, these and why
    launched : the kernels a GPU runs for it; note : added to the first line
    """
    calls = [n for n in graph.nodes if isinstance(n, Call)]
    rows, lines = [], []
    total = sum(took.values())
    kept_bytes = 0
    for call in graph.nodes:
        time = took.get(call.name)
        spent = [seconds(time) if time else "", f"{time / total:.0%}" if time and total else ""]
        if isinstance(call, Routine):
            rows.append([call.title, *spent, *[""] * (6 if limit else 4)])
            lines.append("  ".join(c for c in rows[-1] if c))
            continue
        if not isinstance(call, Call):
            continue
        program = call.program
        inner = sum(bytes_of(t, {}) for t in program.temps)
        kept_bytes += 2 * inner
        f = figures_of(program, time, limit)
        share = f"{f.share:.0%}" if f.share else ""
        cells = [
            call.title, *spent,
            f"{f.operations / 1e6:.4g}", size_text(f.bytes), f"{f.intensity:.3g}",
            *([f.bound, share] if limit else ()),
            size_text(2 * inner) if inner else "",
            *([launched.get(call.name, "")] if launched else ()),
        ]  # fmt: skip
        rows.append(cells)
        lines.append("  ".join(c for c in cells if c))
    head = (
        f"{graph.name}: {len(calls)} kernel calls for {_nodes(calls)} nodes; what is computed and "
        f"used inside kernels is {size_text(kept_bytes)} less to write and read"
        + (f"; {note}" if note else "")
    )
    titles = ["nodes", "time", "", "M ops", "in and out", "ops/byte",
              *(["bound by", "of roofline"] if limit else ()), "kept inside",
              *(["launches"] if launched else ())]  # fmt: skip
    more_html, more_lines = _apart(graph, lanes)
    slower = [f"{kernel}: {line}" for kernel, f in fallbacks.items() for line in fallback_lines(f)]
    notes = element("div", *_paragraphs("\n".join(slower))) if slower else ""
    html = element("div", element("p", head), table(titles, rows), more_html, notes)
    text = "\n".join([head, *lines, *more_lines, *slower])
    return View(html, text, f"Explained: {graph.name}")


def explain_graphs(graphs: Sequence[Graph], lanes: bool) -> View:
    """What was fused in graphs with open sizes, and what was not.

    lanes : see `poly.graph_passes.fuse_calls.merge_calls`
    """
    parts, texts = [], []
    for graph in graphs:
        calls = [n for n in graph.nodes if isinstance(n, Call)]
        head = f"{graph.name}: {len(calls)} kernel calls for {_nodes(calls)} nodes"
        origins = [c.title for c in calls]
        html, more = _apart(graph, lanes)
        parts += [element("p", head), table(["nodes"], [[o] for o in origins]), html]
        texts += [head, *origins, *more]
    if not graphs:
        texts = ["nothing is compiled yet: run the model first"]
        parts = [element("p", *texts)]
    return View(element("div", *parts), "\n".join(texts), "Explained")


def _apart(graph: Graph, lanes: bool) -> tuple[Markup, list[str]]:
    """The values that were not fused, as a table and as lines.

    lanes : see `poly.graph_passes.fuse_calls.merge_calls`
    """
    found = unfused(graph, lanes)
    if not found:
        return Markup(""), []
    rows = [[v, size_text(b) if b else "", f"{a} → {z}", why] for v, b, a, z, why in found]
    title = "not fused, largest values first" if found[0][1] else "not fused"
    html = element(
        "div",
        element("p", element("b", title)),
        table(["value", "size", "from, to", "why"], rows, left=4),
    )
    lines = [f"{v}{f' ({size_text(b)})' if b else ''}, {a} to {z}: {w}" for v, b, a, z, w in found]
    return html, [f"{title}:", *lines]


def unfused(graph: Graph, lanes: bool, most: int = 40) -> list[tuple[str, int, str, str, str]]:
    """Values that go through memory between two calls: name, bytes, both calls, and why.

    lanes : see `poly.graph_passes.fuse_calls.merge_calls`.  With open sizes, the bytes are 0.
    """
    made = {o: n for n in graph.nodes for o in n.outputs}
    found = []
    for user in graph.nodes:
        for value in user.inputs:
            maker = made.get(value)
            if isinstance(maker, Call) and isinstance(user, Call):
                size = 0 if graph.sizes else bytes_of(graph.values[value], {})
                names = (_short(maker.origin), _short(user.origin))
                why = why_apart(graph, maker, user, lanes)
                found.append((graph.label(value), size, *names, why))
    return sorted(found, key=lambda row: -row[1])[:most]


#: Rooflines that were measured, by the number of threads.
_measured: dict[int, Roofline] = {}


def roofline(threads: int, turns: int = 3) -> Roofline | None:
    """This machine's roofline, measured at the first request; takes a second or two.

    None if the machine is too busy: the measurement is kept, and the next call improves it.  Also
    None if there is no compiler to measure it with.
    """
    found = _measured.get(threads)
    for _ in range(turns):
        if found is not None and found.is_plausible:
            return found
        try:
            more = measure(threads, seconds=0.05, turns=5)
        except ToolchainError:
            return None
        found = _measured[threads] = more if found is None else found.best(more)
    return found if found is not None and found.is_plausible else None


def _nodes(calls: Sequence[Call]) -> int:
    return sum(c.origin.count(" + ") + 1 for c in calls)


def _short(origin: str) -> str:
    text = " ".join(origin.split())
    return text if len(text) <= 60 else f"{text[:28]} … {text[-28:]}"


def _paragraphs(text: str) -> list[str]:
    return [element("div", line) for line in text.splitlines()]


def _made_up(port: Port) -> tuple[str, np.ndarray]:
    """A made-up input, by its name, for a run that is only timed."""
    shape = tuple(e for e in port.shape or () if isinstance(e, int))
    rng, dtype = np.random.default_rng(0), port.dtype.numpy
    values = rng.random(shape) if np.issubdtype(dtype, np.floating) else np.ones(shape)
    return port.name, np.asarray(values).astype(dtype)
