"""How each node of a model is imported, found without compiling anything."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import NodeProto

from frontends.onnx.core.identifiers import printable
from frontends.onnx.core.node import Value
from frontends.onnx.core.stages import Given, Pending, Routines
from frontends.onnx.core.symbolic_dims import hint_of
from frontends.onnx.core.value_types import Shapes
from frontends.onnx.importer.environment import CloseError
from frontends.onnx.importer.importer import Importer
from frontends.onnx.model.loading import domain_of, shown_name, shown_operator
from frontends.onnx.model.source import Source, unknown_operators
from poly.errors import ModelError, ModelWarning, UnsupportedNode
from poly.ir.cost import work_of_program
from poly.ir.graph import Call, Routine
from poly.ir.port import Port

#: The ways in which a node may be imported, the best first.
COMPREHENSION, VIEW, KNOWN, EXPANDED = "comprehension", "view", "known now", "inlined"
ROUTINE = "routine"
OPAQUE, LATER, UNSUPPORTED, BROKEN = "opaque", "when data is known", "not supported", "broken"

#: Sizes that stand in for open axes, in turn; axes of the same name share one.
_STAND_INS = (7, 11, 13, 17, 19, 23, 29, 31)
#: Sizes that stand in for all open axes, so that no window is refused for being too large.
_OTHERS = (1, 8, 512)


@dataclass(frozen=True)
class Diagnosis:
    """How one node is imported.

    how : one of the words above; reason : why it is not compiled now; types : of its results;
    work : simple operations; bytes : of operands and results, both for the current sizes
    is_certain : whether it was refused before anything was asked about open sizes
    """

    name: str
    operator: str
    opset: int
    how: str
    reason: str = ""
    types: tuple[str, ...] = ()
    work: int = 0
    bytes: int = 0
    is_certain: bool = False

    def is_also(self, other: Diagnosis) -> bool:
        """Whether it is the same problem for other sizes."""
        return self.how == other.how and (self.is_certain or self.reason == other.reason)

    @property
    def is_problem(self) -> bool:
        """Whether the model cannot be compiled because of this node."""
        return self.how in (UNSUPPORTED, BROKEN)

    def __str__(self) -> str:
        return f"{self.operator} '{self.name}' (opset {self.opset}): {self.reason or self.how}"


@dataclass(frozen=True)
class Examination:
    """How a model's nodes are imported, and the inputs that it was examined for."""

    nodes: tuple[Diagnosis, ...]
    inputs: tuple[Port, ...]

    @property
    def problems(self) -> tuple[Diagnosis, ...]:
        """The nodes that keep the model from being compiled."""
        return tuple(n for n in self.nodes if n.is_problem)

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """The number of nodes by operator and by how they are imported."""
        return Counter((n.operator, n.how) for n in self.nodes)


def examine(source: Source, shapes: Shapes | None = None) -> Examination:
    """How each node is imported; with open sizes, as far as it does not depend on them.

    Raises
    ------
    ModelError : an input of a type that cannot be passed.
    ArgumentError : `shapes` that do not fit the model.
    """
    ports = source.input_ports(shapes or {})
    unknown = tuple(
        Diagnosis(n.name, n.operator, n.opset, UNSUPPORTED, n.reason)
        for n in unknown_operators(source)
    )
    if any(p.shape is None for p in ports):
        return Examination(unknown, ports)  # without ranks, only operators can be checked
    diagnoses = _examined(source, _stand_ins(ports))
    found = {(d.name, d.operator) for d in diagnoses if d.is_problem}
    more = [d for d in unknown if (d.name, d.operator) not in found]
    return Examination((*diagnoses, *more), ports)


def never_supported(source: Source, shapes: Shapes | None = None) -> tuple[UnsupportedNode, ...]:
    """The nodes that cannot be compiled, whatever the open sizes are.

    These are the ones of unknown operators, and those that are refused for each of several choices
    of sizes, in the same words, or before anything was asked about sizes.  What is refused for some
    sizes, or because of an open one, may be compiled for others.  Where there are such nodes, those
    that are broken are listed, too.

    Raises
    ------
    ModelError : an input of a type that cannot be passed; nodes that are broken in this way, and no
        others.
    ArgumentError : `shapes` that do not fit the model.
    """
    ports = source.input_ports(shapes or {})
    unknown = {(n.name, n.operator): n for n in unknown_operators(source)}
    if any(p.shape is None for p in ports):
        return tuple(unknown.values())
    found = _problems(source, _stand_ins(ports))
    for size in _OTHERS:
        if found:
            others = _problems(source, _stand_ins(ports, (size,)))
            found = {k: d for k, d in found.items() if k in others and d.is_also(others[k])}
    if found and not unknown and all(d.how == BROKEN for d in found.values()):
        raise ModelError("\n".join(d.reason for d in found.values()))
    nodes = {k: UnsupportedNode(d.name, d.operator, d.opset, d.reason) for k, d in found.items()}
    return tuple((nodes | unknown).values())


def _problems(source: Source, given: Mapping[str, Given]) -> dict[tuple[str, str], Diagnosis]:
    """The nodes that keep a model from being compiled for inputs of these shapes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)  # they come when it is imported
        found = _examined(source, given)
    return {(d.name, d.operator): d for d in found if d.is_problem}


def _examined(source: Source, given: Mapping[str, Given]) -> tuple[Diagnosis, ...]:
    """How each node is imported; sizes that cannot stay open are closed, as in an import."""
    refused: dict[tuple[str, str], str] = {}
    while True:
        examiner = _Examiner(source, given)
        try:
            examiner.examine()
        except CloseError as error:
            refused.setdefault(_key(error.proto), error.refused)
            given = {n: g.closed(error.names) for n, g in given.items()}
        else:
            break
    # The words with names in place of stand-ins, where no other sizes would help.
    return tuple(
        replace(d, reason=reason, is_certain=True)
        if d.how == BROKEN and (reason := refused.get((d.name, d.operator)))
        else d
        for d in examiner.found
    )


def _key(proto: NodeProto) -> tuple[str, str]:
    """The name and operator of a node, as they are shown."""
    return printable(shown_name(proto)), printable(shown_operator(proto))


def _stand_ins(ports: Sequence[Port], choices: Sequence[int] = _STAND_INS) -> dict[str, Given]:
    """Inputs with sizes for open axes, which are taken in turn; axes of one name share one."""
    sizes: dict[str, int] = {}
    given = {}
    for port in ports:
        names = port.axes
        assert port.shape is not None and names is not None
        shape = tuple(
            e
            if isinstance(e, int)
            else sizes.setdefault(str(n), choices[len(sizes) % len(choices)])
            for e, n in zip(port.shape, names, strict=True)
        )
        given[port.name] = Given(port.dtype, shape, open=names)
    return given


class _Examiner(Importer):
    """An import that continues after every problem and records how each node was imported."""

    def __init__(self, source: Source, given: Mapping[str, Given]) -> None:
        super().__init__(source, given, routines=Routines.FAST)
        self.found: list[Diagnosis] = []

    def examine(self) -> None:
        """Import what can be imported."""
        try:
            self._run()
        except ModelError as error:
            if not any(d.is_problem for d in self.found):
                self.found.append(Diagnosis("model", "outputs", 0, BROKEN, str(error)))

    def _import_node(self, pending: Pending) -> None:
        before = len(self.nodes), len(self.opaque), len(self.unsupported), len(self.rest)
        postponed, waiting = len(self.postponed), len(self.work)
        reason = ""
        try:
            super()._import_node(pending)
        except ModelError as error:
            how, reason = BROKEN, str(error)
            self._skip(pending.node)
            self.rest.append(pending)
        else:
            calls = self.nodes[before[0] :]
            if len(self.unsupported) > before[2]:
                how, reason = UNSUPPORTED, self.unsupported[-1].reason
            elif len(self.opaque) > before[1]:
                how = OPAQUE
            elif len(self.rest) > before[3]:
                how = LATER
                reason = self.postponed[-1].reason if len(self.postponed) > postponed else ""
            elif len(self.work) > waiting:
                how = EXPANDED
            elif any(isinstance(c, Call) for c in calls):
                how = COMPREHENSION
            elif any(isinstance(c, Routine) for c in calls):
                how = ROUTINE
            else:
                how = VIEW if calls else KNOWN
        self.found.append(self._diagnosis(pending, how, reason, before[0]))

    def _diagnosis(self, pending: Pending, how: str, reason: str, first: int) -> Diagnosis:
        proto = pending.node
        name, operator = _key(proto)
        results = [self.env.get(n) for n in proto.output if n]
        values = [v for v in results if isinstance(v, Value)]
        calls = [n for n in self.nodes[first:] if isinstance(n, Call)] if how else []
        env = dict(self.sizes.hints) | {
            n: math.prod(self.sizes.hints[s] for s in m) for n, m in self.sizes.products.items()
        }
        operands = [self.env.get(n) for n in proto.input if n]
        moved = [v for v in (*operands, *values) if isinstance(v, Value)] if calls else []
        return Diagnosis(
            name,
            operator,
            pending.versions.get(domain_of(proto.domain), 0),
            how,
            reason,
            tuple(f"{v.dtype}[{','.join(map(str, v.shape))}]" for v in values),
            sum(work_of_program(c.program, env) for c in calls),
            sum(hint_of(v.size) * v.dtype.bytes for v in moved),
        )
