"""Training steps of small networks, compared with the same in numpy in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import farkas as fk
from tests.farkas.training.networks import batch, dense, of_floats

Weights = dict[str, Any]


def weights_of(model: onnx.ModelProto) -> Weights:
    return {t.name: numpy_helper.to_array(t).astype(float) for t in model.graph.initializer}


def gradients(w: Weights, data: dict[str, np.ndarray]) -> tuple[float, Weights]:
    """The cross entropy of the two layers, and its gradients by hand."""
    x, labels = data["x"].astype(float), data["labels"]
    t = np.tanh(x @ w["W1"] + w["b1"])
    scores = t @ w["W2"] + w["b2"]
    e = np.exp(scores - scores.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    rows = np.arange(len(x))
    ds = p.copy()
    ds[rows, labels] -= 1
    ds /= len(x)
    dh = ds @ w["W2"].T * (1 - t * t)
    found = {"W1": x.T @ dh, "b1": dh.sum(0), "W2": t.T @ ds, "b2": ds.sum(0)}
    return float(-np.log(p[rows, labels]).mean()), found


def by_hand(optimiser: str, w: Weights, data: dict[str, np.ndarray], steps: int) -> list[float]:
    """Losses, and `w` changed, by the rules as they are published."""
    losses = []
    m = {n: np.zeros_like(a) for n, a in w.items()}
    v = {n: np.zeros_like(a) for n, a in w.items()}
    for step in range(1, steps + 1):
        loss, found = gradients(w, data)
        losses.append(loss)
        for n, g in found.items():
            if optimiser == "momentum":
                g = g + 0.01 * w[n]
                m[n] = 0.9 * m[n] + g
                w[n] -= 0.1 * m[n]
            elif optimiser == "nesterov":
                m[n] = 0.9 * m[n] + g
                w[n] -= 0.1 * (g + 0.9 * m[n])
            else:
                if optimiser == "adamw":
                    w[n] *= 1 - 0.05 * 0.01
                m[n] = 0.9 * m[n] + 0.1 * g
                v[n] = 0.999 * v[n] + 0.001 * g * g
                hat = m[n] / (1 - 0.9**step), v[n] / (1 - 0.999**step)
                w[n] -= 0.05 * hat[0] / (np.sqrt(hat[1]) + 1e-8)
    return losses


OPTIMISERS = {
    "momentum": fk.SGD(0.1, momentum=0.9, decay=0.01),
    "nesterov": fk.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": fk.Adam(0.05),
    "adamw": fk.AdamW(0.05, decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers(name: str) -> None:
    model, data = dense(), batch()
    trainer = fk.train_onnx(model, fk.Training("cross_entropy", OPTIMISERS[name]), shapes={"N": 16})
    expected = weights_of(model)
    losses = by_hand(name, expected, data, 20)
    found = [trainer.step(data) for _ in range(20)]
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    assert trainer.losses == found
    for n, a in expected.items():
        np.testing.assert_allclose(trainer.state[n], a, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["momentum", "adamw"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float16", 5e-3)])
def test_networks_of_other_floats(dtype: str, tolerance: float, accumulate: int, name: str) -> None:
    model, data = of_floats(dense(), dtype), batch()
    data["x"] = data["x"].astype(dtype)
    training = fk.Training("cross_entropy", OPTIMISERS[name], accumulate=accumulate, clip=100)
    trainer = fk.train_onnx(model, training, shapes={"N": 16})
    found = [trainer.step(data) for _ in range(4)][::accumulate]
    w = weights_of(model)
    expected = by_hand(name, w, data, 4 // accumulate)
    np.testing.assert_allclose(found, expected, rtol=tolerance)
    state = trainer.state
    for n, a in w.items():
        assert state[n].dtype == dtype
        np.testing.assert_allclose(state[n], a, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("loss", ["mse", "l1", "binary_cross_entropy"])
def test_losses_of_other_floats(loss: str) -> None:
    model, data = dense(), batch()
    found = {}
    for dtype in ("float32", "float16", "float64"):
        goal = np.linspace(0, 1, 48).reshape(16, 3).astype(dtype)
        trainer = fk.train_onnx(of_floats(model, dtype), fk.Training(loss), shapes={"N": 16})
        found[dtype] = trainer.step({"x": data["x"].astype(dtype), "targets": goal})
    np.testing.assert_allclose(found["float64"], found["float32"], rtol=1e-6)
    np.testing.assert_allclose(found["float16"], found["float32"], rtol=2e-3)


def test_a_rule_of_ones_own_and_a_schedule() -> None:
    rule = fk.Optimiser(
        "W[i] = W[i] - rate[] * sign(G[i])", scalars={"rate": lambda step: 0.1 / step}
    )
    model, data = dense(), batch()
    trainer = fk.train_onnx(model, fk.Training("cross_entropy", rule), shapes={"N": 16})
    w = weights_of(model)
    for step in (1, 2, 3):
        trainer.step(data)
        _, found = gradients(w, data)
        for n, g in found.items():
            w[n] -= 0.1 / step * np.sign(g)
    np.testing.assert_allclose(trainer.state["W2"], w["W2"], rtol=1e-5)


def test_shapes_are_those_of_each_batch() -> None:
    """Without `shapes`, batches may be of any size: the last one is often shorter."""
    model = dense()
    trainer = fk.train_onnx(model, fk.Training("cross_entropy", OPTIMISERS["adam"]))
    with pytest.raises(fk.ArgumentError, match="not known before the first step"):
        _ = trainer.state
    expected = weights_of(model)
    for rows in (16, 7, 16):
        fixed = fk.train_onnx(
            model, fk.Training("cross_entropy", OPTIMISERS["adam"]), shapes={"N": rows}
        )
        if trainer.losses:
            fixed.load_state(trainer.state)
        data = batch(rows, rows)
        assert trainer.step(data) == pytest.approx(fixed.step(data), rel=1e-6)
        for n in expected:
            np.testing.assert_allclose(trainer.state[n], fixed.state[n], rtol=1e-5, atol=1e-7)


def test_some_weights_stay() -> None:
    model, data = dense(), batch()
    training = fk.Training("cross_entropy", fk.SGD(0.1), of=["W2", "b2"])
    trainer = fk.train_onnx(model, training, shapes={"N": 16})
    assert list(trainer.state) == ["W2", "b2", "steps"]
    first = trainer.step(data)
    assert trainer.step(data) < first


def test_clipping() -> None:
    model, data = dense(), batch()
    trainer = fk.train_onnx(
        model, fk.Training("cross_entropy", fk.SGD(1.0), clip=0.01), shapes={"N": 16}
    )
    before = weights_of(model)
    trainer.step(data)
    moved = np.sqrt(sum(((trainer.state[n] - before[n]) ** 2).sum() for n in before))
    assert moved == pytest.approx(0.01, rel=1e-3)


def test_accumulation() -> None:
    """Three batches of 16 are one of 48."""
    model = dense()
    parts = [batch(seed) for seed in (1, 2, 3)]
    whole = {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}
    many = fk.Training("cross_entropy", fk.Adam(0.05), accumulate=3, clip=0.5)
    one = fk.Training("cross_entropy", fk.Adam(0.05), clip=0.5)
    trainer = fk.train_onnx(model, many, shapes={"N": 16})
    other = fk.train_onnx(model, one, shapes={"N": 48})
    for _ in range(4):
        losses = [trainer.step(p) for p in parts]
        assert other.step(whole) == pytest.approx(np.mean(losses), rel=1e-4)
    found, expected = trainer.state, other.state
    assert (found.pop("steps"), expected.pop("steps")) == (12, 4)
    for n, a in expected.items():
        np.testing.assert_allclose(found[n], a, rtol=1e-2, atol=1e-4)


def test_statistics_of_batches() -> None:
    model, data = dense(norm=True), batch()
    trainer = fk.train_onnx(model, fk.Training("cross_entropy", fk.SGD(0.05)), shapes={"N": 16})
    w = weights_of(model)
    h = data["x"] @ w["W1"] + w["b1"]
    losses = [trainer.step(data) for _ in range(10)]
    assert losses[-1] < losses[0]
    state = fk.train_onnx(model, fk.Training("cross_entropy", fk.SGD(0.05)), shapes={"N": 16})
    state.step(data)
    np.testing.assert_allclose(state.state["mean"], 0.9 * w["mean"] + 0.1 * h.mean(0), rtol=1e-4,
                               atol=1e-5)  # fmt: skip
    np.testing.assert_allclose(state.state["var"], 0.9 * w["var"] + 0.1 * h.var(0), rtol=1e-4)


def test_dropout_depends_on_seed_and_step_alone() -> None:
    model, data = dense(dropout=0.5), batch()

    def losses(seed: int, threads: int) -> list[float]:
        training = fk.Training("cross_entropy", fk.SGD(0.0), seed=seed)
        trainer = fk.train_onnx(model, training, shapes={"N": 16}, threads=threads)
        return [trainer.step(data) for _ in range(3)]

    first = losses(0, 1)
    assert losses(0, 2) == first
    assert len(set(first)) == 3
    assert losses(1, 1) != first


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_the_ratio_of_dropout_may_be_a_node(ratio: float) -> None:
    """As torch's exporter writes it."""
    model, data = dense(dropout=0.1), batch()
    (tensor,) = (t for t in model.graph.initializer if t.name == "ratio")
    value = numpy_helper.from_array(np.array(ratio, np.float32))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["ratio"], value=value))
    model.graph.initializer.remove(tensor)
    training = fk.Training("cross_entropy", fk.SGD(0.1))
    found = fk.train_onnx(model, training, shapes={"N": 16}).step(data)
    plain = fk.train_onnx(dense(), training, shapes={"N": 16}).step(data)
    assert (found == pytest.approx(plain, rel=1e-6)) == (ratio == 0)


def test_saving_and_going_on(tmp_path: Path) -> None:
    model, data = dense(), batch()
    training = fk.Training("cross_entropy", fk.Adam(0.05))
    trainer = fk.train_onnx(model, training, shapes={"N": 16})
    for _ in range(5):
        trainer.step(data)
    trainer.save(tmp_path / "trained.onnx")
    network = fk.compile_onnx(str(tmp_path / "trained.onnx"))
    scores = network.run({"x": data["x"]})["scores"]
    e = np.exp(scores - scores.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(16), data["labels"]]).mean()
    kept = trainer.state
    assert trainer.step(data) == pytest.approx(loss, rel=1e-5)
    expected = trainer.step(data), trainer.step(data)
    other = fk.train_onnx(model, training, shapes={"N": 16})
    for one in (trainer, other):  # moments go on, too
        one.load_state(kept)
        assert one.step(data) == pytest.approx(loss, rel=1e-5)
        assert (one.step(data), one.step(data)) == expected
    assert trainer.state["steps"] == other.state["steps"] == 8


@pytest.mark.parametrize(
    ("training", "error", "message"),
    [
        (fk.Training("hinge"), fk.ArgumentError, "there is no loss 'hinge'; there are cross_"),
        (fk.Training("mse", of=["W3"]), fk.ArgumentError, "there is no initializer 'W3' of floats"),
        (
            fk.Training("def f(float32 scores[N,C]) -> (L) { L[n] +=! scores[n,c] }"),
            fk.ArgumentError, "the loss f has to have one scalar result",
        ),
        (
            fk.Training("def f(float32 scores[N,C], float32 w[K]) -> (L) "
                        "{ L[] +=! scores[n,c] * w[k] }"),
            fk.ArgumentError, "size K of the loss is not one of an output",
        ),
        (
            fk.Training("def f(float32 scores[N,C]) -> (L) { L[] +=! floor(scores[n,c]) }"),
            fk.GradientError, "the loss depends on no initializer by floats",
        ),
        (
            fk.Training("def f(float32 scores[N,C], float32 W1[A,B]) -> (L) {"
                        " L[] +=! scores[n,c] * W1[0,0] }"),
            fk.ArgumentError, "the loss f takes W1, which is an initializer of the network",
        ),
        (
            fk.Training("mse", fk.Optimiser("W[i] = W[i] - rate[] * Q[i]", {}, {"rate": 0.1})),
            fk.LanguageError, "Q",
        ),
    ],
)  # fmt: skip
def test_refused(training: fk.Training, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fk.train_onnx(dense(), training, shapes={"N": 16})


def test_wrong_requests() -> None:
    with pytest.raises(fk.ArgumentError, match="accumulate=0"):
        fk.Training("mse", accumulate=0)
    with pytest.raises(fk.ArgumentError, match="clip=-1"):
        fk.Training("mse", clip=-1)
    trainer = fk.train_onnx(dense(), fk.Training("cross_entropy"), shapes={"N": 16})
    with pytest.raises(fk.ArgumentError, match=r"labels.* is missing"):
        trainer.step({"x": batch()["x"]})
    with pytest.raises(fk.ArgumentError, match="has no Q"):
        trainer.load_state({**trainer.state, "Q": np.zeros(3)})


def test_the_curve_of_the_losses(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trainer = fk.train_onnx(dense(), fk.Training("cross_entropy"), shapes={"N": 16})
    assert str(trainer.view()) == "0 steps"
    for _ in range(3):
        trainer.step(batch())
    assert str(trainer.view()) == f"3 steps, the last loss is {trainer.losses[-1]:.4g}"
    assert trainer.view()._repr_html_().count("<svg") == 1
    assert trainer.plot(tmp_path / "losses.svg").read_text().count("<svg") == 1
    assert trainer.plot(tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(fk.ArgumentError, match=r"ends in \.png or \.svg"):
        trainer.plot(tmp_path / "losses.pdf")


# --- what networks bring -------------------------------------------------------------------------


def test_weights_in_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "net", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    onnx.save(
        dense(), folder / "net.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    (elsewhere / "w.bin").write_bytes(bytes(10_000))  # another network's
    monkeypatch.chdir(elsewhere)
    training = fk.Training("cross_entropy", fk.SGD(0.1), of=["W2"])
    trainer = fk.train_onnx(folder / "net.onnx", training, shapes={"N": 16})
    inside = fk.train_onnx(dense(), training, shapes={"N": 16})
    assert trainer.step(batch()) == inside.step(batch())
    trainer.save(elsewhere / "trained.onnx")
    saved = onnx.load(elsewhere / "trained.onnx", load_external_data=False)
    assert not any(t.external_data for t in saved.graph.initializer)
    for n, a in weights_of(saved).items():
        np.testing.assert_array_equal(
            a, inside.state["W2"] if n == "W2" else weights_of(dense())[n]
        )


def test_names_of_the_optimiser_are_free() -> None:
    """Inputs of the network may be called as an optimiser's numbers are."""
    model, data = dense(), batch()
    renamed = dense()
    for node in renamed.graph.node:
        node.input[:] = [{"x": "first", "W1": "rate"}.get(n, n) for n in node.input]
    renamed.graph.input[0].name = "first"
    next(t for t in renamed.graph.initializer if t.name == "W1").name = "rate"
    for every in (1, 2):
        training = fk.Training("cross_entropy", fk.Adam(0.05), accumulate=every)
        one, other = (fk.train_onnx(m, training, shapes={"N": 16}) for m in (model, renamed))
        given = {"first": data["x"], "labels": data["labels"]}
        for _ in range(4):
            assert one.step(data) == other.step(given)
        np.testing.assert_array_equal(one.state["W1"], other.state["rate"])


def test_numbers_of_numpy_in_rules() -> None:
    data, half = batch(), np.float64(0.5)
    for plain, given in (
        (fk.SGD(0.1, momentum=0.5, decay=0.5), fk.SGD(0.1, momentum=half, decay=half)),
        (fk.Adam(0.1, betas=(0.5, 0.5), decay=0.5), fk.Adam(0.1, betas=(half, half), decay=half)),
        (fk.AdamW(0.1, decay=0.5), fk.AdamW(0.1, decay=half)),
    ):
        one, other = (
            fk.train_onnx(dense(), fk.Training("cross_entropy", rule, clip=c), shapes={"N": 16})
            for rule, c in ((plain, 0.5), (given, half))
        )
        assert one.step(data) == other.step(data)
        np.testing.assert_array_equal(one.state["W1"], other.state["W1"])


def test_moments_that_are_no_initializers_are_refused() -> None:
    model = dense(norm=True)
    next(t for t in model.graph.initializer if t.name == "mean").name = "stored"
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["stored"], ["mean"]))
    with pytest.raises(fk.ModelError, match="'mean', a running moment, is not an initializer"):
        fk.train_onnx(model, fk.Training("cross_entropy", fk.SGD(0.1)))


def test_two_normalisations_change_the_same_moments() -> None:
    """One after the other, as two calls of a module of torch."""
    model, data = dense(norm=True), batch()
    at = [n.op_type for n in model.graph.node].index("BatchNormalization")
    again = onnx.helper.make_node("BatchNormalization", ["n", "g", "e", "mean", "var"], ["n2"])
    model.graph.node.insert(at + 1, again)
    model.graph.node[at + 2].input[0] = "n2"
    trainer = fk.train_onnx(model, fk.Training("cross_entropy", fk.SGD(0.0)), shapes={"N": 16})
    trainer.step(data)
    w = weights_of(model)
    h = data["x"].astype(float) @ w["W1"] + w["b1"]
    first = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5) * w["g"] + w["e"]
    mean = 0.9 * (0.9 * w["mean"] + 0.1 * h.mean(0)) + 0.1 * first.mean(0)
    np.testing.assert_allclose(trainer.state["mean"], mean, rtol=1e-4, atol=1e-5)


def test_normalisation_of_an_early_opset_is_refused() -> None:
    model = dense(norm=True)
    model.opset_import[0].version = 13
    with pytest.raises(fk.ModelError, match="before opset 14; export the network with a later one"):
        fk.train_onnx(model, fk.Training("cross_entropy", fk.SGD(0.1)))


def test_normalisation_in_a_function_is_refused() -> None:
    model, names = dense(norm=True), ["n", "g", "e", "mean", "var"]
    at = [n.op_type for n in model.graph.node].index("BatchNormalization")
    inner = onnx.helper.make_node("BatchNormalization", ["h", *names[1:]], ["n"])
    opsets = [onnx.helper.make_opsetid("", 17)]
    made = onnx.helper.make_function("own", "norm", ["h", *names[1:]], ["n"], [inner], opsets)
    model.functions.append(made)
    model.graph.node[at].op_type, model.graph.node[at].domain = "norm", "own"
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    with pytest.raises(fk.ModelError, match="BatchNormalization in the function norm"):
        fk.train_onnx(model, fk.Training("cross_entropy", fk.SGD(0.1)))
