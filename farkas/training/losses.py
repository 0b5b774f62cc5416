"""Losses: comprehensions from a network's outputs and what they should be to a scalar."""

from __future__ import annotations

from poly.errors import ArgumentError

#: By name: the first tensor is the network's first output.
LOSSES = {
    "cross_entropy": """
def cross_entropy(float32 scores[N,C], int64 labels[N]) -> (loss) {
    most[n] max=! scores[n,c]
    total[n] +=! exp(scores[n,c] - most[n])
    loss[] +=! (log(total[n]) + most[n] - scores[n,labels[n]]) / N
}
""",
    "mse": """
def mse(float32 values[N,D], float32 targets[N,D]) -> (loss) {
    loss[] +=! (values[n,d] - targets[n,d]) * (values[n,d] - targets[n,d]) / (N * D)
}
""",
    "l1": """
def l1(float32 values[N,D], float32 targets[N,D]) -> (loss) {
    loss[] +=! abs(values[n,d] - targets[n,d]) / (N * D)
}
""",
    "binary_cross_entropy": """
def binary_cross_entropy(float32 scores[N,D], float32 targets[N,D]) -> (loss) {
    loss[] +=! (max(scores[n,d], 0) - scores[n,d] * targets[n,d]
        + log(1 + exp(-abs(scores[n,d])))) / (N * D)
}
""",
}


def loss_text(loss: str) -> str:
    """The text of a loss, which may be given by name.

    Raises
    ------
    ArgumentError : a name that there is not.
    """
    if "=" in loss:
        return loss
    if loss not in LOSSES:
        raise ArgumentError(
            f"there is no loss {loss!r}; there are {', '.join(LOSSES)}, or give a text"
        )
    return LOSSES[loss]
