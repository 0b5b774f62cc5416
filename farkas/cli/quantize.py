"""``farkas quantize``: a network in 8 bits, as far as that pays on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from farkas.console.files import check_output, load_array, write_file


@click.command(
    "quantize",
    epilog="""\b
Examples:
  farkas quantize m.onnx --data calib.npz -o m8.onnx
  farkas quantize m.onnx --data samples/ -o m8.onnx --metric cosine --max-drop 0.1
  farkas quantize m.onnx --data test.npz --labels y.npy --metric top1 -o m8.onnx
""",
)
@click.argument("model")
@click.option(
    "--data", required=True, multiple=True, metavar="FILE.npz",
    help="Samples of the inputs, or a folder of such files; repeatable.  Arrays are named as the "
    "inputs; with one axis more than these, in front, they hold several samples.",
)  # fmt: skip
@click.option("-o", "--output", required=True, metavar="FILE.onnx", help="The file to write.")
@click.option(
    "--max-drop", type=click.FloatRange(min=0), default=0.5, show_default=True, metavar="PERCENT",
    help="By how much the whole network may be worse on the data, by the metric.",
)  # fmt: skip
@click.option(
    "--metric", type=click.Choice(["relative", "cosine", "top1"]), default="relative",
    show_default=True,
    help="relative: the largest difference, in percent of an output's largest value; cosine: 1 - "
    "cosine, in percent; top1: the percentage of samples whose best class changes.",
)  # fmt: skip
@click.option(
    "--labels", metavar="FILE.npy",
    help="The right classes: top1 is then the percentage points of accuracy that are lost.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Write the file even if the drop is larger.")
@click.option("--all", "every", is_flag=True, help="A line for every kernel of a large network.")
@click.option("--threads", type=click.IntRange(1, 4096), help="Threads; default is all.")
@click.option("--cc", metavar="PATH", help="The C compiler; default is $CC, gcc, clang or cc.")
def quantize_command(
    model: str,
    data: tuple[str, ...],
    output: str,
    max_drop: float,
    metric: str,
    labels: str | None,
    keep: bool,
    every: bool,
    threads: int | None,
    cc: str | None,
) -> int:
    """Quantise an ONNX network to 8 bits, where that gains time and keeps the error small.

    The result is plain ONNX with QuantizeLinear and DequantizeLinear, weights with a scale for each
    channel, for any runtime.  Nodes that gain nothing on this machine, or whose error is large for
    what they gain, stay in float32.  Needs the package onnxruntime: pip install '.[quantize]'.

    Exits with 0 if the drop is at most --max-drop, else with 1; then nothing is written without
    --keep.
    """
    check_output(output, model)
    right = None if labels is None else load_array(labels)
    from farkas.console.display import StageProgress, stderr_console
    from farkas.quantize.quantize import quantize_onnx

    with StageProgress(stderr_console()) as progress:
        made = quantize_onnx(
            Path(model), data, max_drop=max_drop, metric=metric, labels=right, threads=threads,
            cc=cc, progress=progress,
        )  # fmt: skip
    click.echo(made.table(every))
    click.echo(made.summary())
    if made.reached or keep:
        write_file(output, made.serialized())
        click.echo(f"written   {output}")
    else:
        click.echo("nothing is written; --keep writes the network with this drop")
    return 0 if made.reached else 1
