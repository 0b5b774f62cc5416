"""XLA on the processor, through jax."""

from __future__ import annotations

import importlib

import numpy as np

from benchmarks.peers.base import Peer, Prepared
from benchmarks.task import Task
from benchmarks.translate.jax_graph import jax_function
from benchmarks.translate.network import read_network


class Xla(Peer):
    """The network as one jitted function of weights and inputs.

    The number of threads is that of the environment, which `benchmarks.runner` sets.
    """

    name = "xla"
    modules = ("jax", "jaxlib")
    package = "jaxlib"

    def suits(self, task: Task) -> bool:
        return task.is_translated and task.wide is None

    def prepare(self, task: Task, threads: int) -> Prepared:
        jax = importlib.import_module("jax")
        network = read_network(task.path)
        weights = {n: jax.device_put(a) for n, a in network.constants.items()}
        inputs = [jax.device_put(a) for a in task.inputs.values()]
        jitted = jax.jit(jax_function(network))
        compiled = jitted.lower(weights, *inputs).compile()
        wait = jax.block_until_ready
        return Prepared(
            lambda: wait(compiled(weights, *inputs)),
            lambda results: [np.asarray(r) for r in results],
        )
