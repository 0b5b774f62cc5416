"""``farkas export``: a network as C that needs nothing of Farkas."""

from __future__ import annotations

from pathlib import Path

import click

from farkas.cli.run import input_arrays, parse_shape


@click.command(
    "export",
    epilog="""\b
Examples:
  farkas export m.onnx -o m.c
  farkas export bert.onnx --shape batch=1 --shape sequence=128 --isa x86-64-v4 -o bert.c
  farkas export m.onnx --isa aarch64 --weights m.bin -o m.c
""",
)
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="FILE.c", help="The C file to write; "
              "its header is beside it.")  # fmt: skip
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224",
    help="The shape of an input, or the size of a dynamic dimension; repeatable.",
)  # fmt: skip
@click.option(
    "--value", "values", multiple=True, metavar="NAME=FILE.npy",
    help="The elements of an input that are the same in every run and decide about shapes; "
    "repeatable.",
)  # fmt: skip
@click.option(
    "--isa", default="x86-64-v3", show_default=True, metavar="NAME",
    help="The instruction set: generic, x86-64-v2, x86-64-v3, x86-64-v4, aarch64 or rv64gcv, "
    "with extensions such as +avx512_vnni.",
)  # fmt: skip
@click.option("--name", help="Prefix of the names in C; default is the name of the file.")
@click.option(
    "--weights", metavar="FILE.bin",
    help="A file for the weights, which each run is passed; default is the C file.",
)  # fmt: skip
@click.option(
    "--selftest", is_flag=True,
    help="Also write a program that runs the code once, and compares it with what Farkas computes "
    "here; it prints the difference and the time.",
)  # fmt: skip
@click.option(
    "--input", "samples", multiple=True, metavar="NAME=FILE.npy",
    help="What --selftest runs on; default is made-up elements; repeatable.",
)  # fmt: skip
def export_command(
    model: str,
    output: str,
    shapes: tuple[str, ...],
    values: tuple[str, ...],
    isa: str,
    name: str | None,
    weights: str | None,
    selftest: bool,
    samples: tuple[str, ...],
) -> int:
    """Write an ONNX network as a C file and a header that need nothing of Farkas.

    The C has no state, allocates nothing and needs only the C mathematics library.  The header
    says what to pass.  The same network gives the same files on every machine.
    """
    from farkas.console.display import StageProgress, stderr_console
    from farkas.networks.export_onnx import export_onnx

    given, arrays = input_arrays(values, "--value"), input_arrays(samples)
    if arrays and not selftest:
        raise click.UsageError("--input is for --selftest")
    with StageProgress(stderr_console()) as progress:
        made = export_onnx(
            Path(model), output, shapes=dict(map(parse_shape, shapes)), values=given, isa=isa,
            name=name, weights=weights, selftest=arrays if selftest else False,
            progress=progress,
        )  # fmt: skip
    click.echo(str(made))
    return 0
