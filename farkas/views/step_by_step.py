"""Show what each step of a schedule changed: in the tree and in the text."""

from __future__ import annotations

from difflib import unified_diff

from farkas.views.code import body_lines, language_of, text_of
from farkas.views.page import View, beside, section
from farkas.views.schedules import tree_markup
from poly.schedule.schedule import Schedule
from poly.show.markup import Markup, badge, element, faint, joined

_ADDED, _GONE = "rgba(61,163,93,.22)", "rgba(208,31,31,.18)"


def steps_view(schedule: Schedule) -> View:
    """The script step by step, each with its tree and its changes.

    Raises
    ------
    ScheduleError : isl exceeded its budget on the loops of one of the steps.
    """
    language = language_of(schedule)  # the same for all steps, so that only real changes show
    now = Schedule.of(schedule.program, schedule.exact)
    tree, code = now.show, _code(now, language)
    parts = [section("0. as written", tree_markup(now), is_open=False)]
    texts = ["0. as written", *_indented(tree)]
    for number, step in enumerate(schedule.steps, 1):
        now = now.apply(step)
        new_tree, new_code = now.show, _code(now, language)
        changes = _changes(tree, new_tree)
        added, gone = _count(code, new_code)
        sums = [
            badge(f"+{added}", "#3da35d"),
            badge(f"-{gone}", "#d95050"),
            faint(f" lines of {language}"),
        ]
        head = element("div", *sums, style="font-size:85%")
        body = beside(tree_markup(now), joined(head, _diff(code, new_code)))
        parts.append(section(f"{number}. {step}", body, is_open=number == len(schedule.steps)))
        texts += [f"{number}. {step}  (+{added} -{gone} lines of {language})", *_indented(changes)]
        tree, code = new_tree, new_code
    return View(element("div", *parts), "\n".join(texts), "Steps")


def _code(schedule: Schedule, language: str) -> list[str]:
    """The lines of its functions, without the digest in their names."""
    lines = body_lines(text_of(schedule, language))
    return [line.text.replace(f"_{schedule.digest}", "") for line in lines]


def _changes(before: str, after: str) -> str:
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def _count(before: list[str], after: list[str]) -> tuple[int, int]:
    lines = [x for x in unified_diff(before, after, lineterm="", n=0)][2:]
    return sum(x.startswith("+") for x in lines), sum(x.startswith("-") for x in lines)


def _diff(before: list[str], after: list[str], most: int = 160) -> Markup:
    lines = list(unified_diff(before, after, lineterm="", n=2))[2:]
    rows = [
        element(
            "div", line or " ",
            style="white-space:pre;background:"
            + {"+": _ADDED, "-": _GONE}.get(line[:1], "none")
            + (";opacity:.6" if line.startswith("@@") else ""),
        )
        for line in lines[:most]
    ]  # fmt: skip
    if len(lines) > most:
        rows.append(element("div", faint(f"… and {len(lines) - most} more lines")))
    return element("div", *rows, style="font-family:monospace;font-size:80%;overflow-x:auto")


def _indented(text: str) -> list[str]:
    return [f"   {line}" for line in text.splitlines()]
