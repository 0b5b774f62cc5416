"""Schedules: an execution order of a program, and the checked steps that made it.

A `Schedule` is immutable.  Every primitive returns a new one, after checking the whole new tree
against the exact dependences; an illegal step raises `IllegalScheduleError` with two instances
that would swap, and an undecided one is refused.

>>> s = Schedule.of(program)
>>> s = s.tile("C", ["i", "j", "k"], [32, 32, 32]).parallelize("C", "i_o")
>>> print(s)                         # a script that parses back
tile C: i, j, k by 32, 32, 32
parallelize C: i_o
>>> Schedule.of(other).replay(str(s))
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from poly.deps.band_properties import band_properties
from poly.deps.dependences import Dependences, compute_dependences
from poly.deps.footprint import LoopFootprint, footprints
from poly.deps.legality import Violation, budget, check_tree
from poly.deps.scop import Scop, build_scop
from poly.errors import IllegalScheduleError, ScheduleError
from poly.ir.dtypes import DType
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.layout import Layout
from poly.ir.program import Program
from poly.ir.size_values import all_sizes
from poly.schedule.diff import Difference, difference
from poly.schedule.primitives import find_primitive
from poly.schedule.script import Line, parse_script
from poly.show.tree_html import tree_html
from poly.tree.kinds import Tensorized
from poly.tree.nodes import Band, Node, loops_of, show_tree, walk_tree
from poly.tree.steps import Step

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Schedule:
    """A legal execution order: scop, dependences, tree, and the script that led to it.

    is_draft : its last steps are not checked yet, see `draft`
    """

    scop: Scop
    dependences: Dependences
    tree: Node
    lines: tuple[Line, ...] = ()
    is_draft: bool = False

    @staticmethod
    def of(program: Program, exact: bool = False) -> Schedule:
        """The order in which the program is written.

        exact : keep the written order of reductions, so that floats equal the reference bit
        for bit; otherwise the updates of a reduction may run in any (fixed) order.
        """
        if not isinstance(program, Program):
            raise ScheduleError(
                f"Schedule.of takes a Program, not a {type(program).__name__}: for a text it is "
                "fk.parse(text), for a kernel kernel.program"
            )
        scop = build_scop(program)
        with budget(scop, "dependence analysis"):
            dependences = compute_dependences(scop, exact)
        return Schedule(scop, dependences, scop.initial_tree)

    @property
    def program(self) -> Program:
        return self.scop.program

    @property
    def exact(self) -> bool:
        """Whether reductions keep the written order."""
        return self.dependences.exact

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the script, without its comments."""
        return tuple(line.step for line in self.lines if line.step is not None)

    @property
    def statements(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.scop.statements)

    def loops(self, statement: str) -> tuple[str, ...]:
        """Names of the loops around a statement, outermost first."""
        self._known(statement)
        return tuple(m.name for m in loops_of(self.tree, statement))

    def footprints(self, statement: str, sizes: Mapping[str, int]) -> tuple[LoopFootprint, ...]:
        """The footprint of one iteration of each loop around a statement.

        See `poly.deps.footprint`.

        sizes : a value for every size of the program.

        Raises
        ------
        ScheduleError : there is no such statement, or it could not be decided.
        ArgumentError : unknown or missing sizes.
        """
        self._known(statement)
        sizes = all_sizes(self.program, sizes)
        with budget(self.scop, "footprints"):
            return footprints(self.tree, self.scop, statement, sizes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))

    def __repr__(self) -> str:
        count = len(self.steps)
        return f"<Schedule of {self.program.name}: {count} step{'' if count == 1 else 's'}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the tree, for IPython without HTML."""
        printer.text(f"{self!r}\n{self.show}")

    def _repr_html_(self) -> str:
        properties = band_properties(self.tree, self.scop, self.dependences)
        return tree_html(self.tree, self.scop, properties)

    @cached_property
    def show(self) -> str:
        """The tree as indented text."""
        return show_tree(self.tree)

    @cached_property
    def digest(self) -> str:
        """A content hash of program, mode and steps; it is printed in the generated code."""
        steps = "\n".join(map(str, self.steps))
        made = (m.mark for n in walk_tree(self.tree) if isinstance(n, Band) for m in n.members)
        used = {m.intrinsic for m in made if isinstance(m, Tensorized)}
        texts = {i.text for i in used if isinstance(i, VectorIntrinsic) and i.by_user}
        steps = "\n".join([steps, *sorted(texts)])
        text = f"{self.program.digest}\n{self.exact}\n{steps}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # --- primitives ----------------------------------------------------------------------

    def tile(
        self, statement: str, loops: Seq[str], sizes: Seq[int], names: Seq[str] = ()
    ) -> Schedule:
        """Run adjacent loops tile by tile.

        ``for i, for j: S``  with sizes 4, 8 becomes
        ``for i_o, for j_o, for i_i in 4, for j_i in 8: S``.
        `names`: the new loops' names, all outer ones first.
        """
        return self.apply(
            Step("tile", (statement,), _names(loops), _numbers(sizes), words=_names(names))
        )

    def split(self, statement: str, loop: str, factor: int, names: Seq[str] = ()) -> Schedule:
        """Strip-mine a loop, keeping the order: ``for i`` -> ``for i_o, for i_i in factor``."""
        return self.apply(Step("split", (statement,), (loop,), (factor,), words=_names(names)))

    def interchange(self, statement: str, a: str, b: str) -> Schedule:
        """Swap two loops of a nest: ``for i, for j`` -> ``for j, for i``."""
        return self.apply(Step("interchange", (statement,), (a, b)))

    def reorder(self, statement: str, loops: Seq[str]) -> Schedule:
        """Reorder loops of a nest among the positions they occupy.

        ``for i, for j, for k`` with ``k, i`` becomes ``for k, for j, for i``.
        """
        return self.apply(Step("reorder", (statement,), _names(loops)))

    def fuse(self, first: str, second: str, loops: Seq[str]) -> Schedule:
        """Share the outermost loops of two nests that run one after the other.

        ``for i: S;  for j: T`` with loops ``i`` becomes ``for i: {S; T}`` (i-th with i-th).
        """
        return self.apply(Step("fuse", (first, second), _names(loops)))

    def distribute(self, statement: str, loop: str) -> Schedule:
        """The inverse of `fuse`: ``for i: {S; T}`` becomes ``for i: S;  for i: T``."""
        return self.apply(Step("distribute", (statement,), (loop,)))

    def sink(self, statement: str, loop: str) -> Schedule:
        """Move statements before and after a loop into its first and last iteration.

        ``S; for k: T[k]; U`` becomes ``for k: {S at the first; T[k]; U at the last}``, so that
        loops around all of them can be moved inside ``k``.
        """
        return self.apply(Step("sink", (statement,), (loop,)))

    def skew(self, statement: str, loop: str, by: str, factor: int = 1) -> Schedule:
        """Run `loop` at ``loop + factor * by``; makes stencils tileable.

        ``for t, for i: S[t,i]`` with ``i, t by 2`` becomes ``for t, for i: S[t,i-2*t]``: the new
        ``i`` counts ``2*t`` more than the index, which is what is subtracted again.
        """
        return self.apply(Step("skew", (statement,), (loop, by), (factor,)))

    def shift(self, statement: str, loop: str, amount: int) -> Schedule:
        """Run one statement `amount` iterations of a shared loop later.

        ``for i: {S[i]; T[i]}`` with ``T: i by 1`` becomes ``for i: {S[i]; T[i-1]}``.
        """
        return self.apply(Step("shift", (statement,), (loop,), (amount,)))

    def reverse(self, statement: str, loop: str) -> Schedule:
        """Run a loop backwards: ``for i: S[i]`` -> ``for i: S[-i]``."""
        return self.apply(Step("reverse", (statement,), (loop,)))

    def parallelize(self, statement: str, loop: str) -> Schedule:
        """Run the iterations of a loop on several threads: ``for i`` -> ``parallel for i``.

        Loops directly inside one another may share threads.
        """
        return self.apply(Step("parallelize", (statement,), (loop,)))

    def vectorize(self, statement: str, loop: str, width: int = 0) -> Schedule:
        """Run a loop in vector lanes; with `width`, after splitting it by `width`.

        ``for i: S[i]`` with 4 becomes ``for i_o: S[4*i_o : 4*i_o+4]``.
        Inner loops run for all lanes at once, if their bounds are the same in all of them.
        A reduction has a partial result in each lane, combined at the end; not in exact mode.
        """
        return self.apply(Step("vectorize", (statement,), (loop,), (width,) if width else ()))

    def unroll(self, statement: str, loop: str, factor: int = 0) -> Schedule:
        """Unroll a loop; with `factor`, after splitting it by `factor`.

        ``for i in 3: S[i]`` becomes ``S[0]; S[1]; S[2]``.
        A loop of unknown length, or of thousands of statements, is not unrolled; the C says so.
        """
        return self.apply(Step("unroll", (statement,), (loop,), (factor,) if factor else ()))

    def isolate(self, statement: str, loop: str) -> Schedule:
        """Generate full tiles separately from partial ones, up to this tile loop; keeps the order.

        ``for i_o, for i_i in min(4, n-4*i_o)`` becomes ``for full i_o, for i_i in 4`` and the rest,
        or, where sizes decide which tiles are full, ``for i_o: if (full) for i_i in 4 else …``.
        """
        return self.apply(Step("isolate", (statement,), (loop,)))

    def promote(
        self,
        statement: str,
        loop: str,
        tensor: str,
        scope: str,
        layout: Seq[int] | Layout = (),
        ahead: bool = False,
        padded: bool = False,
        dtype: str | DType = "",
    ) -> Schedule:
        """Keep the part of a tensor that one iteration of `loop` touches in a buffer.

        ``for i: {for j: S}`` becomes ``for i: {fill; for j: S on the buffer; write back}``, where
        needed.
        scope: ``register`` (meant to be unrolled), ``local`` (packed in memory of the thread),
        ``shared`` (by all threads of a block of a GPU) or ``fragment`` (accumulators of tensor
        cores, in registers of a warp; around all that accesses them); layout: the tensor's
        dimensions in the order of the buffer, outermost first, one of which may be cut into
        innermost blocks.  ``B, local, 1, 0, 1x32`` packs ``B[k,j]`` as ``B_p[j/32, k, j%32]``.
        Reads that are far apart, as ``A[k,i]`` and ``A[k,j]``, get a buffer each.
        ahead: a shared buffer is double-buffered: while one half is used the other is filled for
        the next iteration of `loop`, as in ``promote C: k_o as A, shared, ahead``.
        padded: a shared buffer has zeros beyond the part of the tensor that is read, as far as
        instructions of `tensorize` reach: ``promote C: k_o as A, shared, padded``; a local one has
        room there.
        dtype: of a 16-bit float that nothing in the loop writes, a register or local buffer may be
        of float32, in which it is computed; it is then converted once, when the buffer is filled:
        ``promote C: j_o as B, local, 1, 0, float32``.
        """
        words = layout.words if isinstance(layout, Layout) else tuple(map(str, _numbers(layout)))
        ways = [str(dtype)] if dtype else []
        ways += [w for w, given in (("padded", padded), ("ahead", ahead)) if given]
        words = (tensor, scope, *words, *ways)
        return self.apply(Step("promote", (statement,), (loop,), words=words))

    def map_blocks(self, statement: str, loops: Seq[str]) -> Schedule:
        """Run the iterations of up to three adjacent loops on the blocks of a GPU's grid.

        ``for i, for j: S`` becomes ``block i (y), block j (x): S``.
        Blocks are not ordered.  Loops outside of them run on the host, which launches a kernel for
        each iteration.
        """
        return self.apply(Step("map_blocks", (statement,), _names(loops)))

    def map_threads(self, statement: str, loops: Seq[str]) -> Schedule:
        """Run the iterations of up to three loops, of fixed length, on the threads of a block.

        ``for i in 8, for j in 32: S`` becomes ``thread i (y), thread j (x): S``.
        Barriers are placed where an instance on one thread depends on one on another.
        """
        return self.apply(Step("map_threads", (statement,), _names(loops)))

    def reduce_threads(self, statement: str, loops: Seq[str]) -> Schedule:
        """Share a reduction among the threads of a block, which then combine their partial results.

        ``for k_o, for k_i in 32: s += A[k]`` becomes ``part = 0; for k_o: part += A[k]`` on each
        thread k_i, and after that one addition of all parts to s.  The number of threads is a
        power of two.  Refused in exact mode: the sum would be rounded in another order.
        """
        return self.apply(Step("reduce_threads", (statement,), _names(loops)))

    def tensorize(self, statement: str, loops: Seq[str], intrinsic: str) -> Schedule:
        """Run the innermost loops of a statement as one instruction.

        ``for j in 16, for k in 4: C[i,j] += A[i,k] * B[j,k]`` with ``vpdpbusd_16_b``, which means
        ``C[j] += A[k] * B[j,k]`` for a uint8 A and an int8 B, becomes one instruction of a CPU.
        The loops are given in the order of the meaning's indices.  Each operand moves with them as
        that of the meaning does, and its elements are adjacent in the meaning's order: `promote`
        packs what is not.  Tiles may be partial if the target is kept in registers and what is read
        beyond the edge exists, as in buffers that are ``local, padded``.  `farkas intrinsic list`
        has those of Farkas, and `fk.intrinsic` declares others.

        On a GPU, ``for i in 16, for j in 16, for k in 16: C[i,j] += A[i,k] * B[k,j]`` with
        ``wmma_f16`` becomes one instruction of tensor cores, run by a warp, 32 threads along x.
        intrinsic: ``wmma_f16`` and ``wmma_bf16`` multiply 16-bit floats in tiles of 16 x 16 x 16,
        ``wmma_tf32`` floats rounded to 10 bits in tiles of 16 x 16 x 8; all accumulate floats.
        The loops are given in the order i, j, k; where sums begin, i and j.  The sums are kept in a
        ``fragment``, see `promote`; operands may be ``shared``.  Tiles may be partial if both
        operands are ``shared, padded`` before: then whole matrices are multiplied, with zeros
        beyond the edge.  Refused in exact mode: the sum would be rounded in another order.
        """
        return self.apply(Step("tensorize", (statement,), _names(loops), words=(intrinsic,)))

    def reschedule(self) -> Schedule:
        """Forget the order and let isl's scheduler find one; replay runs it again.

        Raises
        ------
        UndecidedError : it finds none within its budget of CPU time.
        """
        return self.apply(Step("reschedule", ()))

    # --- steps as data -------------------------------------------------------------------

    def apply(self, step: Step) -> Schedule:
        """Apply one step, checked.

        Raises
        ------
        ScheduleError : the step makes no sense here, or its legality could not be decided.
        IllegalScheduleError : it would break a dependence.
        """
        if not isinstance(step, Step):
            raise ScheduleError(f"expected a Step, not a {type(step).__name__}")
        primitive = find_primitive(step.primitive)
        step = primitive.checked(step)
        for name in step.statements:
            self._known(name)
        with budget(self.scop, str(step)):
            made = (self.dependences,) if primitive.of_dependences else ()
            tree = primitive.transform(self.tree, self.scop, step, *made)
        later = self.is_draft and primitive.otherwise is None
        if later or (primitive.keeps_order and not step.by):
            return self._after(step, tree)
        violation = check_tree(tree, self.scop, self.dependences)
        if violation is not None and primitive.otherwise is not None:
            other = primitive.otherwise(self.tree, self.scop, step)
            if check_tree(other, self.scop, self.dependences) is None:
                return self._after(step, other)
        if violation is not None:
            raise self._refused(str(step), tree, violation)
        return self._after(step, tree)

    def draft(self) -> Schedule:
        """The same schedule, whose next steps are not checked until `checked` does so at once.

        A schedule is legal if its tree is, whatever the trees on the way to it were.
        """
        return replace(self, is_draft=True)

    def checked(self) -> Schedule:
        """A draft as a schedule: its tree is checked.  No code is generated for a draft.

        Raises
        ------
        IllegalScheduleError : it breaks a dependence; which step does, a replay without draft says.
        UndecidedError : its legality could not be decided.
        """
        violation = check_tree(self.tree, self.scop, self.dependences) if self.is_draft else None
        if violation is not None:
            raise self._refused("the schedule", self.tree, violation)
        return replace(self, is_draft=False)

    def replay(self, script: str) -> Schedule:
        """Apply the steps of a script, in order, and keep its comments.

        Empty lines before and after all others are dropped.

        Raises
        ------
        ScheduleError : with the number and text of the line that no longer applies.
        """
        if not isinstance(script, str):
            raise ScheduleError(
                f"a script is a text, not a {type(script).__name__}; that of a schedule is str(s)"
            )
        lines = parse_script(script)
        try:
            return self.draft()._replayed(lines).checked()
        except ScheduleError:
            return self._replayed(lines)  # step by step, which names the line

    def _replayed(self, lines: Seq[Line]) -> Schedule:
        schedule = self
        filled = [n for n, line in enumerate(lines, 1) if str(line)]
        for number, line in enumerate(lines, 1):
            if not filled or not filled[0] <= number <= filled[-1]:
                continue
            try:
                ordered = schedule if line.step is None else schedule.apply(line.step)
            except ScheduleError as error:
                error.add_note(f"at line {number} of the script: {line.step}")
                raise
            schedule = replace(ordered, lines=(*schedule.lines, line))
        return schedule

    def diff(self, other: Schedule) -> Difference:
        """The changes from this schedule to `other`: program, script and tree, as unified diffs.

        Lines of this one begin with ``-``, those of `other` with ``+``.
        """
        if not isinstance(other, Schedule):
            raise ScheduleError(f"expected a Schedule, not a {type(other).__name__}")
        return difference(
            ("program", f"{self.program}", f"{other.program}"),
            ("script", f"{self}", f"{other}"),
            ("tree", self.show, other.show),
        )

    def _after(self, step: Step, tree: Node) -> Schedule:
        return replace(self, tree=tree, lines=(*self.lines, Line(step)))

    def _refused(self, what: str, tree: Node, violation: Violation) -> IllegalScheduleError:
        error = violation.error(what)
        error.schedule, error.tree = self, tree
        return error

    def _known(self, statement: str) -> None:
        if statement not in self.scop.by_name:
            raise ScheduleError(
                f"there is no statement {statement}; there are {', '.join(self.statements)}"
            )


def _names(names: Seq[str]) -> tuple[str, ...]:
    """Names of loops as a tuple; a string is refused."""
    if isinstance(names, str) and not names.isalnum():
        raise ScheduleError(f"{names!r} is one string; pass a list of names, as in ['i', 'j']")
    return _several(names, "names")


def _numbers(numbers: Seq[int]) -> tuple[int, ...]:
    return _several(numbers, "numbers")


def _several(values: Seq[_T], what: str) -> tuple[_T, ...]:
    try:
        return tuple(values)
    except TypeError:
        example = "[8, 8]" if what == "numbers" else "['i', 'j']"
        raise ScheduleError(f"{values!r} is not a list of {what}, as in {example}") from None
