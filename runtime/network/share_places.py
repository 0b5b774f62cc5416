"""`share_places`: which storages of an open graph take turns in one place.

Sizes, and with them offsets, are known in a run only.  So places follow one another, each as large
as the largest of its storages; which these are is decided for example sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtime.network.memory_plan import Life
from runtime.network.plan_memory import largest_first


def share_places(lives: Mapping[str, Life]) -> tuple[tuple[str, ...], ...]:
    """The storages of each place: the largest first, each in the first place that is free."""
    places: list[list[str]] = []
    for name in largest_first(lives):
        own = lives[name]
        free = (
            p
            for p in places
            if all(lives[n].last < own.first or own.last < lives[n].first for n in p)
        )
        place = next(free, None)
        if place is None:
            places.append([name])
        else:
            place.append(name)
    return tuple(map(tuple, places))
