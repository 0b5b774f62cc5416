"""Operators of torch: results, fake tensors, batches, compiled and exported functions."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import farkas as fk
from tests.poly.texts import HEAT

pytest.importorskip("torch", reason="torch is not installed")
torch: Any = importlib.import_module("torch")
pytestmark = pytest.mark.usefixtures("fresh_torch")

TEXTS = {
    "l1": "def l1(float32 X[N,K], float32 Y[M,K]) -> (D) { D[i,j] +=! abs(X[i,k] - Y[j,k]) }",
    "axpy": "def axpy(float32 a[], float32 X[N], float32 Y[N]) -> (Z) { Z[i] = a[] * X[i] + Y[i] }",
    "both": """def both(float32 X[N,M]) -> (S, P) {
        S[i] +=! X[i,j]
        P[j] *=! X[i,j]
    }""",
    "conv": "def conv(float32 X[H], float32 K[3]) -> (Y) { Y[y] +=! X[y+u] * K[u] }",
    "pool": "def pool(float32 X[2*N]) -> (Y) { Y[i] max=! X[2*i+u] where u in 0:2 }",
    "update": "def update(float32 C[N,M], float32 A[N,M]) -> (C) { C[i,j] += A[i,j] * A[i,j] }",
    "repeat": "def repeat[N,R](float32 X[N]) -> (Y) { Y[r,i] = X[i] where r in 0:R }",
    "gather": "def gather(float32 X[N], int64 n[M]) -> (Y) { Y[j] = X[max(0, min(n[j], N-1))] }",
    "halves": "def halves(bfloat16 X[N]) -> (Y) { Y[i] = X[i] + X[i] }",
    "mask": "def mask(int32 X[N], bool M[N]) -> (Y) { Y[i] = select(M[i], X[i], 0) }",
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "l1": (torch.rand(4, 3), torch.rand(5, 3)),
    "axpy": (torch.tensor(2.0), torch.rand(6), torch.rand(6)),
    "both": (torch.rand(3, 4),),
    "conv": (torch.rand(9), torch.rand(3)),
    "pool": (torch.rand(8),),
    "update": (torch.rand(3, 4), torch.rand(3, 4)),
    "repeat": (torch.rand(3), 5),
    "gather": (torch.rand(5), torch.tensor([4, 0, 2])),
    "halves": (torch.rand(5).bfloat16(),),
    "mask": (torch.arange(4, dtype=torch.int32), torch.tensor([True, False, True, True])),
}
OPS = {name: fk.torch.op(text, name=f"tests::{name}") for name, text in TEXTS.items()}


def expected(name: str, arguments: tuple[Any, ...]) -> Any:
    if name == "halves":
        return arguments[0] + arguments[0]
    sizes = {"R": arguments[1]} if name == "repeat" else {}
    program = fk.parse(TEXTS[name])
    given = (a.numpy() for a in arguments if isinstance(a, torch.Tensor))
    arrays = {t.name: a for t, a in zip(program.inputs, given, strict=True)}
    found = tuple(map(torch.from_numpy, fk.evaluate(program, arrays, sizes).values()))
    return found if len(found) > 1 else found[0]


def close(found: Any, want: Any) -> None:
    if isinstance(want, tuple):
        for f, w in zip(found, want, strict=True):
            close(f, w)
        return
    torch.testing.assert_close(found, want)


def call(name: str, arguments: tuple[Any, ...]) -> Any:
    return OPS[name].overload(*arguments)


@pytest.mark.parametrize("name", TEXTS)
def test_results(name: str) -> None:
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in ARGUMENTS[name]]
    close(call(name, ARGUMENTS[name]), expected(name, ARGUMENTS[name]))
    for a, b in zip(ARGUMENTS[name], before, strict=True):
        assert b is a if isinstance(a, int) else torch.equal(a, b)


@pytest.mark.parametrize("name", TEXTS)
def test_torch_finds_nothing_wrong(name: str) -> None:
    torch.library.opcheck(OPS[name].overload, ARGUMENTS[name])


def test_sizes_by_name() -> None:
    assert OPS["repeat"](torch.rand(3), R=2).shape == (2, 3)
    x, y = torch.rand(3), torch.rand(4, 3)
    for given in ((x,), (x, 3)):
        with pytest.raises(fk.ArgumentError, match=r"needs the size R: repeat\(X, R=…\)"):
            OPS["repeat"](*given)
    with pytest.raises(fk.ArgumentError, match=r"takes no size S by name: repeat\(X, R=…\)"):
        OPS["repeat"](x, R=1, S=2)
    with pytest.raises(fk.ArgumentError, match=r"takes its inputs by position: l1\(X, Y\)"):
        OPS["l1"](X=y, Y=y)
    assert "tests::repeat(Tensor X, SymInt R) -> Tensor" in repr(OPS["repeat"])


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions(dynamic: bool) -> None:
    @torch.compile(fullgraph=True, dynamic=dynamic, backend="aot_eager")
    def nearest(x: Any, y: Any) -> Any:
        return (OPS["l1"](x * 2, y) + 1).amin(1)

    for n in (4, 5, 9):
        x, y = torch.rand(n, 3), torch.rand(7, 3)
        torch.testing.assert_close(nearest(x, y), (torch.cdist(x * 2, y, p=1) + 1).amin(1))


def test_exported_programs() -> None:
    class Distances(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, y: Any) -> Any:
            return OPS["l1"](x, y)

    given = torch.rand(4, 3), torch.rand(5, 3)
    rows = torch.export.Dim("rows", min=2)
    exported = torch.export.export(Distances(), given, dynamic_shapes=({0: rows}, None))
    x = torch.rand(9, 3)
    torch.testing.assert_close(exported.module()(x, given[1]), torch.cdist(x, given[1], p=1))


def test_batches() -> None:
    x, y = torch.rand(6, 4, 3), torch.rand(5, 3)
    want = torch.stack([torch.cdist(one, y, p=1) for one in x])
    vmap = torch.func.vmap
    torch.testing.assert_close(vmap(OPS["l1"], (0, None))(x, y), want)
    moved = vmap(OPS["l1"], (2, None))(x.permute(1, 2, 0), y)
    torch.testing.assert_close(moved, want)
    both = vmap(vmap(OPS["l1"], (None, 0)), (0, None))(x, y[None])
    torch.testing.assert_close(both, want[:, None])
    sums, products = vmap(OPS["both"])(x)
    torch.testing.assert_close((sums, products), (x.sum(2), x.prod(1)))
    c, a = torch.rand(4, 3), x
    torch.testing.assert_close(vmap(OPS["update"], (None, 0))(c, a), c + a * a)
    repeated = vmap(lambda row: OPS["repeat"](row, R=2))(torch.eye(3))
    assert repeated.shape == (3, 2, 3)


def test_types_that_the_text_leaves_open() -> None:
    matmul = fk.torch.op("C[i,j] +=! A[i,k] * B[k,j]", name="tests::matmul")
    for dtype in (torch.float32, torch.float64, torch.int64):
        a, b = torch.arange(6).reshape(2, 3).to(dtype), torch.ones(3, 4, dtype=dtype)
        torch.testing.assert_close(matmul(a, b), a @ b)
        torch.library.opcheck(matmul.overload, (a, b))
    assert torch.func.vmap(matmul)(torch.rand(2, 3, 4), torch.rand(2, 4, 5)).shape == (2, 3, 5)


LSTM = """def lstm(float64 X[T,N], float64 W[4,M,N], float64 R[4,M,M], float64 h0[M], float64 c0[M])
    -> (H) {
    G[t,g,j] +=! W[g,j,n] * X[t,n]
    H[0,j] = h0[j]
    C[0,j] = c0[j]
    for t in 0:T {
        G[t,g,j] += R[g,j,k] * H[t,k]
        C[t+1,j] = sigmoid(G[t,2,j]) * C[t,j] + sigmoid(G[t,0,j]) * tanh(G[t,3,j])
        H[t+1,j] = sigmoid(G[t,1,j]) * tanh(C[t+1,j])
    }
}"""
SOFTMAX = """def softmax(float64 X[N,M]) -> (Y) {
    top[i] max=! X[i,j]
    E[i,j] = exp(X[i,j] - top[i])
    total[i] +=! E[i,j]
    Y[i,j] = E[i,j] / total[i]
}"""
#: Texts with the shapes of their inputs.
DIFFERENTIATED = {
    "product": ("def f(float64 A[M,K], float64 B[K,N]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
                ((3, 4), (4, 2))),
    "softmax": (SOFTMAX, ((3, 4),)),
    "scalar": ("def s(float64 X[N]) -> (L) { L[] +=! X[i] * X[i] * X[i] }", ((5,),)),
    "two outputs": ("def t(float64 X[N], float64 Y[N]) -> (P, Q) "
                    "{ P[i] = X[i] * Y[i]\nQ[i] = sin(X[i]) }", ((3,), (3,))),
    "lstm": (LSTM, ((3, 2), (4, 3, 2), (4, 3, 3), (3,), (3,))),
    "updated": ("def u(float64 a[], float64 X[N], float64 Y[N]) -> (Y) { Y[i] += a[] * X[i] }",
                ((), (3,), (3,))),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_of_gradients(name: str) -> None:
    text, shapes = DIFFERENTIATED[name]
    operator = fk.torch.op(text, name=f"tests::gradient_of_{name.replace(' ', '_')}")
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(operator, given)
    assert torch.autograd.gradgradcheck(operator, given)


def test_gradients_by_words_and_sizes() -> None:
    embed = fk.torch.op(
        "def e(float64 E[V,D], int64 t[N]) -> (Y) { Y[n,d] = E[t[n],d] }", name="tests::embed"
    )
    table = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    words = torch.tensor([4, 0, 4, 2])
    assert torch.autograd.gradcheck(lambda e: embed(e, words), (table,))
    repeat = fk.torch.op(
        "def r[N,R](float64 X[N]) -> (Y) { Y[i,j] = X[i] * X[i] where j in 0:R }",
        name="tests::repeat_square",
    )
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: repeat(x, R=3), (x,))
    assert torch.autograd.gradgradcheck(lambda x: repeat(x, R=3), (x,))


def test_gradients_under_compile() -> None:
    operator = fk.torch.op(SOFTMAX, name="tests::compiled_softmax")

    def loss(x: Any) -> Any:
        return operator(x.sin()).square().sum()

    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(loss(x), x)
    found = torch.autograd.grad(torch.compile(loss)(x), x)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("recompute", ["U", {"U": 5}], ids=["root", "five"])
def test_gradients_that_compute_states_again(recompute: Any) -> None:
    """Nothing but the inputs is kept, also under torch.compile."""
    number = 5 if isinstance(recompute, dict) else 0
    heat = fk.torch.op(HEAT, name=f"tests::heat_{number}", recompute=recompute)
    kept = fk.torch.op(HEAT, name="tests::heat_kept")
    given = [torch.rand(9, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    sizes: list[int] = []

    def pack(t: Any) -> Any:
        sizes.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = heat(*given)
    assert sizes == [9, 9]
    expected = torch.autograd.grad(kept(*given), given)
    for found in (
        torch.autograd.grad(loss, given),
        torch.autograd.grad(torch.compile(heat)(*given), given),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(heat, given)


def test_no_states_to_compute_again() -> None:
    with pytest.raises(fk.GradientError, match="no block computes 'V'; they compute U"):
        fk.torch.op(HEAT, name="tests::heat_of_v", recompute="V")


def test_what_has_no_gradient() -> None:
    floor = fk.torch.op("def g(float64 X[N]) -> (Y) { Y[i] = floor(X[i]) }", name="tests::floor")
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(floor(x).sum() + x.sum(), x)
    torch.testing.assert_close(found, torch.ones_like(x))
    lookup = fk.torch.op(
        "def h(float64 X[N], int64 I[N]) -> (X) { X[i] = X[I[i]] }", name="tests::in_place"
    )
    with pytest.raises(fk.GradientError, match="at places that depend on data"):
        lookup(x, torch.tensor([1, 0, 3, 2])).sum().backward()


def test_gradients_of_ones_own() -> None:
    with pytest.raises(fk.ArgumentError, match="X has a tangent"):
        torch.func.jvp(lambda x: OPS["l1"](x, x), (torch.rand(4, 3),), (torch.ones(4, 3),))

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(context: Any, grad: Any) -> Any:
        (x,) = context.saved_tensors
        return grad * 2 * x

    square = fk.torch.op(
        "def square(float64 X[N]) -> (Y) { Y[i] = X[i] * X[i] }", name="tests::square",
        backward=backward, setup_context=setup,
    )  # fmt: skip
    assert torch.autograd.gradcheck(square, torch.rand(4, dtype=torch.float64, requires_grad=True))


def test_names() -> None:
    assert fk.torch.op(TEXTS["l1"], name="tests::l1") is OPS["l1"]
    with pytest.raises(fk.ArgumentError, match="there is an operator tests::l1 already"):
        fk.torch.op(TEXTS["l1"], name="tests::l1", exact=True)
    for taken in ("aten::add", "aten::relu"):
        with pytest.raises(fk.ArgumentError, match=f"there is an operator {taken} already"):
            fk.torch.op(TEXTS["pool"], name=taken)
    with pytest.raises(fk.ArgumentError, match="there is an operator tests::l1 already"):
        fk.torch.op(TEXTS["conv"], name="tests::l1")
    with pytest.raises(fk.ArgumentError, match="'a b' is no name of an operator"):
        fk.torch.op(TEXTS["conv"], name="a b")
    with pytest.raises(fk.ArgumentError, match="tests::none has no inputs"):
        fk.torch.op("def f[N]() -> (Y) { Y[i] = int64(i) where i in 0:N }", name="tests::none")
    assert fk.torch.op(TEXTS["pool"]).name == "farkas::pool"
    assert fk.torch.op("Y[i] = 2 * X[i]").name.startswith("farkas::")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            (torch.rand(4, 3).double(), torch.rand(5, 3)),
            r"X has dtype float64, expected float32; use \.to\(torch\.float32\)",
        ),
        ((torch.rand(4), torch.rand(5, 3)), "X has rank 1"),
        ((torch.rand(4, 3), torch.rand(5, 2)), r"Y\.shape\[1\] is 2 but X\.shape\[1\] makes K = 3"),
        ((torch.rand(4, 3).to_sparse(), torch.rand(5, 3)), r"X is sparse .* by \.to_dense\(\)"),
        ((torch.rand(4, 3), torch.rand(5, 3).numpy()), "Y is a numpy.ndarray, expected a tensor"),
        (([[1.0]], torch.rand(5, 3)), "X is a list, expected a tensor of torch"),
        ((torch.rand(4, 3),), r"l1 takes 2 tensors \(X, Y\), but 1 was given"),
        ((torch.rand(4, 3), torch.rand(5, 3), 2), "l1 takes 2 tensors .*, but 3 were given"),
        ((torch.rand(4, 3), torch.rand(5, 3, device="meta")), "is given tensors on cpu and meta"),
    ],
)
def test_what_is_refused(tensors: Any, message: str) -> None:
    with pytest.raises(fk.ArgumentError, match=message):
        OPS["l1"](*tensors)


# --- in graphs that Farkas compiles ---------------------------------------------------------------


def graph_report(function: Any, arguments: tuple[Any, ...], dynamic: bool = False) -> str:
    """What became of a function, after its results were compared with eager torch's."""
    compiled = torch.compile(function, backend="farkas", dynamic=dynamic, fullgraph=True)
    close(compiled(*arguments), function(*arguments))
    (report,) = fk.torch.reports
    return str(report)


def between(name: str, *arguments: Any) -> Any:
    """An operator with others before and behind it."""
    results = OPS[name].overload(*(a + a if isinstance(a, torch.Tensor) else a for a in arguments))
    return tuple(y * 2 for y in results) if isinstance(results, tuple) else results * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["l1", "axpy", "both", "repeat", "gather", "halves"])
def test_its_text_is_compiled_with_its_neighbours(name: str, dynamic: bool) -> None:
    found = graph_report(lambda *a: between(name, *a), ARGUMENTS[name], dynamic)
    assert "in 1 parts" in found
    assert "stays" not in found


@pytest.mark.parametrize(
    ("name", "dynamic", "why"),
    [
        ("update", False, "tests.update.default stays with torch: it updates a copy of an input"),
        ("conv", True, "tests.conv.default stays with torch: float32 K[3] has an extent of s"),
        ("pool", True, r"tests.pool.default stays with torch: float32 X[2 * N] has an extent of s"),
    ],
)
def test_what_stays_an_operator(name: str, dynamic: bool, why: str) -> None:
    assert why in graph_report(lambda *a: between(name, *a), ARGUMENTS[name], dynamic)


def test_exact_operators_are_compiled_by_themselves() -> None:
    exact = fk.torch.op(TEXTS["l1"], name="tests::exact_l1", exact=True)
    found = graph_report(lambda x, y: exact(x, y) * 2, ARGUMENTS["l1"])
    assert "tests.exact_l1.default stays with torch: it is exact" in found


def test_exported_programs_with_it_become_networks() -> None:
    class Distances(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, y: Any) -> Any:
            return OPS["l1"](x, y).amin(1)

    x, y = ARGUMENTS["l1"]
    rows = torch.export.Dim("rows")
    exported = torch.export.export(Distances(), (x, y), dynamic_shapes=({0: rows}, None))
    network = fk.compile_torch(exported)
    more = torch.rand(7, 3)
    (found,) = network.run({"x": more, "y": y}).values()
    close(found, Distances()(more, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "before",
    [
        lambda x, w: x * w,
        lambda x, w: x * 0.37 - w * w,
        lambda x, w: torch.addcmul(w, x, x),
        lambda x, w: x - x.mean(1, keepdim=True) * w,
    ],
)
def test_gradients_find_the_maxima_of_what_is_fused(before: Any, dtype: Any) -> None:
    """Sums are compared for equality in another kernel, which must round as the first one did."""
    name = str(dtype).removeprefix("torch.")
    slopes = fk.torch.op(
        f"""def slopes({name} X[N,K], {name} W[K], {name} Y[N], {name} G[N]) -> (P, Q) {{
            P[i,k] = select(X[i,k] + W[k] == Y[i], G[i], 0)
            Q[k] +=! select(X[i,k] + W[k] == Y[i], G[i], 0)
        }}""",
        name=f"tests::largest_slopes_{name}",
    )
    largest = fk.torch.op(
        f"def largest({name} X[N,K], {name} W[K]) -> (Y) {{ Y[i] max=! X[i,k] + W[k] }}",
        name=f"tests::largest_{name}_{id(before)}",
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output),
        backward=lambda ctx, g: slopes(*ctx.saved_tensors, g.contiguous()),
    )
    x, w = torch.randn(40, 33, dtype=dtype), torch.randn(33, dtype=dtype)

    def gradients(call: Any) -> Any:
        given = [t.clone().requires_grad_() for t in (x, w)]
        return torch.autograd.grad(call(*given), given)

    for reduce in (largest, lambda z, w: (z + w).amax(1)):

        def function(x: Any, w: Any, reduce: Any = reduce) -> Any:
            return reduce(before(x, w), w).exp().sum()

        torch._dynamo.reset()
        close(gradients(torch.compile(function, backend="farkas")), gradients(function))
