"""An operator that no library has in one piece: the distance to the nearest of many points."""

import numpy as np

import farkas as fk

nearest = fk.compile("""
    def nearest(float32 X[N,K], float32 P[M,K]) -> (d) {
        D[i,j] +=! (X[i,k] - P[j,k]) * (X[i,k] - P[j,k])
        d[i] min=! D[i,j]
    }""")

rng = np.random.default_rng(0)
X, P = rng.random((1000, 8), np.float32), rng.random((300, 8), np.float32)
d = nearest(X, P)

assert np.allclose(d, ((X[:, None] - P[None]) ** 2).sum(-1).min(-1), rtol=1e-4)
print(nearest.verify({"N": 50, "M": 40, "K": 8}))
print(nearest.explain(N=1000, M=300, K=8))
