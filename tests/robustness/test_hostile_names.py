"""Names with C in them: they come out as text in comments and messages, and do nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import farkas as fk
from tests.frontends.onnx.onnx_support import close, floats, model_of, ort_run
from tests.robustness.hostile import NAMES, without_comments


def hostile_model(name: str) -> onnx.ModelProto:
    """A model in which everything that has a name has this one."""
    nodes = [
        helper.make_node("MatMul", [f"x{name}", f"w{name}"], [f"m{name}"], name=name),
        helper.make_node("Relu", [f"m{name}"], [f"r{name}"], name=name, doc_string=name),
        helper.make_node("Reshape", [f"r{name}", "shape"], [f"y{name}"], name=f"{name}2"),
    ]
    constants = {f"w{name}": floats(4, 5), "shape": np.array([-1])}
    model = model_of(nodes, {f"x{name}": floats(3, 4)}, [f"y{name}", f"r{name}"], constants)
    model.graph.name = name
    model.doc_string = model.producer_name = model.domain = name
    model.graph.doc_string = name
    model.metadata_props.add(key=name, value=name)
    return model


def check_text(sources: dict[str, str]) -> None:
    """Nothing of the name stands outside of comments, whatever the compiler takes for one."""
    for file, text in sources.items():
        assert text.isascii() and "\r" not in text and "\x1b" not in text
        for trigraphs in (False, True):
            code = without_comments(text, trigraphs)
            directives = re.findall(r"^\s*#.*", code, re.MULTILINE)
            assert not any("HOSTILE" in d for d in directives), file
            code = re.sub(r"^\s*#.*", "", code, flags=re.MULTILINE)
            # Identifiers may resemble a name; nothing else may come from it.
            assert not re.search(r"[\"'\\$`@]|\?\?|\b(system|rm|HOSTILE)\s*\(", code), file


def warnings_of(meta: bytes) -> str:
    return str(json.loads(meta)["warnings"])


@pytest.mark.parametrize("name", NAMES)
def test_names_in_a_model(name: str, tmp_path: Path) -> None:
    proto = hostile_model(name)
    model = fk.compile_onnx(proto)
    check_text(model.source)
    assert warnings_of(model.compiled[0].entry.read("meta.json")) == ""
    inputs = {f"x{name}": floats(3, 4)}
    results = model.run(inputs)
    assert list(results) == [f"y{name}", f"r{name}"]
    # The oracle does not like some of these names.
    plain = hostile_model("")
    for ours, theirs in zip(proto.graph.initializer, plain.graph.initializer, strict=True):
        theirs.raw_data = ours.raw_data
    expected = ort_run(plain, {"x": inputs[f"x{name}"]})
    close({n.removesuffix(name): a for n, a in results.items()}, expected)


@pytest.mark.parametrize("name", NAMES)
def test_names_in_exported_code(name: str, tmp_path: Path) -> None:
    made = fk.export_onnx(hostile_model(name), tmp_path / "net.c", isa="generic", selftest=True)
    written = {p.name: p.read_text() for p in tmp_path.iterdir()}
    assert len(written) == 3 and made.header in written.values()
    code = without_comments(made.header, trigraphs=True)
    assert made.header.isascii() and "HOSTILE" not in re.sub(r"\bv?_*\w*HOSTILE\w*", "", code)
    assert not re.search(r"\b(system|HOSTILE)\s*\(", code)


@pytest.mark.parametrize("name", [*NAMES, "", "3", "a b", "int", "exp", 3])
def test_the_name_of_a_program(name: str) -> None:
    """It stands in the program's text, so it is a name of the language or refused."""
    text = "def f(float32 A[N]) -> (B) { B[i] = A[i] * 2 }"
    for source, dtypes in ((text, None), ("B[i] = A[i]", "int8"), ("ij->ji", "int8")):
        try:
            kernel = fk.compile(source, dtypes=dtypes, name=name)
        except fk.ArgumentError as error:
            assert str(error).isprintable() and len(str(error)) < 300
            assert name not in ("int", "exp")
        else:
            assert name in ("int", "exp", "HOSTILE" * 500)
            check_text({"kernel.c": kernel.source})
            assert str(fk.parse(str(kernel.program))) == str(kernel.program)


@pytest.mark.parametrize("name", NAMES)
def test_names_in_messages(name: str) -> None:
    """What cannot be compiled is reported on lines of its own, without control characters."""
    nodes = [helper.make_node("StringNormalizer", ["x"], ["y"], name=name)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, name, [value("x", onnx.TensorProto.FLOAT, [2])],
        [value("y", onnx.TensorProto.FLOAT, [2])],
    )  # fmt: skip
    with pytest.raises(fk.UnsupportedModelError) as caught:
        fk.compile_onnx(helper.make_model(graph))
    message = str(caught.value)
    assert len(message.splitlines()) == 2 and len(message) < 500
    assert message.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "C[i] = A[i] # */ system()",
        "C[i] = A[i] # \\",
        "C[i] = A[i] # ??/",
        "def f(float32 int[N]) -> (for) { for[i] = int[i] }",
        "def system(float32 system[main]) -> (exit) { exit[i] = system[i] }",
        "def f(float32 A[errno]) -> (NULL) { NULL[stdin] = A[stdin] }",
        "def f(float32 fk_hi[N]) -> (fk_lo) { fk_lo[_] = fk_hi[_] }",
        "def f(float32 _A[__N]) -> (_Bool) { _Bool[i] = _A[i] + __N }",
        "def f(float32 sizes[N]) -> (tensors) { tensors[threads] = sizes[threads] }",
        "def f(float32 exp[N]) -> (sin) { sin[i] = exp[i] }",
        "def f(float32 A[N]) -> (INFINITY) { INFINITY[I] = A[I] * inf }",
        "def f(float32 omp[N]) -> (parallel) { parallel[unix] = omp[unix] + linux[unix]\n"
        " linux[unix] = omp[unix] }",
        "def f(uint8 uint8_t[N]) -> (int64_t) { int64_t[memcpy] = uint8_t[memcpy] }",
    ],
)
def test_words_of_c_in_a_text(text: str) -> None:
    """Either it is no text of the language, or it is compiled and runs."""
    try:
        program = fk.parse(text, None if text.startswith("def") else "float32")
    except fk.LanguageError:
        return
    kernel = fk.compile(text, dtypes=None if text.startswith("def") else "float32")
    arrays = [np.ones(5, t.dtype.numpy) for t in program.inputs]
    names = [t.name for t in program.inputs]
    expected = fk.evaluate(program, dict(zip(names, arrays, strict=True)))
    np.testing.assert_array_equal(kernel(*arrays), next(iter(expected.values())))
