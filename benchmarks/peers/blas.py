"""numpy with the BLAS that it was built with, for products of two matrices."""

from __future__ import annotations

import os

import numpy as np

from benchmarks.kernel import Composite, Product, aligned
from benchmarks.peers.base import Peer, Prepared
from benchmarks.task import Task


class Numpy(Peer):
    """``numpy.matmul`` into an array that is allocated once.

    The number of threads is that of the environment, which `benchmarks.runner` sets.
    """

    name = "numpy"
    modules = ("numpy",)
    package = "numpy"

    def suits(self, task: Task) -> bool:
        if task.wide is not None:
            return False
        if not isinstance(task.kernel, Product | Composite):
            return False
        nodes = task.kernel.nodes()
        return len(nodes) == 1 and nodes[0].op_type == "MatMul"

    def prepare(self, task: Task, threads: int) -> Prepared:
        assert task.kernel is not None and task.arrays is not None
        if os.environ.get("OPENBLAS_NUM_THREADS") != str(threads):
            raise RuntimeError("OPENBLAS_NUM_THREADS is another number of threads")
        a, b = task.arrays.values()
        out = aligned(np.zeros(task.kernel.output, np.float32))
        return Prepared(lambda: np.matmul(a, b, out=out), lambda result: [result])
