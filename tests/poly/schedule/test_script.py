"""Scripts: what is accepted, what is printed, what is refused and where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poly.errors import ScheduleError
from poly.schedule.primitives import PRIMITIVES
from poly.schedule.script import Line, parse_script
from poly.tree.steps import Step

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)


@given(
    st.sampled_from(sorted(PRIMITIVES)),
    st.lists(names, min_size=1, max_size=2),
    st.lists(names, max_size=3),
    st.lists(st.integers(-(10**9), 10**9), max_size=3),
    st.lists(names | st.integers(0, 9).map(str), max_size=3),
)
def test_what_is_printed_parses_back(
    primitive: str, statements: list[str], loops: list[str], by: list[int], words: list[str]
) -> None:
    step = Step(primitive, tuple(statements), tuple(loops), tuple(by), tuple(words))
    text = f"# a comment\n{step}  # another\n  # and   one more\n\n{step}"
    lines = parse_script(text)
    assert [line.step for line in lines] == [None, step, None, None, step]
    assert [line.comment for line in lines] == [
        "# a comment", "  # another", "  # and   one more", "", ""
    ]  # fmt: skip
    assert "\n".join(map(str, lines)) == text


def test_a_byte_order_mark_is_left_out() -> None:
    assert parse_script("\ufefftile S: i by 4") == parse_script("tile S: i by 4")


def test_spaces_do_not_matter() -> None:
    assert parse_script("  tile   S :i ,j   by 4,8  as a,b ,c, d") == (
        Line(Step("tile", ("S",), ("i", "j"), (4, 8), ("a", "b", "c", "d"))),
    )
    assert parse_script("reschedule") == (Line(Step("reschedule", ())),)
    assert parse_script("") == ()
    assert parse_script("\t# nothing \r\n \n") == (Line(None, "\t# nothing"), Line())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "tile S i by 4",
            "line 2 is not a schedule step:\n   tile S i by 4\n          ^\nhint: a step reads",
        ),
        ("tile S: i by", "is not a schedule step"),
        ("tile S: i by 4.5", "is not a schedule step"),
        ("tile S: by 4 by 5", "is not a schedule step"),
        ("Tile S: i by 4", "is not a schedule step"),
        ("tile S: ä by 4", "is not a schedule step"),
        ("tile S: i; rm by 4", "is not a schedule step"),
        ("tile S: " + "i, " * 5000, "is not a schedule step"),
        ("pack S: i", "line 2: there is no primitive 'pack'; there are tile, split"),
        ("S0.sched", "line 2 is not a schedule step"),
        ("vectorise S: i", "no primitive 'vectorise'; did you mean 'vectorize'? there are tile"),
        ("tile S: i by 123456789012", "line 2: a number is too large"),
    ],
)
def test_what_is_no_step(line: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_script(f"reverse S: i\n{line}\nreverse S: i")
    assert message in str(caught.value) and len(str(caught.value)) < 500


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    try:
        found = parse_script(text)
    except ScheduleError:
        return
    assert parse_script("".join(f"{line}\n" for line in found)) == found


def test_the_name_of_a_file_is_no_script() -> None:
    with pytest.raises(ScheduleError, match=r"for a file, pass its text: Path\(name\)\.read_text"):
        parse_script("my.sched")
