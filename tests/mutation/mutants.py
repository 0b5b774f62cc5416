"""Mutants by number: the same seed and number make the same mutant, whatever was made before."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto

from tests.mutation.mutations import MUTATIONS, broken_file
from tests.mutation.sources import (
    Sample,
    fitted,
    network_names,
    of_suite,
    recorded,
    window,
)
from tests.mutation.workers import Arrays

#: Shares of mutants: of cases of the suite, the others are of networks; with broken bytes; with
#: one change, two, or three.
OF_SUITE, BROKEN_FILES, CHANGES = 0.35, 0.08, (70, 20, 10)


@dataclass(frozen=True)
class Mutant:
    """A broken model and arrays for its inputs: which source, which mutations, what they did."""

    number: int
    source: str
    mutations: tuple[str, ...]
    data: bytes
    inputs: Arrays

    def __str__(self) -> str:
        return f"{self.number} of {self.source}: {'; '.join(self.mutations)}"


def mutant(seed: int, number: int, sample: Sample) -> Mutant:
    """One mutant of a sound model."""
    rng = random.Random(f"{seed} {number} changes")
    model = ModelProto()
    model.CopyFrom(sample.model)
    if rng.random() < BROKEN_FILES:
        data, what = broken_file(rng, model.SerializeToString())
        inputs = fitted(_parsed(data, model), sample.inputs)
        return Mutant(number, sample.name, (what,), data, inputs)
    told: list[str] = []
    wanted = rng.choices((1, 2, 3), CHANGES)[0]
    while len(told) < wanted:
        change = rng.choice(MUTATIONS)
        what = change(rng, model)
        if what:
            told.append(f"{change.__name__}: {what}")
    data = model.SerializeToString()
    return Mutant(number, sample.name, tuple(told), data, fitted(model, sample.inputs))


def _parsed(data: bytes, otherwise: ModelProto) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return otherwise
    return model


def mutants(seed: int, numbers: Sequence[int], folder: Path) -> Iterator[Mutant]:
    """The mutants of these numbers, those of one network after one another.

    Raises
    ------
    OSError : a package cannot be fetched.
    """
    names = {number: _source_of(seed, number) for number in numbers}
    for number, name in sorted(names.items(), key=lambda item: (item[1], item[0])):
        rng = random.Random(f"{seed} {number} source")
        if name:
            network, sample = recorded(name, folder), None
            while sample is None:
                sample = window(rng, network)
            yield mutant(seed, number, sample)
        else:
            yield mutant(seed, number, of_suite(rng))


def _source_of(seed: int, number: int) -> str:
    """The network of a mutant, empty for a case of the suite."""
    rng = random.Random(f"{seed} {number}")
    return "" if rng.random() < OF_SUITE else rng.choice(network_names())
