"""Programs whose gradients are checked, with sizes for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A definition over float64, and sizes."""

    text: str
    sizes: Mapping[str, int] = field(default_factory=dict)


CASES = {
    "product": Case(
        "def f(float64 A[M,K], float64 B[K,N]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
        {"M": 3, "K": 4, "N": 5},
    ),
    "convolution with a stride": Case(
        "def f(float64 X[N,C,H,W], float64 F[K,C,R,S]) -> (Y) "
        "{ Y[n,k,p,q] +=! X[n,c,2*p+r,2*q+s] * F[k,c,r,s] }",
        {"N": 1, "C": 2, "H": 7, "W": 8, "K": 3, "R": 3, "S": 3},
    ),
    "convolution with padding": Case(
        "def f(float64 X[N,C,H,W], float64 F[K,C,3,3]) -> (Y) "
        "{ Y[n,k,p,q] +=! X[n,c,p+r-1,q+s-1] * F[k,c,r,s] "
        "where p in 0:H, q in 0:W, 0 <= p+r-1 < H, 0 <= q+s-1 < W }",
        {"N": 1, "C": 2, "H": 4, "W": 5, "K": 3},
    ),
    "transposed convolution": Case(
        "def f(float64 X[N,C,H], float64 F[C,K,R]) -> (Y) "
        "{ Y[n,k,p] +=! X[n,c,(p-r)//2] * F[c,k,r] "
        "where p in 0:2*H+R-2, 0 <= p-r, (p-r)//2 < H, (p-r) % 2 == 0 }",
        {"N": 1, "C": 2, "H": 3, "K": 2, "R": 3},
    ),
    "maxima of windows": Case(
        "def f(float64 X[N,C,H,W]) -> (Y) "
        "{ Y[n,c,p,q] max=! X[n,c,2*p+r,2*q+s] where r in 0:3, s in 0:3 }",
        {"N": 1, "C": 2, "H": 7, "W": 7},
    ),
    "softmax": Case(
        "def f(float64 X[N,M]) -> (Y) { top[i] max=! X[i,j]\nE[i,j] = exp(X[i,j] - top[i])\n"
        "total[i] +=! E[i,j]\nY[i,j] = E[i,j] / total[i] }",
        {"N": 3, "M": 4},
    ),
    "cross entropy": Case(
        "def f(float64 X[N,M], float64 t[N,M]) -> (L) { m[i] max=! X[i,j]\n"
        "s[i] +=! exp(X[i,j] - m[i])\nL[] +=! t[i,j] * (m[i] + log(s[i]) - X[i,j]) / N }",
        {"N": 3, "M": 4},
    ),
    "layer norm": Case(
        "def f(float64 X[N,D], float64 G[D], float64 B[D]) -> (Y) { mean[i] +=! X[i,d] / D\n"
        "var[i] +=! (X[i,d] - mean[i]) * (X[i,d] - mean[i]) / D\n"
        "Y[i,d] = (X[i,d] - mean[i]) * rsqrt(var[i] + 1e-5) * G[d] + B[d] }",
        {"N": 3, "D": 4},
    ),
    "causal attention": Case(
        "def f(float64 Q[N,D], float64 K[N,D], float64 V[N,E]) -> (O) { "
        "S[i,j] +=! Q[i,d] * K[j,d]\ntop[i] max=! S[i,j] where j <= i\n"
        "total[i] +=! exp(S[i,j] - top[i]) where j <= i\n"
        "P[i,j] = select(j <= i, exp(S[i,j] - top[i]) / total[i], 0)\n"
        "O[i,e] +=! P[i,j] * V[j,e] }",
        {"N": 4, "D": 2, "E": 3},
    ),
    "recurrent network": Case(
        "def f(float64 X[T,N], float64 U[M,N], float64 W[M,M], float64 a0[M]) -> (H) { "
        "A[0,j] = a0[j]\nA[t+1,j] +=! U[j,n] * X[t,n]\n"
        "A[t+1,j] += W[j,k] * tanh(A[t,k]) where t in 0:T\nH[t,j] = tanh(A[t+1,j]) }",
        {"T": 3, "N": 2, "M": 3},
    ),
    "long short-term memory": Case(
        "def f(float64 X[T,N], float64 W[4,M,N], float64 R[4,M,M], float64 h0[M], float64 c0[M])"
        " -> (H) { G[t,g,j] +=! W[g,j,n] * X[t,n]\nH[0,j] = h0[j]\nC[0,j] = c0[j]\n"
        "for t in 0:T { G[t,g,j] += R[g,j,k] * H[t,k]\n"
        "C[t+1,j] = sigmoid(G[t,2,j]) * C[t,j] + sigmoid(G[t,0,j]) * tanh(G[t,3,j])\n"
        "H[t+1,j] = sigmoid(G[t,1,j]) * tanh(C[t+1,j]) } }",
        {"T": 3, "N": 2, "M": 3},
    ),
    "gated recurrent unit": Case(
        "def f(float64 X[T,M], float64 U[M,M], float64 V[M,M], float64 h0[M]) -> (H) { "
        "H[0,j] = h0[j]\nfor t in 0:T { Z[t,j] +=! U[j,k] * H[t,k]\n"
        "N[t,j] +=! V[j,k] * (H[t,k] * sigmoid(Z[t,k]))\n"
        "H[t+1,j] = (1 - sigmoid(Z[t,j])) * tanh(N[t,j] + X[t,j]) + sigmoid(Z[t,j]) * H[t,j] } }",
        {"T": 3, "M": 3},
    ),
    "heat": Case(
        "def f(float64 X[N]) -> (Y) { U[0,i] = X[i]\nfor t in 0:4 { "
        "U[t+1,i] = U[t,i] + 0.1 * (U[t,i-1] - 2*U[t,i] + U[t,i+1]) * U[t,i] where i in 1:N-1\n"
        "U[t+1,0] = U[t,0]\nU[t+1,N-1] = U[t,N-1] }\nY[i] = U[4,i] }",
        {"N": 6},
    ),
    "state that is overwritten": Case(
        "def f(float64 X[T,M], float64 W[M,M], float64 h0[M]) -> (L, float64 A[M]) { "
        "h[j] = h0[j]\nA[j] = 0 where j in 0:M\nfor t in 0:T { z[j] +=! h[k] * W[k,j]\n"
        "A[j] += z[j] * h[j]\nh[j] = tanh(z[j] + X[t,j]) }\nL[] +=! h[j] * h[j] }",
        {"T": 3, "M": 3},
    ),
    "state that is changed twice in a step": Case(
        "def f(float64 X[T,M], float64 W[M,M], float64 h0[M]) -> (float64 h[M]) { h[j] = h0[j]\n"
        "for t in 0:T { h[j] += X[t,k] * W[k,j]\nh[j] = sin(h[j]) } }",
        {"T": 3, "M": 3},
    ),
    "sums and a maximum over steps": Case(
        "def f(float64 X[T,M]) -> (float64 h[M], float64 s[M], float64 m[M]) { "
        "h[j] = 0 where j in 0:M\ns[j] = 0 where j in 0:M\nm[j] = 0.1 where j in 0:M\n"
        "for t in 0:T { s[j] += X[t,j]\nh[j] += s[j] * s[j]\nm[j] max= s[j] } }",
        {"T": 3, "M": 3},
    ),
    "result of the last step": Case(
        "def f(float64 X[T,M]) -> (float64 z[M]) where T >= 1 { z[j] = 0 where j in 0:M\n"
        "for t in 0:T { z[j] = X[t,j] * X[t,j] where j in 0:M } }",
        {"T": 3, "M": 2},
    ),
    "literals alone": Case(
        "def f(float64 X[N]) -> (float64 U[N], float64 V[N]) { U[i] = X[i]\nU[i] *= 1 / 3\n"
        "V[i] = X[i]\nV[i] max= 1 / 3 }",
        {"N": 4},
    ),
    "states with fixed borders": Case(
        "def f(float64 U0[N,M], float64 a[N]) -> (float64 U[N,M]) { float64 V[N,M]\n"
        "U[i,j] = U0[i,j]\nfor t in 0:4 { "
        "V[i,j] = U[i,j] + a[i] * (U[i-1,j] + U[i+1,j] - U[i,j-1]) "
        "where i in 1:N-1, j in 1:M, i != 2\nU[i,j] = V[i,j] "
        "where i in 1:N-1, j in 1:M, i != 2 } }",
        {"N": 5, "M": 3},
    ),
    "sums of a part of the states": Case(
        "def f(float64 X[T,M,K], float64 h0[M]) -> (float64 h[M]) { h[j] = h0[j]\n"
        "for t in 0:T { h[j] +=! X[t,j,k] where j in 1:M\nh[0] = h[0] * X[t,1,0] } }",
        {"T": 3, "M": 4, "K": 2},
    ),
    "maxima and products that steps read": Case(
        "def f(float64 X[T,M,K], float64 h0[M]) -> (float64 h[M], float64 p[M]) { "
        "float64 m[M]\nh[j] = h0[j]\nm[j] = X[0,j,0]\np[j] = 1\n"
        "for t in 0:T { m[j] max= X[t,j,k]\np[j] *= 1 + 0.1 * m[j]\nh[j] = h[j] * p[j] - m[j] } }",
        {"T": 4, "M": 3, "K": 2},
    ),
    "weights of a softmax, step by step": Case(
        "def f(float64 S[T,M], float64 V[T,N]) -> (float64 O[M,N]) { "
        "float64 m[M]\nfloat64 old[M]\nfloat64 Z[M]\nm[i] = S[0,i]\nZ[i] = 0\nO[i,j] = 0\n"
        "for t in 0:T { old[i] = m[i]\nm[i] max= S[t,i]\n"
        "Z[i] = Z[i] * exp(old[i] - m[i]) + exp(S[t,i] - m[i])\n"
        "O[i,j] = O[i,j] * exp(old[i] - m[i]) + exp(S[t,i] - m[i]) * V[t,j] }\n"
        "O[i,j] = O[i,j] / Z[i] }",
        {"T": 4, "M": 2, "N": 2},
    ),
    "a ring, around which steps reach": Case(
        "def f(float64 U0[8], float64 a[8]) -> (L) { float64 U[5,8]\nU[0,i] = U0[i]\n"
        "for t in 0:4 { U[t+1,i] = U[t,i] + a[i] * (U[t,(i+1)%8] - U[t,(i+6)%8]) where i in 0:8 }\n"
        "L[] +=! U[4,i] * U[4,i] }",
    ),
    "written around a ring": Case(
        "def f(float64 X[7], float64 w[7]) -> (Y) { Y[(i+2)%7] = X[i] * X[i] * w[(i+1)%7] "
        "where i in 0:7 }",
    ),
    "prefix sums": Case("def f(float64 X[N]) -> (S) { S[0] = 0\nS[i+1] = S[i] + X[i] }", {"N": 5}),
    "prefix products of rows": Case(
        "def f(float64 X[N,M]) -> (S) { S[i,0] = X[i,0]\nS[i,j+1] = S[i,j] * X[i,j+1] }",
        {"N": 3, "M": 4},
    ),
    "prefix maxima": Case(
        "def f(float64 X[N]) -> (M) { M[0] = X[0]\nM[i+1] = max(M[i], X[i+1]) }", {"N": 6}
    ),
    "two steps back": Case(
        "def f(float64 X[N]) -> (S) { S[0] = X[0]\nS[1] = X[1]\n"
        "S[i+2] = S[i] * S[i+1] + X[i+2] }",
        {"N": 6},
    ),
    "wavefront": Case(
        "def f(float64 X[N,M]) -> (S) { S[0,j] = X[0,j]\nS[i+1,0] = X[i+1,0]\n"
        "S[i+1,j+1] = S[i,j+1] * S[i+1,j] * 0.5 + X[i+1,j+1] * S[i,j] }",
        {"N": 4, "M": 5},
    ),
    "products": Case("def f(float64 X[N,M]) -> (P) { P[i] *=! X[i,j] }", {"N": 3, "M": 4}),
    "concatenation": Case(
        "def f(float64 A[N], float64 B[M]) -> (Y) { Y[i] = A[i]\nY[N+i] = B[i] * B[i] }",
        {"N": 3, "M": 2},
    ),
    "update": Case(
        "def f(float64 a[], float64 X[N], float64 Y[N]) -> (Y) { Y[i] += a[] * X[i] }", {"N": 4}
    ),
    "in place": Case(
        "def f(float64 Y[N], float64 X[N]) -> (Y) "
        "{ Y[i] = Y[i] * Y[i] * X[i]\nY[i] = exp(Y[i]) }",
        {"N": 3},
    ),
    "in place, along": Case(
        "def f(float64 Y[N]) -> (Y) { Y[i] = Y[i] * Y[i+1] where i in 0:N-1 }", {"N": 4}
    ),
    "Gauss and Seidel": Case(
        "def f(float64 A[N]) -> (A) { A[i] = A[i-1] * A[i] + A[i+1] where i in 1:N-1 }", {"N": 5}
    ),
    "values that are overwritten": Case(
        "def f(float64 X[N]) -> (Y) { T[i] = X[i] * X[i]\nY[i] = T[i] * 3 * T[i]\n"
        "T[i] += X[i]\nY[i] += T[i] }",
        {"N": 3},
    ),
    "the last of many": Case(
        "def f(float64 X[N], float64 Y[3]) -> (Y) { Y[i % 3] = X[i] * X[i] }", {"N": 8}
    ),
    "running maximum": Case(
        "def f(float64 X[N,M], float64 m[N]) -> (m) { m[i] max= X[i,j] }", {"N": 3, "M": 4}
    ),
    "running product": Case(
        "def f(float64 X[N,M], float64 P[N]) -> (P) { P[i] *= X[i,j] }", {"N": 3, "M": 4}
    ),
    "running product, twice": Case(
        "def f(float64 X[N], float64 P[M]) -> (P) { P[i // 2] *= X[i] where i in 0:2*M }",
        {"N": 6, "M": 3},
    ),
    "maxima of maxima": Case(
        "def f(float64 X[N,M], float64 Z[N,M]) -> (Y) "
        "{ Y[i] max=! X[i,j]\nY[i] max= Z[i,j] * 2\nY[i] *= Z[i,j] }",
        {"N": 3, "M": 4},
    ),
    "embedding": Case(
        "def f(float64 table[V,D], int64 tokens[N]) -> (Y) { Y[n,d] = table[tokens[n], d] }",
        {"V": 5, "D": 3, "N": 7},
    ),
    "bag of words": Case(
        "def f(float64 E[V,D], int64 t[B,L], float64 w[B,L]) -> (Y) "
        "{ Y[b,d] +=! E[t[b,l],d] * w[b,l] }",
        {"V": 4, "D": 3, "B": 2, "L": 3},
    ),
    "places in places": Case(
        "def f(float64 X[N,M], int32 I[N], int32 J[M]) -> (Y) "
        "{ Y[i,j] = X[I[i], J[j]] * X[i, J[i]] where i in 0:3, j in 0:3 }",
        {"N": 4, "M": 5},
    ),
    "scattered sums": Case(
        "def f(float64 X[N], int64 I[N], float64 Z[M]) -> (Z) { Z[I[i]] += X[i] * X[i] }",
        {"N": 6, "M": 3},
    ),
    "recurrence with places": Case(
        "def f(float64 X[N], int64 I[T], float64 W[T]) -> (S) "
        "{ S[0] = X[0]\nS[t+1] = S[t] * W[t] + X[I[t]] }",
        {"N": 4, "T": 5},
    ),
    "mean of squares": Case(
        "def f(float64 X[N], float64 t[N]) -> (L) "
        "{ L[] +=! (X[i] - t[i]) * (X[i] - t[i]) / N }",
        {"N": 4},
    ),
    "branches": Case(
        "def f(float64 X[N]) -> (Y) { Y[i] = select(X[i] > 0, log(X[i]), -X[i]) "
        "+ max(X[i], 0.25) * abs(X[i]) }",
        {"N": 6},
    ),
}  # fmt: skip
