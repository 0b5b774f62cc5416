"""Gradients of random programs, compared with differences and with directional derivatives.

    python -m tests.differential.gradients 0 10000
    python -m tests.differential.gradients --second 0 2000

Every float is a float64.  Differences say nothing where a program is not smooth: there they depend
on their step, and only that both modes agree is checked.
"""

from __future__ import annotations

import re
import sys
from collections import Counter

import numpy as np

import farkas as fk
from poly.errors import FarkasError
from poly.gradients.request import named
from poly.ir.expr import Op, dtype_of_expr, walk
from poly.ir.program import Program
from tests.differential.blocks import block_text
from tests.differential.generate import random_text
from tests.differential.harness import choose_sizes, make_inputs
from tests.poly.gradients.differences import STEP, Arrays, Differentiated

#: What both modes may differ by, and a derivative from differences, relative to the terms.
MODES, DIFFERENCES = 1e-10, 1e-6
#: One of so many programs is a block of recurrences.
RECURRENCES = 8
#: What jumps from one value to another.
_JUMPING = ("fmod", "mod", "floordiv", "floor", "ceil", "trunc", "round")
#: Values this many times as large as derivatives leave no digits to differences.
HUGE = 1e4


def random_program(seed: int) -> Program | None:
    """The program of a seed with float64 for every float, None if that is none."""
    made = block_text(seed) if seed % RECURRENCES == 0 else random_text(seed)
    text = re.sub(r"bfloat16|float16|float32", "float64", made)
    try:
        return fk.parse(text)
    except FarkasError:
        return None


def check_gradient(seed: int) -> str:
    """Check the gradient of a seed's program; what was seen: ``right``, or why it says nothing.

    Raises
    ------
    AssertionError : it is wrong.
    """
    program = random_program(seed)
    return "no program" if program is None else _checked(program, seed)


def check_second(seed: int) -> str:
    """Check the gradient of the gradient of a seed's program, as in `check_gradient`."""
    program = random_program(seed)
    if program is None:
        return "no program"
    try:
        first = fk.grad(program)
    except fk.GradientError:
        return "no gradient"
    return _checked(first, seed)


def _checked(program: Program, seed: int) -> str:
    try:
        wrt, of = named(program, None, None)
        gradient, derivative = fk.grad(program, wrt, of), fk.jvp(program, wrt, of)
    except fk.GradientError as error:
        return "no gradient" if "no output of" in str(error) else f"refused: {error}"
    for made in (gradient, derivative):
        assert fk.parse(str(made)) == made, f"seed {seed} does not parse back\n{made}"
    rng = np.random.default_rng(seed)
    chosen = choose_sizes(program, rng, 1)
    if not chosen:
        return "too large"
    (sizes,) = chosen
    arrays = _smooth_inputs(program, make_inputs(program, sizes, seed), rng)
    with np.errstate(all="ignore"):
        return _compared(
            seed, Differentiated(program, wrt, of, arrays, sizes), gradient, derivative
        )


def _smooth_inputs(program: Program, arrays: Arrays, rng: np.random.Generator) -> Arrays:
    """Floats that are away from 0, and differ: where most programs are smooth."""
    floats = {t.name for t in program.inputs if t.dtype.is_float}
    return {
        n: rng.uniform(0.3, 1.7, a.shape) * rng.choice([-1, 1], a.shape) if n in floats else a
        for n, a in arrays.items()
    }


def _compared(seed: int, at: Differentiated, gradient: Program, derivative: Program) -> str:
    backward, forward = at.by_gradient(gradient), at.by_derivative(derivative)
    if not (np.isfinite(backward) and np.isfinite(forward)):
        return "not finite"
    scale = 1 + at.scale(derivative)
    assert abs(backward - forward) <= MODES * scale, f"seed {seed}: {backward} and {forward}"
    if not at.magnitude() < HUGE * scale:
        return "huge values"
    differences = [at.by_differences(step) for step in (STEP, 0.3 * STEP)]
    close = DIFFERENCES * min(scale, 100 * (1 + abs(differences[0])))
    if not abs(differences[0] - differences[1]) <= close / 10:
        return "not smooth"
    is_close = abs(differences[0] - forward) <= DIFFERENCES * scale
    if not is_close and _has_sawtooth(at.program):
        return "not smooth"
    assert is_close, (
        f"seed {seed}: {forward}, by differences {differences}\n{at.program}\n{gradient}"
    )
    return "right"


def _has_sawtooth(program: Program) -> bool:
    """Whether a remainder of floats, or what is rounded of a quotient, may jump many times within
    the step of a difference.
    """
    dtypes = program.dtypes
    return any(
        isinstance(e, Op) and e.fn in _JUMPING and dtype_of_expr(e, dtypes).is_float
        for s in program.statements
        for e in walk(s.value)
    )


def main() -> int:
    *second, first, last = sys.argv[1:]
    check = check_second if second == ["--second"] else check_gradient
    seen: Counter[str] = Counter()
    wrong = 0
    for seed in range(int(first), int(last)):
        try:
            found = check(seed)
        except AssertionError as error:
            wrong += 1
            print(error, flush=True)
            continue
        seen[found.partition(":")[0]] += 1
        if found.startswith("refused"):
            print(f"seed {seed} {found}", flush=True)
    print(dict(seen), f"wrong: {wrong}")
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
