"""`SavedCache`: a cache that also has what a file of `save` holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runtime.common.cache import Cache, Entry, digest


class SavedCache(Cache):
    """A cache whose entries are looked for in a file first.

    Libraries have to be files before they can be loaded.  So what is asked for is put into the
    cache, under a key that follows from its content: a file cannot replace the code that others
    find there.  A pickled one is the plain cache.
    """

    def __init__(self, cache: Cache, saved: Mapping[str, Mapping[str, bytes]]) -> None:
        """saved : by key, files by name"""
        self.__dict__.update(vars(cache))  # it is checked already, and may have a stand-in
        self._saved = saved

    def get(self, key: str, unread: str | None = None) -> Entry | None:
        files = self._saved.get(key)
        if files is None:
            return super().get(key, unread)
        parts = (part for name in sorted(files) for part in (name, files[name]))
        own = digest("saved", *parts)
        return replace(super().get(own) or super().put(own, files), key=key)

    def has(self, key: str) -> bool:
        return key in self._saved or super().has(key)
