"""``farkas export``: a network as C that needs nothing of Farkas."""

from __future__ import annotations

from pathlib import Path

import click

from farkas.cli.run import input_arrays, parse_shape
from farkas.console.files import read_text_file
from poly.machine.isa import DEFAULT_ISA


@click.command(
    "export",
    epilog="""\b
Examples:
  farkas export m.onnx -o m.c
  farkas export bert.onnx --shape batch=1 --shape sequence=128 --isa x86-64-v4 -o bert.c
  farkas export m.onnx --isa aarch64 --weights m.bin -o m.c
  farkas export blur.fk -o blur.c
""",
)
@click.argument("file", metavar="FILE.onnx|FILE.fk")
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
    "--isa", default=DEFAULT_ISA, show_default=True, metavar="NAME",
    help="The instruction set: generic, x86-64-v2, x86-64-v3, x86-64-v4, aarch64 or rv64gcv, "
    "with extensions such as +avx512_vnni.",
)  # fmt: skip
@click.option(
    "--threads", default="none", show_default=True, metavar="none|pthread|openmp",
    help="pthread: a team of threads, which the caller starts and passes to runs; openmp: threads "
    "of OpenMP, whose number is passed.",
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
    file: str,
    output: str,
    shapes: tuple[str, ...],
    values: tuple[str, ...],
    isa: str,
    threads: str,
    name: str | None,
    weights: str | None,
    selftest: bool,
    samples: tuple[str, ...],
) -> int:
    """Write an ONNX network, or a definition, as a C file and a header that need nothing of Farkas.

    The C has no state, allocates nothing and needs only the C mathematics library.  The header
    says what to pass.  The same input gives the same files on every machine.
    """
    if Path(file).suffix == ".fk":
        if shapes or values or samples or weights or selftest:
            raise click.UsageError(
                "a definition is exported with --isa, --threads and --name alone"
            )
        from farkas.export.kernel_module import export_kernel
        from frontends.language.parse_program import parse_program

        program = parse_program(read_text_file(file))
        click.echo(str(export_kernel(program, Path(output), isa, threads, name)))
        return 0
    from farkas.console.display import StageProgress, stderr_console
    from farkas.networks.export_onnx import export_onnx

    given, arrays = input_arrays(values, "--value"), input_arrays(samples)
    if arrays and not selftest:
        raise click.UsageError("--input is for --selftest")
    with StageProgress(stderr_console()) as progress:
        made = export_onnx(
            Path(file), output, shapes=dict(map(parse_shape, shapes)), values=given, isa=isa,
            threads=threads, name=name, weights=weights, selftest=arrays if selftest else False,
            progress=progress,
        )  # fmt: skip
    click.echo(str(made))
    return 0
