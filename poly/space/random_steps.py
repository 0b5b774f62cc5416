"""Random steps: what a person might try next on a schedule, for programs that no tactic knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import loop_extents
from poly.tree.kinds import Mark, Scope
from poly.tree.nodes import loops_of
from poly.tree.steps import Step

#: Sizes of tiles, lanes of vectors, and iterations that are unrolled.
SIZES, WIDTHS, UNROLLED = (2, 4, 8, 16, 32, 64, 128), (4, 8, 16), (2, 4, 8)

_Draw = Callable[[Schedule, str, tuple[str, ...], Random], Step | None]


def random_step(schedule: Schedule, rng: Random, marks: Sequence[str]) -> Step | None:
    """A step that may make sense next; None if a statement without loops was drawn.

    Whether it is legal, only applying it shows.

    marks : the primitives that say where iterations run, see `Strategy`
    """
    name = rng.choice(schedule.statements)
    free = [m.name for m in loops_of(schedule.tree, name) if m.mark == Mark.SEQ]
    if not free:
        return None
    draws, weights = zip(*_DRAWS, *((_MARKS[m], MARKING) for m in marks), strict=True)
    (draw,) = rng.choices(draws, weights)
    made: Step | None = draw(schedule, name, tuple(free), rng)
    return made


def last_steps(schedule: Schedule, name: str, marks: Sequence[str]) -> Iterator[Step]:
    """What a person does last: say where the inner and the outer loops run."""
    loops = loops_of(schedule.tree, name)
    free = [m.name for m in loops if m.mark == Mark.SEQ]
    ends = (loops[0].name, loops[-1].name) if loops else ()
    for mark in reversed(marks):
        step = _MARKS[mark](schedule, name, tuple(free), Random(0)) if free else None
        if step is not None and step.loops[0] in ends:
            yield step
            free = [n for n in free if n not in step.loops]


def varied(steps: tuple[Step, ...], rng: Random) -> tuple[Step, ...]:
    """The steps without one of them, or with another number in one."""
    at = rng.randrange(len(steps))
    step = steps[at]
    if step.by and rng.random() < 0.5:
        sizes = WIDTHS if step.primitive == "vectorize" else SIZES
        other = replace(step, by=tuple(rng.choice(sizes) for _ in step.by))
        return (*steps[:at], other, *steps[at + 1 :])
    return (*steps[:at], *steps[at + 1 :])


def _tile(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    every = schedule.loops(name)
    count = rng.randint(1, min(3, len(free)))
    first = rng.randrange(len(every) - count + 1)
    loops = every[first : first + count]
    sizes = tuple(rng.choice(SIZES) for _ in loops)
    return Step("tile", (name,), loops, sizes)


def _split(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    return Step("split", (name,), (rng.choice(free),), (rng.choice(SIZES),))


def _interchange(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    if len(free) < 2:
        return None
    return Step("interchange", (name,), tuple(rng.sample(free, 2)))


def _vectorize(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    extent = loop_extents(schedule, name)[free[-1]]
    whole = extent is not None and extent <= WIDTHS[-1]
    width = () if whole else (rng.choice(WIDTHS),)
    return Step("vectorize", (name,), (free[-1],), width)


def _unroll(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    loop = rng.choice(free)
    extent = loop_extents(schedule, name)[loop]
    whole = extent is not None and extent <= UNROLLED[-1] and rng.random() < 0.5
    return Step("unroll", (name,), (loop,), () if whole else (rng.choice(UNROLLED),))


def _parallelize(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    return Step("parallelize", (name,), (free[0],))


def _map_blocks(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    return Step("map_blocks", (name,), (free[0],))


def _map_threads(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    return Step("map_threads", (name,), (free[-1],)) if len(free) > 1 else None


def _skew(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    if len(free) < 2:
        return None
    by, loop = sorted(rng.sample(free, 2), key=free.index)
    return Step("skew", (name,), (loop, by), (rng.choice((1, 2)),))


def _fuse(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    names = schedule.statements
    at = names.index(name)
    if at + 1 == len(names):
        return None
    depth = rng.randint(1, len(free))
    return Step("fuse", (name, names[at + 1]), free[:depth])


def _distribute(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    return Step("distribute", (name,), (rng.choice(free),))


def _promote(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    s = schedule.scop.statement(name)
    written = rng.random() < 0.5 or not s.source.reads
    tensor = s.target.tensor if written else rng.choice(s.source.reads).tensor
    scope = Scope.REGISTER if written else Scope.LOCAL
    return Step("promote", (name,), (rng.choice(free),), words=(tensor, scope))


def _isolate(schedule: Schedule, name: str, free: tuple[str, ...], rng: Random) -> Step | None:
    return Step("isolate", (name,), (rng.choice(free),))


#: How each step is drawn, and how often.
_DRAWS: tuple[tuple[_Draw, int], ...] = (
    (_tile, 4),
    (_split, 2),
    (_interchange, 4),
    (_unroll, 3),
    (_skew, 1),
    (_fuse, 2),
    (_distribute, 1),
    (_promote, 2),
    (_isolate, 1),
)
#: Those that say where iterations run, and how often each is drawn.
_MARKS: dict[str, _Draw] = {
    "parallelize": _parallelize,
    "vectorize": _vectorize,
    "map_blocks": _map_blocks,
    "map_threads": _map_threads,
}
MARKING = 4
