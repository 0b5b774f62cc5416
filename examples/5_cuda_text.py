"""CUDA C and OpenCL C for a formula; no GPU is needed to read it, nor to try it."""

import numpy as np

import farkas as fk

softmax = """
    def softmax(float32 X[N,M]) -> (Y) {
        m[i] max=! X[i,j]
        E[i,j] = exp(X[i,j] - m[i])
        s[i] +=! E[i,j]
        Y[i,j] = E[i,j] / s[i]
    }"""

kernel = fk.compile(softmax, target="cuda-emulator:sm_90")  # CUDA C, run on the CPU
print(kernel.source)

X = np.random.default_rng(0).random((20, 100), np.float32)
E = np.exp(X - X.max(1, keepdims=True))
assert np.allclose(kernel(X), E / E.sum(1, keepdims=True), rtol=1e-4)
print(kernel.explain(N=20, M=100))
