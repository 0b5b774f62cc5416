"""Terminal output of the command line: progress, highlighted text, readable figures."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.text import Text

#: Shorter steps are not printed where progress is written line by line.
_NOTABLE_SECONDS = 1.0


def stderr_console() -> Console:
    """A console on the error stream, where progress is shown."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def stdout_console() -> Console:
    """A console on the output stream."""
    return Console(highlight=False, soft_wrap=True)


class StageProgress(AbstractContextManager["StageProgress"]):
    """Progress of a compilation by stages; an instance is the callback of `compile_onnx`.

    On a terminal there is a bar for each stage; elsewhere a line for each stage that took more
    than a second (every one with ``verbose``).
    """

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self._console, self._verbose = console, verbose
        self._bars: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._finished: set[str] = set()
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description:<9}"),
                BarColumn(bar_width=28),
                TextColumn("{task.completed:>4}/{task.total:<4}"),
                TimeElapsedColumn(),
                TextColumn("[dim]{task.fields[what]}", markup=True),
                console=console,
                transient=not verbose,
            )

    def __enter__(self) -> StageProgress:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, stage: str, done: int, total: int, what: str) -> None:
        """Show that `done` of `total` steps of a stage are done, and what comes next."""
        now = time.perf_counter()
        if stage not in self._started:
            for earlier in self._started:
                self._end(earlier, now)
        self._started.setdefault(stage, now)
        if self._progress is not None:
            # The text may come from a file: it is plain text, never markup.
            label = printable(what)[:48].replace("[", "\\[")
            if stage not in self._bars:
                self._bars[stage] = self._progress.add_task(stage, total=total, what=label)
            self._progress.update(self._bars[stage], completed=done, total=total, what=label)
        if done >= total:
            self._end(stage, now)

    def _end(self, stage: str, now: float) -> None:
        """End a stage, because it is complete or because another one began."""
        if stage in self._finished:
            return
        self._finished.add(stage)
        if self._progress is not None:
            bar = self._bars[stage]
            total = next(t.total for t in self._progress.tasks if t.id == bar)
            self._progress.update(bar, completed=total, what="")
            self._progress.stop_task(bar)
        elif self._verbose or now - self._started[stage] > _NOTABLE_SECONDS:
            self._console.print(Text(f"{stage}: {seconds(now - self._started[stage])}"))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something is in progress, on a terminal."""
    console = stderr_console()
    with console.status(what) if console.is_terminal else nullcontext():
        yield


def code(console: Console, text: str, language: str) -> None:
    """Print source text, highlighted on a terminal and unchanged elsewhere."""
    if console.is_terminal:
        console.print(Syntax(text, language, background_color="default", word_wrap=True))
    else:
        console.file.write(text + "\n")


def loop_nest(source: str) -> str:
    """Extract the function with the loops from a generated translation unit."""
    found = re.search(r"^(?:static )?void \w+_body\(.*?^\}", source, re.MULTILINE | re.DOTALL)
    return found[0] if found else source.strip()


def median_seconds(
    run: Callable[[], object], at_least: int = 5, budget: float = 2.0, most: int = 1000
) -> float:
    """The median time of a call, over `at_least` calls and then as many as fit in `budget`."""
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < at_least or (time.perf_counter() - began < budget and len(times) < most):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def seconds(value: float) -> str:
    """A time in a suitable unit."""
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.2f} s"


def size_text(count: int) -> str:
    """A number of bytes in a suitable unit."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.3g} GiB"


def printable(text: str) -> str:
    """External text without control characters."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
