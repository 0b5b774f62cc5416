"""How commands of the command line fail: messages and exit codes, never a traceback.

====  =======================================================================
code  meaning
====  =======================================================================
0     done
1     an error that the message explains; the request was not carried out
2     the command line itself is wrong (``farkas check``: nothing was decided)
70    a defect of Farkas; ``farkas --debug …`` shows the traceback
130   interrupted
====  =======================================================================
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from farkas.console.display import printable
from poly.errors import FarkasError

FAILED, USAGE, DEFECT, INTERRUPTED = 1, 2, 70, 130


class Commands(click.Group):
    """A group of commands that ends in one of the exit codes above."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run a command line and exit."""
        words = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in words[: words.index("--")] if "--" in words else "--debug" in words
        code = _run(self, words, prog_name or "farkas", complete_var, debug, extra)
        sys.exit(_flush(code))


def _run(
    group: Commands,
    words: list[str],
    prog_name: str,
    complete_var: str | None,
    debug: bool,
    extra: dict[str, Any],
) -> int:
    try:
        result = click.Group.main(
            group, words, prog_name, complete_var, standalone_mode=False, **extra
        )
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
            click.echo(f"try: {error.ctx.command_path} --help", err=True)
        complain(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except FarkasError as error:
        if debug:
            traceback.print_exc()
        complain(message_of(error))
        return FAILED
    except BrokenPipeError:
        return _broken_pipe()
    except MemoryError:
        if debug:
            traceback.print_exc()
        complain("there is not enough memory")
        return FAILED
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            return _broken_pipe()
        if debug:
            traceback.print_exc()
        if isinstance(error, OSError) and error.strerror:  # for example a full disk, not a defect
            file = f"{error.filename}: " if error.filename else ""
            complain(f"{file}{error.strerror}")
            return FAILED
        text = printable(str(error).partition("\n")[0][:200])
        complain(
            f"this is a defect of Farkas, please report it: {type(error).__name__}: {text}"
            + ("" if debug else "\nfarkas --debug … shows where it happened")
        )
        return DEFECT


def complain(message: str) -> None:
    """Write an error to the error stream; control characters are replaced."""
    lines = ["".join(c if c == "\t" else printable(c) for c in x) for x in message.split("\n")]
    click.echo("error: " + "\n".join(lines), err=True)


def message_of(error: FarkasError) -> str:
    """An error's message with its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def _flush(code: int) -> int:
    """Flush buffered output, while a broken pipe or a full disk can still be handled."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _broken_pipe()
    except (OSError, ValueError) as error:
        complain(f"cannot write the output: {getattr(error, 'strerror', None) or error}")
        return code or FAILED
    return code


def _broken_pipe() -> int:
    """The reader closed the pipe, as ``head`` does: end quietly, as other programs do."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    return FAILED
