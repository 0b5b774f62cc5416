"""Gradients in two halves: the same gradients, and what is kept between them."""

from __future__ import annotations

import pytest

import farkas as fk
from poly.gradients.request import named
from poly.gradients.split import halves
from tests.poly.gradients.cases import CASES
from tests.poly.gradients.differences import Differentiated, inputs_of


@pytest.mark.parametrize("name", CASES)
def test_both_halves_give_the_gradient(name: str) -> None:
    case = CASES[name]
    program = fk.parse(case.text)
    wrt, of = named(program, None, None)
    made = halves(program, wrt, of)
    at = Differentiated(program, wrt, of, inputs_of(program, case.sizes))
    values = at.run(made.forward, at.arrays)
    before = len(program.inputs) + len(made.kept)
    seeds = [t.name for t in made.backward.inputs[before:]]
    given = [at.seeds[n] for n in of if at.values[n].shape]
    arrays = {**at.arrays, **{n: values[n] for n in made.kept}}
    found = at.run(made.backward, {**arrays, **dict(zip(seeds, given, strict=True))})
    pairs = zip(made.backward.outputs, wrt, strict=True)
    change = sum((found[t.name] * at.changes[n]).sum() for t, n in pairs)
    expected = at.by_gradient(fk.grad(program, wrt, of))
    assert change == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_quotients_that_change_are_no_dividends() -> None:
    text = """def f(float64 X[3,4]) -> (Y) {
        E[i,j] = exp(X[i,j])
        t[i] +=! E[i,j]
        Y[i,j] = E[i,j] / t[i]
        Y[i,j] += X[i,j]
    }"""
    program = fk.parse(text)
    wrt, of = named(program, None, None)
    made = halves(program, wrt, of)
    at = Differentiated(program, wrt, of, inputs_of(program, {}))
    values = at.run(made.forward, at.arrays)
    seeds = [t.name for t in made.backward.inputs[len(program.inputs) + len(made.kept) :]]
    arrays = {**at.arrays, **{n: values[n] for n in made.kept}}
    found = at.run(made.backward, {**arrays, **dict(zip(seeds, [at.seeds["Y"]], strict=True))})
    change = (found[made.backward.outputs[0].name] * at.changes["X"]).sum()
    assert change == pytest.approx(at.by_gradient(fk.grad(program, wrt, of)), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("product", ()),
        ("softmax", ("total", "Y")),  # the powers are those times these
        ("layer norm", ("mean", "var")),
        ("embedding", ()),
        ("prefix products of rows", ("S",)),
        ("long short-term memory", ("G", "C", "H")),
        ("wavefront", ("S",)),
    ],
)
def test_what_is_kept(name: str, kept: tuple[str, ...]) -> None:
    program = fk.parse(CASES[name].text)
    made = halves(program, *named(program, None, None))
    assert set(made.kept) == set(kept)


def test_scores_of_attention_are_computed_again() -> None:
    text = CASES["causal attention"].text
    program = fk.parse(text, sizes={"N": 512, "D": 64, "E": 64})
    made = halves(program, *named(program, None, None))
    assert set(made.kept) == {"top", "total"}


def test_what_is_asked_for_is_kept() -> None:
    program = fk.parse(CASES["layer norm"].text)
    made = halves(program, *named(program, None, None), keep=["mean"])
    assert made.kept == ("mean",)
    assert [t.name for t in made.forward.outputs] == ["Y", "mean"]
