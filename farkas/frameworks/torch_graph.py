"""Parts of an ATen graph that are compiled, and what stays with torch."""

from __future__ import annotations

import logging
import warnings
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from farkas.frameworks.torch_part import Part
from frontends.aten.convert import is_getitem, why_not
from frontends.aten.values import Unsupported
from poly.errors import FarkasError, ToolchainError, UnsupportedModelError

_LOG = logging.getLogger("farkas.torch")

#: Operators whose result shares the memory of their operand.
_VIEWS = {
    "view", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice",
    "select", "alias", "detach", "diagonal", "unfold", "split_with_sizes", "split", "unbind",
    "view_as_real", "view_as_complex", "_conj", "_neg_view",
}  # fmt: skip


#: Where torch's operators are.
_SPACES = ("aten", "prims")


@dataclass(frozen=True)
class Report:
    """What became of one graph of torch.

    nodes : how many operators it has; parts : how many compiled parts; left : the operators that
    stayed with torch, with the reason and how many there are
    """

    nodes: int
    parts: int
    left: dict[tuple[str, str], int]

    def __str__(self) -> str:
        stayed = sum(self.left.values())
        lines = [f"{self.nodes - stayed} of {self.nodes} operators compiled, in {self.parts} parts"]
        lines += [
            f"  {name} stays with torch{f' ({count})' if count > 1 else ''}: {why}"
            for (name, why), count in self.left.items()
        ]
        return "\n".join(lines)


#: The last graphs that were compiled.
reports: deque[Report] = deque(maxlen=256)


#: Operators with vectors among their results whose signs nothing says, and which results they are.
_UNSIGNED = {"aten._linalg_svd.default": (0, 2), "aten._linalg_eigh.default": (1,)}


def compile_graph(
    module: Any, threads: int | None = None, shown: int | None = None
) -> Callable[..., Any]:
    """Compile what can be compiled of a graph of ATen operators; returns what runs it.

    threads : of each run, None for torch's number
    shown : how many of the results come first that are not only for a backward pass; None for all
    """
    reasons = {n: why_kept(n) for n in module.graph.nodes if n.op == "call_function"}
    saved = _only_saved(module.graph, shown)
    for node in reasons:
        if reasons[node] is None and _has_signs(node, saved):
            reasons[node] = "the signs of singular and eigenvectors are LAPACK's"
    kept = {n for n, why in reasons.items() if why is not None}
    kept |= _views_that_show(module.graph, kept)
    while True:
        parts, excluded = _compiled_parts(module, kept, threads)
        if not excluded:
            break
        for node, why in excluded.items():
            reasons[node] = why
        kept |= excluded.keys()
    return _joined(module, parts, reasons)


def _joined(module: Any, parts: list[Part], reasons: dict[Any, str | None]) -> Callable[..., Any]:
    """The graph with parts in place of their nodes."""
    left = Counter(
        (str(n.target), why) for n, why in reasons.items() if why is not None and computes(n)
    )
    count = sum(1 for n in reasons if computes(n))
    report = Report(count, len(parts), dict(left))
    reports.append(report)
    _LOG.info("%s", report)
    for number, part in enumerate(parts):
        part.insert(module, f"farkas_{number}")
    if parts:  # their inputs may be defined behind their first nodes
        import_module("torch.fx.passes.tools_common").stable_topological_sort(module)
    module.graph.lint()
    module.recompile()
    forward: Callable[..., Any] = module.forward
    return forward


def computes(node: Any) -> bool:
    """Whether a node computes elements, and not a size or a place in a list."""
    return hasattr(node.target, "_schema") and not str(node.target).startswith("aten.sym_")


def why_kept(node: Any) -> str | None:
    """Why a node stays with torch; None if it can be compiled."""
    try:
        return why_not(node)
    except Exception as error:
        _LOG.debug("%s: %s", node.format_node(), error, exc_info=True)
        return f"{type(error).__name__}: {error}"


def _views_that_show(graph: Any, kept: set[Any]) -> set[Any]:
    """Views whose memory shows; `kept` are nodes that stay with torch.

    Those of inputs that are results share the inputs' memory, which costs nothing, and results that
    are views of the same tensor share its.  What is read at strides has to lie as torch has it.
    """
    results = {n: _viewed(n) for n in graph.find_nodes(op="output")[0].all_input_nodes}
    count = Counter(base for _, base in results.values())
    found = set()
    for chain, base in results.values():
        if base.op == "placeholder" or count[base] > 1:
            found.update(chain)
    for node in kept:
        if "as_strided" in str(node.target):
            found.update(*(_viewed(given)[0] for given in node.all_input_nodes))
    return found


def _viewed(node: Any) -> tuple[list[Any], Any]:
    """The views that a node is the last one of, and what they are views of."""
    chain = []
    while _is_view(node) and (not is_getitem(node) or _is_view(node.args[0])):
        chain.append(node)
        node = node.all_input_nodes[0]
    return chain, node


def _only_saved(graph: Any, shown: int | None) -> set[Any]:
    """Results that are only for a backward pass."""
    (results,) = graph.find_nodes(op="output")[0].args
    if shown is None or not isinstance(results, (tuple, list)):
        return set()
    return {*results[shown:]} - {*results[:shown]}


def _has_signs(node: Any, saved: set[Any]) -> bool:
    """Whether the signs of a node's vectors show: gradients of its values do not depend on them."""

    def shows(value: Any) -> bool:
        return any(
            value not in saved if user.op == "output" else not _is_view(user) or shows(user)
            for user in value.users
        )

    places = _UNSIGNED.get(str(node.target), ())
    return any(u.args[1] in places and shows(u) for u in node.users if is_getitem(u))


def _is_view(node: Any) -> bool:
    if node.op != "call_function":
        return False
    packet: Any = getattr(node.target, "overloadpacket", None)
    return is_getitem(node) or (str(packet).startswith("aten.") and packet.__name__ in _VIEWS)


# --- parts ----------------------------------------------------------------------------------------


def _compiled_parts(
    module: Any, kept: set[Any], threads: int | None
) -> tuple[list[Part], dict[Any, str]]:
    """Compiled parts of all nodes but `kept`; or the nodes that have to be kept, too, and why."""
    partitioner = import_module("torch.fx.passes.infra.partitioner")
    support = import_module("torch.fx.passes.operator_support").create_op_support(
        lambda _, node: node.op == "call_function" and node not in kept
    )
    found = partitioner.CapabilityBasedPartitioner(
        module, support, allows_single_node_partition=True
    ).propose_partitions()
    order = {n: position for position, n in enumerate(module.graph.nodes)}
    parts: list[Part] = []
    excluded: dict[Any, str] = {}
    for partition in found:
        nodes = sorted(partition.nodes, key=order.__getitem__)
        if not any(map(computes, nodes)):
            continue
        try:
            parts.append(Part(nodes, threads))
        except UnsupportedModelError as error:
            names = {u.name: u.reason for u in error.nodes}
            wrong = {n: names[n.name] for n in nodes if n.name in names}
            excluded |= wrong or {n: str(error) for n in nodes}
        except ToolchainError as error:
            warnings.warn(f"torch runs everything itself: {error}", stacklevel=2)
            excluded |= {n: str(error).splitlines()[0] for n in nodes}
        except (FarkasError, Unsupported) as error:
            # A text of a user's own, if there is one, is what is less sure to compile.
            own = [n for n in nodes if computes(n) and n.target.namespace not in _SPACES]
            excluded |= {n: str(error).splitlines()[0] for n in own or nodes}
    return parts, excluded
