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
  farkas export m.onnx --isa x86-64-v2,x86-64-v3,x86-64-v4 -o m.c
  farkas export m.onnx --to wheel -o dist
  farkas export m.onnx --to wasm -o m.wasm
  farkas export blur.fk -o blur.c
""",
)
@click.argument("file", metavar="FILE.onnx|FILE.fk")
@click.option(
    "-o", "--output", required=True, metavar="FILE.c|…",
    help="The C file, the library or the WebAssembly module to write; its header is beside it.  "
    "For a wheel, the folder.",
)  # fmt: skip
@click.option(
    "--to", default="c", show_default=True, metavar="c|shared|static|wheel|wasm",
    help="C; a shared or static library; a wheel, which is a Python package that needs numpy "
    "alone; or WebAssembly, with JavaScript that runs it.",
)  # fmt: skip
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224",
    help="The shape of an input, or the size of a dynamic dimension; repeatable.",
)  # fmt: skip
@click.option(
    "--example", "examples", multiple=True, metavar="NAME=SIZE",
    help="What a dynamic dimension that --shape does not give may be: it is an argument of each "
    "run; repeatable.",
)  # fmt: skip
@click.option(
    "--value", "values", multiple=True, metavar="NAME=FILE.npy",
    help="The elements of an input that are the same in every run and decide about shapes; "
    "repeatable.",
)  # fmt: skip
@click.option(
    "--isa", multiple=True, metavar="NAME[,NAME…]",
    help="The instruction set: generic, x86-64-v2, x86-64-v3, x86-64-v4, aarch64, rv64gcv or wasm, "
    "with extensions such as +avx512_vnni.  Of several, a run takes the best that the machine has. "
    f" Default is {DEFAULT_ISA}, for WebAssembly wasm; repeatable.",
)  # fmt: skip
@click.option(
    "--threads", default="none", show_default=True, metavar="none|pthread|openmp",
    help="pthread: a team of threads, which the caller starts and passes to runs; openmp: threads "
    "of OpenMP, whose number is passed.",
)  # fmt: skip
@click.option("--name", help="Prefix of the names in C, and name of the Python package; default is "
              "the name of the file.")  # fmt: skip
@click.option("--version", help="The version of a wheel; default is 0.1.0.")
@click.option("--cc", metavar="PATH|zig", help="The compiler of a library; default is this "
              "machine's, and zig for other processors.")  # fmt: skip
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
    to: str,
    shapes: tuple[str, ...],
    examples: tuple[str, ...],
    values: tuple[str, ...],
    isa: tuple[str, ...],
    threads: str,
    name: str | None,
    version: str | None,
    cc: str | None,
    weights: str | None,
    selftest: bool,
    samples: tuple[str, ...],
) -> int:
    """Write an ONNX network, or a definition, as a C file and a header that need nothing of Farkas;
    or as a library, a wheel or WebAssembly.

    The C has no state, allocates nothing and needs only the C mathematics library.  The header
    says what to pass.  The same input gives the same files on every machine.
    """
    if Path(file).suffix == ".fk":
        if shapes or examples or values or samples or weights or selftest or version:
            raise click.UsageError(
                "a definition is exported with --to, --isa, --threads, --name and --cc alone"
            )
        from farkas.export.kernel_module import export_kernel
        from frontends.language.parse_program import parse_program

        program = parse_program(read_text_file(file))
        made = export_kernel(program, Path(output), isa, threads, name, to=to, cc=cc)
        click.echo(str(made))
        return 0
    from farkas.console.display import StageProgress, stderr_console
    from farkas.networks.export_onnx import export_onnx

    given, arrays = input_arrays(values, "--value"), input_arrays(samples)
    if arrays and not selftest:
        raise click.UsageError("--input is for --selftest")
    with StageProgress(stderr_console()) as progress:
        made = export_onnx(
            Path(file), output, to=to, shapes=dict(map(parse_shape, shapes)), values=given,
            examples=_sizes(examples), isa=isa,
            threads=threads, name=name, weights=weights, selftest=arrays if selftest else False,
            version=version, cc=cc, progress=progress,
        )  # fmt: skip
    click.echo(str(made))
    return 0


def _sizes(examples: tuple[str, ...]) -> dict[str, int]:
    """Sizes of dimensions by name."""
    found = {}
    for name, size in map(parse_shape, examples):
        if not isinstance(size, int):
            raise click.UsageError(f"--example {name} has to be one number")
        found[name] = size
    return found
