"""Each target's pipeline: what it runs, that it is written down, and what `explain` says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import farkas as fk
from codegen.describe_pipeline import pipelines_text
from codegen.pipeline import CPU, CUDA, GPU, OPENCL
from poly.machine.gpu import ANY, NAMED
from poly.schedule.schedule import Schedule
from tests.machines import AVX512

DOCS = Path(__file__).resolve().parents[2] / "docs" / "pipeline.md"
MATMUL = "def f(float32 A[M,K], float32 B[K,N]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"
SUM = "def f(float32 X[N]) -> (Y) { Y[] +=! X[i] }"


def test_the_page_is_made_of_the_lists() -> None:
    assert DOCS.read_text() == pipelines_text().rstrip() + "\n", (
        "python -m farkas pipeline prints it"
    )


def test_every_pass_and_tactic_says_what_it_does() -> None:
    for pipeline in (CPU, CUDA, OPENCL):
        passes = [*pipeline.graph_passes, *pipeline.graph_rewrites, *pipeline.call_rewrites,
                  *pipeline.rewrites, *pipeline.loop_passes]  # fmt: skip
        assert all(p.about.endswith(".") and len(p.about) > 20 for p in passes)
        names = [t.name for t in pipeline.strategy.tactics]
        assert len(names) == len(set(names)) and pipeline.strategy.tactics[-1].plain


def test_only_exact_rewrites_run_in_exact_mode() -> None:
    program = fk.parse(SUM)
    assert CUDA.prepare(program, ANY, exact=True) is program
    assert len(CUDA.prepare(program, ANY).statements) == 2


@pytest.mark.parametrize("text", [SUM, MATMUL])
@pytest.mark.parametrize("dialect", GPU)
def test_schedules_of_gpus_replay_on_their_own_text(text: str, dialect: str) -> None:
    pipeline = GPU[dialect]
    program = fk.parse(text)
    found = pipeline.automatic(program, NAMED["sm_90"])
    start = Schedule.of(pipeline.prepare(program, NAMED["sm_90"]))
    again = start.replay(str(found.schedule))
    assert pipeline.emit(again, program).text == found.source.text


def test_with_schedule_takes_the_schedule_of_a_gpu_kernel() -> None:
    kernel = fk.compile("y[] +=! x[i]", dtypes="float32", target="cuda-emulator:sm_90")
    for wanted in (str(kernel.schedule), kernel.schedule):
        again = kernel.with_schedule(wanted)
        assert str(again.schedule) == str(kernel.schedule) and again.source == kernel.source


def test_the_written_order_is_the_last_resort() -> None:
    program = fk.parse(MATMUL)
    refused = []

    def emit(schedule: Schedule) -> str:
        if schedule.steps:
            refused.append(str(schedule))
            raise fk.ScheduleError("isl gives up")
        return "as written"

    found = CPU.generate(Schedule.of(program), AVX512, emit)
    assert found.source == "as written" and not found.schedule.steps and len(refused) == 2
    assert [tried for tried, _ in found.fallbacks] == ["all tactics", "plain tactics"]


def test_what_cannot_be_generated_at_all_is_an_error() -> None:
    def emit(schedule: Schedule) -> str:
        raise fk.ScheduleError("isl gives up")

    with pytest.raises(fk.ScheduleError, match="isl gives up"):
        CPU.generate(Schedule.of(fk.parse(MATMUL)), AVX512, emit)


def test_choices_name_the_tactic_and_why_the_others_passed() -> None:
    found = CPU.automatic(fk.parse("def f(float32 X[N]) -> (Y) { Y[i] = X[i] * 2 }"), AVX512)
    (choice,) = found.choices
    assert choice.tactic == "memory bound" and choice.names == ("S0",)
    *others, last = (t.name for t in CPU.strategy.tactics)
    assert last == choice.tactic and [name for name, _ in choice.passed] == others
    assert all(reason for _, reason in choice.passed)


def test_explain_says_which_tactic_and_for_which_machine() -> None:
    kernel = fk.compile(MATMUL, target="cuda-emulator:sm_90")
    told = str(kernel.explain(M=64, K=64, N=64))
    assert "scheduled by\nS0_init, S0: contraction\n    not tensor cores: " in told
    fused = fk.compile(
        "def f(float32 X[N,M]) -> (Y) { T[i,j] = X[i,j] * 2\n Y[i] +=! T[i,j] }",
        target="cuda-emulator:sm_90",
    )
    told = str(fused.explain(N=64, M=64))
    assert "sm_90: 132 processors" in told and "L1" not in told and "L2" not in told
