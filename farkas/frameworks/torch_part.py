"""Nodes of an ATen graph that are compiled together, and the call that takes their place."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from farkas.frameworks.torch_threads import compiler
from farkas.networks.compile_onnx import compile_onnx
from farkas.networks.network import Network
from frontends.aten.convert import Converted, convert
from frontends.aten.layouts import Order, order_of
from frontends.aten.values import Unsupported
from poly.errors import FarkasError
from runtime.common.exchange import memory_of_torch, to_torch


class Part:
    """Nodes that are compiled together."""

    def __init__(self, nodes: Sequence[Any], threads: int | None) -> None:
        self.nodes = nodes
        inside = set(nodes)
        outer = dict.fromkeys(g for n in nodes for g in n.all_input_nodes if g not in inside)
        self.outputs = [
            n for n in nodes
            if _has_tensor(n) and any(user not in inside for user in n.users)
        ]  # fmt: skip
        self.inputs = [n for n in outer if _has_tensor(n)]
        self.symbols = [n for n in outer if not _has_tensor(n)]
        orders = [_order(n.meta["val"]) for n in self.inputs]
        results = [_order(n.meta["val"]) for n in self.outputs]
        converted = convert(nodes, self.inputs, self.outputs, orders, results)
        sizes = [(name, self._where(symbol)) for name, symbol in converted.sizes]
        pairs = [n.meta["val"].is_complex() for n in self.outputs]
        self.call = CompiledPart(converted, orders, results, pairs, sizes, threads)

    def _where(self, symbol: Any) -> int:
        """The argument that is a size of torch."""
        for node in (*self.symbols, *self.nodes[0].graph.find_nodes(op="placeholder")):
            value = node.meta.get("val")
            if hasattr(value, "node") and value.node.expr == symbol:
                if node not in self.symbols:
                    self.symbols.append(node)
                return len(self.inputs) + self.symbols.index(node)
        raise Unsupported(f"a size {symbol} that is nowhere given")

    def insert(self, module: Any, name: str) -> None:
        """Put a call of the compiled part in place of the nodes."""
        graph = module.graph
        fallback = _submodule(module, self.nodes, [*self.inputs, *self.symbols], self.outputs)
        self.call.fallback = fallback
        module.add_module(name, _module(self.call))
        # All inputs are defined before the last node, and no user of the outputs comes before it
        # but those that are moved behind.
        last = self.nodes[-1]
        with graph.inserting_after(last):
            call = graph.call_module(name, (*self.inputs, *self.symbols))
        after = call
        inside = set(self.nodes)
        for position, node in enumerate(self.outputs):
            with graph.inserting_after(after):
                made = graph.call_function(_item, (call, position))
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made, delete_user_cb=lambda u: u not in inside)
            after = made
        for node in reversed(self.nodes):
            graph.erase_node(node)


def _item(values: Any, position: int) -> Any:
    return values[position]


def _has_tensor(node: Any) -> bool:
    value = node.meta.get("val")
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _order(tensor: Any) -> Order:
    """The order of the dimensions, of which the parts of complex elements are the last."""
    order = order_of(tensor)
    return order if order is None or not tensor.is_complex() else (*order, tensor.dim())


def _submodule(
    module: Any, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> Any:
    """The nodes as a graph of their own, for torch to run."""
    fx = import_module("torch.fx")
    graph = fx.Graph()
    made = {n: graph.placeholder(n.name) for n in inputs}
    for node in nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[n] for n in outputs))
    return fx.GraphModule(module, graph)


def _module(call: Callable[..., Any]) -> Any:
    """A module of torch that calls something."""
    base = import_module("torch").nn.Module

    class Call(base):  # type: ignore[misc, valid-type]
        def forward(self, *arguments: Any) -> Any:
            return call(*arguments)

    return Call()


class _Input:
    """An input of a part: tensors to numpy arrays on the same memory.

    Parameters come again at every call; theirs is kept, and looked up by the tensor and its
    address.
    """

    def __init__(self, name: str, order: Order) -> None:
        self.name, self._order = name, order
        self._last: Any = lambda: None
        #: The array of that tensor, and where it lies, in which form: a tensor may be resized.
        self._kept: tuple[Any, Any] | None = None

    def array(self, tensor: Any) -> Any:
        """The memory of a tensor."""
        again, kept = self._last() is tensor, self._kept
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if again and kept is not None and kept[1] == place:
            return kept[0]
        # A view of what it is minus, or the conjugate of.
        order, copied = self._order, tensor.is_neg() or tensor.is_conj()
        plain = tensor.resolve_neg().resolve_conj() if copied else tensor
        if plain.is_complex():
            plain = import_module("torch").view_as_real(plain.detach())
        found = memory_of_torch(self.name, plain if order is None else plain.permute(order))
        # What comes once, or is a copy, is let go.
        self._kept = (found, place) if again and not copied else None
        self._last = weakref.ref(tensor)
        return found


class CompiledPart:
    """A compiled part: tensors, then sizes, to tensors."""

    def __init__(
        self,
        converted: Converted,
        orders: Sequence[Order],
        results: Sequence[Order],
        pairs: Sequence[bool],
        sizes: Sequence[tuple[str, int]],
        threads: int | None,
    ) -> None:
        self._converted, self._sizes = converted, sizes
        self._inputs = [*map(_Input, converted.inputs, orders)]
        self._results, self._pairs = [*zip(converted.outputs, results, strict=True)], pairs
        threads = threads or import_module("torch").get_num_threads()
        self.network: Network = compile_onnx(converted.model, threads=threads, cc=compiler())
        #: What runs the nodes where compiled code cannot.
        self.fallback: Any = None
        self._failed = False

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Run it.

        Raises
        ------
        IndexError, RuntimeError : an index is out of range, an integer is divided by 0.
        """
        if self._failed:
            return tuple(self.fallback(*arguments))
        arrays = {
            given.name: given.array(value)
            for given, value in zip(self._inputs, arguments, strict=False)
        }
        for name, position in self._sizes:
            arrays[name] = np.zeros(int(arguments[position]), np.bool_)
        try:
            results = self.network.run(arrays)
        except FarkasError as error:
            self._failed = True
            warnings.warn(f"Farkas leaves a part to torch: {error}", stacklevel=2)
            return tuple(self.fallback(*arguments))
        for check in self._converted.checks:
            if results[check.name] > 0:
                if check.error is None:
                    return tuple(self.fallback(*arguments))
                raise check.exception(int(results[check.name]))
        return tuple(
            _given(results[name], order, pairs)
            for (name, order), pairs in zip(self._results, self._pairs, strict=True)
        )


def _given(array: Any, order: Order, pairs: bool) -> Any:
    """A result in the order of its dimensions for torch; of pairs, with complex elements."""
    # By numpy, since torch would remember that it is a view, which may not be written to.
    if order is not None:
        array = array.transpose([order.index(axis) for axis in range(len(order))])
    if pairs:
        kind = np.result_type(array.dtype, np.complex64)
        parts = array if array.size else np.empty(array.shape, array.dtype)
        array = parts.view(kind).reshape(array.shape[:-1])
    return to_torch(array)
