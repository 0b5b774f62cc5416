"""The command ``farkas``."""

from __future__ import annotations

from typing import Any

import click

from farkas.cli.doctor import doctor_command
from farkas.cli.exit_codes import Commands
from farkas.cli.export import export_command
from farkas.cli.grad import grad_command
from farkas.cli.intrinsic import intrinsic_group
from farkas.cli.quantize import quantize_command
from farkas.cli.run import run_command
from farkas.cli.save import save_command
from farkas.cli.text_commands import check_command, compile_command, diff_command, show_command
from farkas.cli.tune import tune_command
from farkas.cli.why import why_command
from farkas.console.display import printable

_EPILOG = """\b
Examples:
  farkas demo
  farkas show -e 'C[i,j] +=! A[i,k] * B[k,j]' --dtype float32
  farkas compile conv.fk -o conv.c
  farkas run resnet50.onnx --input data=image.npy --output-dir results
"""


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from farkas.version import version

        click.echo(f"farkas {version()}")
        ctx.exit()


@click.group(
    "farkas", cls=Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--debug", is_flag=True, help="Show a traceback when something goes wrong.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def main(debug: bool) -> None:
    """Compile tensor comprehensions and ONNX networks to C.

    Exit codes: 0 done, 1 an error that the message explains, 2 wrong usage, 70 a defect of
    Farkas, 130 interrupted.
    """
    _ = debug  # looked at by `Commands`, which also handles what goes wrong before this


@main.command("demo", epilog="\b\nExample:\n  farkas demo --threads 2\n")
@click.option("--threads", type=click.IntRange(1, 4096), help="Threads; default is all.")
def demo_command(threads: int | None) -> int:
    """Compile a ResNet-50 and a comprehension, check the results, and time them.

    Exits with 0 only if all results are right.
    """
    from farkas.cli.demo import run_demo

    return 0 if run_demo(threads) else 1


main.add_command(run_command)
main.add_command(save_command)
main.add_command(quantize_command)
main.add_command(grad_command)
main.add_command(tune_command)
main.add_command(export_command)
main.add_command(doctor_command)
main.add_command(compile_command)
main.add_command(show_command)
main.add_command(check_command)
main.add_command(diff_command)
main.add_command(why_command)
main.add_command(intrinsic_group)


@main.command("pipeline", epilog="\b\nExample:\n  farkas pipeline\n")
def pipeline_command() -> None:
    """Show everything that runs for each kind of target, in order, as Markdown."""
    from codegen.describe_pipeline import pipelines_text

    click.echo(pipelines_text().rstrip())


@main.group("cache", epilog="\b\nExamples:\n  farkas cache info\n  farkas cache clear\n")
def cache_group() -> None:
    """Inspect or clear the cache of compiled kernels.

    It is in the user's cache directory, or in $FARKAS_CACHE_DIR.
    """


@cache_group.command("info")
def cache_info() -> None:
    """Show where the cache is and how much it holds."""
    from runtime.common.cache import Cache

    click.echo(str(Cache().info()))


@cache_group.command("clear")
def cache_clear() -> None:
    """Remove everything in the cache."""
    from runtime.common.cache import Cache

    before = Cache().clear()
    entries = "1 entry" if before.entries == 1 else f"{before.entries} entries"
    click.echo(f"removed {entries}, {before.bytes / 2**20:.1f} MiB, from {before.directory}")


@main.command("toolchain", epilog="\b\nExample:\n  farkas toolchain --cc clang\n")
@click.option("--cc", metavar="PATH", help="The C compiler; default is $CC, gcc, clang or cc.")
def toolchain_command(cc: str | None) -> None:
    """Describe what kernels are built with and for: C compiler, processor, CUDA and OpenCL."""
    from poly.machine.cpu import host_machine
    from runtime.cpu.openmp_pool import threads_of
    from runtime.cpu.toolchain import find_toolchain
    from runtime.find_device import describe_device
    from runtime.gpu.device_names import CUDA, OPENCL

    found = find_toolchain(cc)
    rows: dict[str, Any] = {
        "compiler": found,
        "flags": " ".join(found.flags),
        "threads": threads_of(found),
        "processor": found.cpu,
        "machine": host_machine(),
        **{name: describe_device(name) for name in (CUDA, OPENCL)},
    }
    for label, value in rows.items():
        click.echo(f"{label:<10} {printable(str(value))}")
    for note in found.notes:
        click.echo(f"{'note':<10} {printable(note)}")
