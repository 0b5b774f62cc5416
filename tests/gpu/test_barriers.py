"""Barriers that some threads of a block do not reach are refused when kernels are generated."""

from __future__ import annotations

import pytest

import farkas as fk

PRODUCT = "def f(float32 A[{n},45], float32 B[45,70]) -> (C) {{ C[i,j] +=! A[i,k] * B[k,j] }}"
SCRIPT = """\
fuse S0_init, S0: i, j
split S0: i by 4 as i_t, i_r
split S0: j by 16 as j_b, j_w
split S0: j_w by 2 as j_t, j_r
reorder S0: j_b, i_t, j_t, i_r, j_r
distribute S0: i_r
map_blocks S0: j_b
map_threads S0: i_t, j_t
split S0: k by 16 as k_o, k_i
reorder S0: k_o, k_i, i_r, j_r
promote S0: k_o as A, shared, 1, 0, ahead
promote S0: k_o as B, shared, ahead
promote S0_init: j_t as C, register
unroll S0_init: i_r
unroll S0_init: j_r
unroll S0: i_r
unroll S0: j_r
isolate S0: k_o
"""


def test_full_tiles_that_only_some_threads_have() -> None:
    """isl sets apart the full tiles: of the ten threads along i, the last has a partial one."""
    with pytest.raises(fk.ScheduleError, match=r"wait at different barriers: the condition") as e:
        fk.compile(PRODUCT.format(n=37), schedule=SCRIPT, target="cuda-emulator")
    assert "isolate no loop that shared memory is filled in" in str(e.value)


def test_tiles_that_fit_and_tiles_that_are_not_set_apart() -> None:
    whole = SCRIPT.replace("isolate S0: k_o\n", "")
    for n, script in ((37, whole), (40, whole)):
        kernel = fk.compile(PRODUCT.format(n=n), schedule=script, target="cuda-emulator")
        assert kernel.verify().close(1e-5)
