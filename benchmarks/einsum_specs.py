"""``python -m benchmarks.einsum_specs``: random einsum strings, beside numpy and torch.

Subscripts, extents and element types are drawn: one to four operands, dimensions that are batched,
summed, repeated, broadcast or left out.  `fk.einsum`, `numpy.einsum` with ``optimize=True`` and
`torch.einsum` take turns in one process, after their results have been compared.  Prints ratios of
the medians, below 1 where Farkas is faster, as geometric means over the kinds of contractions.

    python -m benchmarks.einsum_specs --count 200 --seed 0    as measured
    python -m benchmarks.einsum_specs --check                 compares results only
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np

import farkas as fk
from benchmarks.measure import QUICK, Settings, take_turns
from benchmarks.results import geomean

_LETTERS = "abcdefgh"
#: Extents that a letter may have; one small, one prime, some that fill vectors.
_EXTENTS = (2, 3, 8, 16, 31, 64, 100, 128, 256, 512)
#: Least and most products, and most elements of an array.
_WORK = (1 << 12, 1 << 25)
_MOST_ELEMENTS = 1 << 22
#: How far results may be apart, over the largest value.
_TOLERANCE = {"float32": 1e-4, "complex64": 1e-4, "float64": 1e-10, "int64": 0.0}
_KINDS = ("one operand", "no sum", "two operands", "three or more")


@dataclass(frozen=True)
class Spec:
    """An einsum string with the shapes and the element type of its operands."""

    text: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str

    @property
    def kind(self) -> str:
        """The row of the table."""
        inputs, _, result = self.text.partition("->")
        if len(self.shapes) == 1:
            return "one operand"
        if not {*inputs} - {*result, ",", "."}:
            return "no sum"
        return "two operands" if len(self.shapes) == 2 else "three or more"

    def operands(self) -> list[Any]:
        """Arrays of numpy, the same whenever they are asked for."""
        generator = np.random.default_rng(len(self.text))
        made = []
        for shape in self.shapes:
            if self.dtype == "int64":
                made.append(generator.integers(-3, 4, shape))
                continue
            values = generator.standard_normal(shape)
            if self.dtype == "complex64":
                values = values + 1j * generator.standard_normal(shape)
            made.append(values.astype(self.dtype))
        return made

    def __str__(self) -> str:
        shapes = ", ".join("x".join(map(str, s)) or "()" for s in self.shapes)
        return f"{self.text} of {shapes}, {self.dtype}"


def specs(count: int, seed: int) -> list[Spec]:
    """Different random ones."""
    draw = random.Random(seed)
    found: dict[Spec, None] = {}
    while len(found) < count:
        spec = _drawn(draw)
        if spec is not None:
            found[spec] = None
    return [*found]


def _drawn(draw: random.Random) -> Spec | None:
    """One, if it is neither too small nor too large."""
    number = draw.choices((1, 2, 3, 4), (2, 6, 3, 1))[0]
    letters = _LETTERS[: draw.randint(1, 3 + number)]
    extents = {letter: draw.choice(_EXTENTS) for letter in letters}
    terms = [_term(draw, letters) for _ in range(number)]
    used = sorted({*"".join(terms)})
    result = [letter for letter in used if draw.random() < 0.55]
    draw.shuffle(result)
    shapes = [[extents[letter] for letter in term] for term in terms]
    head = ""
    if draw.random() < 0.15:  # dimensions without a letter, of which some are broadcast
        batch = [draw.choice((2, 3, 8)) for _ in range(draw.randint(1, 2))]
        head = "..."
        for n, shape in enumerate(shapes):
            own = batch if n == 0 else batch[draw.randint(0, len(batch)) :]
            shape[:0] = [e if n == 0 or draw.random() < 0.7 else 1 for e in own]
        extents["."] = prod(batch)
    text = ",".join(head + term for term in terms) + "->" + head + "".join(result)
    work = prod(extents[letter] for letter in used) * extents.get(".", 1)
    sizes = [*map(prod, shapes), prod(extents[letter] for letter in result) * extents.get(".", 1)]
    if not _WORK[0] <= work <= _WORK[1] or max(sizes) > _MOST_ELEMENTS:
        return None
    dtype = draw.choices(("float32", "float64", "complex64", "int64"), (10, 5, 2, 1))[0]
    return Spec(text, tuple(map(tuple, shapes)), dtype)


def _term(draw: random.Random, letters: str) -> str:
    """The subscripts of an operand; now and then one letter comes twice."""
    term = draw.sample(letters, draw.randint(1, min(4, len(letters))))
    if draw.random() < 0.06:
        term.insert(draw.randint(0, len(term)), draw.choice(term))
    return "".join(term)


def calls(spec: Spec) -> dict[str, Callable[[], Any]]:
    """What takes turns: of libraries that are installed."""
    arrays = spec.operands()
    made: dict[str, Callable[[], Any]] = {
        "farkas": partial(fk.einsum, spec.text, *arrays),
        "numpy": partial(np.einsum, spec.text, *arrays, optimize=True),
    }
    if find_spec("torch"):
        torch = import_module("torch")
        made["torch"] = partial(torch.einsum, spec.text, *map(torch.from_numpy, arrays))
    return made


def difference(spec: Spec, found: Any, expected: Any) -> float:
    """How far results are apart, over what is allowed; 1 or less is right."""
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.inf
    largest = float(abs(b).max(initial=0)) or 1.0
    off = float(abs(a - b).max(initial=0)) / largest
    return off / _TOLERANCE[spec.dtype] if _TOLERANCE[spec.dtype] else np.inf if off else 0.0


def wrong(spec: Spec, made: dict[str, Callable[[], Any]]) -> list[str]:
    """Those whose result is not numpy's."""
    results = {name: call() for name, call in made.items()}
    return [n for n, r in results.items() if not difference(spec, r, results["numpy"]) <= 1]


def main(arguments: Sequence[str]) -> int:
    """Print a line for each that is wrong, and the table; returns how often Farkas is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="compare results only")
    parser.add_argument("--long", action="store_true", help="more turns")
    parser.add_argument("--all", action="store_true", help="a row for each")
    options = parser.parse_args(arguments)
    failed = 0
    rows: list[tuple[Spec, dict[str, float]]] = []
    for spec in specs(options.count, options.seed):
        made = calls(spec)
        others = wrong(spec, made)
        if others:
            print(f"{spec}: wrong: {', '.join(others)}", file=sys.stderr)
            failed += "farkas" in others
        if not options.check:
            times = take_turns(made, Settings() if options.long else QUICK)
            rows.append((spec, times))
            if options.all:
                shown = ", ".join(f"{n} {1e6 * t:.1f}" for n, t in times.items())
                print(f"{spec}: {shown} µs", flush=True)
    print(f"{options.count} specs, {failed} of Farkas's results wrong")
    if rows:
        print("\n".join(table(rows)))
    return failed


def table(rows: Sequence[tuple[Spec, dict[str, float]]]) -> list[str]:
    """Lines of the table: a row for each kind, and one for all."""
    peers = [name for name in rows[0][1] if name != "farkas"]
    head = "".join(f" / {p} | worst | slower |" for p in peers)
    lines = [f"| kind | specs |{head}", "|---|---|" + "---|---|---|" * len(peers)]
    for kind in (*_KINDS, "all"):
        chosen = [times for spec, times in rows if kind in ("all", spec.kind)]
        if not chosen:
            continue
        line = f"| {kind} | {len(chosen)} |"
        for peer in peers:
            ratios = [times["farkas"] / times[peer] for times in chosen]
            slower = sum(r > 1 for r in ratios)
            line += f" {geomean(ratios):.2f} | {max(ratios):.1f} | {slower} |"
        lines.append(line)
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
