"""A schedule by hand: steps that are legal, one that is not, and what comes of them."""

import numpy as np

import farkas as fk

program = fk.parse(
    "def smooth(float32 X[N]) -> (X) { S: X[i+1] = (X[i] + X[i+1]) / 2 where i in 0:N-1 }"
)
schedule = fk.Schedule.of(program)

try:
    schedule.parallelize("S", "i")
except fk.IllegalScheduleError as error:
    print(error)  # names the two instances that would run in the wrong order
    assert error.kind == "flow"

matmul = fk.compile("C[i,j] +=! A[i,k] * B[k,j]", dtypes="float32")
tiled = matmul.with_schedule(
    lambda s: s.tile("S0", ["i", "j"], [32, 32]).parallelize("S0", "i_o").vectorize("S0", "j_i")
)
A = np.ones((100, 50), np.float32)
B = np.ones((50, 70), np.float32)
assert (tiled(A, B) == 50).all()
print(tiled.schedule)
print(tiled.schedule.diff(matmul.with_schedule("written").schedule))
