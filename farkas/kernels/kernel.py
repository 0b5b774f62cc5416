"""`compile`: compile text to a `Kernel`, a function of numpy arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codegen.c.kernel_source import KernelSource
from farkas.errors import UntypedError
from farkas.kernels.example_sizes import checked_sizes, small_sizes
from farkas.kernels.recipe import Recipe
from farkas.kernels.source_text import DTypes, match_dtypes, one_dtype, read_text
from farkas.targets.base import Target
from farkas.targets.compile_program import Compiled, ScheduleLike
from farkas.targets.cpu import CpuRunner
from farkas.targets.find_target import CacheLike, CompilerLike, target_of
from farkas.targets.stages import stage_text
from poly.errors import ArgumentError
from poly.ir.dtypes import DType
from poly.ir.instruction_tables import declare_again
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.program import Program
from poly.ir.size_values import given_sizes
from poly.schedule.schedule import Schedule
from runtime.common.arguments import check_threads
from runtime.common.exchange_call import exchange_call, given_by_name, is_foreign_call
from runtime.cpu.loaded_kernel import LoadedKernel
from runtime.cpu.toolchain import Toolchain
from runtime.reference.verify import Report, verify

if TYPE_CHECKING:
    import os

    from farkas.export.exported import Exported
    from farkas.views.page import View
    from runtime.gpu.gpu_program import GpuProgram


def compile(
    text: str | Program,
    *,
    dtypes: DTypes | None = None,
    sizes: Mapping[str, int] | None = None,
    threads: int | None = None,
    exact: bool = False,
    schedule: ScheduleLike = None,
    cc: CompilerLike = None,
    cache: CacheLike = None,
    name: str | None = None,
    target: str | Target = "cpu",
    tune: float | None = None,
) -> Kernel:
    """Compile a tensor comprehension.

    >>> matmul = fk.compile("C[i,j] +=! A[i,k] * B[k,j]")
    >>> C = matmul(A, B)

    A text without declared element types is checked now as far as possible without them, and
    compiled when the kernel is first called, for the element types of those arrays (and again for
    others); with `dtypes`, or if it is a definition, now.  One compiled kernel serves all sizes.

    Parameters
    ----------
    text : a definition ``def f(float32 A[N]) -> (B) { … }``, bare comprehensions, a numpy einsum
        string, or a `Program`, such as `farkas.grad` makes
    dtypes : element types of the inputs: one for all, a sequence in order, or a mapping by name
    sizes : values for sizes, which are fixed in the kernel; calls must then agree
    threads : default number of threads of a call; if None, one per processor, or a single one if
        the call does less work than starting threads takes
    exact : keep the written order of reductions, so that results equal the reference bit for bit
    schedule : None, the tuned schedule, see `farkas.tune`, else the automatic one; ``"auto"``,
        ``"written"``, a script, a `Schedule`, or a function from the written order to a schedule
    cc : the C compiler, by path; default is ``$CC``, then gcc, then clang
    cache : directory of compiled kernels; default is ``$FARKAS_CACHE_DIR``, then the user's
    name : the program's name
    target : where it runs: ``"cpu"``; ``"cuda"`` or ``"opencl"``, a GPU (``"cuda:1"`` is the
        second, ``"opencl:intel"`` one by name); or ``"cuda-emulator"``, CUDA on the CPU, which is
        slow and meant for checking.  ``"cuda,tf32"`` may round factors of type float32 to 10 bits,
        for tensor cores.  Arrays of torch, CuPy or JAX on the GPU are not copied
    tune : seconds to `farkas.tune` it, if it was not tuned before; its sizes have to be fixed

    Raises
    ------
    LanguageError : a mistake in the text.
    ArgumentError : an argument that does not match the text.
    ScheduleError, IllegalScheduleError : the schedule makes no sense, or breaks a dependence.
    ToolchainError : no C compiler, or it failed; no device, or something it needs is missing.
    CacheError, TuningError : the cache directory cannot be used; `tune` makes no sense.
    """
    source = read_text(text)
    threads = None if threads is None else check_threads(threads)
    found = target_of(cc, cache, threads, target)
    fixed, exact, budget = given_sizes(sizes), bool(exact), _budget(tune, schedule)
    recipe = Recipe(source, fixed, exact, schedule, found, name, budget)
    if dtypes is None and source.kind != "definition":
        source.check(recipe.sizes, name)
        return Kernel(recipe, None)
    return Kernel(recipe, match_dtypes(source, dtypes))


def _budget(tune: Any, schedule: ScheduleLike) -> float | None:
    """The seconds for tuning.  Raises `TuningError`, or `ArgumentError` if a schedule is given."""
    if tune is None:
        return None
    from farkas.tuning.job import check_budget

    if schedule is not None:
        raise ArgumentError("tune= searches for a schedule, and schedule= gives one: leave one out")
    return check_budget(tune)


class Kernel:
    """A compiled comprehension; call it with arrays.  Made by `compile`.

    Concurrent calls from several threads are safe.  A copy is the kernel itself; an unpickled one
    is compiled again, or found in the cache.
    """

    def __init__(self, recipe: Recipe, dtypes: Mapping[str, DType] | None) -> None:
        self._recipe = recipe
        self._dtypes = dtypes
        self._lock = threading.Lock()
        self._variants: dict[tuple[DType, ...], Compiled] = {}
        self._loaded: list[LoadedKernel | GpuProgram] = []  # those of the variants
        self._fixed: Compiled | None = None
        #: Makes it again from the file that it was loaded from, if it was.
        self._again: tuple[Any, ...] | None = None
        if dtypes is not None:
            self._fixed = self._add(tuple(dtypes[n] for n in recipe.source.names), dtypes)

    @classmethod
    def made(
        cls,
        recipe: Recipe,
        dtypes: Mapping[str, DType] | None,
        variants: Mapping[tuple[DType, ...], Compiled],
    ) -> Kernel:
        """A kernel that is compiled already, for these combinations of element types."""
        kernel = cls(recipe, None)
        kernel._dtypes = dtypes
        kernel._variants.update(variants)
        kernel._loaded += [v.loaded for v in variants.values()]
        if dtypes is not None:
            kernel._fixed = variants[tuple(dtypes[n] for n in recipe.source.names)]
        return kernel

    # --- copying ---------------------------------------------------------------------------

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernel:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._again is not None:
            return self._again
        return _again, (self._instructions, self._plain, self._dtypes, tuple(self._variants))

    @property
    def _instructions(self) -> tuple[VectorIntrinsic, ...]:
        """Those of users that it runs."""
        sources = (v.source for v in self._variants.values())
        found = (i for s in sources if isinstance(s, KernelSource) for i in s.instructions)
        return tuple(dict.fromkeys(found))

    @property
    def _plain(self) -> Recipe:
        """The recipe with the schedule as text.  Raises `UntypedError`, see `program`."""
        recipe = self._recipe
        if isinstance(recipe.schedule, Schedule):
            return replace(recipe, schedule=str(recipe.schedule))
        if callable(recipe.schedule):
            return replace(recipe, schedule=str(self.schedule))
        return recipe

    # --- calling ---------------------------------------------------------------------------

    def __call__(
        self,
        /,
        *arrays: Any,
        out: Any = None,
        threads: int | None = None,
        copy: bool = True,
        like: Any = None,
        **named: Any,
    ) -> Any:
        """Run the kernel.

        Parameters
        ----------
        arrays, named : the inputs, in order or by name; and by name the sizes that no input's
            shape determines.  Arrays of numpy, torch and JAX, and others with ``__dlpack__``,
            ``__array_interface__`` or ``__array__`` on the host; Python numbers and lists of them,
            which take the element type that is declared, or that numpy would promote them to.
            Nothing else is converted; an input that is not C-contiguous and aligned is copied
            first.
        out : arrays to write to: one, a tuple of all outputs, or a mapping by name.
        threads : threads for this call.
        copy : False refuses inputs that would have to be copied.
        like : what results are: ``"numpy"``, ``"torch"``, ``"jax"``, or as an array of one of them;
            default is as the first input that is not numpy's.
        stream : (on a GPU only) the stream to run on: CUDA's handle or an object that has one, or
            an OpenCL queue.

        Returns
        -------
        The output, or a tuple of outputs in the program's order: arrays of numpy, or of `like`;
        on a GPU, if all inputs are on it, `runtime.gpu.device.DeviceArray`.  JAX's types of 64 bits
        are arrays of numpy while they are disabled there.

        Raises
        ------
        ArgumentError : an argument does not match the program's declaration.
        """
        if like is None:
            result = self._quick(arrays, out, threads, named)
            if result is not NotImplemented:
                return result
        if like is None and not is_foreign_call(self._inputs[0], arrays, named, out):
            return self._slow(arrays, named, out, threads, copy)
        return self._exchanged(arrays, named, out, threads, copy, like)

    def _exchanged(
        self,
        arrays: tuple[Any, ...],
        named: Mapping[str, Any],
        out: Any,
        threads: int | None,
        copy: bool,
        like: Any,
    ) -> Any:
        """A call with arrays of other libraries, or whose results are theirs."""
        names, dtypes = self._inputs
        slow = partial(self._slow, threads=threads, copy=copy)
        values = given_by_name(names, arrays, named)
        if values is None:
            return slow(arrays, named, out)  # which says what is wrong
        sizes = {name: value for name, value in named.items() if name not in names}

        def call(ready: Mapping[str, Any], out: Any) -> Any:
            given = tuple(ready.values())
            result = self._quick(given, out, threads, sizes)
            return slow(given, sizes, out) if result is NotImplemented else result

        return exchange_call(call, values, out, like, dtypes, self.target.runner)

    @cached_property
    def _inputs(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The names of the inputs, and numpy's element types of those that have one."""
        if self._fixed is None:
            return self._recipe.source.names, {}
        inputs = self._fixed.program.inputs
        return tuple(t.name for t in inputs), {t.name: t.dtype.numpy for t in inputs}

    def _quick(
        self, arrays: tuple[Any, ...], out: Any, threads: Any, named: Mapping[str, Any]
    ) -> Any:
        """A call like an earlier one; else `NotImplemented`."""
        for loaded in self._loaded:
            if named:
                result = loaded.quick_named(arrays, out, threads, named)
            else:
                result = loaded.quick(arrays, out, threads, None)
            if result is not NotImplemented:
                return result
        return NotImplemented

    def _slow(
        self,
        arrays: tuple[Any, ...],
        named: Mapping[str, Any],
        out: Any,
        threads: int | None,
        copy: bool,
    ) -> Any:
        """A call for which nothing is prepared, with arrays of numpy or of the device."""
        compiled = self._fixed
        if compiled is None:
            compiled = self._variant(arrays, named)
        return compiled.loaded(*arrays, out=out, threads=threads, copy=copy, **named)

    def _variant(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> Compiled:
        """The compiled program for these arrays, compiled now if their element types are new."""
        source = self._recipe.source
        names = source.names
        if len(arrays) > len(names):
            raise ArgumentError(
                f"the kernel takes {len(names)} arrays ({', '.join(names)}), "
                f"but {len(arrays)} were given"
            )
        values = dict(zip(names, arrays, strict=False))
        for name in names[len(arrays) :]:
            if name not in named:
                raise ArgumentError(f"the kernel needs {name}, not given")
            values[name] = named[name]
        dtypes = {name: self._dtype(name, rank, values[name]) for name, rank in source.inputs}
        key = tuple(dtypes.values())
        found = self._variants.get(key)
        return found if found is not None else self._add(key, dtypes)

    def _dtype(self, name: str, rank: int, value: Any) -> DType:
        found = self.target.runner.describe(name, value)
        if found is None:
            raise ArgumentError(
                f"{name} is a {type(value).__name__}, expected a numpy array; "
                f"pass numpy.asarray({name}, dtype=…)"
            )
        dtype, shape = found
        if len(shape) != rank:
            raise ArgumentError(
                f"{name} has rank {len(shape)} (shape {shape}), expected rank {rank}"
            )
        return one_dtype(dtype, name)

    def _add(self, key: tuple[DType, ...], dtypes: Mapping[str, DType]) -> Compiled:
        with self._lock:
            if key not in self._variants:
                self._variants[key] = made = self._recipe.make(dtypes)
                self._loaded.append(made.loaded)
            return self._variants[key]

    # --- looking inside --------------------------------------------------------------------

    @property
    def __name__(self) -> str:
        """What others call the function, such as dask: the program's name."""
        if self._fixed is None:
            return self._recipe.name or "kernel"
        return self._fixed.program.name

    @property
    def program(self) -> Program:
        """The text with its ranges.  Raises `UntypedError` if element types are unknown.

        The scheduled program is ``schedule.program``: large products may be split there if that
        saves work, and adjacent dimensions collapsed.
        """
        return self._only().program

    @property
    def schedule(self) -> Schedule:
        """The order in which it runs.  Raises `UntypedError`, see `program`."""
        return self._only().schedule

    @property
    def source(self) -> str:
        """The C text, or that of a GPU's kernels.  Raises `UntypedError`, see `program`."""
        return self._only().source.text

    @property
    def tree(self) -> str:
        """The schedule's loops as indented text.  Raises `UntypedError`, see `program`."""
        return self._only().schedule.show

    @property
    def loops(self) -> str:
        """The loops that the text is printed from, after all passes.

        Raises `UntypedError`, see `program`.
        """
        only = self._only()
        return stage_text("loops", only.program, only.schedule, only.target)

    @property
    def library(self) -> Path:
        """The shared library, in the cache; it may need the threads of `runtime.cpu.openmp_pool`.

        Raises `UntypedError`, see `program`, and `ArgumentError` for a kernel on a GPU.
        """
        return self.loaded.path

    @property
    def loaded(self) -> LoadedKernel:
        """The compiled code in this process.

        Raises `UntypedError`, see `program`, and `ArgumentError` for a kernel on a GPU.
        """
        loaded = self._only().loaded
        if not isinstance(loaded, LoadedKernel):
            raise ArgumentError("a kernel on a GPU is not a shared library; use .source")
        return loaded

    @property
    def toolchain(self) -> Toolchain:
        """The C compiler.  Raises `ArgumentError` for a kernel on a GPU."""
        runner = self.target.runner
        if not isinstance(runner, CpuRunner):
            raise ArgumentError("a kernel on a GPU has no C compiler")
        return runner.toolchain

    @property
    def target(self) -> Target:
        """Where it runs."""
        return self._recipe.target

    @property
    def text(self) -> str:
        """The text it was compiled from."""
        return self._recipe.source.text

    @property
    def dtypes(self) -> tuple[tuple[DType, ...], ...]:
        """The combinations of input element types for which there is compiled code."""
        return tuple(tuple(t.dtype for t in c.program.inputs) for c in self._variants.values())

    def _repr_html_(self) -> str | None:
        """Program, schedule and C; None, so that the text is shown, while types are unknown."""
        from farkas.views import show

        return show(self)._repr_html_() if len(self._variants) == 1 else None

    def __repr__(self) -> str:
        if len(self._variants) == 1 or self._fixed is not None:
            return f"<Kernel {signature(self._only().program)}>"
        made = " and ".join(f"({', '.join(map(str, key))})" for key in self._variants)
        shown = " ".join(self.text.split())
        shown = shown if len(shown) <= 60 else shown[:59] + "…"
        return f"<Kernel {shown!r}, {f'compiled for {made}' if made else 'not compiled yet'}>"

    def _only(self) -> Compiled:
        if self._fixed is not None:
            return self._fixed
        names = ", ".join(self._recipe.source.names)
        advice = 'give them to compile, as in dtypes="float32"'
        if not self._variants:
            raise UntypedError(
                f"the element types of {names} are not known yet: "
                f"call the kernel first, or {advice}"
            )
        if len(self._variants) > 1:
            raise UntypedError(
                f"the kernel was compiled for {len(self._variants)} combinations of element "
                f"types of {names}: {advice}, to have just one"
            )
        return next(iter(self._variants.values()))

    # --- checking and changing ---------------------------------------------------------------

    def verify(
        self, sizes: Mapping[str, int] | None = None, *, seed: int = 0, threads: int | None = None
    ) -> Report:
        """Run the kernel and the numpy reference of the written program on the same random arrays.

        Parameters
        ----------
        sizes : a value for every size of the program; by default small ones that it accepts
        seed : of the random arrays
        threads : threads for the kernel; default is all it may use, even for little work

        Returns
        -------
        A report, with ``exact`` and ``close(relative)``; it prints the largest errors.

        Raises
        ------
        UntypedError : see `program`.
        ArgumentError : sizes that do not match.
        """
        compiled = self._only()
        program = compiled.program
        chosen = checked_sizes(program, sizes) if sizes is not None else small_sizes(program)

        count = compiled.loaded.threads if threads is None else threads

        def call(*arrays: Any, **named: Any) -> Any:
            return compiled.loaded(*arrays, threads=count, **named)

        return verify(program, call, seed, chosen)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        to: str = "c",
        isa: str | Sequence[str] | None = None,
        threads: str = "none",
        name: str | None = None,
        cc: str | None = None,
    ) -> Exported:
        """Write the kernel as a C file and a header that need nothing of Farkas, or as a library.

        >>> blur.export("blur.c", isa="aarch64")

        The function takes the sizes, the inputs and the outputs, and a workspace; a tensor that is
        updated is an output that has its elements already.  An automatic schedule is made for the
        instruction set; any other one is kept.

        Parameters
        ----------
        path : of the C file or the library; the header is beside it
        to : ``"c"``, or ``"shared"`` or ``"static"`` for a library
        isa, threads : the instruction set or several of them, and ``"none"``, ``"pthread"`` or
            ``"openmp"``: see `farkas.export_onnx`
        name : prefix of the names in C; by default the name of the file
        cc : the compiler of a library, see `farkas.export_onnx`

        Raises
        ------
        UntypedError : see `program`.
        ToolchainError : there is no compiler for a library, or it failed.
        ArgumentError : an unknown `isa`; a `name` that is no C identifier.
        ScheduleError : no code can be generated.
        FileError : a file cannot be written; then none of them is.
        """
        from farkas.export.kernel_module import export_kernel

        only, recipe = self._only(), self._recipe
        is_automatic = recipe.schedule is None or recipe.schedule == "auto"
        schedule = None if is_automatic else only.schedule
        return export_kernel(
            only.program, Path(path), isa, threads, name, recipe.exact, schedule, to, cc
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that is compiled to one file, for this kind of machine.

        >>> matmul.save("matmul.fkm")

        `farkas.load` reads it, without a compiler and with an empty cache.  Of a kernel whose text
        has no element types, that is what was compiled for those of its calls so far.

        Raises
        ------
        UntypedError : nothing is compiled yet, and the schedule is a function.
        ArgumentError : a kernel on a GPU.
        FileError : the file cannot be written.
        CacheError : the library is not in the cache any more.
        """
        from farkas.kernels.saved_kernel import save_kernel

        save_kernel(self._plain, self._dtypes, self._variants, path)

    def explain(self, **sizes: int) -> View:
        """Show which statements share loops, what that saves, what prevents more, and the cost.

        >>> print(matmul.explain(I=512, J=512, K=512))

        sizes : a value for every size of the program; without them, small ones, and no time

        Raises
        ------
        UntypedError : see `program`.
        ArgumentError : sizes that do not match.
        """
        from farkas.views.explain import explain_kernel

        compiled = self._only()
        program = compiled.program
        chosen = checked_sizes(program, sizes) if sizes else small_sizes(program)
        return explain_kernel(compiled, chosen, bool(sizes) or not program.sizes)

    def with_schedule(self, schedule: ScheduleLike) -> Kernel:
        """The same kernel under another schedule, in any of the forms that `compile` takes.

        Everything compiled before is compiled again at once, so that an illegal schedule is
        refused here.

        >>> kernel.with_schedule(lambda s: s.tile("S0", ["i", "j"], [32, 32]))

        Raises
        ------
        ScheduleError, IllegalScheduleError, ArgumentError : see `compile`.
        """
        recipe = replace(self._recipe, schedule=schedule, tune=None)
        return _restored(recipe, self._dtypes, tuple(self._variants))


def _again(instructions: Iterable[VectorIntrinsic], *made_from: Any) -> Kernel:
    """An unpickled kernel: its instructions are known before it is compiled."""
    for intrinsic in instructions:
        declare_again(intrinsic)
    return _restored(*made_from)


def _restored(
    recipe: Recipe, dtypes: Mapping[str, DType] | None, keys: Iterable[tuple[DType, ...]]
) -> Kernel:
    """A kernel that has been compiled for these combinations of element types."""
    kernel = Kernel(recipe, dtypes)
    for key in keys:
        kernel._add(key, dtypes or dict(zip(recipe.source.names, key, strict=True)))
    return kernel


def signature(program: Program) -> str:
    """A program's name, inputs and outputs on one line."""
    ins = ", ".join(map(str, program.inputs))
    outs = ", ".join(map(str, program.outputs))
    return f"{program.name}({ins}) -> ({outs})"
