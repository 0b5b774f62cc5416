"""`compile_onnx`: compile an ONNX network to a function of named arrays.

A network of fixed shapes is compiled as a whole; any other is compiled when it first runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farkas.networks.given_shapes import plain_shapes
from farkas.networks.network import Network, Origin
from farkas.networks.network_cache import content_of
from farkas.networks.recall import recall
from farkas.targets.base import Target
from farkas.targets.find_target import CacheLike, CompilerLike, target_of
from runtime.common.arguments import check_threads
from runtime.common.compile_report import Progress

__all__ = ["compile_onnx"]


def compile_onnx(
    source: str | os.PathLike[str] | bytes | Any,
    *,
    threads: int | None = None,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    cc: CompilerLike = None,
    cache: CacheLike = None,
    progress: Progress | None = None,
    target: str | Target = "cpu",
) -> Network:
    """Compile an ONNX network.

    >>> model = fk.compile_onnx("resnet50.onnx")
    >>> outputs = model.run({"data": image})

    Parameters
    ----------
    source : the path of a file, its bytes, or an ``onnx.ModelProto`` (which is not changed)
    threads : default number of threads of a run; if None, one per processor, or a single one if
        the network does less work than starting threads takes
    shapes : sizes of dynamic dimensions: the shape of an input by the input's name, or the size
        of a dimension by the dimension's name.  Dimensions that are left open are sizes of the
        kernels: the network is compiled at its first run, and that code serves every shape that
        satisfies its conditions (`Network.conditions`).  It is compiled again only for shapes
        that do not, which `logging` and `progress` say; `Network.prepare` does so beforehand.
        Sizes that are 0 or 1 in the first arrays are fixed to that: they may mean broadcasting
    cc : the C compiler, by path; default is ``$CC``, then gcc, then clang
    cache : directory of compiled models; default is ``$FARKAS_CACHE_DIR``, then the user's
    progress : called with (stage, steps done, steps in all, current item)
    target : where it runs, see `farkas.compile`: ``"cpu"``, ``"cuda"``, ``"opencl"``, …  Weights
        are copied to a GPU once; arrays on the GPU are used without a copy, and if all inputs are
        there, outputs stay there

    Raises
    ------
    ModelError : a file that cannot be read, or is broken, hostile or inconsistent.
    UnsupportedModelError : nodes that cannot be compiled, for any open sizes; the error lists all.
    ArgumentError : `threads` or `shapes` that do not match the model.
    ToolchainError : no C compiler, or it failed; no device, or something it needs is missing.
    ScheduleError : the device does not have the element types of the model.
    CacheError : the cache cannot be used.
    """
    if threads is not None:
        check_threads(threads)
    where = target_of(cc, cache, threads, target)
    model = _own(source)
    return compile_origin(Origin(compile_origin, model, where, plain_shapes(shapes), progress))


def _own(source: Any) -> Any:
    """A model that stays as it is: it may be read again, in another folder, for other sizes."""
    if isinstance(source, (bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, str):
        return os.path.join(os.getcwd(), source)
    if isinstance(source, Path):
        return source.absolute()
    if hasattr(source, "CopyFrom"):  # a message
        made = type(source)()
        made.CopyFrom(source)
        return made
    return source


def compile_origin(origin: Origin) -> Network:
    """Compile an origin; raises as `compile_onnx` does."""
    origin.target.runner.prepare()
    content = content_of(origin) if origin.target.runner.recalls else None
    origin = origin if content is None else content.origin
    found = recall(content) if content is not None else None
    if found is not None:
        if origin.progress is not None:
            origin.progress("load", 1, 1, "from the cache")
        return found
    # Importing the whole compiler takes longer than loading its result.
    from farkas.networks.import_and_compile import import_and_compile

    return import_and_compile(origin, content)
