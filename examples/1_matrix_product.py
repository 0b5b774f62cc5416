"""A matrix product: from one formula to a kernel, and what was made of it."""

import numpy as np

import farkas as fk

matmul = fk.compile("C[i,j] +=! A[i,k] * B[k,j]")

rng = np.random.default_rng(0)
A = rng.random((512, 256), np.float32)
B = rng.random((256, 384), np.float32)
C = matmul(A, B)
assert np.allclose(C, A @ B, rtol=1e-4)

print("The schedule, as a script that replays:\n")
print(matmul.schedule)
print("\nThe loops that it gives:\n")
print(matmul.tree)
