"""Fusion of calls of a graph.

Two calls are merged when the result of the first is used by the second alone, and the program
that does both needs no pass over memory for it: because the value is computed where it is read, or
because it is read by statements that share the producer's loops and can run on its registers (the
epilogue of a contraction).  Registers of CPUs hold lanes of one type, and not every function is
available in lanes; those of a thread of a GPU hold anything.  Where this is not certain, the calls
stay separate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from poly.errors import ProgramError
from poly.ir.accesses import lane_value
from poly.ir.expr import Cast, Op, indices_of, reads_of, walk
from poly.ir.graph import Call, Graph, GraphNode
from poly.ir.operators import INEXACT
from poly.ir.program import Program, Statement
from poly.ir.quantisation import dequantisation_of
from poly.rewrites.merge_programs import (
    covers,
    extents,
    follows,
    merge,
    readers,
    renamed,
    simplified,
    writers,
)
from poly.rewrites.widen_sums import widen_temporaries

#: Bounds on merged programs, which limit compile time.
STATEMENT_LIMIT, INPUT_LIMIT = 12, 16
#: Characters of an origin; longer ones are shortened in the middle.
ORIGIN_LIMIT = 300

Pairs = tuple[tuple[str, str], ...]
_Not = TypeVar("_Not")


def merge_calls(graph: Graph, lanes: bool = True) -> Graph:
    """Fuse producers into their consumers, from the first call to the last.

    lanes : sums are in registers with several lanes, as on CPUs, which then also keep values
        between the calls that are fused in the type they are computed in
    """
    nodes: list[GraphNode | None] = list(graph.nodes)
    makers = {o: n for n, node in enumerate(graph.nodes) for o in node.outputs}
    users: dict[str, set[int]] = {}
    for n, node in enumerate(graph.nodes):
        for name in node.inputs:
            users.setdefault(name, set()).add(n)
    kept = set(graph.outputs)
    for n in range(len(nodes)):
        while True:
            call = nodes[n]
            if not isinstance(call, Call) or _waits(call, users, kept):
                break
            # This call is an epilogue of the producer of the value computed last.
            near = sorted({makers[v] for v in call.inputs if v in makers}, reverse=True)
            for m in near:
                first = nodes[m]
                if not isinstance(first, Call) or len(first.outputs) != 1:
                    continue
                (value,) = first.outputs
                again = dequantisation_of(first.program) is not None
                if value in kept or (users[value] != {n} and not again):
                    continue
                joined = merged_call(first, call, lanes)
                if isinstance(joined, Call):
                    nodes[n] = joined
                    users[value] = users[value] - {n}
                    gone = set() if users[value] else {m}
                    if gone:
                        nodes[m] = None
                    for name in first.inputs:
                        users[name] = (users[name] - gone) | {n}
                    break
            else:
                break
    rest = tuple(node for node in nodes if node is not None)
    made = {o for node in rest for o in node.outputs}
    hidden = {o for node in graph.nodes for o in node.outputs} - made
    return replace(
        graph,
        nodes=rest,
        values={k: v for k, v in graph.values.items() if k not in hidden},
        labels={k: v for k, v in graph.labels.items() if k not in hidden},
    )


def _waits(call: Call, users: Mapping[str, set[int]], kept: Collection[str]) -> bool:
    """Whether a call dequantises: those that read its result do it again, from a quarter of the
    bytes.
    """
    used = any(users.get(v) for v in call.outputs) and not {*call.outputs} & {*kept}
    return used and dequantisation_of(call.program) is not None


@dataclass(frozen=True)
class Apart:
    """Two calls that are not merged, and why."""

    reason: str


def why_apart(graph: Graph, maker: Call, user: Call, lanes: bool) -> str:
    """Why a call is not merged with the one that reads its result; lanes: see `merge_calls`."""
    if len(maker.outputs) != 1:
        return "it makes several values"
    (value,) = maker.outputs
    if value in graph.outputs:
        return f"{graph.label(value)} is an output of the model"
    users = [n for n in graph.nodes if value in n.inputs]
    if len(users) > 1:
        return f"{graph.label(value)} is read by {len(users)} nodes, which would each compute it"
    found = merged_call(maker, user, lanes)
    return found.reason if isinstance(found, Apart) else "another call was merged first"


def merged_call(first: Call, second: Call, lanes: bool) -> Call | Apart:
    """Merge two calls, the first of which computes what only the second reads, if that saves a pass
    over memory."""

    def whole(a: Program, b: Program, bindings: Pairs, shared: Pairs) -> Program | Apart:
        return fused(a, b, bindings, shared, lanes)

    return join_calls(first, second, whole)


def join_calls(
    first: Call, second: Call, joined: Callable[[Program, Program, Pairs, Pairs], Program | _Not]
) -> Call | _Not:
    """One call in place of two, the first of which computes what only the second reads.

    joined : makes their program of both, of the inputs of the second that are outputs of the first,
        and of those that are inputs of the first, by name; or says that there is none
    """
    made = dict(zip(first.outputs, (t.name for t in first.program.outputs), strict=True))
    given: dict[str, str] = {}
    for value, tensor in zip(first.inputs, first.program.inputs, strict=True):
        given.setdefault(value, tensor.name)
    mine = list(zip((t.name for t in second.program.inputs), second.inputs, strict=True))
    bindings = tuple((t, made[v]) for t, v in mine if v in made)
    shared = tuple((t, given[v]) for t, v in mine if v in given)
    program = joined(first.program, second.program, bindings, shared)
    if not isinstance(program, Program):
        return program
    names = renamed(first.program, second.program, dict(bindings), dict(shared))
    values = dict(zip((t.name for t in first.program.inputs), first.inputs, strict=True))
    values |= {names[t]: v for t, v in mine if v not in made}
    return Call(
        second.name,
        program,
        tuple(values[t.name] for t in program.inputs),
        second.outputs,
        joined_origin(first.origin, second.origin),
    )


def joined_origin(first: str, second: str) -> str:
    """``Conv 'c' + Relu 'r'``"""
    parts = [o.rpartition(" (opset ")[0] or o for o in (first, second)]
    text = " + ".join(p for p in parts if p)
    if len(text) <= ORIGIN_LIMIT:
        return text
    half = ORIGIN_LIMIT // 2
    return f"{text[:half]} … {text[-half:]}"


@lru_cache(maxsize=4096)
def fused(
    first: Program, second: Program, bindings: Pairs, shared: Pairs, lanes: bool
) -> Program | Apart:
    """The merged program, if merging saves a pass over memory for every bound value."""
    if first.has_blocks or second.has_blocks:
        return Apart("one of them runs step by step, and a value may change from step to step")
    bound = {tensor for _, tensor in bindings}
    inputs = {tensor for tensor, _ in bindings}
    looking = [s for s in second.statements if _reads(s, inputs)]
    if any(is_contraction(s) for s in looking):
        return Apart("a contraction would compute the value again for each use")
    if any(s.reductions for s in looking) and any(s.reductions for s in first.statements):
        return Apart("two reductions in a row seldom share a loop that threads can share")
    narrow = all(t.dtype.bits == 8 for t in first.outputs)
    if narrow and any(s.reductions for s in looking):
        return Apart("the value has 8 bits, and its bytes are read faster than it is computed")
    if narrow and any(map(_is_slow, looking)):
        return Apart("the value has 8 bits, and a table all that is computed of it")
    if any(len(writers(second, t.name)) != 1 for t in second.outputs):
        return Apart("it concatenates parts, and each would need loops of its own")
    if len(_contractions(first)) + len(_contractions(second)) > 1:
        return Apart("each has a contraction, with tiles of its own")
    try:
        whole = merge(first, second, dict(bindings), dict(shared))
        program = simplified(widen_temporaries(whole) if lanes else whole)
    except ProgramError as error:
        return Apart(f"they cannot be one program: {error}")
    if len(program.statements) > STATEMENT_LIMIT or len(program.inputs) > INPUT_LIMIT:
        return Apart(
            f"together they have {len(program.statements)} statements and {len(program.inputs)} "
            f"inputs; {STATEMENT_LIMIT} and {INPUT_LIMIT} are allowed, to bound compile time"
        )
    temps = {t.name for t in program.temps}
    if any(not _is_followed(program, name) for name in bound & temps):
        return Apart("the value is read at other indices than it is written at")
    for s in _contractions(program):
        name = s.target.tensor
        if name not in temps:
            continue
        if not _is_followed(program, name) or (lanes and not _on_lanes(program, name)):
            return Apart("what follows the contraction cannot run on its registers")
    return program


def _is_slow(s: Statement) -> bool:
    """Whether a function without an instruction of its own is computed."""
    return any(isinstance(e, Op) and e.fn in INEXACT for e in walk(s.value))


def _contractions(program: Program) -> list[Statement]:
    return [s for s in program.statements if is_contraction(s)]


def is_contraction(s: Statement) -> bool:
    """Whether a statement sums up products some of whose factors are reused."""
    if not s.is_reduction or not s.reductions:
        return False
    sizes = extents(s)
    free = {i for i in s.free if sizes[i] > 1}
    return any(
        r.indices and not free <= {i for e in r.indices for i in indices_of(e)}
        for r in reads_of(s.value)
    )


def _reads(s: Statement, tensors: set[str]) -> bool:
    return any(r.tensor in tensors for r in reads_of(s.value))


def _is_followed(program: Program, name: str) -> bool:
    """Whether statements read a temporary at the indices and in the loops of its write."""
    made = writers(program, name)
    if len(made) != 1 or not covers(program.statements[made[0]], program.tensors[name]):
        return False
    source = program.statements[made[0]]
    return all(follows(program.statements[n], source) for n in readers(program, name))


def _on_lanes(program: Program, name: str) -> bool:
    """Whether the statements that read a temporary can be computed on vectors of it, in as many
    lanes.
    """
    bits = program.dtypes[name].compute.bits
    for n in readers(program, name):
        s = program.statements[n]
        types = {program.dtypes[r.tensor] for r in (s.target, *reads_of(s.value))}
        types |= {e.dtype for e in walk(s.value) if isinstance(e, Cast)}
        if not lane_value(s.value) or any(t.compute.bits > bits for t in types):
            return False
    return True
