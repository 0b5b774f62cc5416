"""In-bounds proofs: preconditions, errors with witnesses, and brute force as the judge."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from frontends.language.infer import infer_program
from frontends.language.parser import parse
from poly.errors import ProgramError
from poly.ir.expr import Const, Expr, Op, Size, evaluate_int, reads_of
from poly.ir.program import Program, Statement, specialise, verify_program
from poly.sets import check_bounds as bounds
from poly.sets.check_bounds import BoundsError, check_bounds
from poly.sets.from_isl import conditions_of
from poly.sets.prove import proves


def unchecked(text: str) -> Program:
    return verify_program(infer_program(parse(text), {}, None))


def check(text: str) -> Program:
    return check_bounds(unchecked(text))


def constraints(text: str) -> list[str]:
    return [str(c) for c in check(text).constraints]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[i] }", []),
        ("def f(float32 X[N,M], float32 Z[M,K]) -> (Y) { Y[i,j] +=! X[i,k] * Z[k,j] }", []),
        ("def f(float32 X[H], float32 F[R]) -> (Y) { Y[p] +=! X[p+r] * F[r] }", ["R <= H + 1"]),
        (
            "def f(float32 X[H], float32 F[R]) -> (Y) { Y[p] +=! X[2*p+r] * F[r] }",
            ["R <= H + 2"],
        ),
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[i+3] }", ["N >= 3"]),
        ("def f(float32 X[N], float32 Z[M]) -> (Y) { Y[i] = X[i] + Z[i] where i in 0:N }",
         ["N <= M"]),
        ("def f(float32 X[N], float32 Z[M]) -> (Y) where N <= M "
         "{ Y[i] = X[i] + Z[i] where i in 0:N }", ["N <= M"]),
        ("def f(float32 X[N]) -> (float32 Y[M]) { Y[i] = X[i] }", ["M <= N"]),
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[i + N//2] }", []),
        ("def f[N,M](float32 X[N]) -> (Y) { Y[i] = X[2*i+1] where i in 0:M }", ["2 * M <= N"]),
        ("def f[N,M](float32 X[N]) -> (Y) where N % 2 == 0, M == N // 2 "
         "{ Y[i] = X[2*i+1] where i in 0:M }", ["N % 2 == 0", "M == N // 2"]),
        ("def f() -> (float32 Y[N]) { Y[0] = 0; Y[i] = 1 where i in 1:N }", ["N >= 1"]),
        ("def f(float32 X[N], int64 I[M]) -> (Y) { Y[i] = X[I[i] + 7] }",
         ["N >= 1 or M == 0"]),
        ("def f(float32 X[N,K], int64 I[M]) -> (Y) { Y[i,k] = X[I[i], k] }",
         ["N >= 1 or M == 0 or K == 0"]),
        ("def f(float32 X[N,N], int64 I[N]) -> (Y) { Y[i] = X[I[i], i] }", []),
        # zero-size arrays are never the problem
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[N-1-i] }", []),
        ("def f(float32 X[N]) -> (float32 Y[N-M]) { Y[i] = X[i+M]; Y[0] = 0 }", ["N >= M + 1"]),
        # coverage by several statements, and by the initialisation
        ("def f(float32 X[N]) -> (Y) { Y[2*i] = X[i]; Y[2*i+1] = X[i] }", []),
        ("def f(float32 X[N]) -> (Y) { Y[i] +=! X[j] where i in 0:N, j in 0:N, j < i }", []),
        ("def f(float32 X[N,N]) -> (Y) { Y[i,j] = X[i,j] where j in 0:i+1; "
         "Y[i,j] = 0 where i in 0:N, j in i+1:N }", []),
        # recurrences read what earlier instances wrote
        ("def f(float32 X[N]) -> (Y) { Y[0] = 0; Y[i+1] = Y[i] + X[i] }", []),
        ("def f(float32 X[N]) -> (Y) { Y[i,0] = X[i]; "
         "Y[i,j+1] = 2 * Y[i,j] where i in 0:N, j in 0:3 }", []),
        # an updated tensor needs no initialisation and no coverage
        ("def f(float32 X[N], float32 Y[M]) -> (Y) { Y[i] += X[i] }", []),
    ],
)  # fmt: skip
def test_preconditions(text: str, expected: list[str]) -> None:
    assert constraints(text) == expected


@pytest.mark.parametrize(
    ("text", "message", "sizes"),
    [
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[i+1] where i in 0:N }",
         "X[i + 1] is out of bounds: dimension 0 has extent N = 1, but the index i + 1 is 1 "
         "at i = 0, N = 1", {"N": 1}),
        ("def f(float32 X[N,M]) -> (Y) { Y[i,j] = X[j,i] where i in 0:N, j in 0:N+M }",
         "X[j, i] is out of bounds", None),
        ("def f(float32 X[5]) -> (Y) { Y[i] = X[i] where i in 0:6 }",
         "dimension 0 has extent 5, but the index i is 5 at i = 5", {}),
        ("def f[N](float32 X[5]) -> (Y) { Y[i] = X[i] where i in 0:N }",
         "the index i is 5 at i = 5, N = 6", {"N": 6}),
        ("def f(float32 X[N]) -> (Y) { Y[i+1] = X[i] }", "Y[0] is never written", None),
        ("def f(float32 X[N]) -> (Y) { Y[2*i] = X[i] }", "Y[1] is never written at N = 2",
         {"N": 2}),
        ("def f(float32 X[N]) -> (Y) { Y[i] += X[i] }", "Y[0] is read before it is written",
         {"N": 1}),
        ("def f(float32 X[N]) -> (Y) { Y[i] = T[i]; T[i] = X[i] }",
         "T[0] is read before it is written at N = 1", {"N": 1}),
        ("def f(float32 X[N]) -> (Y) { Y[i+1] = Y[i] + X[i]; Y[0] = 0 }",
         "Y[0] is read before it is written at N = 1", {"N": 1}),
        ("def f(float32 X[N]) -> (Y) { Y[N] = 0; Y[i] = Y[i+1] + X[i] }",
         "Y[1] is read before it is written at N = 2", {"N": 2}),
        ("def f(float32 X[N], int64 I[M]) -> (Y) { T[i] = X[i]; Y[i] = U[I[i]] + T[i]; "
         "U[i] = X[i] }", "U[0] is read before it is written", None),
        ("def f(float32 X[N,N]) -> (Y) { Y[i,j] = X[i,j] where i in 0:N, j in 0:N, j <= i }",
         "Y[0, 1] is never written at N = 2", {"N": 2}),
        ("def f(float32 X[N,M]) -> (float32 Y[N*M]) { Y[i] = X[i,0] where i in 0:N }",
         "Y[i] has the extent N * M, which is not affine", None),
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[i*N] where i in 0:N }",
         "i * N in X[i * N] is not affine", None),
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[0] where i in 0:18446744073709551615 }",
         "18446744073709551615 is too large for an index or a size", None),
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[i] where i in 0:N*N }",
         "the range i in 0:N * N is not affine", None),
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[i] where i in 0:N, i * i < N }",
         "the guard i * i < N is not affine", None),
    ],
)  # fmt: skip
def test_errors(text: str, message: str, sizes: dict[str, int] | None) -> None:
    program = unchecked(text)
    with pytest.raises(BoundsError) as caught:
        check_bounds(program)
    assert message in str(caught.value)
    if sizes is not None:
        assert caught.value.sizes == sizes


def test_a_ceiling_on_a_size_has_to_be_stated() -> None:
    text = "def f[N](float32 X[5]) -> (Y){} {{ Y[i] = X[i] where i in 0:N }}"
    with pytest.raises(BoundsError) as caught:
        check(text.format(""))
    assert caught.value.hint.endswith("state: where N <= 5")
    assert constraints(text.format(" where N <= 5")) == ["N <= 5"]


def test_select_reads_both_sides() -> None:
    text = "def f(float32 X[N]) -> (Y) { Y[i] = select(i > 0, X[{}], 0) where i in 0:N }"
    with pytest.raises(BoundsError) as caught:
        check(text.replace("{}", "i-1"))
    assert "both sides of select" in caught.value.hint
    assert check(text.replace("{}", "max(i-1, 0)")).constraints == ()


def test_an_exceeded_budget_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BUDGET", 100)
    monkeypatch.setattr(bounds, "BUDGET_OF_STATEMENT", 0)
    program = unchecked("def f(float32 X[H], float32 F[R]) -> (Y) { Y[p] +=! X[2*p+r] * F[r] }")
    with pytest.raises(BoundsError, match="could not be decided within 100 isl operations"):
        check_bounds(program)
    monkeypatch.undo()
    assert check_bounds(program).constraints


def test_hard_questions_end() -> None:
    guards = ", ".join(f"(i+{k}) % {k + 2} != {k}" for k in range(12))
    program = unchecked(f"def f(float32 X[N]) -> (Y) {{ Y[i] = X[i] where i in 0:N, {guards} }}")
    start = time.monotonic()
    with pytest.raises(BoundsError):
        check_bounds(program)
    assert time.monotonic() - start < 60  # a tenth of that, on an idle machine


def test_checking_twice_adds_nothing() -> None:
    once = check("def f(float32 X[H], float32 F[R]) -> (Y) { Y[p] +=! X[3*p+r] * F[r] }")
    assert once.constraints and check_bounds(once) is once


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (Op("le", (Size("N"), Op("add", (Size("N"), Const(1))))), True),
        (Op("le", (Size("N"), Size("M"))), False),
        (Op("ge", (Size("N"), Const(0))), True),
        (Op("lt", (Const(3), Const(4))), True),
        (Op("lt", (Const(4), Const(4))), False),
        (Op("le", (Op("mul", (Size("N"), Size("M"))), Size("N"))), False),
    ],
)
def test_proves(goal: Expr, expected: bool) -> None:
    assert proves(("N", "M"), (), (), goal) is expected


# --- brute force ------------------------------------------------------------------------------


def instances(s: Statement, env: dict[str, int]) -> list[dict[str, int]]:
    spans = [range(evaluate_int(r.lo, env), evaluate_int(r.hi, env)) for r in s.ranges]
    points = [{**env, **dict(zip(s.indices, p, strict=True))} for p in product(*spans)]
    return [p for p in points if all(evaluate_int(g, p) for g in s.guards)]


def problems(program: Program, env: dict[str, int]) -> list[str]:
    """What goes wrong at the given sizes, found by running through all instances in order."""
    found: list[str] = []
    shapes = {n: tuple(evaluate_int(e, env) for e in t.shape) for n, t in program.tensors.items()}
    found += [f"{n} has a negative extent" for n, s in shapes.items() if min(s, default=0) < 0]
    inputs = {t.name for t in program.inputs}
    written: dict[str, set[tuple[int, ...]]] = {n: set() for n in shapes}

    def place(tensor: str, indices: tuple[Expr, ...], p: dict[str, int]) -> tuple[int, ...]:
        at = tuple(evaluate_int(i, p) for i in indices)
        if any(not 0 <= a < e for a, e in zip(at, shapes[tensor], strict=True)):
            found.append(f"{tensor}{at} is outside")
        return at

    for s in program.statements:
        target = s.target.tensor
        if s.init:
            free = [r for r in s.ranges if r.index in s.free]
            spans = [range(evaluate_int(r.lo, env), evaluate_int(r.hi, env)) for r in free]
            for point in product(*spans):
                p = {**env, **dict(zip(s.free, point, strict=True))}
                if all(evaluate_int(g, p) for g in s.free_guards):
                    written[target].add(place(target, s.target.indices, p))
        for p in instances(s, env):
            reads = [*reads_of(s.value), *([s.target] if s.is_update else [])]
            for r in reads:
                at = place(r.tensor, r.indices, p)
                if r.tensor not in inputs and at not in written[r.tensor]:
                    found.append(f"{r.tensor}{at} is not written yet")
            written[target].add(place(target, s.target.indices, p))
    for t in program.outputs:
        whole = set(product(*(range(max(e, 0)) for e in shapes[t.name])))
        if t.name not in inputs and whole - written[t.name]:
            found.append(f"{t.name} has unset elements")
    return found


OFFSETS = st.sampled_from(["", "+1", "-1", "+2", "+N-M", "-N"])
PLACES = st.builds(
    lambda a, o: a + o,
    st.sampled_from(["i", "j", "2*i", "i+j", "i-j", "i//2", "N-i", "min(i,j)", "(i+j)%3"]),
    OFFSETS,
)
BOUNDS = st.sampled_from(["0:N", "0:M", "1:N", "0:N-1", "0:3", "0:N+1", "0:min(N,M)"])
EXTENTS = st.sampled_from(["N", "M", "N+1", "2*N", "N+M", "3", "4"])
GUARDS = st.sampled_from(["", ", j <= i", ", i + j < N", ", 0 <= i - j < 2", ", i % 2 == 0"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    lines = []
    init = draw(st.booleans())
    if init:
        lines.append(f"Y[k] = 0 where k in {draw(BOUNDS)}")
    if draw(st.booleans()):
        lines.append(f"T[{draw(PLACES)}] max=! X[{draw(PLACES)}] where i in {draw(BOUNDS)}, "
                     f"j in {draw(BOUNDS)}{draw(GUARDS)}")  # fmt: skip
        source = f"T[{draw(PLACES)}]"
    else:
        source = draw(st.sampled_from(["X", "Y"])) + f"[{draw(PLACES)}]"
    op = "+=" if init else "+=!"
    lines.append(f"Y[{draw(PLACES)}] {op} {source} where i in {draw(BOUNDS)}, "
                 f"j in {draw(BOUNDS)}{draw(GUARDS)}")  # fmt: skip
    body = "\n".join(lines)
    temp = f"float32 T[{draw(EXTENTS)}]\n" if "T[" in body else ""
    return (
        f"def f[N,M](float32 X[{draw(EXTENTS)}]) -> (float32 Y[{draw(EXTENTS)}]) {{ {temp}{body} }}"
    )


SIZES = [dict(zip("NM", p, strict=True)) for p in product(range(6), range(6))]


@given(texts())
def test_brute_force_agrees(text: str) -> None:
    """Within the constraints nothing goes wrong; outside them, or at a witness, something does."""
    program = unchecked(text)
    try:
        checked = check_bounds(program)
    except BoundsError as error:
        assume("not affine" not in str(error) and "too complicated" not in str(error))
        assert set(error.sizes) <= {"N", "M"}
        assert problems(program, {"N": 0, "M": 0, **error.sizes})
        return
    for env in SIZES:
        allowed = all(evaluate_int(c, env) for c in checked.constraints)
        assert bool(problems(program, env)) is not allowed, (env, checked.constraints)


def test_constraints_survive_specialisation() -> None:
    program = check("def f(float32 X[H], float32 F[R]) -> (Y) { Y[p] +=! X[p+r] * F[r] }")
    fixed = specialise(program, {"R": 3})
    assert [str(c) for c in fixed.constraints] == ["3 <= H + 1"]
    assert check_bounds(fixed) == fixed


def test_conditions_of_unions_and_remainders() -> None:
    import islpy as isl

    context = isl.Set("[N, M] -> { : N >= 0 and M >= 0 }")
    odd = isl.Set("[N, M] -> { : N mod 2 = 1 and (M >= N + 2 or M = 0) }")
    (found,) = conditions_of(odd, context) or (None,)
    assert found is not None
    for n, m in product(range(8), range(8)):
        expected = n % 2 == 1 and (m >= n + 2 or m == 0)
        assert bool(evaluate_int(found, {"N": n, "M": m})) is expected


LONG = 2**60
WORD = "beyond 64 bits"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # isl says 63 at the most; a kernel would read elsewhere.
        (f"def f(float32 X[64]) -> (Y) {{ Y[i] = X[(i*{LONG - 1})//{LONG}] where i in 0:64 }}",
         r"i \* 1152921504606846975 can reach 2\*\*66, beyond 64 bits"),
        (f"def f(float32 X[64]) -> (Y) {{ Y[i] = X[(i*{LONG - 1})%64] where i in 0:64 }}", WORD),
        (f"def f(float32 X[64], float32 Y[64]) -> (Y) {{ Y[(i*{LONG})//{LONG}] = X[i] }}", WORD),
        (f"def f[N,K](float32 X[N], float32 Y[N]) -> (Y) {{ Y[i] = X[i] where i < {2**44}*K }}",
         r"17592186044416 \* K can reach 2\*\*64, beyond 64 bits"),
        (f"def f[N,K](float32 X[N], float32 Y[N]) -> (Y) "
         f"{{ Y[i] = X[i] where i in 0:min(N, {2**44}*K) }}", WORD),
        (f"def f(float32 X[(N+1)*{LONG}//{LONG}]) -> (Y) {{ Y[i] = X[i] }}", WORD),
        ("def f(float32 X[4294967296, 4294967296]) -> (Y) { Y[i] = X[i,0] }",
         r"float32 X\[4294967296,4294967296\] is too large to be addressed"),
    ],
)  # fmt: skip
def test_arithmetic_that_leaves_64_bits(text: str, message: str) -> None:
    with pytest.raises(BoundsError, match=message):
        check(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"def f(float32 X[64]) -> (Y) {{ Y[i] = X[(i*{2**57})//{2**57}] where i in 0:64 }}", []),
        (f"def f[N,K](float32 X[N], float32 Y[N]) -> (Y) {{ Y[i] = X[i] where i < {2**24}*K }}",
         []),
        ("def f(float32 X[N,3,2160,3840]) -> (Y) "
         "{ Y[i] = X[i//24883200, i//8294400%3, i//3840%2160, i%3840] where i in 0:24883200*N }",
         []),
        # Values may, as they do in numpy.
        (f"def f(float32 X[N]) -> (int64 Y[N]) {{ Y[i] = i*{LONG} }}", []),
        # Sizes that are multiplied by more are bounded.
        ("def f(uint8 X[N], uint8 Z[256]) -> (Y) "
         "{ Y[i] = Z[(i*2654435761) % 4294967296 // 16777216] where i in 0:N }",
         ["N <= 2147483648"]),
        ("def f(uint8 X[N], uint8 Z[256]) -> (Y) where N <= 1000000 "
         "{ Y[i] = Z[(i*2654435761) % 4294967296 // 16777216] where i in 0:N }",
         ["N <= 1000000"]),
        ("def f(uint8 X[N], uint8 Z[256]) -> (Y) where 3000000000 > N "
         "{ Y[i] = Z[(i*2654435761) % 4294967296 // 16777216] where i in 0:N }",
         ["3000000000 > N"]),
        ("def f(float32 X[N,M], float32 Y[N,M]) -> (Y) { Y[i,j] = X[i,j] "
         f"where i in 0:N, j in 0:M, {2**30}*i < N + {2**40}*j }}",
         ["N <= 8388608", "M <= 8388608"]),
        (f"def f(float32 X[{2**26}*N+1]) -> (Y) {{ Y[i] = X[{2**26}*i] where i in 0:N }}",
         ["N <= 68719476736"]),
    ],
)  # fmt: skip
def test_arithmetic_that_does_not(text: str, expected: list[str]) -> None:
    program = check(text)
    assert [str(c) for c in program.constraints] == expected
    assert check_bounds(program) == program


@pytest.mark.parametrize(
    "guard", ["int8(100)+int8(100) > 0", "uint8(1)-uint8(2) > uint8(0)", "i % int32(3) == 0"]
)
def test_numbers_of_other_types_are_no_index_arithmetic(guard: str) -> None:
    text = f"def f(float32 X[9], float32 Y[9]) -> (Y) {{ Y[i] = X[i] where {guard} }}"
    with pytest.raises(BoundsError, match="is not affine") as caught:
        check(text)
    assert caught.value.hint == "index arithmetic is in int64: write its numbers without a type"


def test_fixed_sizes_must_meet_the_preconditions() -> None:
    program = check("def f(float32 X[N]) -> (Y) { Y[i] = X[i+3] }")
    assert specialise(program, {"N": 3}).constraints == ()
    with pytest.raises(ProgramError, match="precondition N >= 3 does not hold: N=2"):
        specialise(program, {"N": 2})


@pytest.mark.parametrize(
    ("condition", "sizes", "at"), [("N*M >= 1", {"N": 0}, "N=0"), ("M % N == 1", {"N": 1}, "N=1")]
)
def test_a_precondition_that_some_sizes_decide(
    condition: str, sizes: dict[str, int], at: str
) -> None:
    program = check(f"def f(float32 X[N,M]) -> (Y) where {condition} {{ Y[i,j] = X[i,j] }}")
    with pytest.raises(ProgramError, match=f"does not hold: {at}"):
        specialise(program, sizes)
