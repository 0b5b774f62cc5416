"""`backend`: what ``torch.compile(f, backend="farkas")`` calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from farkas.check_install import PACKAGES
from farkas.frameworks.torch_graph import compile_graph
from farkas.frameworks.torch_table import decompositions
from poly.errors import ArgumentError
from runtime.common.arguments import check_threads


def backend(
    module: Any,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of torch, forward and backward.

    >>> faster = torch.compile(model, backend="farkas")

    AOTAutograd makes graphs of ATen operators without mutation, for inference or for both passes
    of training; torch decomposes what Farkas has no lowering for.  Parts of connected operators are
    compiled; the others stay with torch, and ``logging.getLogger("farkas.torch")`` names them, with
    the reason.

    options : ``{"threads": 2}`` sets the number of threads; default is torch's

    Raises
    ------
    ArgumentError : a mode, which are Inductor's, or an unknown option.
    """
    given = dict(options or {})
    threads = given.pop("threads", None)
    if given:
        raise ArgumentError(f"there is no option {', '.join(given)}; there is: threads")
    if mode not in (None, "default"):
        raise ArgumentError(f"mode={mode!r} is one of Inductor's; leave it out")
    if threads is not None:
        check_threads(threads)
    own = partial(_compiled, threads=threads)
    first = partial(_compiled, threads=threads, is_first=True)
    common = import_module("torch._dynamo.backends.common")
    compiled: Callable[..., Any] = common.aot_autograd(
        fw_compiler=first,
        bw_compiler=own,
        inference_compiler=own,
        decompositions=decompositions(),
    )(module, inputs)
    return compiled


def _compiled(
    module: Any, inputs: Sequence[Any], threads: int | None, is_first: bool = False
) -> Callable[..., Any]:
    """What runs a graph; `is_first` if a backward pass follows, for which results are saved."""
    boxed = import_module("torch._functorch.aot_autograd").make_boxed_func
    made: Callable[..., Any] = boxed(
        compile_graph(module, threads, _count_shown() if is_first else None)
    )
    return made


def _count_shown() -> int | None:
    """How many results of a forward pass are not only saved; None if torch does not say."""
    context = import_module("torch._guards").TracingContext.try_get()
    about = context and context.fw_metadata
    return about.num_forward_returns + len(about.tokens) if about else None


def _leave_own_code() -> None:
    """Let Dynamo call what is Farkas's own, such as `farkas.einsum`, instead of tracing it.

    It traces the calls of operators, which are in this package.
    """
    rules = import_module("torch._dynamo.trace_rules")
    for name in ("farkas.kernels", "farkas.networks", *PACKAGES):
        rules.add(name)


with suppress(ImportError):  # without torch there is nothing to trace
    _leave_own_code()
