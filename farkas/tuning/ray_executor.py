"""An executor of `concurrent.futures` over the workers of ray, which has none of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from poly.errors import ArgumentError


class RayExecutor(Executor):
    """Runs calls as tasks of ray, for `farkas.tune(…, executor=…)`.

    address : of a cluster; None: the one that the process is connected to, else a new one here
    cpus : that each task takes; None: as many as this machine has, so that nothing else is measured
        on the same one
    remote : further options of tasks, as `ray.remote` takes them

    Raises
    ------
    ArgumentError : ray is not installed.
    """

    def __init__(self, address: str | None = None, cpus: int | None = None, **remote: Any) -> None:
        try:
            import ray
        except ImportError:
            raise ArgumentError("ray is not installed: pip install ray") from None
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        options = {"num_cpus": cpus or os.cpu_count(), "max_retries": 0, **remote}
        self._remote = ray.remote(**options)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As in `concurrent.futures`."""
        reference = self._remote(function).remote(*args, **kwargs)
        future: Future[Any] = reference.future()
        return future
