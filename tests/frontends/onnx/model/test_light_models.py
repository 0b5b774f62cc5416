"""The light models that come with onnx: all of their nodes are comprehensions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from frontends.onnx import import_model
from frontends.onnx.model.light_models import light_models, load_light, randomised
from poly.errors import ModelError
from poly.ir.graph import Call
from tests.frontends.onnx.onnx_support import ort_run

NAMES = (
    "bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19 "
    "zfnet512"
).split()


def test_all_light_models_are_there():
    assert set(NAMES) <= set(light_models())
    with pytest.raises(ModelError, match="no light model 'lenet'"):
        load_light("lenet")


@pytest.mark.parametrize("name", NAMES)
def test_light_models_import(name):
    path, inputs, outputs = load_light(name)
    graph = import_model(path)
    assert {graph.label(v): graph.shape(v) for v in graph.inputs} == {
        k: v.shape for k, v in inputs.items()
    }
    assert {graph.label(v): graph.shape(v) for v in graph.outputs} == {
        k: v.shape for k, v in outputs.items()
    }
    assert all(not n.program.sizes for n in graph.nodes if isinstance(n, Call))


def test_resnet_has_few_distinct_programs():
    graph = import_model(load_light("resnet50")[0])
    convolutions = [
        n.program.digest for n in graph.nodes if isinstance(n, Call) and n.program.name == "conv"
    ]
    assert len(convolutions) == 53 and len(set(convolutions)) == 23


def test_randomised_weights_are_sane_and_reproducible():
    path, inputs, _ = load_light("squeezenet")
    model = onnx.load(path)
    one, two = randomised(model, 1), randomised(model, 1)
    assert one.SerializeToString() == two.SerializeToString()
    assert one.SerializeToString() != randomised(model, 2).SerializeToString()
    assert not any(n.op_type == "ConstantOfShape" for n in one.graph.node)
    assert len(import_model(one).nodes) == len(import_model(model).nodes)
    (output,) = ort_run(one, inputs).values()
    assert np.isfinite(output).all()
    assert len(np.unique(output)) > 500 and output.max() < 0.9
