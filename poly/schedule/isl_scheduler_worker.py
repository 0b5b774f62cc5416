"""The process in which isl's scheduler runs, so that it can be stopped.

isl's bound on operations does not stop its scheduler, which can run for hours.  So it runs here,
under a limit on CPU time that the kernel enforces.  One request per process: JSON on standard input
(constraints as isl text), the schedule tree as text on standard output.
"""

from __future__ import annotations

import json
import resource
import sys

import islpy as isl


def main() -> None:
    """Read a request, print ``{"schedule": text}``."""
    request = json.load(sys.stdin)
    limit = max(1, int(request["seconds"]))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    ctx = isl.Context()
    for name, value in request["options"].items():
        getattr(ctx, f"set_schedule_{name}")(value)
    on = isl.ScheduleConstraints.on_domain(isl.UnionSet.read_from_str(ctx, request["domain"]))
    on = on.set_context(isl.Set.read_from_str(ctx, request["context"]))
    on = on.set_validity(isl.UnionMap.read_from_str(ctx, request["validity"]))
    on = on.set_coincidence(isl.UnionMap.read_from_str(ctx, request["coincidence"]))
    on = on.set_proximity(isl.UnionMap.read_from_str(ctx, request["proximity"]))
    json.dump({"schedule": on.compute_schedule().to_str()}, sys.stdout)


if __name__ == "__main__":
    main()
