"""A bound on the time of one attempt: native code that runs away is interrupted too.

SIGALRM interrupts Python; if that takes no effect because native code never returns, `faulthandler`
ends the process with a traceback.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
from collections.abc import Iterator


class TooSlowError(Exception):
    """What was tried took longer than it may."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TooSlowError` in what runs inside when it takes longer."""

    def ring(_signal: int, _frame: object) -> None:
        raise TooSlowError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(6 * seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
