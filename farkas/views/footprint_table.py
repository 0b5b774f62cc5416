"""How much memory one iteration of each loop touches, against the caches."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

from farkas.console.display import size_text
from farkas.views.iteration_space import chosen_statement
from farkas.views.page import View
from poly.deps.footprint import LoopFootprint
from poly.ir.size_values import all_sizes
from poly.machine.cpu import Machine, host_machine
from poly.schedule.schedule import Schedule
from poly.show.markup import element, joined, table

_LEVELS = (("L1", "#3da35d"), ("L2", "#3d7fd9"), ("L3", "#b59a1f"), ("memory", "#d95050"))


def footprint_view(
    schedule: Schedule,
    statement: str | None,
    sizes: Mapping[str, int],
    machine: Machine | None = None,
) -> View:
    """The footprints of the loops around a statement, each with the cache that it fits in.

    sizes : a value for every size of the program; machine : default is this one
    """
    machine = machine or host_machine()
    every = all_sizes(schedule.program, sizes)
    found = schedule.footprints(chosen_statement(schedule, statement), every)
    tensors = list(dict.fromkeys(t.tensor for f in found for t in f.tensors))
    head = ["one iteration of", *tensors, "together", "fits in", ""]
    rows, texts = [], []
    most = max([f.bytes for f in found] + [machine.l3, 2])
    for f in found:
        boxes = {t.tensor: " x ".join(map(str, t.extents)) or "1" for t in f.tensors}
        level, ink = _LEVELS[_level(f, machine)]
        name = joined("  " * f.depth, element("b", f.loop or "everything"))
        bar = element(
            "div", "", style=f"height:.8em;background:{ink};min-width:1px;border-radius:.2em;"
            f"width:{12 * log2(f.bytes + 1) / log2(most + 1):.1f}em",
        )  # fmt: skip
        rows.append([name, *(boxes.get(t, "") for t in tensors), size_text(f.bytes), level, bar])
        texts.append(
            f"{'  ' * f.depth + (f.loop or 'everything'):<24}{size_text(f.bytes):>10}  {level}"
        )
    caption = f"{machine}; sizes {', '.join(f'{n}={v}' for n, v in sizes.items()) or 'fixed'}"
    html = element("div", table(head, rows), element("div", caption, style="font-size:85%"))
    return View(html, "\n".join([*texts, caption]), "Footprints")


def _level(f: LoopFootprint, machine: Machine) -> int:
    limits = (machine.l1, machine.l2, machine.l3)
    return next((n for n, limit in enumerate(limits) if f.bytes <= limit), len(limits))
