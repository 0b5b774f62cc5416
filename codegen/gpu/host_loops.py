"""The host's part of a GPU schedule: loops and conditions around launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl

from codegen.loops.from_schedule import AST_BUDGET, converted
from codegen.loops.nodes import Instance, LaunchKernel, LoopNode
from codegen.loops.traverse import map_children
from poly.deps.footprint import prefix_map
from poly.deps.legality import budget
from poly.deps.scop import Scop
from poly.lower.isl_tree import IslTree
from poly.lower.launches import Launch
from poly.sets.isl_names import dim, dims
from poly.tree.nodes import Band, KernelLeaf, Node
from poly.tree.nodes import Sequence as InOrder


def build_host(scop: Scop, tree: Node, launches: Sequence[Launch]) -> LoopNode:
    """Build the loops and conditions around `LaunchKernel` nodes.

    A launch in which no thread would do anything is left out.

    tree : what the host runs, with a `KernelLeaf` for each launch

    Raises
    ------
    ScheduleError : isl exceeded its budget.
    """
    with budget(scop, "code generation", AST_BUDGET):
        domain = isl.UnionSet.empty(scop.context.get_space())
        for launch in launches:
            domain = domain.union(isl.UnionSet.from_set(_instances(launch, scop)))
        body = _node(tree, launches, 0)
        text = f'{{ domain: "{domain}"' + (f", child: {body} }}" if body else " }")
        schedule = isl.Schedule.read_from_str(scop.context.get_ctx(), text)
        loops = converted(IslTree(schedule=schedule), scop, scop.context)
    return _with_launches(loops, {_name(launch): launch.number for launch in launches})


def _with_launches(node: LoopNode, numbers: Mapping[str, int]) -> LoopNode:
    """Replace each instance of a launch, found by its isl name, by the launch."""
    if isinstance(node, Instance):
        return LaunchKernel(numbers[node.statement], node.args)
    return map_children(node, lambda child: _with_launches(child, numbers))


def _name(launch: Launch) -> str:
    """The isl name of a launch."""
    return f"launch{launch.number}"


def _instances(launch: Launch, scop: Scop) -> isl.Set:
    """``{ launch[p] }`` for all iterations p of the host's loops with an instance."""
    every: isl.Set | None = None
    for name in launch.statements:
        own = prefix_map(scop.statement(name), launch.host).range()
        own = own.intersect_params(scop.statement(name).domain.params())
        every = own if every is None else every.union(own)
    assert every is not None
    every = every.intersect_params(scop.context).coalesce()
    return every.set_tuple_name(_name(launch))


def _node(node: Node, launches: Sequence[Launch], depth: int) -> str:
    """The node in isl's flow-style YAML; "" for a launch."""
    if isinstance(node, KernelLeaf):
        return ""
    if isinstance(node, InOrder):
        children = []
        for f in node.children:
            below = _launches_below(f.child)
            tuples = "; ".join(_tuple(launches[n]) for n in below)
            child = _node(f.child, launches, depth)
            body = f", child: {child}" if child else ""
            children.append(f'{{ filter: "{{ {tuples} }}"{body} }}')
        return f"{{ sequence: [ {', '.join(children)} ] }}"
    assert isinstance(node, Band)
    below = _launches_below(node)
    functions = []
    for k in range(depth, depth + len(node.members)):
        functions.append("; ".join(f"{_tuple(launches[n])} -> [({dim('p', k)})]" for n in below))
    inner = _node(node.child, launches, depth + len(node.members))
    partial = ", ".join(f"{{ {f} }}" for f in functions)
    atomic = "; ".join(f"atomic[{k}]" for k in range(len(node.members)))
    text = f'{{ schedule: "[{partial}]", options: "{{ {atomic} }}"'
    return text + (f", child: {inner} }}" if inner else " }")


def _launches_below(node: Node) -> list[int]:
    if isinstance(node, KernelLeaf):
        return [node.number]
    if isinstance(node, InOrder):
        return [n for f in node.children for n in _launches_below(f.child)]
    assert isinstance(node, Band)
    return _launches_below(node.child)


def _tuple(launch: Launch) -> str:
    return f"{_name(launch)}[{', '.join(dims('p', len(launch.host)))}]"
