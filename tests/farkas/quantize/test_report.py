"""The table: a line for each kernel, or for those alike."""

from __future__ import annotations

from farkas.quantize.report import MOST_ROWS, Row, change, table


def row(number: int, kept: str = "", together: int = 1, shared: bool = False) -> Row:
    nodes = (("Conv", f"c{number}"), ("Relu", f"r{number}"))
    return Row(nodes, 0.5 + number, together, 4e-3, 1e-3, shared, kept)


def test_a_short_table_has_every_line() -> None:
    text = table([row(0), row(1, "error", 2, True)])
    assert "Conv 'c0', Relu 'r0'" in text
    assert "<= 1.5 %" in text and "1.0 ms*" in text and "3.0 ms  error    Conv 'c1'" in text
    assert "quantised together" in text and "time is divided" in text


def test_a_long_table_fits_on_a_page() -> None:
    rows = [row(k, "error" if k % 5 == 0 else "") for k in range(150)]
    short = table(rows)
    assert len(short.splitlines()) < MOST_ROWS and "120 kernels of Conv, Relu" in short
    assert "Conv 'c145'" in short and "480.0 ms" in short
    assert len(table(rows, every=True).splitlines()) > 150


def test_names_cannot_write_to_the_terminal() -> None:
    assert "\x1b" not in table([Row((("Conv", "\x1b[31m"),), 1, 1, 1, 1, False)])


def test_changes_of_the_time() -> None:
    assert change(4e-3, 1e-3) == "4.0 ms -> 1.0 ms, 4.00 times as fast"
    assert change(4e-6, 5e-6) == "4.0 µs -> 5.0 µs, slower by 25 %"
