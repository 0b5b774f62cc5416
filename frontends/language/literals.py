"""Checks that literals fit their types; a literal takes the type of the other operand."""

from __future__ import annotations

from collections.abc import Mapping

from frontends.language.resolve import Scope, check_fits
from frontends.language.syntax import Chain, Node, Number, children
from poly.ir.dtypes import BOOL, INT64, DType
from poly.ir.expr import Cast, Expr, Op, Read, dtype_where, is_weak, operand_dtype


def check_stored(
    node: Node, value: Expr, target: DType, dtypes: Mapping[str, DType], scope: Scope
) -> None:
    """Check the literals of a value that is stored in a tensor of type `target`.

    value : the expression that `node` resolves to

    Raises
    ------
    LanguageError : as `check_fits`.
    """
    if not isinstance(node, Number):
        _Checker(dtypes, scope).check(node, value, target)
    elif not isinstance(node.value, bool):
        check_fits(node.value, target, node.span, scope, "declare a tensor of a wider type")


class _Checker:
    """Walks a value with the type in which each part is computed."""

    def __init__(self, dtypes: Mapping[str, DType], scope: Scope) -> None:
        self.dtypes, self.scope = dtypes, scope

    def check(self, node: Node, expr: Expr, want: DType | None) -> None:
        if isinstance(node, Number):
            if not isinstance(node.value, bool):
                dtype = dtype_where(expr, self.dtypes, want)
                check_fits(node.value, dtype.compute, node.span, self.scope, _hint(dtype))
        elif isinstance(expr, Cast):
            self.check(children(node)[0], expr.arg, expr.dtype)
        elif isinstance(expr, Read):
            for child, index in zip(children(node), expr.indices, strict=True):
                self.check(child, index, INT64)
        elif isinstance(node, Chain):
            pairs = [expr]
            for _ in node.fns[1:]:
                assert isinstance(pairs[0], Op)
                pairs[:1] = pairs[0].args
            for n, pair in enumerate(pairs):
                self._check_operands(node.args[n : n + 2], pair, None)
        elif isinstance(expr, Op):
            self._check_operands(children(node), expr, want)

    def _check_operands(self, nodes: tuple[Node, ...], expr: Expr, want: DType | None) -> None:
        """Check the operands of an operator; min and max of several are applied two at a time."""
        assert isinstance(expr, Op)
        args = expr.args
        met = operand_dtype(expr, self.dtypes, want) if any(map(is_weak, args)) else None
        if len(nodes) > len(args):
            self._check_operands(nodes[:-1], args[0], met)
            nodes, args = nodes[-1:], args[1:]
        for n, (node, arg) in enumerate(zip(nodes, args, strict=True)):
            self.check(node, arg, BOOL if expr.fn == "select" and n == 0 else met)


def _hint(dtype: DType) -> str:
    if dtype.bits == 64:
        return ""
    wider = "float64" if dtype.is_float else "int64"
    return f"a literal takes the type of the other operand: cast that, as in {wider}(…)"
