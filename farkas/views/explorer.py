"""`explore`: an interactive schedule in Jupyter, with sliders for its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farkas.console.display import median_seconds, seconds
from farkas.targets.base import Target
from farkas.targets.compile_program import build
from farkas.targets.find_target import target_of
from farkas.views.footprint_table import footprint_view
from farkas.views.refusals import refusal
from farkas.views.schedules import schedule_page
from farkas.views.trial import Trial, step_text
from poly.errors import ArgumentError, FarkasError, IllegalScheduleError, ScheduleError
from poly.ir.cost import operations_of_program
from poly.ir.size_values import all_sizes
from poly.schedule.primitives import PRIMITIVES
from poly.schedule.schedule import Schedule
from poly.show.markup import Markup, element, joined
from runtime.common.arguments import undetermined
from runtime.reference.verify import random_inputs

#: The largest number that a slider reaches.
MOST = 128


class Explorer:
    """Widgets around a `Trial`; show it as the value of a cell.

    Attributes
    ----------
    trial : the schedule so far; `schedule` and `script` are its parts
    target : where it is timed; None: this machine
    widget : everything, as one ipywidgets box
    """

    def __init__(
        self, schedule: Schedule, sizes: Mapping[str, int], target: Target | None = None
    ) -> None:
        self._w = _widgets()
        self.trial = Trial.of(schedule)
        self.target = target
        self.sizes = None
        if sizes or not schedule.program.sizes:
            self.sizes = all_sizes(schedule.program, sizes)
        w = self._w
        wide = w.Layout(width="22em")
        self._primitive = w.Dropdown(options=sorted(PRIMITIVES), value="tile",
                                     description="step", layout=wide)  # fmt: skip
        self._statements = w.Dropdown(options=schedule.statements, value=schedule.statements[-1],
                                      description="statement", layout=wide)  # fmt: skip
        self._loops = w.Text(description="loops", placeholder="i, j", layout=wide)
        self._by = w.Text(description="by", placeholder="32, 32", layout=wide)
        self._words = w.Text(description="as", layout=wide)
        self._example = w.HTML()
        self._add = w.Button(description="apply", button_style="primary")
        self._undo = w.Button(description="take back")
        self._time = w.Button(description="time it", disabled=self.sizes is None)
        self._verdict, self._timing = w.HTML(), w.HTML()
        self._sliders = w.VBox([])
        self._script = w.Textarea(description="script", layout=w.Layout(width="46em", height="9em"))
        self._replay = w.Button(description="run script")
        self._page = w.HTML()
        self._add.on_click(lambda _: self.apply())
        self._undo.on_click(lambda _: self._set(self.trial.without_last()))
        self._replay.on_click(lambda _: self._set(self.trial.replayed(self._script.value)))
        self._time.on_click(lambda _: self.time())
        self._primitive.observe(lambda _: self._say(), "value")
        self._statements.observe(lambda _: self._say(), "value")
        form = w.VBox([self._primitive, self._statements, self._loops, self._by, self._words,
                       self._example, w.HBox([self._add, self._undo, self._time])])  # fmt: skip
        script = w.VBox([self._script, self._replay])
        top = w.HBox([form, w.VBox([self._sliders, script])])
        self.widget = w.VBox([top, self._verdict, self._timing, self._page])
        self._say()
        self._set(self.trial)

    @property
    def schedule(self) -> Schedule:
        return self.trial.schedule

    @property
    def script(self) -> str:
        """The steps so far, as a script to copy."""
        return self.trial.script

    def __repr__(self) -> str:
        return f"<Explorer of {self.schedule.program.name}, {self.trial.verdict}>"

    def apply(self) -> str:
        """Apply the step in the form; returns the verdict."""
        primitive = self._primitive.value
        statements = "" if primitive == "reschedule" else self._statements.value
        if primitive == "fuse":  # the chosen statement, and the one after it
            names = self.schedule.statements
            position = names.index(statements)
            statements = ", ".join(names[position : position + 2])
        try:
            text = step_text(primitive, statements, self._loops.value, self._by.value,
                             self._words.value)  # fmt: skip
        except ScheduleError as error:
            self._verdict.value = _message(f"refused: {error}", False)
            return f"refused: {error}"
        self._set(self.trial.then(text))
        return self.trial.verdict

    def time(self) -> str:
        """Compile the schedule and time it briefly on random arrays; returns the time."""
        good, words = self._timed()
        self._timing.value = _message(words, good)
        return words

    def _timed(self) -> tuple[bool, str]:
        if self.sizes is None:
            return False, "give sizes to explore, as in explore(kernel, N=512)"
        program = self.schedule.program
        try:
            made = build(program, self.schedule, self.schedule.exact,
                         self.target or target_of(None, None))  # fmt: skip
            given: dict[str, Any] = {
                **random_inputs(program, self.sizes),
                **{n: self.sizes[n] for n in undetermined(program)},
            }
            took = median_seconds(lambda: made.loaded(**given), budget=0.3)
        except (FarkasError, MemoryError) as error:
            return False, str(error) or "not enough memory"
        rate = operations_of_program(program, self.sizes) / took / 1e9
        return True, f"{seconds(took)}, {rate:.3g} GFLOP/s"

    def _set(self, trial: Trial) -> None:
        self.trial = trial
        illegal = isinstance(trial.refused, IllegalScheduleError)
        verdict = "illegal: the schedule stays as it was" if illegal else trial.verdict
        self._verdict.value = _message(verdict, trial.refused is None)
        self._timing.value = ""
        if trial.refused is None:
            self._script.value = trial.script
        self._show_sliders()
        self._page.value = self._picture()
        self._say()

    def _picture(self) -> str:
        trial = self.trial
        if isinstance(trial.refused, IllegalScheduleError):
            return refusal(trial.refused)._repr_html_()
        try:
            page = schedule_page(trial.schedule, self._statements.value).html
        except FarkasError as error:
            page = element("p", str(error))
        table = Markup("")
        if self.sizes is not None:
            table = footprint_view(trial.schedule, self._statements.value, self.sizes).html
        return joined(page, table)

    def _show_sliders(self) -> None:
        sliders = []
        for step, position, s in self.trial.numbers:
            slider = self._w.IntSlider(
                value=s.by[position], min=min(1, s.by[position]), max=max(MOST, s.by[position]),
                description=f"{s.primitive} {s.loops[position] if position < len(s.loops) else ''}",
                continuous_update=False, layout=self._w.Layout(width="24em"),
            )  # fmt: skip
            slider.observe(self._changed(step, position), "value")
            sliders.append(slider)
        self._sliders.children = sliders

    def _changed(self, step: int, position: int) -> Any:
        return lambda change: self._set(self.trial.with_number(step, position, change["new"]))

    def _say(self) -> None:
        loops = ", ".join(self.schedule.loops(self._statements.value)) or "none"
        example = PRIMITIVES[self._primitive.value].example
        self._example.value = element("div", f"loops: {loops}", element("br"), f"as in: {example}")

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return self.widget._repr_mimebundle_(**kwargs)


def _widgets() -> Any:
    try:
        import ipywidgets
    except ImportError:
        raise ArgumentError(
            "explore needs ipywidgets: pip install '.[notebook]' in a clone of Farkas, or "
            "pip install ipywidgets"
        ) from None
    return ipywidgets


def _message(text: str, good: bool) -> Markup:
    ink = "#3da35d" if good else "#d01f1f"
    style = f"border-left:.3em solid {ink};padding-left:.6em;margin:.4em 0;max-width:60em"
    return element("div", text, style=style)
