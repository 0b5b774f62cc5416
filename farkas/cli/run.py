"""``farkas run``: a network on arrays from files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from farkas.console.files import Array, file_names, load_array, npy_bytes, output_folder, write_file
from poly.errors import ArgumentError
from poly.ir.dtypes import BFLOAT16

#: The suffix of files of `farkas save`.
SAVED = ".fkm"

if TYPE_CHECKING:
    from farkas.networks.network import Network
    from runtime.common.compile_report import Progress
    from runtime.network.profile import Timing


@click.command(
    "run",
    epilog="""\b
Examples:
  farkas run resnet50.onnx --input data=image.npy --output-dir results
  farkas run bert.onnx --shape batch=1 --shape sequence=128 --random --repeat 20
  farkas run resnet50.onnx --random --compare onnxruntime
  farkas run resnet50.onnx --random --target cuda --repeat 20
  farkas run resnet50.fkm --random
""",
)
@click.argument("model")
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=FILE.npy",
    help="An input; repeatable.  With one input, NAME= may be left out.",
)  # fmt: skip
@click.option("--random", "fill", is_flag=True, help="Random arrays for inputs that are not given.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="For --random.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224",
    help="Shape of an input, or size of a dynamic dimension; repeatable.",
)  # fmt: skip
@click.option("--output-dir", metavar="DIR", help="Write each output to DIR/NAME.npy.")
@click.option("--threads", type=click.IntRange(1, 4096), help="Threads; default is all.")
@click.option(
    "--repeat", type=click.IntRange(1), default=1, show_default=True,
    help="Run this many times, and show the median time.",
)  # fmt: skip
@click.option("--profile", is_flag=True, help="Show the time of each call, on one thread.")
@click.option("--trace", metavar="FILE.json", help="Write that as a trace for chrome://tracing.")
@click.option(
    "--compare", "reference", type=click.Choice(["onnxruntime"]),
    help="Name the first value that differs from this; exits with 1 if one does.",
)  # fmt: skip
@click.option("--cc", metavar="PATH", help="The C compiler; default is $CC, gcc, clang or cc.")
@click.option(
    "--target", default="cpu", show_default=True, metavar="NAME",
    help="Where it runs: cpu, cuda, cuda:1, opencl, opencl:NAME or cuda-emulator; cuda,tf32 rounds "
    "factors to 10 bits for tensor cores.",
)  # fmt: skip
def run_command(
    model: str,
    inputs: tuple[str, ...],
    fill: bool,
    seed: int,
    shapes: tuple[str, ...],
    output_dir: str | None,
    threads: int | None,
    repeat: int,
    profile: bool,
    trace: str | None,
    reference: str | None,
    cc: str | None,
    target: str,
) -> int:
    """Compile an ONNX network and run it, or load one that was saved (.fkm).

    A network that was compiled before comes from the cache.
    """
    # First, because typing errors are found faster than code is compiled.
    arrays = input_arrays(inputs)
    sizes = dict(map(parse_shape, shapes))
    folder = nullcontext() if output_dir is None else output_folder(output_dir)
    with folder as made:
        from farkas.console.display import StageProgress, printable, seconds, stderr_console
        from farkas.networks.compile_onnx import compile_onnx

        with StageProgress(stderr_console()) as progress:
            is_saved = Path(model).suffix == SAVED
            compiled = _loaded(model, threads, cc, target, progress) if is_saved else compile_onnx(
                Path(model), threads=threads, shapes=sizes or None, cc=cc, progress=progress,
                target=target,
            )  # fmt: skip
        arrays = _for_inputs(compiled, arrays)
        if is_saved:
            _check_sizes(compiled, sizes)
        _complete(compiled, arrays, seed if fill else None, sizes)
        times, results = _timed(compiled, arrays, repeat)
        report = compiled.report
        stages = ", ".join(f"{stage} {seconds(t)}" for stage, t in report.stages)
        click.echo(f"compiled  {report.kernels} kernels for {report.calls} calls ({stages})")
        middle = sorted(times)[len(times) // 2]
        median = f", median of {repeat}: {seconds(middle)}" if repeat > 1 else ""
        click.echo(f"run       {seconds(times[0])}{median}")
        _report(results)
        if profile or trace is not None:
            _profile(compiled.profile(arrays), profile, trace)
        if made is not None:
            files = file_names(tuple(results), ".npy")
            contents = {name: npy_bytes(_plain(name, a)) for name, a in results.items()}
            for name, data in contents.items():
                write_file(made / files[name], data)
            click.echo(f"written   {', '.join(files.values())} to {made}")
    if reference is None:
        return 0
    comparison = compiled.compare(reference, arrays)
    click.echo(f"compared  {printable(str(comparison))}")
    return 0 if comparison.agrees else 1


def _for_inputs(model: Network, given: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays by the names of inputs, in the types that files cannot say.

    Raises
    ------
    ArgumentError : one without a name, where there are several inputs.
    """
    arrays = dict(given)
    if "" in arrays and len(model.inputs) == 1:
        arrays[model.inputs[0].name] = arrays.pop("")
    elif "" in arrays:
        names = ", ".join(p.name for p in model.inputs)
        raise ArgumentError(f"--input needs NAME=FILE.npy; the inputs are {names}")
    for port in model.inputs:
        array = arrays.get(port.name)
        if array is not None and port.dtype == BFLOAT16 and array.dtype in ("V2", np.float32):
            is_raw = array.dtype == "V2"
            arrays[port.name] = (
                array.view(BFLOAT16.numpy) if is_raw else array.astype(BFLOAT16.numpy)
            )
    return arrays


def _plain(name: str, result: Any) -> Array:
    """A result as an array that a file can hold; strings have a fixed length there.

    Raises
    ------
    ArgumentError : it is no tensor.
    """
    if not isinstance(result, np.ndarray):
        raise ArgumentError(f"output {name} is no tensor, which --output-dir cannot write")
    if result.dtype == BFLOAT16.numpy:
        return result.astype(np.float32)  # which numpy's files can say
    return result.astype(str) if result.dtype == object else result


def input_arrays(words: tuple[str, ...], option: str = "--input") -> dict[str, Array]:
    """Input arrays by name; "" stands for the only input."""
    arrays: dict[str, Array] = {}
    for word in words:
        name, equals, path = word.rpartition("=")
        if not equals:
            name, path = "", word
        elif not name or not path:
            raise click.UsageError(f"{option} {word}: expected NAME=FILE.npy")
        if name in arrays:
            raise ArgumentError(f"input {name or 'without a name'} is given twice")
        arrays[name] = load_array(path)
    return arrays


def parse_shape(word: str) -> tuple[str, int | tuple[int, ...]]:
    """One ``--shape``: a single number is a dimension's size, ``8,`` a shape of rank 1."""
    name, _, text = word.rpartition("=")
    numbers = [part.strip() for part in text.split(",")]
    if len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    if not name or not all(n.isascii() and n.isdigit() and len(n) < 19 for n in numbers):
        raise click.UsageError(f"--shape {word}: expected NAME=1,3,224,224 or NAME=1")
    values = tuple(map(int, numbers))
    return name, values if "," in text else values[0]


def _loaded(
    path: str, threads: int | None, cc: str | None, target: str, progress: Progress
) -> Network:
    """A network that was saved."""
    from farkas.networks.load import load
    from farkas.networks.network import Network

    if cc is not None or target != "cpu":
        raise click.UsageError(f"{path} is compiled already; --cc and --target are for ONNX files")
    made = load(path, threads=threads, progress=progress)
    if not isinstance(made, Network):
        raise ArgumentError(f"{path} is a kernel, which is loaded and called in Python")
    return made


def _check_sizes(model: Network, sizes: Mapping[str, int | tuple[int, ...]]) -> None:
    """Check that sizes are those of a network which is compiled already.

    Raises
    ------
    ArgumentError : a name that there is not, or another size.
    """
    names = {p.name for p in model.inputs}
    names |= {e for p in model.inputs for e in p.shape or () if isinstance(e, str)}
    for name in sizes.keys() - names:
        listed = ", ".join(map(str, model.inputs))
        raise ArgumentError(f"--shape names {name!r}; the inputs are {listed}")
    found: dict[str, int] = {n: s for n, s in sizes.items() if isinstance(s, int)}
    for port in model.inputs:
        shape = sizes.get(port.name)
        if isinstance(shape, tuple):
            port.check(shape, found)


def _complete(
    model: Network,
    arrays: dict[str, Array],
    seed: int | None,
    given: Mapping[str, int | tuple[int, ...]] | None = None,
) -> None:
    """Fill in missing arrays, if requested, and check the names.

    given : the sizes of dimensions that are still open
    """
    from runtime.common.arguments import check_names
    from runtime.common.random_arrays import random_array

    known = {p.name: p for p in model.inputs}
    check_names("input", arrays, known)
    missing = [p for p in model.inputs if p.name not in arrays]
    if missing and seed is None:
        listed = "\n".join(f"  --input '{p.name}=FILE.npy'  ({p})" for p in missing)
        raise ArgumentError(f"inputs are missing; give them, or pass --random:\n{listed}")
    rng = np.random.default_rng(seed)
    for port in missing:
        try:
            shape = port.at(given or {})
        except ArgumentError:
            raise ArgumentError(_open_dimensions(port)) from None
        try:
            arrays[port.name] = random_array(rng, port.dtype.numpy, shape)
        except ValueError:
            raise ArgumentError(f"the shape {shape} of {port} is too large for memory") from None


def _open_dimensions(port: Any) -> str:
    """The dimensions of an input that --random needs, with the options to give them."""
    if port.shape is None:
        return f"{port} has no known rank; give its shape, as in --shape '{port.name}=1,3,224,224'"
    names = dict.fromkeys(e for e in port.shape if isinstance(e, str) and e)
    unnamed = sum(not isinstance(e, int) and not e for e in port.shape)
    if unnamed:
        extents = ",".join(str(e) if isinstance(e, int) else "1" for e in port.shape)
        extents += "," if len(port.shape) == 1 else ""
        options = f"--shape '{port.name}={extents}'"
        what = "dimensions without a name" if unnamed > 1 else "a dimension without a name"
        return f"{port} has {what}; give the shape, as in {options}"
    many = len(names) > 1
    what = f"the open dimension{'s' if many else ''} {', '.join(map(repr, names))}"
    options = " ".join(
        f"--shape '{name}=1'" if " " in name else f"--shape {name}=1" for name in names
    )
    return f"{port} has {what}; fix {'them' if many else 'it'}, as in {options}"


def _timed(
    model: Network, arrays: dict[str, Array], repeat: int
) -> tuple[list[float], dict[str, Array]]:
    times = []
    results: dict[str, Array] = {}
    if not model.is_whole:
        model.run(arrays)  # compiles what depends on shapes
    for _ in range(repeat):
        start = time.perf_counter()
        results = model.run(arrays)
        times.append(time.perf_counter() - start)
    return times, results


def _profile(timings: Sequence[Timing], shown: bool, trace: str | None) -> None:
    """Print the time of each call, the longest first, and write a trace file."""
    from farkas.console.display import printable, seconds
    from runtime.network.profile import trace_events

    total = sum(t.seconds for t in timings) or 1.0
    for timing in sorted(timings, key=lambda t: -t.seconds) if shown else ():
        share = 100 * timing.seconds / total
        click.echo(f"{seconds(timing.seconds):>9} {share:5.1f} %  {printable(timing.origin)}")
    if trace is not None:
        write_file(Path(trace), trace_events(timings).encode())
        click.echo(f"written   {trace}")


def _report(results: dict[str, Array]) -> None:
    """One line for each output."""
    from farkas.console.display import printable

    for name, array in results.items():
        if not isinstance(array, np.ndarray):
            click.echo(f"output    {printable(name)} sequence of {len(array)}")
            continue
        line = f"output    {printable(name)} {array.dtype.name} {list(array.shape)}"
        if array.size and array.dtype.kind not in "bO":
            values = array.astype(np.float64)
            line += f"  min {values.min():.4g}  mean {values.mean():.4g}  max {values.max():.4g}"
        click.echo(line)
