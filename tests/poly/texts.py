"""Programs from text; what a one-liner leaves undeclared is float32."""

from __future__ import annotations

from frontends.language.parse_program import parse_program, undeclared_inputs
from poly.ir.dtypes import FLOAT32
from poly.ir.program import Program
from poly.schedule.schedule import Schedule

MATMUL = "def f(float32 A[N,K], float32 B[K,M]) -> (C) { mm: C[i,j] +=! A[i,k] * B[k,j] }"
SOFTMAX = """def softmax(float32 X[N,M]) -> (Y) {
    top: t[i] max=! X[i,j]
    e: E[i,j] = exp(X[i,j] - t[i])
    sum: s[i] +=! E[i,j]
    norm: Y[i,j] = E[i,j] / s[i]
}"""


#: The same without labels.
PLAIN_SOFTMAX = """def softmax(float32 X[N,M]) -> (Y) {
    top[i] max=! X[i,j]
    e[i,j] = exp(X[i,j] - top[i])
    sum[i] +=! e[i,j]
    Y[i,j] = e[i,j] / sum[i]
}"""
#: A recurrence around a ring, whose gradient reads every state.
HEAT = """def heat(float64 U0[9], float64 a[9]) -> (L) {
    float64 U[13,9]
    U[0,i] = U0[i]
    for t in 0:12 {
        U[t+1,i] = U[t,i] + a[i] * (U[t,(i+1)%9] + U[t,(i+8)%9] - 2*U[t,i]) where i in 0:9
    }
    L[] +=! U[12,i] * U[12,i]
}"""


def program(text: str) -> Program:
    return parse_program(text, {name: FLOAT32 for name, _ in undeclared_inputs(text)})


def schedule(text: str, script: str = "", exact: bool = False) -> Schedule:
    return Schedule.of(program(text), exact).replay(script)
