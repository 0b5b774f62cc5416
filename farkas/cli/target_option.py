"""``--target``: text for a CPU or a GPU, generated without a device or a compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from farkas.targets.base import Target

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _found(ctx: click.Context, option: click.Parameter, name: str) -> Target:
    """A target for text generation only."""
    from farkas.targets.find_target import text_target
    from poly.errors import ArgumentError

    try:
        return text_target(name)
    except ArgumentError as error:
        raise click.BadParameter(str(error), ctx, option) from None


def target_option(command: _Command) -> _Command:
    """The option ``--target``, which arrives as `target`."""
    option = click.option(
        "--target",
        metavar="NAME",
        callback=_found,
        default="cpu",
        show_default=True,
        help="Target: cpu, cuda, opencl, or a CUDA device as cuda-emulator:sm_90 or "
        "cuda-emulator:sm_90,tf32; neither a GPU nor CUDA or OpenCL is needed.",
    )
    return option(command)
