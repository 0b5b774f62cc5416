"""torch's own operator samples through ``torch.compile(backend="farkas")``, beside eager torch.

    python -m tests.op_db --samples 3            all operators, three samples for each type
    python -m tests.op_db --only 'nn.functional' --part 0/2

Every operator of `op_db` is called on its own sample inputs, in float32, float64, int64 and bool,
forward and backward; where they name places, those of equal elements are as good.  Printed are
wrong results, errors that torch does not have, and operators of which a part stayed with torch,
each with the reason.  Needs torch and expecttest.
"""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
import warnings
from collections import Counter
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import farkas as fk

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)
#: (relative, absolute) differences allowed.
TOLERANCE = {torch.float32: (1e-4, 1e-4), torch.float64: (1e-7, 1e-7)}
#: Operators that name places, where torch promises no order of equal elements: which of the outputs
#: has the places, and which argument is the dimension.
PLACES = {
    "sort": (1, 0), "argsort": (0, 0), "topk": (1, 1), "kthvalue": (1, 1), "median": (1, 0),
    "nanmedian": (1, 0), "mode": (1, 0),
}  # fmt: skip
#: Seconds for one sample.
LIMIT = 120


class Outcome:
    """What became of one sample."""

    def __init__(self, kind: str, left: dict[str, str], detail: str = "") -> None:
        self.kind, self.left, self.detail = kind, left, detail


def _fresh(value: Any) -> Any:
    """A copy with its own gradient."""

    def copy(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        made = x.detach().clone()
        return made.requires_grad_(x.requires_grad)

    return tree_map(copy, value)


def _run(function: Any, sample: Any) -> tuple[list[Any], list[Any]]:
    """Outputs and gradients."""
    torch.manual_seed(0)
    given = _fresh((sample.input, sample.args, sample.kwargs))
    found = function(given[0], *given[1], **given[2])
    outputs, _ = tree_flatten(found)
    inputs = [x for x in tree_flatten(given)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    wanted = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    grads: list[Any] = []
    if inputs and wanted:
        seeds = [torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype).view(o.shape) for o in wanted]
        grads = list(torch.autograd.grad(wanted, inputs, seeds, allow_unused=True))
    return outputs, grads


def _differ(a: Any, b: Any) -> str:
    if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
        return f"{type(a).__name__} and {type(b).__name__}"
    if not isinstance(a, torch.Tensor):
        return "" if a == b or a != a else f"{a} and {b}"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
    rtol, atol = TOLERANCE.get(a.dtype, (1e-4, 1e-4))
    try:
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return str(error).replace("\n", " ")[:200]
    return ""


def _equal_elements(name: str, sample: Any, position: int, a: Any, b: Any) -> bool:
    """Whether an output names other places, but of equal elements."""
    output, argument = PLACES.get(name, (None, 0))
    if position != output or a.shape != b.shape or b.dtype != torch.int64:
        return False
    given = dict(enumerate(sample.args)) | sample.kwargs
    x, dim = sample.input.detach(), given.get("dim", given.get(argument, -1))
    if not x.dim() or not isinstance(dim, int):
        return False
    places = [i if i.dim() == x.dim() else i.unsqueeze(dim) for i in (a, b)]
    if any(((i < 0) | (i >= x.shape[dim])).any() for i in places):
        return False
    return not _differ(*(x.gather(dim, i) for i in places))


def judge(op: Any, sample: Any) -> Outcome:
    """Run one sample in both ways."""
    try:
        expected = _run(op, sample)
        again = _run(op, sample)
    except Exception as error:
        return Outcome("eager fails", {}, f"{type(error).__name__}: {error}"[:100])
    if any(
        _differ(a, b)
        for x, y in zip(expected, again, strict=True)
        for a, b in zip(x, y, strict=True)
    ):
        return Outcome("random", {})
    torch._dynamo.reset()
    fk.torch.reports.clear()
    compiled = torch.compile(lambda *a, **k: op(*a, **k), backend="farkas")
    try:
        found = _run(compiled, sample)
    except Exception as error:
        return Outcome("error", {}, f"{type(error).__name__}: {error}"[:400])
    left = {name: why for r in fk.torch.reports for name, why in r.left}
    if op.name.startswith(("empty", "new_empty")):
        return Outcome("random", {})
    names = [("output", i) for i in range(len(expected[0]))]
    names += [("gradient", i) for i in range(len(expected[1]))]
    pairs = zip([*expected[0], *expected[1]], [*found[0], *found[1]], strict=True)
    for (what, i), (a, b) in zip(names, pairs, strict=True):
        difference = _differ(a, b)
        if difference and what == "output" and _equal_elements(op.name, sample, i, a, b):
            continue
        if difference:
            return Outcome("wrong", left, f"{what} {i}: {difference}")
    if not fk.torch.reports:
        return Outcome("no graph", left)
    return Outcome("left" if left else "equal", left)


def _late(*_: Any) -> None:
    raise TimeoutError(f"over {LIMIT} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="0/1")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _late)
    part, parts = map(int, options.part.split("/"))
    total: Counter[str] = Counter()
    whole = partly = 0
    for number, op in enumerate(op_db):
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        if number % parts != part or not re.search(options.only, name):
            continue
        kinds: Counter[str] = Counter()
        left: dict[str, str] = {}
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            grad = dtype.is_floating_point and op.supports_autograd
            try:
                samples = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
            except Exception:
                continue
            step = max(1, len(samples) // options.samples)
            for sample in samples[::step][: options.samples]:
                signal.alarm(LIMIT)
                try:
                    found = judge(op, sample)
                except TimeoutError as error:
                    found = Outcome("error", {}, str(error))
                signal.alarm(0)
                kinds[found.kind] += 1
                left |= found.left
                if found.kind in ("wrong", "error"):
                    shown = f"{found.kind.upper()} {name} {str(dtype)[6:]} {_shown(sample)}"
                    print(f"{shown}: {found.detail}".replace("\n", " "), flush=True)
        total += kinds
        if kinds["equal"] or kinds["left"]:
            whole += not left
            partly += bool(left)
        if left:
            print(f"LEFT {name}: " + "; ".join(f"{n} ({w})" for n, w in left.items()), flush=True)
        print(f"{name}: {dict(kinds)}", file=sys.stderr, flush=True)
    print(f"TOTAL {dict(total)}; operators: {whole} whole, {partly} with a part left to torch")


def _shown(sample: Any) -> str:
    def short(x: Any) -> Any:
        return f"{list(x.shape)}" if isinstance(x, torch.Tensor) else x

    text = f"{tree_map(short, sample.input)} {tree_map(short, sample.args)} {sample.kwargs}"
    return text.replace("\n", " ")[:160]


if __name__ == "__main__":
    main()
