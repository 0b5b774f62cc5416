"""Layouts: rearranged arrays hold the same elements, and rewritten programs read them."""

from __future__ import annotations

import numpy as np
import pytest

from frontends.language.parse_program import parse_program
from poly.errors import ProgramError
from poly.ir.expr import Const
from poly.ir.layout import Layout, layout_of, relayout
from poly.schedule.schedule import Schedule
from poly.strategy.cpu.packing import preferred_layouts
from poly.strategy.cpu.register_tile import find_contraction
from runtime.reference.evaluate import evaluate
from tests.machines import AVX512

CONV = """def conv(float32 X[1,6,9,9], float32 F[40,6,3,3]) -> (Y) {
    Y[n,k,p,q] +=! X[n,c,p+r-1,q+s-1] * F[k,c,r,s]
        where p in 0:9, q in 0:9, 0 <= p+r-1 < 9, 0 <= q+s-1 < 9
}"""


def test_an_array_in_blocks() -> None:
    layout = Layout((1, 0), ((1, 4),))
    array = np.arange(12.0).reshape(2, 6)
    kept = layout.arrange(array)
    assert kept.shape == (2, 2, 4)
    assert kept.flags.c_contiguous
    for i in range(2):
        for j in range(6):
            assert kept[j // 4, i, j % 4] == array[i, j]
    assert not kept[1, :, 2:].any()  # the last block is filled with zeros
    extents = layout.extents((Const(2), Const(6)))
    assert extents == (Const(2), Const(2), Const(4))


def test_an_array_in_blocks_of_two_dimensions() -> None:
    """As an instruction reads rows: 4 of them at a time, and a vector of columns of each four."""
    layout = Layout((1, 0), ((1, 8), (0, 4)))
    array = np.arange(1.0, 6 * 11 + 1).reshape(6, 11)
    kept = layout.arrange(array)
    assert kept.shape == (2, 2, 8, 4) == layout.box(layout.whole_blocks(array.shape))
    for k, j in np.ndindex(8, 16):
        inside = k < 6 and j < 11
        assert kept[j // 8, k // 4, j % 8, k % 4] == (array[k, j] if inside else 0)
    assert layout.words == ("1", "0", "1x8", "0x4")
    assert layout_of(layout.words, "A", 2) == layout
    assert str(layout) == "_1_0_b1x8_b0x4"


def test_a_box_in_blocks() -> None:
    layout = Layout((1, 0, 2), ((1, 4),))
    sizes = layout.whole_blocks((3, 6, 5))
    assert sizes == (3, 8, 5)
    assert layout.box(sizes) == (2, 3, 5, 4) and layout.sizes((2, 3, 5, 4)) == sizes
    assert layout.words == ("1", "0", "2", "1x4")
    assert Layout((1, 0)).box((3, 6)) == (6, 3) and Layout((1, 0)).sizes((6, 3)) == (3, 6)


@pytest.mark.parametrize(
    "layout",
    [
        Layout((3, 0, 2, 1)),
        Layout((0, 2, 3, 1), ((0, 16),)),
        Layout((0, 1, 2, 3), ((0, 16), (1, 4))),
    ],
)
def test_a_program_with_another_layout(layout: Layout) -> None:
    program = parse_program(CONV, {})
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 4, (1, 6, 9, 9)).astype(np.float32)
    f = rng.integers(-4, 4, (40, 6, 3, 3)).astype(np.float32)
    changed = relayout(program, "F", layout)
    expected = evaluate(program, {"X": x, "F": f})["Y"]
    given = evaluate(changed, {"X": x, "F": layout.arrange(f)})["Y"]
    np.testing.assert_array_equal(given, expected)


def test_an_output_with_another_layout() -> None:
    program = parse_program(CONV, {})
    layout = Layout((0, 1, 2, 3), ((1, 8),))
    changed = relayout(program, "Y", layout)
    x, f = np.ones((1, 6, 9, 9), np.float32), np.ones((40, 6, 3, 3), np.float32)
    given = evaluate(changed, {"X": x, "F": f})["Y"]
    np.testing.assert_array_equal(given, layout.arrange(evaluate(program, {"X": x, "F": f})["Y"]))


def test_weights_are_wanted_in_the_order_in_which_a_tile_reads_them() -> None:
    scop = Schedule.of(parse_program(CONV, {})).scop
    wanted = preferred_layouts(scop, AVX512, ["F"])
    assert set(wanted) == {"F"}
    ((dim, size),) = wanted["F"].blocks
    assert (dim, size % 8) == (0, 0)
    assert wanted["F"].order[0] == 0
    changed = Schedule.of(relayout(scop.program, "F", wanted["F"])).scop
    tile = find_contraction(changed, changed.by_name["S0"], AVX512)
    assert tile is not None and tile.vectors * tile.lanes == size
    assert not preferred_layouts(changed, AVX512, ["F"])


def test_layouts_that_do_not_fit() -> None:
    program = parse_program(CONV, {})
    with pytest.raises(ProgramError, match="is not an order of the 4 dimensions"):
        relayout(program, "F", Layout((0, 1)))
    with pytest.raises(ProgramError, match="Z is not an input or output of conv"):
        relayout(program, "Z", Layout((0, 1, 2, 3)))
