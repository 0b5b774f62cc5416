"""A schedule or a kernel on one page: program, script, tree, and the generated text."""

from __future__ import annotations

from farkas.views.code import body_lines, code_html, language_of, text_of
from farkas.views.page import View, beside, section
from poly.ir.program import Program
from poly.schedule.schedule import Schedule
from poly.show.markup import Markup, element, joined
from poly.show.tree_html import statement_colours


def schedule_page(schedule: Schedule, statement: str | None = None) -> View:
    """The tree beside the generated C or CUDA C; the lines of `statement` are highlighted.

    Raises
    ------
    ScheduleError : isl exceeded its budget.
    """
    language = language_of(schedule)
    return _page(schedule, text_of(schedule, language), statement, schedule.program, language)


def kernel_page(
    schedule: Schedule, source: str, written: Program, language: str, statement: str | None = None
) -> View:
    """A kernel's parts: the program, its schedule, and its text in a language."""
    return _page(schedule, source, statement, written, language)


def tree_markup(schedule: Schedule) -> Markup:
    """The tree of a schedule, with badges."""
    return Markup(schedule._repr_html_())


def _page(
    schedule: Schedule, source: str, statement: str | None, written: Program, language: str
) -> View:
    script = str(schedule) or "# as written"
    parts = joined(
        section("program", _text(str(written)), is_open=False),
        section("script", _text(script), is_open=False),
        beside(
            section("tree", tree_markup(schedule)),
            section(language, code_html(source, statement_colours(schedule.scop), statement)),
        ),
    )
    text = "\n".join([str(written), "", script, "", schedule.show, "", *_c_text(source, statement)])
    return View(element("div", parts), text, written.name)


def _c_text(source: str, statement: str | None) -> list[str]:
    """The C of the loops, with ``>`` before the lines of `statement`."""
    return [
        f"{'>' if statement in line.statements else ' '} {line.number:>4} {line.text}".rstrip()
        for line in body_lines(source)
    ]


def _text(text: str) -> Markup:
    return element("pre", text, style="margin:.2em 0 .6em 1em;font-size:90%;background:none;"
                   "color:inherit")  # fmt: skip
