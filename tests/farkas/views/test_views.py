"""Pictures: what they say, that they are well-formed, and that nothing from outside is markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from farkas.views.footprint_table import footprint_view
from farkas.views.trial import Trial, step_text
from poly.errors import ScheduleError
from poly.show.markup import element
from tests.machines import AVX512

HEAT = """def heat(float32 A[T,N]) -> (A) {
    step: A[t+1,i] = A[t,i-1] + A[t,i] + A[t,i+1] where t in 0:T-1, i in 1:N-1 }"""
MATMUL = """def mm(float32 A[N,K], float32 B[K,M]) -> (C) { mm: C[i,j] +=! A[i,k] * B[k,j] }"""
CHAIN = "def chain(float32 X[N]) -> (U) { T[i] = 2 * X[i]; U[i] = T[i] + T[i+1] }"
DECAY = "def f(float32 X[N]) -> (L) { S[0] = 1; S[i+1] = S[i] * X[i]; L[] = S[N] }"
TILED = "tile mm: i, j by 4, 4\nparallelize mm: i_o"
ON_GPU = """fuse mm_init, mm: i, j
tile mm: i, j by 4, 8
map_blocks mm: i_o, j_o
map_threads mm: i_i, j_i"""


def schedule(text: str, script: str = "") -> fk.Schedule:
    return fk.Schedule.of(fk.parse(text)).replay(script)


def refused(text: str, script: str) -> fk.IllegalScheduleError:
    with pytest.raises(fk.IllegalScheduleError) as caught:
        schedule(text, script)
    return caught.value


def tree_of(view: fk.View) -> ET.Element:
    """The HTML as XML: every element is closed, every attribute quoted."""
    return ET.fromstring(re.sub(r"<(br|hr)>", r"<\1/>", view._repr_html_()))


def texts_of(view: fk.View) -> list[str]:
    return ["".join(e.itertext()) for e in tree_of(view).iter()]


@pytest.mark.parametrize(
    "make",
    [
        lambda: fk.show(schedule(MATMUL, TILED)),
        lambda: fk.show(schedule(MATMUL, TILED), "mm"),
        lambda: fk.space(schedule(MATMUL, TILED)),
        lambda: fk.space(schedule(HEAT), loops=("i",), sizes={"T": 2, "N": 40}),
        lambda: fk.dataflow(fk.grad(DECAY), "S, dS", N=4),
        lambda: fk.steps(schedule(MATMUL, TILED)),
        lambda: fk.show(schedule(MATMUL, ON_GPU), "mm"),
        lambda: fk.steps(schedule(MATMUL, ON_GPU)),
        lambda: fk.footprints(schedule(MATMUL, TILED), N=64, K=64, M=64),
        lambda: fk.show(refused(HEAT, "parallelize step: t")),
        lambda: fk.show(refused(CHAIN, "fuse S0, S1: i")),
        lambda: fk.show(fk.compile(MATMUL)),
    ],
)
def test_every_picture_is_well_formed_and_has_a_text(make: Callable[[], fk.View]) -> None:
    view = make()
    assert tree_of(view).tag == "div"
    assert str(view) == repr(view) == view.text and len(view.text.splitlines()) > 2
    assert "<script" not in view.html and "http" not in view.html.replace(
        'xmlns="http://www.w3.org/2000/svg"', ""
    )


def test_the_order_of_an_iteration_space() -> None:
    view = fk.space(schedule(MATMUL, "tile mm: i, j by 2, 3"), sizes={"N": 3, "K": 1, "M": 4})
    assert view.text == (
        "   i\\j  0  1  2  3\n"
        "     0  1  2  3  7\n"
        "     1  4  5  6  8\n"
        "     2  9 10 11 12\n"
        "mm at N=3, K=1, M=4, k=0"
    )  # fmt: skip
    # Four tiles: as many colours, and one line through all points.
    svg = next(e for e in tree_of(view).iter() if e.tag.endswith("svg"))
    paper, *areas = (e.get("fill") for e in svg.iter() if e.tag.endswith("rect"))
    assert len(areas) == 12 and len(set(areas)) == 4 and paper not in areas
    assert sum(e.tag.endswith("polyline") for e in svg.iter()) == 1


def test_threads_break_the_line() -> None:
    view = fk.space(schedule(MATMUL, "parallelize mm: i"), sizes={"N": 3, "K": 1, "M": 4})
    assert sum(e.tag.endswith("polyline") for e in tree_of(view).iter()) == 3


def test_dependences_are_arrows() -> None:
    view = fk.space(schedule(HEAT), sizes={"T": 3, "N": 5})
    groups = [e for e in tree_of(view).iter() if e.tag.endswith("}g")]
    (flow,) = (g for g in groups if len(g) and g[0].text == "flow")
    # Three of the first step's points are read by the second's: 2 + 3 + 2 times.
    assert flow[1].get("d", "").count("Q") == flow[2].get("d", "").count("Z") == 7
    titles = [e.text for e in tree_of(view).iter() if e.tag.endswith("title")]
    assert "step[1, 2] runs 5th" in titles


def test_a_recurrence_and_its_gradient() -> None:
    view = fk.dataflow(fk.grad(DECAY), "S, dS", N=3)
    assert view.text == (
        "S[0] -> S[1], S[1] -> S[2], S[2] -> S[3]\n"
        "dS[1] -> dS[0], dS[2] -> dS[1], dS[3] -> dS[2]\n"
        "elements of S and dS at N=3"
    )
    groups = {g[0].text: g for g in tree_of(view).iter() if g.tag.endswith("}g")}
    colours = [groups[name][1].get("stroke") for name in ("S", "dS")]
    assert len(set(colours)) == 2
    assert all(groups[name][1].get("d", "").count("Q") == 3 for name in ("S", "dS"))
    assert sum(e.tag.endswith("circle") for e in tree_of(view).iter()) == 4


def test_the_flow_of_elements_in_two_dimensions() -> None:
    chain = fk.parse(
        "def f(float32 X[N,M]) -> (P) { P[i,0] = X[i,0]; P[i,j+1] = P[i,j] * X[i,j+1] }"
    )
    view = fk.dataflow(fk.Schedule.of(chain), ["P"], N=2, M=100)
    assert view.text.startswith("P[0, 0] -> P[0, 1], ") and "(46 in all)" in view.text
    assert "at most 24 are shown" in view.text
    first = fk.dataflow(fk.parse(CHAIN), "T, U", N=3)
    assert "no element of T is computed from another directly" in first.text


@pytest.mark.parametrize(
    "tensors, message",
    [
        ("Q", "computes no tensor 'Q'; it computes S, L"),
        ([], "no tensor is named"),
        ("L", "L has 0 dimensions; a picture has one or two"),
    ],
)
def test_tensors_that_cannot_be_drawn(tensors: str | list[str], message: str) -> None:
    with pytest.raises(fk.ArgumentError, match=message):
        fk.dataflow(fk.parse(DECAY), tensors)


def test_a_long_loop_is_cut() -> None:
    view = fk.space(schedule(MATMUL), sizes={"N": 2, "K": 1, "M": 500})
    assert "of j only 24 values" in view.text and " 23" in view.text
    assert " 24" not in view.text.splitlines()[0]


def test_the_refused_pair_is_marked() -> None:
    error = refused(HEAT, "tile step: t, i by 4, 4")
    view = fk.show(error)
    assert str(error) in view.text and error.source == "step[0, 4]"
    svgs = [e for e in tree_of(view).iter() if e.tag.endswith("svg")]
    assert len(svgs) == 2  # before and after
    for svg in svgs:
        titles = [e.text for e in svg.iter() if e.tag.endswith("title")]
        assert titles.count("flow: must come first") == 1
        rings = [e for e in svg.iter() if e.get("stroke") == "#d01f1f" and e.tag.endswith("circle")]
        assert len(rings) == 2
    # The sink runs before the source afterwards.
    assert "before: step[0, 4] is number 4, step[1, 3] is number 9" in view.text
    assert "after: step[0, 4] is number 13, step[1, 3] is number 6" in view.text
    assert view.text.endswith("drawn at T=8, N=8")
    after = view.text.partition("after:\n")[2].partition("\n\n")[0].splitlines()
    columns = after[0].split()[1:]
    number = {
        (r, c): int(v)
        for r, line in enumerate(after[1:])
        for c, v in zip(columns, line.split()[1:], strict=True)
    }
    assert number[1, "3"] < number[0, "4"]


@pytest.mark.parametrize("size", [32, 200])
def test_the_pair_is_in_the_picture_of_a_long_loop(size: int) -> None:
    error = refused(HEAT, f"tile step: t, i by {size}, {size}")
    view = fk.show(error)
    assert error.source == f"step[0, {size}]" and "not drawn" not in view.text
    titles = [e.text for e in tree_of(view).iter() if e.tag.endswith("title")]
    assert titles.count("flow: must come first") == 2


def test_what_lies_between_two_instances_far_apart_is_left_out() -> None:
    """Of 33 columns those around both ends are drawn, and no number is given twice."""
    view = fk.show(refused(MATMUL, "split mm: k by 32\nparallelize mm: k_o"))
    head, *rows = view.text.partition("after:\n")[2].partition("\n\n")[0].splitlines()
    assert head.split() == [*"i\\k 0 1 2 3 4 … 28 29 30 31 32".split()]
    numbers = [v for row in rows for v in row.split()[1:] if v != "…"]
    assert sorted(map(int, numbers)) == list(range(1, 81))
    titles = [e.text for e in tree_of(view).iter() if e.tag.endswith("title")]
    assert titles.count("some columns are left out") == 2
    assert titles.count("reduction: must come first") == 2


def test_the_text_of_a_picture_has_what_its_drawing_has() -> None:
    at_once = fk.space(schedule(HEAT, "parallelize step: i"), sizes={"T": 4}, N=5).text
    assert "runs at once: iterations of i" in at_once
    assert "flow: step[0, 1] -> step[1, 1], " in at_once and "in all)" in at_once
    assert "runs at once" not in fk.space(schedule(HEAT)).text
    plain, chosen = fk.show(schedule(MATMUL)).text, fk.show(schedule(MATMUL), "mm").text
    assert "C[i*M + j] += " in plain and plain != chosen
    marked = [line for line in chosen.splitlines() if line.startswith(">")]
    assert any("+= " in line for line in marked) and not any("= 0.0f" in line for line in marked)


def test_sizes_that_are_products_need_not_be_given() -> None:
    relu = fk.compile("def relu(float32 X[N,C]) -> (Y) { Y[n,c] = max(X[n,c], 0) }")
    assert "N=3, C=5" in fk.footprints(relu, N=3, C=5).text
    assert fk.footprints(relu, sizes={"N": 3, "C": 5}).text == fk.footprints(relu, N=3, C=5).text
    assert "N=2, C=4, N_C=8" in fk.space(relu, sizes={"N": 2}, C=4).text


def test_large_sizes_are_cut_before_they_are_counted() -> None:
    huge = {"N": 10**6, "K": 10**9, "M": 10**6}
    view = fk.space(schedule(MATMUL, "tile mm: i, j by 8, 8"), sizes=huge, at={"k": 12345})
    assert "k=12345" in view.text and len(view.text.splitlines()) == 26


def test_two_statements_stand_side_by_side_in_one_order() -> None:
    view = fk.show(refused(CHAIN, "fuse S0, S1: i"))
    found = view.text.partition("after:\n")[2].partition("\n\n")[0]
    after = [line.split() for line in found.splitlines()]
    assert after[1][1:4] == ["1", "3", "5"] and after[3][1:4] == ["2", "4", "6"]


def test_indentation_is_never_alone_between_tags() -> None:
    """nbconvert makes one blank of it."""
    html = fk.show(schedule(MATMUL))._repr_html_()
    assert re.search(r"<span style=[^>]*>    for</span>", html)
    assert not re.search(r"> +<span style=.color", html)


def test_badges_say_what_is_allowed() -> None:
    def badges(text: str, script: str = "") -> list[list[str]]:
        """Of each loop."""
        root = ET.fromstring(schedule(text, script)._repr_html_())
        rows = [e for e in root.iter("div") if (e.text or "").startswith("for ")]
        known = ("parallel", "vector", "unroll", "coincident")
        return [[s.text or "" for s in row.iter("span") if s.text in known] for row in rows]

    assert badges(HEAT) == [[], ["coincident"]]
    assert badges(MATMUL, "parallelize mm: i")[2:] == [
        ["parallel"], ["coincident"], [],
    ]  # fmt: skip
    assert "permutable" not in schedule(HEAT)._repr_html_()
    assert "permutable" in schedule(HEAT, "skew step: i, t by 1")._repr_html_()


def test_footprints() -> None:
    tiled = schedule(MATMUL, "tile mm: i, j by 32, 32")
    view = footprint_view(tiled, "mm", {"N": 512, "K": 512, "M": 512}, AVX512)
    assert [line.split() for line in view.text.splitlines()[:4]] == [
        ["everything", "3", "MiB", "L3"],
        ["i_o", "1.12", "MiB", "L3"],
        ["j_o", "132", "KiB", "L2"],
        ["i_i", "66.1", "KiB", "L2"],
    ]
    found = tiled.footprints("mm", {"N": 512, "K": 512, "M": 512})
    assert [f.loop for f in found] == ["", "i_o", "j_o", "i_i", "j_i", "k"]
    boxes = {t.tensor: t.extents for t in found[2].tensors}
    assert boxes == {"A": (32, 512), "B": (512, 32), "C": (32, 32)}
    assert found[2].bytes == 4 * (32 * 512 * 2 + 32 * 32)


def test_what_there_is_no_picture_of() -> None:
    s = schedule(MATMUL)
    with pytest.raises(fk.ArgumentError, match="there is no picture of a int; show takes"):
        fk.show(3)
    with pytest.raises(fk.ArgumentError, match="there is no statement S9; there are mm_init, mm"):
        fk.space(s, "S9")
    with pytest.raises(fk.ArgumentError, match="mm has no index 'z'; it has i, j, k"):
        fk.space(s, loops=("z",))
    with pytest.raises(fk.ArgumentError, match="two loops at most, 3 are given"):
        fk.space(s, loops=("i", "j", "k"))
    with pytest.raises(fk.ArgumentError, match="mm has no instances there"):
        fk.space(s, sizes={"K": 0})
    with pytest.raises(fk.ArgumentError, match="no value is given for K, M"):
        fk.footprints(s, N=4)
    with pytest.raises(fk.ArgumentError, match="has no size 'Q'; it has N, K, M"):
        fk.footprints(s, Q=4)
    with pytest.raises(fk.ArgumentError, match="has no size 'I'; it has N, K, M"):
        fk.space(s, sizes={"I": 3})
    with pytest.raises(fk.ArgumentError, match=r"size N must be an integer, not 3\.5"):
        fk.space(s, sizes={"N": 3.5})
    with pytest.raises(fk.ArgumentError, match="i is given twice"):
        fk.space(s, loops=("i", "i"))
    with pytest.raises(fk.ArgumentError, match="there is no statement S7; there are mm_init, mm"):
        fk.show(s, "S7")
    with pytest.raises(fk.ArgumentError, match="carries no schedule"):
        fk.show(fk.IllegalScheduleError("tile", "flow", "a", "b", "c"))


def test_text_from_outside_is_no_markup() -> None:
    assert element("b", "<i>&", title='"<') == '<b title="&quot;&lt;">&lt;i&gt;&amp;</b>'
    s = schedule(MATMUL, "# </pre><script>alert(1)</script>\nparallelize mm: i")
    assert "<script" not in fk.show(s).html


def test_a_saved_page_needs_nothing_else(tmp_path: Path) -> None:
    path = fk.show(schedule(MATMUL)).save(tmp_path / "page.html")
    text = path.read_text()
    assert text.startswith("<!DOCTYPE html>\n<html lang=") and 'charset="utf-8"' in text
    assert "src=" not in text and "<link" not in text
    with pytest.raises(fk.FarkasError):
        fk.show(schedule(MATMUL)).save(tmp_path / "missing" / "page.html")


# --- trying out ----------------------------------------------------------------------------


def test_a_trial() -> None:
    trial = Trial.of(schedule(MATMUL))
    tiled = trial.then(step_text("tile", "mm", "i, j", "8, 4", ""))
    assert tiled.verdict == "legal: 1 step" and tiled.script == "tile mm: i, j by 8, 4"
    assert tiled.numbers == ((0, 0, tiled.schedule.steps[0]), (0, 1, tiled.schedule.steps[0]))
    wrong = tiled.then("parallelize mm: k")
    assert wrong.verdict.startswith("illegal: parallelize mm: k is illegal: mm[0, 0, 0] must come")
    assert wrong.schedule is tiled.schedule
    assert wrong.then("nonsense").verdict.startswith("refused: line 1: there is no primitive")
    wider = tiled.with_number(0, 1, 16)
    assert wider.script == "tile mm: i, j by 8, 16" and wider.refused is None
    assert wider.with_number(0, 1, 0).verdict.startswith("refused: tile mm: i, j by 8, 0")
    assert wider.with_number(7, 0, 1).refused is not None
    assert wider.without_last().script == "" and wider.without_last().schedule.steps == ()
    again = wider.replayed("# note\nunroll mm: k by 4  # four")
    assert again.script == "# note\nunroll mm: k by 4  # four"
    assert again.without_last().script == "# note"
    with pytest.raises(ScheduleError, match="line 1 is not a schedule step"):
        step_text("tile", "mm", "i j", "", "")


def test_blocks_and_threads_are_shown_as_cuda() -> None:
    mapped = schedule(MATMUL, ON_GPU)
    page = fk.show(mapped)
    assert "CUDA C" in texts_of(page) and "threadIdx" in page.text
    text = fk.steps(mapped).text
    assert re.search(r"4\. map_threads mm: i_i, j_i  \(\+\d+ -\d+ lines of CUDA C\)", text)
    # Steps before the mapping are of the same language, so that little changes in each.
    assert all(int(n) < 15 for n in re.findall(r"\+(\d+) -", text))
    two = fk.show(schedule(MATMUL, "map_blocks mm_init: i\nmap_blocks mm: i"))
    assert len(re.findall(r"fk_mm_\w+\(", two.text)) == 2  # all kernels are on the page


def test_explore_on_a_device() -> None:
    pytest.importorskip("ipywidgets")
    kernel = fk.compile(MATMUL, schedule=ON_GPU, target="cuda-emulator")
    explorer = fk.explore(kernel, N=4, K=4, M=4)
    assert "GFLOP/s" in explorer.time() and "threadIdx" in explorer._page.value
    assert "no such blocks" in fk.explore(kernel.schedule, N=4, K=4, M=4).time()


def test_explore() -> None:
    pytest.importorskip("ipywidgets")
    explorer = fk.explore(schedule(MATMUL), N=16, K=16, M=16)
    explorer._primitive.value, explorer._loops.value, explorer._by.value = "tile", "i, j", "4, 4"
    explorer._add.click()
    assert explorer.script == "tile mm: i, j by 4, 4" and len(explorer._sliders.children) == 2
    assert "legal: 1 step" in explorer._verdict.value and "fits in" in explorer._page.value
    explorer._sliders.children[0].value = 8
    assert explorer.script == "tile mm: i, j by 8, 4" == explorer._script.value
    explorer._primitive.value, explorer._loops.value, explorer._by.value = "parallelize", "k", ""
    explorer._add.click()
    assert "illegal" in explorer._verdict.value
    assert "must come before" in explorer._page.value and "<svg" in explorer._page.value
    assert explorer.script == "tile mm: i, j by 8, 4"
    explorer._time.click()
    assert "GFLOP/s" in explorer._timing.value
    explorer._undo.click()
    assert explorer.script == "" and explorer.schedule.steps == ()
    explorer._script.value = "vectorize mm: j by 8"
    explorer._replay.click()
    assert explorer.schedule.loops("mm") == ("i", "j_o", "j_i", "k")
    explorer._loops.value = "no such"
    explorer._add.click()
    assert "refused" in explorer._verdict.value


def test_explore_without_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ipywidgets", None)
    with pytest.raises(fk.ArgumentError, match=r"pip install '\.\[notebook\]'"):
        fk.explore(schedule(MATMUL))


def test_a_kernel_shows_itself() -> None:
    kernel = fk.compile("C[i,j] +=! A[i,k] * B[k,j]")
    assert kernel._repr_html_() is None  # no types yet, so the text is shown
    kernel(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))
    assert "program" in (kernel._repr_html_() or "")
