"""A script that runs kernels through oclgrind, which stands in for the drivers of its process.

Its arguments: a file with a text, arrays and launches (see `tests.gpu.oclgrind`), and one for the
arrays as they are afterwards.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pyopencl as cl

request, results = map(Path, sys.argv[1:])
text, arrays, given, launches = pickle.loads(request.read_bytes())
(platform,) = (p for p in cl.get_platforms() if p.name == "Oclgrind")
context = cl.Context(platform.get_devices())
queue = cl.CommandQueue(context)
# Optimised code may have instructions that the check for values nobody wrote does not know.
program = cl.Program(context, text).build(["-cl-opt-disable"], cache_dir=False)
buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE, a.nbytes) for a in arrays]
for n in given:
    cl.enqueue_copy(queue, buffers[n], arrays[n])
for symbol, grid, block, sizes, numbers in launches:
    total = tuple(g * b for g, b in zip(grid, block, strict=True))
    own = [*map(np.int64, sizes), *(buffers[n] for n in numbers)]
    getattr(program, symbol)(queue, total, block, *own)
for array, buffer in zip(arrays, buffers, strict=True):
    cl.enqueue_copy(queue, array, buffer)
queue.finish()
results.write_bytes(pickle.dumps(arrays))
