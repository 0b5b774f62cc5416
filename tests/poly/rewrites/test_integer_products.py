"""Sums of products of 8-bit integers: what is rewritten, what is not, and that nothing changes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import farkas as fk
from frontends.language.parse_program import parse_program
from poly.ir.expr import Cast, Op, Read
from poly.ir.program import Program, Statement
from poly.machine.cpu import host_machine
from poly.rewrites.integer_products import integer_products
from runtime.reference.evaluate import evaluate

RNG = np.random.default_rng(7)
EXTENSIONS = ("avx512_vnni", "avx512vbmi")
#: With instructions for two numbers of 16 bits only.
PAIRS = ("avx2",)
PLAIN = "int32(A[i,k]) * int32(B[k,j])"
POINTS = "(int32(A[i,k]) - int32(ZA[])) * (int32(B[k,j]) - int32(ZB[j]))"


def whole(dtype: str, *shape: int) -> np.ndarray:
    """All numbers of a type are likely, the least and the greatest most of all."""
    info = np.iinfo(dtype)
    values = RNG.integers(info.min, info.max + 1, shape)
    ends = RNG.random(shape)
    return np.where(ends < 0.1, info.min, np.where(ends > 0.9, info.max, values)).astype(dtype)


def product(a: str, b: str, k: int | str, value: str) -> Program:
    return parse_program(
        f"""def f({a} A[M,{k}], {b} B[{k},24], {a} ZA[], {b} ZB[24]) -> (Y) {{
            Y[i,j] +=! {value} where i in 0:M, j in 0:24, k in 0:{k} }}"""
    )


def main_sum(program: Program) -> Statement:
    """The statement that sums up products."""
    (s,) = (
        s for s in program.statements
        if s.reductions and isinstance(s.value, Op) and s.value.fn == "mul"
    )  # fmt: skip
    return s


def factors(program: Program) -> tuple[str, ...]:
    """The types of the factors, which are elements without zero points."""
    value = main_sum(program).value
    assert isinstance(value, Op)
    found = []
    for e in value.args:
        assert isinstance(e, Cast) and isinstance(e.arg, Read)
        found.append(str(program.dtypes[e.arg.tensor]))
    return tuple(found)


def same(program: Program, extensions: tuple[str, ...] = EXTENSIONS, **sizes: int) -> Program:
    """The rewritten program, after comparing it with the one as written."""
    made = integer_products(program, extensions)
    shapes = {
        t.name: tuple(sizes[str(e)] if str(e) in sizes else int(str(e)) for e in t.shape)
        for t in program.inputs
    }
    given_ = {t.name: whole(str(t.dtype), *shapes[t.name]) for t in program.inputs}
    wanted, got = evaluate(program, given_), evaluate(made, given_)
    for name, array in wanted.items():
        assert np.array_equal(array, got[name]), name
    return made


@pytest.mark.parametrize("value", [PLAIN, POINTS, POINTS.replace("int32(ZA[])", "7")])
@pytest.mark.parametrize("types", ["uint8 int8", "int8 uint8", "int8 int8", "uint8 uint8"])
@pytest.mark.parametrize("k", [4, 5, 23, 64])
@pytest.mark.parametrize("extensions", [EXTENSIONS, PAIRS])
def test_products(value: str, types: str, k: int, extensions: tuple[str, ...]) -> None:
    a, b = types.split()
    made = same(product(a, b, k, value), extensions, M=5)
    taken, group = (["int8", "uint8"], 4) if extensions == EXTENSIONS else (["int16"] * 2, 2)
    assert sorted(factors(made)) == taken
    (r,) = (r for r in main_sum(made).ranges if r.index in main_sum(made).reductions)
    assert int(r.hi.value) % group == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("extensions", [EXTENSIONS, PAIRS])
@pytest.mark.parametrize(
    "value",
    [
        "(int32(A[i,k]) - int32(k)) * int32(B[k,j])",
        "(int32(A[i,k]) - int32(i)) * int32(B[k,j])",
        "(int32(A[i,k]) - int32(j)) * (int32(B[k,j]) - int32(i))",
        "(int32(A[i,k]) - int32(i + k)) * (int32(B[k,j]) - int32(j))",
        "(int32(A[i,k]) - 3) * (int32(B[k,j]) - int32(i))",
    ],
)
def test_zero_points_that_move(value: str, extensions: tuple[str, ...]) -> None:
    same(product("uint8", "int8", 16, value), extensions, M=5)


def test_what_an_instruction_takes_stays() -> None:
    for program in (product("uint8", "int8", 64, PLAIN), product("int8", "uint8", 8, PLAIN)):
        assert integer_products(program, EXTENSIONS) == program
    program = product("int8", "int8", 64, POINTS)
    assert integer_products(program, ()) == program
    one = product("uint8", "int8", 1, PLAIN)  # three of four terms would be padding
    assert integer_products(one, EXTENSIONS) == one


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "def f(int8 A[9,16], int8 B[16]) -> (Y) "
            "{ Y[i] +=! int32(A[i,k]) * int32(B[k]) where i in 0:9, k in 0:16 }",
            "the matrix is read once",
        ),
        (
            "def f(int8 A[9,16], int8 B[16,24], int32 Z[9]) -> (Y) { Y[i,j] +=! (int32(A[i,k]) - "
            "int32(Z[i])) * int32(B[k,j]) where i in 0:9, j in 0:24, k in 0:16 }",
            "a difference could take more than 16 bits",
        ),
        (
            "def f(int8 A[9,16], int8 B[16,24]) -> (Y) { Y[i,j] +=! (int32(A[i,k]) - 256) * "
            "int32(B[k,j]) where i in 0:9, j in 0:24, k in 0:16 }",
            "that is no zero point of 8 bits",
        ),
        (
            "def f(int8 A[9,16], int8 B[16,24]) -> (int64 Y[9,24]) { Y[i,j] +=! int32(A[i,k]) * "
            "int32(B[k,j]) where i in 0:9, j in 0:24, k in 0:16 }",
            "the sum has more bits",
        ),
        (
            "def f(int8 A[9,16], int8 B[16,24], int8 Z[24]) -> (Y) { Y[i,j] +=! (int32(A[i,k]) - "
            "int32(Z[j])) * int32(B[k,j]) where i in 0:9, j in 0:24, k in 0:16 }",
            "each column would need a copy of A",
        ),
    ],
)
def test_what_is_not_widened(text: str, why: str) -> None:
    program = parse_program(text)
    assert integer_products(program, PAIRS) is program, why


def test_zero_points_become_sums_of_the_other_operand() -> None:
    made = integer_products(
        product("uint8", "int8", 64, "(int32(A[i,k]) - int32(ZA[])) * int32(B[k,j])"), EXTENSIONS
    )
    sums = [s for s in made.statements if s.reductions and s is not main_sum(made)]
    assert [r.tensor for s in sums for r in s.reads] == ["B"]  # of A, nothing is summed


def test_open_sizes() -> None:
    program = parse_program(
        f"def f(int8 A[M,K], int8 B[K,N], int8 ZA[], int8 ZB[N]) -> (Y) {{ Y[i,j] +=! {POINTS} }}"
    )
    for k in (1, 3, 4, 9):
        made = same(program, M=3, K=k, N=5)
        assert sorted(factors(same(program, PAIRS, M=3, K=k, N=5))) == ["int16", "int16"]
    assert sorted(factors(made)) == ["int8", "uint8"]


@pytest.mark.parametrize("k", ["k in 0:K-2", "k in 0:K, r in 0:K-2"])
def test_sums_that_end_before_they_start(k: str) -> None:
    """They have no terms, not less than none."""
    program = parse_program(
        f"""def f(uint8 A[M,K], int8 B[K,8], uint8 ZA[], int8 ZB[8]) -> (Y) {{
            Y[i,j] +=! {POINTS} where {k} }}"""
    )
    for size in (0, 1, 3, 6):
        assert same(program, M=3, K=size) != program


@pytest.mark.parametrize("extensions", [EXTENSIONS, PAIRS])
@pytest.mark.parametrize("where", ["k in 0:0", "k in 0:-3", "k in 0:16, r in 0:-1", "i in 0:-2"])
def test_what_has_no_terms_stays(where: str, extensions: tuple[str, ...]) -> None:
    program = parse_program(
        f"""def f(uint8 A[5,16], int8 B[16,8], uint8 ZA[], int8 ZB[8]) -> (int32 Y[5,8]) {{
            Y[a,b] = 0
            Y[i,j] += {POINTS} where {where} }}"""
    )
    assert same(program, extensions) == program


CONV = """def f({x} X[1,{c},{h},{w}], {y} W[{o},{per},{r},{s}], {x} ZX[], {y} ZW[{o}]) -> (Y) {{
    Y[n,o,p,q] +=! {value} where n in 0:1, o in 0:{o}, p in 0:{p}, q in 0:{q}, c in 0:{per},
        r in 0:{r}, s in 0:{s}, 0 <= {st}*p + {d}*r - {pad}, {st}*p + {d}*r - {pad} < {h},
        0 <= {st}*q + {d}*s - {pad}, {st}*q + {d}*s - {pad} < {w} }}"""


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_convolutions(data: st.DataObject) -> None:
    """Borders, strides, dilations, groups and depthwise; zero points of both, of one, of none."""
    draw = data.draw
    groups, per = draw(st.sampled_from([(1, 3), (1, 4), (2, 2), (4, 1), (8, 1)]))
    o = groups * draw(st.sampled_from([1, 2]))
    r, s = draw(st.sampled_from([(1, 1), (3, 3), (1, 3), (5, 5), (2, 3)]))
    st_, d, pad = draw(st.sampled_from([(1, 1, 0), (1, 1, 1), (2, 1, 1), (1, 2, 2), (2, 1, 0)]))
    h, w = draw(st.integers(6, 9)), draw(st.integers(6, 9))
    p, q = ((e + 2 * pad - d * (k - 1) - 1) // st_ + 1 for e, k in ((h, r), (w, s)))
    if p < 1 or q < 1:
        return
    x, y = draw(st.sampled_from(["uint8", "int8"])), draw(st.sampled_from(["uint8", "int8"]))
    channel = f"(o // {o // groups}) * {per} + c" if groups > 1 else "c"
    left = f"int32(X[n, {channel}, {st_}*p + {d}*r - {pad}, {st_}*q + {d}*s - {pad}])"
    right = "int32(W[o,c,r,s])"
    if draw(st.booleans()):
        left = f"({left} - int32(ZX[]))"
    if draw(st.booleans()):
        right = f"({right} - int32(ZW[o]))"
    text = CONV.format(
        x=x, y=y, c=groups * per, h=h, w=w, o=o, per=per, r=r, s=s, p=p, q=q, d=d, pad=pad,
        st=st_, value=f"{left} * {right}",
    )  # fmt: skip
    program = parse_program(text)
    same(program)
    same(program, PAIRS)
    same(program, ("avx512_vnni",))  # without an instruction on windows of a row


def test_few_filters_have_lanes_along_the_rows_of_the_image() -> None:
    """If there is an instruction for them, and otherwise no other sum is made."""
    text = CONV.format(x="uint8", y="int8", c=8, h=6, w=20, o=8, per=4, r=3, s=3, p=6, q=20, d=1,
                       pad=1, st=1, value="int32(X[n, (o // 4) * 4 + c, 1*p + 1*r - 1, "
                       "1*q + 1*s - 1]) * int32(W[o,c,r,s])")  # fmt: skip
    program = parse_program(text)
    made = same(program)
    assert {r.index: str(r.hi) for r in main_sum(made).ranges}["s"] == "4"
    assert integer_products(program, ("avx512_vnni",)) is program


@pytest.mark.parametrize(("loops", "of"), [("n,o,p", "o"), ("o,n,p", "o"), ("n,o,p", "n")])
@pytest.mark.parametrize("types", ["uint8 int8", "int8 int8", "int8 uint8"])
def test_images_with_a_zero_point_for_each_channel(loops: str, of: str, types: str) -> None:
    """As in depthwise convolutions: the border of each channel has a number of its own."""
    x, w = types.split()
    made = same(parse_program(
        f"""def f({x} X[5,6,9], {w} W[6,3], {x} Z[{"6" if of == "o" else "5"}]) -> (Y) {{
            Y[{loops}] +=! (int32(X[n,o,p + r - 1]) - int32(Z[{of}])) * int32(W[o,r])
                where n in 0:5, o in 0:6, p in 0:9, r in 0:3, 0 <= p + r - 1 < 9 }}"""
    ))  # fmt: skip
    assert any(s.name != "S0" and "X_p" in str(s) for s in made.statements)


def test_accumulating_keeps_what_was_there() -> None:
    program = parse_program(
        "def f(int8 A[3,5], int8 B[5,4], int32 Y[3,4]) -> (Y) { Y[i,j] += int32(A[i,k]) * "
        "int32(B[k,j]) where i in 0:3, j in 0:4, k in 0:5 }"
    )
    same(program)


STEPS = """def f(int8 X[4,3,10], {r} R[{rows},12], int8 ZR[12]) -> (int32 Y[5,3,12]) {{
    uint8 Z[4]
    {q} Q[4,3,{rows}]
    int32 A[4,3,12]
    Y[0,b,n] = int32(X[0,b,0])
    for t in 0:4 {{
        Z[t] max=! uint8(min(max(Y[t,b,n], 0), 9)) where b in 0:3, n in 0:12
        Q[t,b,k] = {q}(int32(X[t,b,k]) + Y[t,b,k]) where b in 0:3, k in 0:{rows}
        A[t,b,n] +=! (int32(Q[t,b,k]) - int32(Z[t])) * {weight}
            where b in 0:3, n in 0:12, k in 0:{rows}
        Y[t+1,b,n] = A[t,b,n] // 100 where b in 0:3, n in 0:12
    }}
}}"""


@pytest.mark.parametrize("rows", [7, 8])
@pytest.mark.parametrize("weight", ["int32(R[k,n])", "(int32(R[k,n]) - int32(ZR[n]))"])
@pytest.mark.parametrize("types", ["uint8 int8", "int8 uint8", "int8 int8", "uint8 uint8"])
@pytest.mark.parametrize("extensions", [EXTENSIONS, PAIRS])
def test_steps(rows: int, weight: str, types: str, extensions: tuple[str, ...]) -> None:
    """What a step computes is copied and summed up in it; weights are copied once."""
    q, r = types.split()
    program = parse_program(STEPS.format(rows=rows, weight=weight, q=q, r=r))
    made = same(program, extensions)
    assert sorted(factors(made)) in (["int8", "uint8"], ["int16", "int16"])
    if rows == 7:
        (copy,) = (s for s in made.statements if s.target.tensor == "Q_p")
        assert copy.block
    assert any("R_p" in s.target.tensor and not s.block for s in made.statements)


def test_zero_points_of_weights_that_change_with_steps() -> None:
    """Their difference is not known before the block."""
    text = STEPS.format(rows=8, weight="(int32(R[k,n]) - int32(Z[t]))", q="uint8", r="int8")
    program = parse_program(text)
    assert integer_products(program, PAIRS) is program
    same(program)


@pytest.mark.parametrize("guards", ["k < 7", "k <= 7", "0 <= k - 2, k - 2 < 3", "7 > k"])
@pytest.mark.parametrize("value", [PLAIN, "(int32(A[i,k]) - 3) * int32(B[k,j])"])
@pytest.mark.parametrize("extensions", [EXTENSIONS, PAIRS])
def test_terms_that_are_left_out(guards: str, value: str, extensions: tuple[str, ...]) -> None:
    """Of an operand that has them, too, only what a sum has is copied."""
    program = parse_program(
        f"""def f(uint8 A[12,20], int8 B[20,32]) -> (Y) {{ Y[i,j] +=! {value}
            where i in 0:12, j in 0:32, k in 0:20, {guards} }}"""
    )
    same(program, extensions)


@pytest.mark.parametrize("k", [32, 33])
def test_kernels_use_the_instruction(k: int) -> None:
    a, b = whole("int8", 20, k), whole("int8", k, 24)
    kernel = fk.compile(f"def f(int8 A[20,{k}], int8 B[{k},24]) -> (C) {{ C[i,j] +=! {PLAIN} }}")
    assert np.array_equal(kernel(a, b), a.astype(np.int32) @ b.astype(np.int32))


def test_a_quantised_network() -> None:
    """Weights are put together once, when the network is compiled."""
    weights = whole("int8", 16, 6, 3, 3)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    node = helper.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])
    constants = {
        "xs": np.float32(0.1), "xz": np.uint8(100), "w": weights, "ws": np.full(16, 0.01, "f4"),
        "wz": np.zeros(16, np.int8), "ys": np.float32(0.4), "yz": np.uint8(120),
    }  # fmt: skip
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 6, 10, 12])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 16, 10, 12])],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    compiled = fk.compile_onnx(model)
    assert compiled.is_whole
    extensions = host_machine().extensions
    is_whole = bool({"avx512_vnni", "avx_vnni", "i8mm"} & {*extensions})
    used, kind, size = (
        ("dot4", np.int8, 16 * 3 * 3 * 8) if is_whole else ("dot2", np.int16, weights.size)
    )
    assert any(used in text for text in compiled.source.values())
    assert any(a.dtype == kind and a.size == size for a in compiled.graphs[0].constants.values()), {
        n: (a.dtype, a.shape) for n, a in compiled.graphs[0].constants.items()
    }
    found = compiled.compare("onnxruntime", {"x": whole("uint8", 1, 6, 10, 12)}, atol=1)
    assert found.agrees, str(found)
