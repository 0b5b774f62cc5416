"""``farkas save``: a network compiled to one file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from farkas.cli.run import parse_shape
from farkas.console.files import check_output


@click.command(
    "save",
    epilog="""\b
Examples:
  farkas save resnet50.onnx -o resnet50.fkm
  farkas save bert.onnx --prepare batch=8 --prepare sequence=128 -o bert.fkm
  farkas run resnet50.fkm --input data=image.npy
""",
)
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="FILE.fkm", help="The file to write.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224",
    help="Shape of an input, or size of a dynamic dimension; repeatable.",
)  # fmt: skip
@click.option(
    "--prepare", "prepared", multiple=True, metavar="NAME=8",
    help="Compile for these sizes of dimensions that stay open; repeatable.",
)  # fmt: skip
@click.option("--with-model", is_flag=True, help="Put the ONNX model in, too.")
@click.option("--threads", type=click.IntRange(1, 4096), help="Threads; default is all.")
@click.option("--cc", metavar="PATH", help="The C compiler; default is $CC, gcc, clang or cc.")
def save_command(
    model: str,
    output: str,
    shapes: tuple[str, ...],
    prepared: tuple[str, ...],
    with_model: bool,
    threads: int | None,
    cc: str | None,
) -> int:
    """Compile an ONNX network and write all of it to one file, for machines like this one.

    `farkas run` and `farkas.load` read it, without a compiler.  Loading it runs the code in it.
    """
    from farkas.console.display import StageProgress, printable, stderr_console
    from farkas.networks.compile_onnx import compile_onnx

    check_output(output, model)
    with StageProgress(stderr_console()) as progress:
        compiled = compile_onnx(
            Path(model), threads=threads, shapes=dict(map(parse_shape, shapes)), cc=cc,
            progress=progress,
        )  # fmt: skip
        if prepared:
            compiled.prepare(dict(map(parse_shape, prepared)))
        compiled.save(output, with_model=with_model or None)
    size = os.path.getsize(output) / 2**20
    click.echo(f"written   {printable(output)}, {size:.1f} MiB")
    for conditions in compiled.conditions:
        click.echo(f"compiled  for {printable(conditions)}")
    return 0
