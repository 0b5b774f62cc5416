"""``python -m benchmarks.training [digits] [resnet] [transformer]``: training beside torch.

digits : a small network for scikit-learn's digits is trained by a program of the language, by
    `farkas.train_onnx`, and by torch with that program as its operator, eager, and with Inductor;
    ``--plot FILE`` draws the losses
resnet, transformer : steps of networks that torch's exporter writes, from the same weights; the
    losses of 20 steps are compared first

All run in one process on two threads, the last two in turns.  Prints medians of one step, and the
ratio to the faster of torch and Inductor, below 1 where Farkas is faster.

    pip install torch torchvision scikit-learn onnxscript matplotlib
"""

from __future__ import annotations

import argparse
import copy
import io
import itertools
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import farkas as fk
from benchmarks.measure import QUICK, Settings, take_turns
from farkas.console.display import seconds
from farkas.views.plots import new_figure, save_figure

THREADS = 2
#: How far losses may be apart.
TOLERANCE = 1e-3
#: Steps whose losses are compared.
STEPS = 20

# --- digits ---------------------------------------------------------------------------------

ROWS, HIDDEN, CLASSES, EPOCHS, RATE = 64, 128, 10, 20, 5e-3
#: The least share of held-out digits that has to be recognised.
ENOUGH = 0.97
NETWORK = """
def digits(float32 X[N,D], int64 labels[N], float32 W1[D,H], float32 b1[H], float32 W2[H,C],
           float32 b2[C]) -> (loss) {
    P[n,h] +=! X[n,d] * W1[d,h]
    A[n,h] = max(P[n,h] + b1[h], 0)
    Q[n,c] +=! A[n,h] * W2[h,c]
    S[n,c] = Q[n,c] + b2[c]
    most[n] max=! S[n,c]
    total[n] +=! exp(S[n,c] - most[n])
    loss[] +=! (log(total[n]) + most[n] - S[n,labels[n]]) / N
}
"""

Weights = dict[str, np.ndarray]
Batches = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Trained:
    """What a way of training came to; seconds of the steps, and of what was before the first."""

    losses: list[float]
    weights: Weights
    steps: list[float]
    before: float


def _torch() -> Any:
    return import_module("torch")


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Images as rows from 0 to 1, and their labels, in a random order."""
    found = import_module("sklearn.datasets").load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.data / 16).astype(np.float32)
    return images[order], found.target.astype(np.int64)[order]


def _first_weights() -> Weights:
    rng = np.random.default_rng(1)

    def drawn(rows: int, columns: int) -> np.ndarray:
        return np.asarray(rng.standard_normal((rows, columns)) / rows**0.5, np.float32)

    return {
        "W1": drawn(64, HIDDEN), "b1": np.zeros(HIDDEN, np.float32),
        "W2": drawn(HIDDEN, CLASSES), "b2": np.zeros(CLASSES, np.float32),
    }  # fmt: skip


def _batches(images: np.ndarray, labels: np.ndarray) -> Batches:
    """Those of all epochs; rows that fill no batch wait for the next epoch."""
    rng, found = np.random.default_rng(2), []
    for _ in range(EPOCHS):
        order = rng.permutation(len(labels))
        starts = range(0, len(labels) - ROWS + 1, ROWS)
        found += [(images[rows], labels[rows]) for rows in (order[s : s + ROWS] for s in starts)]
    return found


def _timed(step: Callable[[np.ndarray, np.ndarray], float], batches: Batches) -> Any:
    """The losses, and the seconds of each step."""
    losses, times = [], []
    for x, labels in batches:
        start = time.perf_counter()
        losses.append(float(step(x, labels)))
        times.append(time.perf_counter() - start)
    return losses, times


def by_program(weights: Weights, batches: Batches) -> Trained:
    """The gradient of the text, and Adam as a text, both compiled."""
    start = time.perf_counter()
    optimiser = fk.Adam(RATE)
    gradients = fk.compile(fk.value_and_grad(NETWORK, wrt=tuple(weights)), threads=THREADS)
    update = fk.compile(optimiser.text("float32"), threads=THREADS)
    now = {n: w.copy() for n, w in weights.items()}
    kept = {n: [np.zeros(w.size, np.float32) for _ in range(2)] for n, w in now.items()}
    count = itertools.count(1)

    def step(x: np.ndarray, labels: np.ndarray) -> float:
        loss, *found = gradients(x, labels, *now.values())
        scalars = [np.float32(v) for v in optimiser.at(next(count)).values()]
        for (name, w), g in zip(now.items(), found, strict=True):
            flat, *kept[name] = update(w.ravel(), g.ravel(), *kept[name], *scalars)
            now[name] = flat.reshape(w.shape)
        return float(loss)

    step(*batches[0])
    before = time.perf_counter() - start
    now |= {n: w.copy() for n, w in weights.items()}
    kept |= {n: [np.zeros(w.size, np.float32) for _ in range(2)] for n, w in now.items()}
    count = itertools.count(1)
    losses, times = _timed(step, batches)
    return Trained(losses, now, times, before)


def by_onnx(weights: Weights, batches: Batches) -> Trained:
    """The same network as a graph of ONNX."""
    nodes = [
        helper.make_node("Gemm", ["x", "W1", "b1"], ["p"]),
        helper.make_node("Relu", ["p"], ["a"]),
        helper.make_node("Gemm", ["a", "W2", "b2"], ["scores"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, 64])]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [ROWS, CLASSES])]
    stored = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "digits", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    start = time.perf_counter()
    training = fk.Training("cross_entropy", fk.Adam(RATE))
    trainer = fk.train_onnx(model, training, threads=THREADS)
    begin = trainer.state
    trainer.step({"x": batches[0][0], "labels": batches[0][1]})
    before = time.perf_counter() - start
    trainer.load_state(begin)
    losses, times = _timed(lambda x, y: trainer.step({"x": x, "labels": y}), batches)
    return Trained(losses, {n: trainer.state[n] for n in weights}, times, before)


def _by_torch(loss_of: Callable[..., Any], weights: Weights, batches: Batches) -> Trained:
    """By a loss of images, labels and weights, and torch's Adam."""
    torch = _torch()
    start = time.perf_counter()
    now = {n: torch.tensor(w).requires_grad_() for n, w in weights.items()}
    optimisers = [torch.optim.Adam(now.values(), lr=RATE)]

    def step(x: np.ndarray, labels: np.ndarray) -> float:
        optimisers[-1].zero_grad()
        loss = loss_of(torch.from_numpy(x), torch.from_numpy(labels), *now.values())
        loss.backward()
        optimisers[-1].step()
        return float(loss.detach())

    step(*batches[0])
    before = time.perf_counter() - start
    with torch.no_grad():
        for n, w in weights.items():
            now[n].copy_(torch.tensor(w))
    optimisers.append(torch.optim.Adam(now.values(), lr=RATE))
    losses, times = _timed(step, batches)
    return Trained(losses, {n: t.detach().numpy() for n, t in now.items()}, times, before)


def _plain_loss(x: Any, labels: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    functional = import_module("torch.nn.functional")
    scores = functional.relu(x @ w1 + b1) @ w2 + b2
    return functional.cross_entropy(scores, labels)


#: Ways of training, by name, Farkas's first.
WAYS: dict[str, Callable[[Weights, Batches], Trained]] = {
    "a program": by_program,
    "train_onnx": by_onnx,
    "torch, our operator": lambda w, b: _by_torch(
        fk.torch.op(NETWORK, name="training::digits"), w, b
    ),
    "torch": lambda w, b: _by_torch(_plain_loss, w, b),
    "Inductor": lambda w, b: _by_torch(_torch().compile(_plain_loss), w, b),
}


def digits(plot: str | None) -> None:
    """Train in all ways; print how well, and how long it took."""
    images, labels = _digits()
    cut = len(labels) * 3 // 4
    batches, weights = _batches(images[:cut], labels[:cut]), _first_weights()
    found = {name: way(weights, batches) for name, way in WAYS.items()}
    expected = found["torch"].losses[:STEPS]
    print(f"digits: {len(batches)} steps of {ROWS} rows, {len(labels) - cut} held out")
    for name, trained in found.items():
        apart = float(np.abs(np.subtract(trained.losses[:STEPS], expected)).max())
        w = trained.weights
        scores = np.maximum(images[cut:] @ w["W1"] + w["b1"], 0) @ w["W2"] + w["b2"]
        right = float((scores.argmax(1) == labels[cut:]).mean())
        print(
            f"{name:<20} {right:.1%} right  {seconds(sum(trained.steps)):>8} in all  "
            f"{seconds(statistics.median(trained.steps)):>8} a step  "
            f"{seconds(trained.before):>8} before  losses within {apart:.0e}",
            flush=True,
        )
        if right < ENOUGH or apart > TOLERANCE:
            raise SystemExit(f"digits, {name}: not trained as torch does it")
    if plot is not None:
        _draw({n: t.losses for n, t in found.items()}, len(batches) // EPOCHS, plot)


def _draw(losses: dict[str, list[float]], every: int, path: str) -> None:
    """The mean loss of each epoch; the curves lie on each other, so that lines get thinner."""
    figure = new_figure(6, 3.2)
    axes = figure.subplots()
    for n, (name, values) in enumerate(losses.items()):
        means = np.reshape(values, (-1, every)).mean(1)
        width = 1.0 + 1.6 * (len(losses) - 1 - n)
        axes.plot(range(1, len(means) + 1), means, linewidth=width, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7)
    save_figure(figure, path)


# --- networks -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A network of torch that returns scores, and batches of its input with labels."""

    network: Any
    batches: list[tuple[Any, Any]]
    rate: float


def resnet() -> Task:
    """ResNet-18 with a first convolution for small images: 16 of 32 x 32."""
    torch = _torch()
    network = import_module("torchvision").models.resnet18(num_classes=10)
    network.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    batches = [(torch.randn(16, 3, 32, 32), torch.randint(10, (16,))) for _ in range(4)]
    return Task(network, batches, 1e-3)


def transformer() -> Task:
    """Three layers of 128 for 64 positions, which predict the next of 256 words."""
    torch = _torch()
    nn: Any = torch.nn
    module: Any = nn.Module

    class Language(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(256, 128), nn.Embedding(64, 128)
            layer = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(128, 4, 512, **layer) for _ in range(3)
            )
            self.norm, self.scores = nn.LayerNorm(128), nn.Linear(128, 256)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(64))

        def forward(self, words: Any) -> Any:
            x = self.words(words) + self.places.weight
            for layer in self.layers:
                x = layer(x, src_mask=self.mask)
            return self.scores(self.norm(x)).reshape(-1, 256)

    def batch() -> tuple[Any, Any]:
        start, by = torch.randint(256, (8, 1)), torch.randint(1, 9, (8, 1))
        words = (start + by * torch.arange(65)) % 256
        return words[:, :-1].contiguous(), words[:, 1:].reshape(-1)

    return Task(Language(), [batch() for _ in range(4)], 0.05)


TASKS = {"resnet": resnet, "transformer": transformer}


def exported(network: Any, example: Any) -> onnx.ModelProto:
    """The network as torch's exporter writes it for training."""
    torch, buffer = _torch(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has a newer exporter, which folds what is trained
        torch.onnx.export(
            network, (example,), buffer, input_names=["x"], output_names=["scores"], dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
            opset_version=17,
        )  # fmt: skip
    return onnx.load_from_string(buffer.getvalue())


#: A step from a batch to its loss.
Step = Callable[[tuple[Any, Any]], float]


def _farkas_step(task: Task) -> Step:
    model = exported(copy.deepcopy(task.network), task.batches[0][0])
    names = [n for n, _ in task.network.named_parameters()]
    training = fk.Training("cross_entropy", fk.SGD(task.rate, momentum=0.9), of=names)
    trainer = fk.train_onnx(model, training, threads=THREADS)
    return lambda batch: trainer.step({"x": batch[0].numpy(), "labels": batch[1].numpy()})


def _torch_step(task: Task, compiled: bool) -> Step:
    torch = _torch()
    network = copy.deepcopy(task.network).train()
    cross_entropy = import_module("torch.nn.functional").cross_entropy
    optimiser = torch.optim.SGD(network.parameters(), lr=task.rate, momentum=0.9)

    def loss_of(x: Any, labels: Any) -> Any:
        return cross_entropy(network(x), labels)

    run = torch.compile(loss_of) if compiled else loss_of

    def step(batch: tuple[Any, Any]) -> float:
        optimiser.zero_grad()
        loss = run(*batch)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def compare(name: str, settings: Settings) -> float:
    """Print the times of a step; returns Farkas's over the faster other's."""
    _torch().manual_seed(0)
    task = TASKS[name]()
    steps: dict[str, Step] = {}
    losses, before = {}, {}
    makers: dict[str, Callable[[], Step]] = {
        "Farkas": lambda: _farkas_step(task),
        "torch": lambda: _torch_step(task, compiled=False),
        "Inductor": lambda: _torch_step(task, compiled=True),
    }
    for who, make in makers.items():
        start = time.perf_counter()
        steps[who] = make()
        first = steps[who](task.batches[0])
        before[who] = time.perf_counter() - start
        rest = itertools.islice(itertools.cycle(task.batches), 1, STEPS)
        losses[who] = [first, *(steps[who](b) for b in rest)]
    for who, found in losses.items():
        apart = float(np.abs(np.subtract(found, losses["torch"])).max())
        print(
            f"{name:<12} {who:<9} losses {found[0]:.4f} to {found[-1]:.4f} in {STEPS} steps, "
            f"within {apart:.0e} of torch's; {seconds(before[who])} until the first",
            flush=True,
        )
    if not float(np.abs(np.subtract(losses["Farkas"], losses["torch"])).max()) < TOLERANCE:
        raise SystemExit(f"{name}: the losses differ")
    times = take_turns({w: _next(s, task.batches) for w, s in steps.items()}, settings)
    ratio = times["Farkas"] / min(t for w, t in times.items() if w != "Farkas")
    shown = "  ".join(f"{w} {seconds(t):>8}" for w, t in times.items())
    print(f"{name:<12} a step   {shown}  {ratio:.2f}", flush=True)
    return ratio


def _next(step: Step, batches: list[tuple[Any, Any]]) -> Callable[[], float]:
    """A step with the next batch at each call."""
    left: Iterator[tuple[Any, Any]] = itertools.cycle(batches)
    return lambda: step(next(left))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.training", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default is all")
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--plot", metavar="FILE", help="draw the losses of digits, as PNG or SVG")
    args = parser.parse_args(words)
    unknown = [n for n in args.names if n not in ("digits", *TASKS)]
    if unknown:
        parser.error(f"{unknown[0]} is none of digits, {', '.join(TASKS)}")
    _torch().set_num_threads(THREADS)
    settings = QUICK if args.quick else Settings()
    for name in args.names or ("digits", *TASKS):
        if name == "digits":
            digits(args.plot)
        else:
            compare(name, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
