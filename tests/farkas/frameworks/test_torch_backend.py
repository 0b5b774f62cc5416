"""``torch.compile(backend="farkas")``: results, gradients, sizes, and what stays with torch."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
import warnings
from typing import Any

import pytest

import farkas as fk
from tests.farkas.frameworks.torch_checks import torch, whole

pytestmark = pytest.mark.usefixtures("fresh_torch")
F = torch.nn.functional


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="farkas", **options)


def equal(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert a.stride() == b.stride()


class Net(torch.nn.Module):  # type: ignore[misc]
    """A little of everything that image networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.groups = torch.nn.GroupNorm(2, 8)
        self.linear = torch.nn.Linear(8, 10)
        self.layer = torch.nn.LayerNorm(10)

    def forward(self, x: Any) -> Any:
        y = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 3, 2, 1)
        y = F.avg_pool2d(F.silu(self.groups(self.depthwise(y))), 2)
        return F.gelu(self.layer(self.linear(y.mean((2, 3)))))


class Block(torch.nn.Module):  # type: ignore[misc]
    """Attention and an embedding."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(50, 16)
        self.qkv = torch.nn.Linear(16, 48)
        self.causal = causal

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, c // 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + y.transpose(1, 2).reshape(b, n, c)


def test_torch_knows_the_backend() -> None:
    assert "farkas" in torch._dynamo.list_backends()


def test_an_image_network() -> None:
    model, x = Net().eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        equal(compiled(model)(x), model(x))
    whole()


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    model, tokens = Block(causal).eval(), torch.randint(0, 50, (2, 7))
    with torch.no_grad():
        equal(compiled(model)(tokens), model(tokens))
    whole()


@pytest.mark.parametrize(
    ("model", "given"),
    [(Net(), torch.randn(4, 3, 32, 32)), (Block(True), torch.randint(0, 50, (2, 7)))],
    ids=["image", "text"],
)
def test_training(model: Any, given: Any) -> None:
    reference = copy.deepcopy(model)
    step = compiled(model)
    for _ in range(3):  # running moments and weights change
        losses = []
        for net, call in ((model, step), (reference, reference)):
            optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
            optimiser.zero_grad()
            loss = F.cross_entropy(call(given).flatten(1), torch.arange(len(given)))
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
    for a, b in zip(model.state_dict().values(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    whole()


@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"scale_grad_by_freq": True}])
def test_gradients_of_embeddings(options: dict[str, Any]) -> None:
    words = torch.tensor([[3, 0, 3, 9, 5], [5, 3, 1, 9, 3]])

    def f(w: Any) -> Any:
        return F.embedding(words, w, **options).sin()

    found = []
    for call in (f, compiled(f)):
        w = torch.linspace(-1, 1, 70).view(10, 7).clone().requires_grad_()
        found += torch.autograd.grad(call(w), w, torch.linspace(0, 1, 70).view(2, 5, 7))
    equal(found[1], found[0])
    whole()


def test_rows_that_a_mask_leaves_nothing_of() -> None:
    q, k, v = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False

    def f(*operands: Any) -> Any:
        return F.scaled_dot_product_attention(*operands, attn_mask=mask)

    found, wanted = compiled(f)(q, k, v), f(q, k, v)
    equal(found, wanted)
    assert not found[0, :, 1].any()
    for x in (q, k, v):
        pair = [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in (found, wanted)]
        torch.testing.assert_close(*pair)


def test_sizes_that_change_are_compiled_once() -> None:
    counters = importlib.import_module("torch._dynamo.utils").counters
    counters.clear()
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    call = compiled(model, dynamic=True)
    with torch.no_grad():
        for batch in (4, 9, 2, 33, 7):
            x = torch.randn(batch, 6)
            equal(call(x), model(x))
    assert counters["stats"]["unique_graphs"] == 1
    whole()


def test_sizes_computed_from_others() -> None:
    def f(x: Any, y: Any) -> Any:
        z = torch.cat([x, y]).reshape(-1, 2)
        return z[1:] * z.shape[0] + torch.arange(z.shape[0] - 1)[:, None]

    call = compiled(f, dynamic=True)
    for n, m in ((4, 6), (3, 5), (8, 2)):
        x, y = torch.randn(n, 4), torch.randn(m, 4)
        equal(call(x, y), f(x, y))
    whole()


def test_sizes_that_are_rounded_up() -> None:
    def f(x: Any) -> Any:
        return x + -(-x.shape[0] // 4), x.new_zeros(-(-x.shape[0] // 4)) + 1

    call = compiled(f, dynamic=True)
    for n in (7, 8, 9, 13):
        for found, wanted in zip(call(torch.ones(n)), f(torch.ones(n)), strict=True):
            equal(found, wanted)


def test_a_tensor_that_is_resized_in_place() -> None:
    x = torch.rand(4, 6)
    call = compiled(lambda a: a * 2, dynamic=True)
    for shape in ((4, 6), (4, 6), (2, 6), (3, 4)):
        x.resize_(*shape)
        for _ in range(2):
            equal(call(x), x * 2)


def test_memory_that_is_not_in_order() -> None:
    model = Net().eval()
    x = torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last)
    with torch.no_grad():
        equal(compiled(model)(x), model(x))
        y = torch.randn(8, 6)[::2, 1:].t()
        equal(compiled(lambda a: a.exp().t())(y), y.exp().t())
        z = torch.randn(3).expand(4, 3)
        equal(compiled(lambda a: a + 1)(z), z + 1)


def test_views_that_negate() -> None:
    c = torch.randn(3, dtype=torch.complex64)
    equal(compiled(lambda a: a.conj().imag * 2)(c), c.conj().imag * 2)


def test_options() -> None:
    def f(x: Any) -> Any:
        return x + 1

    x = torch.ones(3)
    equal(compiled(f, options={"threads": 1})(x), f(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"no option freeze; there is: threads"):
        compiled(f, options={"freeze": True})(x)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"mode='max-autotune' is one of Inductor's"):
        compiled(f, mode="max-autotune")(x)


def test_results_that_share_memory_with_inputs() -> None:
    def f(x: Any) -> Any:
        return x.t(), x, (x + 1).t(), x[1:]

    x = torch.randn(3, 4)
    found = compiled(f)(x)
    for a, b in zip(found, f(x), strict=True):
        equal(a, b)
    assert found[1] is x
    assert found[0].data_ptr() == x.data_ptr()
    found[3].zero_()
    assert not x[1:].any()


def test_inputs_that_are_changed() -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        y[0] = x.sum()
        return x * 2

    ours, theirs = [[torch.ones(3), torch.zeros(2)] for _ in range(2)]
    equal(compiled(f)(*ours), f(*theirs))
    for a, b in zip(ours, theirs, strict=True):
        equal(a, b)


def test_parameters_that_are_changed() -> None:
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    call = compiled(model)
    with torch.no_grad():
        equal(call(x), model(x))
        model.weight.data.mul_(3)
        model.bias.zero_()
        equal(call(x), model(x))


def test_what_has_no_lowering_stays_with_torch(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Any) -> Any:
        return torch.exp(torch.bernoulli(x * 2)) + 1

    x = torch.tensor([0.0, 0.5, 0.5])
    with caplog.at_level("INFO", logger="farkas.torch"):
        equal(compiled(f)(x), f(x))
    (report,) = fk.torch.reports
    assert report.parts == 2
    assert "aten.bernoulli.default stays with torch: it has no lowering" in str(report)
    assert str(report) in caplog.text


def test_a_graph_that_breaks() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y + 1 if y.sum() > 0 else y - 1

    call = compiled(f)
    for x in (torch.ones(3), -torch.ones(3)):
        equal(call(x), f(x))


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x, i: x[i], torch.tensor([0, 7])),
        (lambda x, i: x[i], torch.tensor([-6, 0])),
        (lambda x, i: x.gather(0, i), torch.tensor([-1])),
        (lambda x, i: F.embedding(i, x[:, None]), torch.tensor([5])),
    ],
)
def test_an_index_out_of_range(function: Any, given: Any) -> None:
    x = torch.randn(5)
    with pytest.raises(IndexError, match="index out of range"):
        compiled(function)(x, given)
    fine = torch.tensor([0, 4])
    equal(compiled(function)(x, fine), function(x, fine))


def test_integers_divided_by_zero() -> None:
    def f(x: Any, y: Any) -> Any:
        return x // y

    x, y = torch.tensor([7, -7]), torch.tensor([2, 2])
    equal(compiled(f)(x, y), f(x, y))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(f)(x, torch.tensor([1, 0]))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int32", "uint8", "bool", "complex64"])
def test_element_types(dtype: str) -> None:
    kind = getattr(torch, dtype)
    x = torch.arange(-3, 9).to(kind).reshape(3, 4)

    def f(a: Any) -> Any:
        return (a * a).sum(0), a == a[0], torch.where(a == 0, a, a * a)

    for a, b in zip(compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_moments_of_16_bits(dtype: Any) -> None:
    """Sums of 70,000 elements; and, without gradients, means that are large beside what differs."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(2, momentum=0.5).to(dtype).train()
    x = (torch.randn(70_000, 2) + 2).to(dtype)
    grad = torch.ones(70_000, 2).to(dtype) + (x > 2).to(dtype)

    def run(function: Any, module: Any) -> list[Any]:
        given = x.clone().requires_grad_()
        found = function(given)
        found.backward(grad)
        return [found, given.grad, module.weight.grad / 70_000, module.running_mean]

    plain = copy.deepcopy(norm).float()
    wide = [v.to(dtype) for v in run(lambda v: plain(v.float()), plain)]
    for got, expected in zip(run(compiled(norm), norm), wide, strict=True):
        # Torch saves moments in 16 bits for the gradient, which moves by that.
        torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)
    layer = torch.nn.LayerNorm(300).to(dtype)
    y = (torch.randn(4, 300) * 0.1 + 20).to(dtype)
    expected = torch.nn.functional.layer_norm(y.float(), [300]).to(dtype)
    torch.testing.assert_close(compiled(layer)(y), expected, rtol=2e-2, atol=2e-2)


def test_tensors_that_are_not_plain() -> None:
    sparse = torch.eye(3).to_sparse()
    equal(compiled(lambda a: torch.sparse.mm(a, torch.ones(3, 3)))(sparse), torch.ones(3, 3))
    meta = torch.ones(3, device="meta")
    assert compiled(lambda a: a + 1)(meta).device.type == "meta"


def test_the_second_time_is_from_the_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARKAS_CACHE_DIR", str(tmp_path))
    model, x = Net().eval(), torch.randn(2, 3, 32, 32)
    parts = importlib.import_module("farkas.frameworks.torch_part")
    seen = []
    original = parts.compile_onnx
    monkeypatch.setattr(
        parts, "compile_onnx", lambda *a, **k: seen.append(original(*a, **k)) or seen[-1]
    )
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            compiled(model)(x)
    first, second = seen
    assert not first.report.from_cache
    assert second.report.from_cache


# --- torch.export ---------------------------------------------------------------------------------


def test_exported_programs() -> None:
    model, x = Net().eval(), torch.randn(2, 3, 32, 32)
    exported = torch.export.export(model, (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = fk.compile_torch(exported)
    (found,) = network.run({"x": x}).values()
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_exported_programs_with_a_number() -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Any) -> Any:
            return x * self.scale + torch.tensor(3.0)

    x = torch.randn(3)
    network = fk.compile_torch(torch.export.export(Scaled(), (x,)))
    (found,) = network.run({p.name: x for p in network.inputs}).values()
    torch.testing.assert_close(torch.as_tensor(found), x * 2 + 3)


def test_networks_that_are_given_tensors() -> None:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Exp", ["x"], ["y"]),
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64),
        helper.make_node(
            "LabelEncoder", ["whole"], ["text"], domain="ai.onnx.ml",
            keys_int64s=[1, 2, 3], values_strings=["one", "two", "three"],
        ),
    ]  # fmt: skip
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "xy"]
    text = helper.make_tensor_value_info("text", TensorProto.STRING, [3])
    graph = helper.make_graph(nodes, "g", ports[:1], [ports[1], text])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    network, x = fk.compile_onnx(model), torch.tensor([1.0, 2.0, 3.0])
    found = network.run({"x": x})
    assert torch.is_tensor(found["y"]) and [*found["text"]] == ["one", "two", "three"]
    assert network.compare({"y": x.exp().numpy()}, {"x": x}).agrees


def test_exported_programs_that_return_a_value_twice_or_an_input() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = torch.relu(x)
            return y, x, y

    x = torch.randn(3, 4)
    network = fk.compile_torch(torch.export.export(Twice(), (x,)))
    found = network.run({"x": x.numpy()})
    for array, expected in zip(found.values(), Twice()(x), strict=True):
        assert torch.equal(torch.as_tensor(array), expected)


def test_exported_programs_of_open_sizes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh())
    batch = torch.export.Dim("batch")
    exported = torch.export.export(model, (torch.randn(2, 6),), dynamic_shapes=({0: batch},))
    network = fk.compile_torch(exported)
    for n in (2, 5):
        x = torch.randn(n, 6)
        (found,) = network.run({"input": x}).values()
        torch.testing.assert_close(found, model(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_of_16_bits_is_trained(dtype: Any) -> None:
    draws = [torch.randn(1, 2, 9, 8) for _ in range(3)]
    grads = []
    for run in (F.scaled_dot_product_attention, compiled(F.scaled_dot_product_attention)):
        given = [d.to(dtype).requires_grad_() for d in draws]
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Farkas")
            run(*given).square().sum().backward()
        grads.append([g.grad for g in given])
    torch.testing.assert_close(*grads, rtol=5e-2, atol=5e-2)


HALF = {"dtype": torch.float16}


@pytest.mark.parametrize(("function", "given"), [
    (lambda x: x / 1e-8, lambda: [torch.tensor([1e-4, 6e-4], **HALF)]),
    (lambda x, s: x * s, lambda: [torch.tensor([0.1, 0.2], **HALF), torch.tensor(131072.0)]),
    (lambda x: x.cumprod(0), lambda: [torch.full((256,), 0.99609375, dtype=torch.bfloat16)]),
    (lambda x: torch.log2(x).floor(), lambda: [2.0 ** torch.arange(-126, 128)]),
    (lambda x: torch.log2(x).floor(), lambda: [2.0 ** torch.arange(-1000, 1000).double()]),
    (lambda x: torch.log10(x).floor(), lambda: [10.0 ** torch.arange(0, 20).double()]),
    (torch.log2, lambda: [torch.tensor([0.0, -0.0, torch.inf, 3.0]).double()]),
    (lambda x, y: torch.add(x, y, alpha=2j),
     lambda: [torch.zeros(1, dtype=torch.complex64), torch.tensor([1 + 1j])]),
])  # fmt: skip
def test_what_is_rounded_late(function: Any, given: Any) -> None:
    equal(compiled(function)(*given()), function(*given()))


def test_exported_programs_that_cannot_be_compiled() -> None:
    class Random(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.bernoulli(x)

    exported = torch.export.export(Random(), (torch.rand(3),))
    with pytest.raises(fk.UnsupportedModelError, match=r"bernoulli.default 'bernoulli': it has"):
        fk.compile_torch(exported)
    with pytest.raises(fk.ArgumentError, match=r"torch\.export\.export returns, not a Net"):
        fk.compile_torch(Net())


def test_kernels_run_on_the_threads_of_torch() -> None:
    """Else each would find the other's threads waiting on every processor: ours are not loaded."""
    code = """
import torch, farkas

x = torch.rand(64, 64)
def f(x):
    return torch.relu(x @ x) + 1
found = torch.compile(f, backend="farkas", options={"threads": 2})(x)
assert torch.allclose(found, f(x), rtol=1e-4)
twice = farkas.torch.op("Y[i,j] = 2 * X[i,j]", name="test_threads::twice")
assert torch.equal(twice(x), 2 * x)
print("team.so" in open("/proc/self/maps").read())
farkas.compile("Y[i,j] = 2 * X[i,j]", threads=2)(x)
print("team.so" in open("/proc/self/maps").read())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"


def test_kernels_and_einsum_break_the_graph() -> None:
    double = fk.compile("D[i,j] = A[i,j] + A[i,j]")

    def function(x: Any, y: Any) -> Any:
        return fk.einsum("ij,jk->ik", x + 1, y) * 2 + double(x @ y)

    x, y = torch.rand(3, 4), torch.rand(4, 5)
    torch.testing.assert_close(torch.compile(function, backend="farkas")(x, y), function(x, y))


def test_the_backend_may_be_imported_before_torch() -> None:
    code = """
from farkas.torch import backend
import farkas, torch
def f(x):
    return farkas.einsum("ij,jk->ik", x + 1, x) * 2
x = torch.rand(3, 3)
torch.testing.assert_close(torch.compile(f, backend=backend)(x), f(x))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_compiler_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    x = torch.rand(5)
    with pytest.warns(UserWarning, match="torch runs everything itself: .*/nowhere/cc"):
        found = torch.compile(lambda x: x.exp() - 0.123, backend="farkas")(x)
    torch.testing.assert_close(found, x.exp() - 0.123)
