"""Describe pipelines as text: everything that a kind of target runs, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from codegen.pipeline import CPU, CUDA, OPENCL, Pipeline
from poly.passes import Pass, first_sentence

_HEAD = """\
# What runs, in order

Made of the lists in `codegen/pipeline.py`; `farkas pipeline` prints it, and a test compares.  Each
kind of target owns one pipeline, a value of tuples: rewrites and tactics are chosen there and
nowhere else.  After every pass a verifier runs, and every step of a schedule is checked against
the dependences.
"""


def pipelines_text() -> str:
    """All pipelines as Markdown."""
    gpu = "CUDA and OpenCL"
    assert _lists(CUDA) == _lists(OPENCL), "two pages are needed"
    return "\n".join([_HEAD, *_page("C", CPU), *_page(gpu, CUDA)])


def _lists(pipeline: Pipeline[Any, Any]) -> tuple[object, ...]:
    strategy = pipeline.strategy
    return (
        pipeline.graph_passes, pipeline.graph_rewrites, pipeline.call_rewrites, pipeline.rewrites,
        strategy, pipeline.loop_passes,
    )  # fmt: skip


def _page(title: str, p: Pipeline[Any, Any]) -> list[str]:
    lines = [f"## {title}", ""]
    lines += ["### A network, before its calls are compiled", ""]
    lines += _numbered(p.graph_passes, {"rewrite_calls": p.graph_rewrites})
    lines += ["### The program of a call", "", *_numbered(p.call_rewrites)]
    lines += ["### A single program, in place of the last two", "", *_numbered(p.rewrites)]
    lines += ["### Statements, before groups of them get a tactic", ""]
    lines += [*_functions(p.strategy.arrange), ""]
    lines += ["### Tactics: each group of statements gets the first that matches", ""]
    for number, tactic in enumerate(p.strategy.tactics, 1):
        plain = " (plain)" if tactic.plain else ""
        lines.append(f"{number}. *{tactic.name}*{plain}: {first_sentence(tactic)}")
        if tactic.parameters:
            lines.append(f"   * may be tuned: {', '.join(x.name for x in tactic.parameters)}")
    if p.strategy.finish:
        lines += ["", "### All statements, after that", "", *_functions(p.strategy.finish)]
    lines += [
        "",
        "If isl cannot generate loops of the result, plain tactics alone are tried, then the",
        "written order; `explain` says so.",
        "",
        "### Loops, as isl generates them",
        "",
        *_numbered(p.loop_passes),
    ]
    printer = getattr(p.printer, "func", p.printer)  # of a partial application
    lines += ["### Text", "", f"`{printer.__name__}`: {first_sentence(printer)}", ""]
    return lines


def _functions(passes: Sequence[Callable[..., Any]]) -> list[str]:
    return [f"{n}. `{f.__name__}`: {first_sentence(f)}" for n, f in enumerate(passes, 1)]


def _numbered(
    passes: Sequence[Pass[Any]], inner: dict[str, Iterable[Pass[Any]]] | None = None
) -> list[str]:
    lines = []
    for number, step in enumerate(passes, 1):
        mode = ", in exact mode, too" if step.exact else ""
        lines.append(f"{number}. `{step.name}`{mode}: {step.about}")
        lines += [f"   * `{s.name}`: {s.about}" for s in (inner or {}).get(step.name, ())]
    return [*lines, ""]
