"""Measuring: kernels that are wrong, crash or hang cost their point and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

import farkas as fk
from codegen.c.kernel_source import KernelSource
from farkas.targets.cpu import CpuRunner
from farkas.tuning import measurer as module
from farkas.tuning.child import Child, ChildError
from farkas.tuning.measure_main import Setup
from farkas.tuning.measurer import Comparison, Measurer
from runtime.common.cache import Cache
from runtime.cpu.toolchain import Toolchain

#: A statement for the entry point: of something that no kernel does.
CRASH, HANG, WRONG = (
    "__builtin_trap();",
    'for (;;) __asm__ volatile("");',
    "((float *)tensors[1])[3] += 1;",
)


def source() -> KernelSource:
    found = fk.compile("Y[i] = 2 * X[i]", dtypes="float32", sizes={"I": 1000}).loaded.source
    assert isinstance(found, KernelSource)
    return found


def with_statement(source: KernelSource, statement: str) -> KernelSource:
    """The kernel with a statement before the end of its entry point."""
    at = source.text.rindex("}", 0, source.text.rindex("}") + 1)
    return replace(source, text=f"{source.text[:at]}{statement}\n{source.text[at:]}")


@pytest.fixture
def measurer(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measurer]:
    monkeypatch.setattr(module, "LEAST", 2.0)
    with Measurer(Setup(source(), CpuRunner(toolchain, Cache(), 1), {}, 0)) as made:
        made.begin()
        yield made


def test_bad_kernels_among_good_ones(measurer: Measurer) -> None:
    good = replace(source(), text=f"{source().text}\n/* the same */\n")
    broken = replace(source(), text="int nothing;")
    kernels = [with_statement(source(), s) for s in (CRASH, HANG, WRONG)]
    crash, fine, hang, wrong, unbuilt = measurer.measure(
        [kernels[0], good, kernels[1], kernels[2], broken]
    )
    assert "was killed by SIG" in crash.failure and crash.ratio == math.inf
    assert "it took longer than" in hang.failure
    assert wrong.failure.startswith("wrong result: Y: max abs error 1")
    assert "no function" in unbuilt.failure or "undefined symbol" in unbuilt.failure
    assert not fine.failure and 0.3 < fine.ratio < 3


def test_results_begin_with_a_cache_line(measurer: Measurer) -> None:
    """As those of callers do; only the first call, which is checked, makes an array of its own."""
    trap = "static int calls; if (calls++ && (unsigned long)tensors[1] % 64) __builtin_trap();"
    (found,) = measurer.measure([with_statement(source(), trap)])
    assert not found.failure


def test_comparing(measurer: Measurer) -> None:
    good = replace(source(), text=f"{source().text}\n/* the same */\n")
    compared = measurer.compare(good)
    assert len(compared.rounds) == 3 and 0.3 < compared.ratio < 3
    with pytest.raises(ChildError, match="wrong result"):
        measurer.compare(with_statement(source(), WRONG))
    with pytest.raises(ChildError, match="nonsense"):
        measurer.compare(replace(source(), text="nonsense"))


def test_ranking_what_was_measured(measurer: Measurer) -> None:
    """Also beside one that fails by now."""
    text = source().text
    slow = with_statement(source(), 'for (int i = 0; i < 100000; i++) __asm__ volatile("");')
    fast = replace(source(), text=f"{text}\n/* the same */\n")
    wrong = with_statement(source(), WRONG)
    assert measurer.ranked([slow, wrong, fast], 2.0) == [2, 0, 1]
    assert measurer.ranked([slow, wrong, fast], 0.01) == [0, 1, 2], "there is no time"
    assert measurer.ranked([replace(source(), text="nonsense"), fast], 2.0) == [1]
    assert measurer.ranked([], 2.0) == []


def test_kernels_that_take_long_get_a_few_rounds(measurer: Measurer) -> None:
    compared = measurer.compare(replace(source(), text=f"{source().text}\n/* again */\n"), 0.0)
    assert [len(process) for process in compared.rounds] == [3, 3, 3]


def test_what_says_nothing_about_a_kernel(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without processes to spare, and a compiler that was given less time than usual."""
    good = replace(source(), text=f"{source().text}\n/* once more */\n")

    def none(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr("farkas.tuning.child.start_process", none)
        measurer.stop()
        (found,) = measurer.measure([good])
    assert found.lost and not found.is_kept and "no process could be started" in found.failure
    assert not measurer.measure([good])[0].failure
    monkeypatch.setattr(measurer, "_build_limit", 1e-4)
    (found,) = measurer.measure([replace(source(), text=f"{source().text}\n/* new */\n")])
    assert found.hurried and not found.is_kept and "took longer" in found.failure
    monkeypatch.setattr(measurer, "_build_limit", module.BUILD)
    (found,) = measurer.measure([replace(source(), text="nonsense")])
    assert found.is_kept and found.ratio == math.inf


def rounds(*ratios: float) -> Comparison:
    process = tuple((1.0, r) for r in ratios)
    return Comparison((process,) * 3)


def test_what_counts_as_faster() -> None:
    assert rounds(0.9, 0.9, 0.9, 0.95).is_faster(0.95)
    assert not rounds(0.96, 0.96, 0.96, 0.96).is_faster(0.95), "by too little"
    assert rounds(0.96, 0.96, 0.96, 0.96).is_faster(0.98)
    assert not rounds(0.9, 1.1, 0.9, 1.1).is_faster(0.95), "by chance"
    in_two = Comparison((((1.0, 0.5),) * 9, ((1.0, 0.5),) * 9, ((1.0, 1.1),) * 9))
    assert not in_two.is_faster(0.95), "not in each process"
    assert not Comparison((((1.0, 0.5),) * 2,)).is_faster(0.95), "too few rounds to say so"
    assert rounds(0.5).chance == 1 / 8


def test_after_an_interrupt_another_process_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before may still answer what it was asked."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Child("math", "sqrt") as child:
        assert child.call(4.0, limit=20) == 2.0
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Child, "_answer", interrupted)
            child.call(9.0, limit=20)
        assert child.call(16.0, limit=20) == 4.0


def test_the_next_call_has_another_child() -> None:
    with Child("math", "sqrt") as child:
        assert child.call(4.0, limit=20) == 2.0
        with pytest.raises(ChildError, match="ValueError"):
            child.call(-1.0, limit=20)
        assert not child.is_running  # a GPU may be lost to a process in which a kernel crashed
        assert child.call(9.0, limit=20) == 3.0
    with Child("time", "sleep") as child, pytest.raises(ChildError, match=r"longer than 0\.2 s"):
        child.call(60, limit=0.2)
    with Child("os", "_exit") as child, pytest.raises(ChildError, match="ended with exit code 3"):
        child.call(3, limit=20)
