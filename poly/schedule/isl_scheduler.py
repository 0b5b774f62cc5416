"""isl's scheduler (Pluto's algorithm: Bondhugula et al., PLDI 2008) under a budget.

It finds an order from the dependences alone: it fuses, skews and shifts to make outer loops
parallel and bands tileable.  `max_coefficient` and `max_constant_term` are bounded to 1: measured,
this both keeps it fast and keeps it from fusing loops by large shifts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import islpy as isl

from poly.deps.dependences import Dependences
from poly.deps.scop import Scop
from poly.errors import UndecidedError
from poly.lower.isl_tree import from_isl
from poly.tree.nodes import Node

#: The limit of the scheduler's CPU time, in seconds.
SECONDS = 5
OPTIONS = {"max_coefficient": 1, "max_constant_term": 1}

_WORKER = Path(__file__).with_name("isl_scheduler_worker.py")


def isl_schedule(scop: Scop, dependences: Dependences, seconds: int = SECONDS) -> Node:
    """Run isl's scheduler and return the tree that it finds.

    Raises
    ------
    UndecidedError : it finds none within its CPU time.
    """
    request = {
        "seconds": seconds,
        "options": OPTIONS,
        "domain": str(scop.domain),
        "context": str(scop.context),
        "validity": str(dependences.ordering),
        "coincidence": str(dependences.all),
        "proximity": str(dependences.flow),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_WORKER)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            # CPU time is the budget; the wall clock only guards against a stalled machine.
            timeout=20 * seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UndecidedError(f"isl's scheduler could not run: {error}") from None
    if done.returncode != 0:
        raise UndecidedError(f"isl's scheduler found no schedule within {seconds} s of CPU time")
    try:
        text = json.loads(done.stdout)["schedule"]
        found = isl.Schedule.read_from_str(scop.context.get_ctx(), text)
    except (ValueError, LookupError, TypeError, isl.Error) as error:
        raise UndecidedError(f"isl's scheduler gave an invalid answer: {error}") from None
    return from_isl(found.get_root(), scop)
