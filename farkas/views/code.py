"""Generated text, each line with the colour of the statements that it computes."""

from __future__ import annotations

from collections.abc import Mapping

from pygments import lex
from pygments.lexers import get_lexer_by_name

from codegen.c.kernel_unit import generate
from codegen.gpu.emit import generate_gpu
from codegen.provenance import Traced, trace
from poly.schedule.loop_kinds import only_on_gpu
from poly.schedule.schedule import Schedule
from poly.show.markup import LINE, Markup, element, faint, joined

#: By the beginning of a token's name; readable on light and on dark paper.
_INKS = (
    ("Token.Comment.Preproc", "color:#b06a1f"),
    ("Token.Comment", "color:#7f8a7f;font-style:italic"),
    ("Token.Keyword", "color:#3d7fd9"),
    ("Token.Literal.Number", "color:#2f9a6a"),
    ("Token.Literal", "color:#b0608a"),
)


def language_of(schedule: Schedule) -> str:
    """The language to show: CUDA C if the schedule has blocks, threads or shared memory, else C."""
    return "CUDA C" if only_on_gpu(schedule.tree) else "C"


def text_of(schedule: Schedule, language: str) -> str:
    """The C or CUDA C of a schedule; no GPU is needed.

    Raises
    ------
    ScheduleError : isl exceeded its budget, or the language does not support the schedule.
    """
    return generate_gpu(schedule, "cuda").text if language == "CUDA C" else generate(schedule).text


def code_html(
    text: str, colours: Mapping[str, str], statement: str | None = None, most: int = 400
) -> Markup:
    """The functions with the loops, line by line.

    colours : of the statements, by name; a line has a bar for each statement that it may belong to
    statement : whose lines are highlighted
    most : lines that are shown; for a longer text the number of omitted lines is added
    """
    lines = body_lines(text)
    rows = [_row(line, colours, statement) for line in lines[:most]]
    if len(lines) > most:
        rows.append(element("div", faint(f"… and {len(lines) - most} more lines")))
    style = f"font-family:monospace;font-size:85%;line-height:1.4;border-left:1px solid {LINE}"
    return element("div", *rows, style=f"{style};overflow-x:auto;max-height:46em;overflow-y:auto")


def body_lines(text: str) -> tuple[Traced, ...]:
    """The lines that compute something, from the head of each function to its last brace.

    In C that is one function; on a GPU, each kernel.
    """
    lines = trace(text).lines
    named = {line.function for line in lines if line.statements}
    chosen = named or {next((x.function for x in lines if x.function), "")}
    return tuple(line for line in lines if line.function in chosen)


def _row(line: Traced, colours: Mapping[str, str], statement: str | None) -> Markup:
    bars = [
        element("span", "", style=f"display:inline-block;width:.3em;height:1.1em;margin-right:1px;"
                f"vertical-align:bottom;background:{colours[name]}", title=name)
        for name in line.statements if name in colours
    ]  # fmt: skip
    number = element(
        "span", str(line.number), style="display:inline-block;min-width:3em;text-align:right;"
        "margin-right:.6em;opacity:.5;user-select:none",
    )  # fmt: skip
    room = element(
        "span", *bars, style=f"display:inline-block;width:{0.42 * len(colours) + 0.3:.2g}em"
    )
    chosen = statement is not None and statement in line.statements
    back = f";background:{colours.get(statement or '', LINE)}30" if chosen else ""
    return element(
        "div", room, number, _coloured(line.text), style=f"white-space:pre{back}",
        title=", ".join(line.statements) or None,
    )  # fmt: skip


def _coloured(text: str) -> Markup:
    parts, space = [], ""
    for kind, value in lex(text, get_lexer_by_name("c", stripnl=False, ensurenl=False)):
        if value.isspace():  # alone between two tags, some pages make one blank of it
            space += value
            continue
        style = next((s for token, s in _INKS if str(kind).startswith(token)), None)
        value, space = space + value, ""
        parts.append(joined(value) if style is None else element("span", value, style=style))
    return joined(*parts, space)
