"""The process that `runtime.common.workers` starts: it applies a function to what it is sent.

Pickled arguments come on standard input, and pickled results leave on standard output; what else
is printed goes to standard error.  It ends with its input, so that it never outlives its parent.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from importlib import import_module
from typing import BinaryIO

#: Sent first: this is a Python that has loaded the function.
READY = b"ready"


def serve(module: str, name: str) -> None:
    """Apply a function to all arguments that arrive: ``(True, result)``, else ``(False, error)``.

    An error is sent as text alone.
    """
    results: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    function = getattr(import_module(module), name)
    gc.freeze()  # what was imported stays, and need not be looked through again and again
    pickle.dump(READY, results, protocol=5)
    results.flush()
    while True:
        try:
            arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            made = (True, function(*arguments))
            data = pickle.dumps(made, protocol=5)
        except Exception as error:
            data = pickle.dumps((False, f"{type(error).__name__}: {error}"), protocol=5)
        results.write(data)
        results.flush()
