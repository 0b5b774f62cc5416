"""Text to surface syntax, by lark's LALR parser; every mistake becomes a `LanguageError`."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

from lark import Lark, Token, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken, VisitError
from lark.tree import Meta
from lark.visitors import Transformer_NonRecursive

from frontends.language.parse_alike import Template, form_of
from frontends.language.parse_tables import load_parser
from frontends.language.spelling import is_near
from frontends.language.syntax import (
    Access,
    Apply,
    Assignment,
    Call,
    Chain,
    Declaration,
    Loop,
    Name,
    Node,
    Number,
    RangeClause,
    Source,
    children,
)
from poly.errors import LanguageError, Span
from poly.ir.dtypes import DTYPES

#: Deeper expressions are refused, so that no later stage can run out of stack.
MAX_DEPTH = 120

#: Longer texts are refused; real programs are far shorter.
MAX_LENGTH = 1_000_000

#: So many texts are kept, for others that differ in names and numbers alone.
MAX_TEMPLATES = 1024

_INFIX = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod",
    "<<": "shl", ">>": "shr",
}  # fmt: skip
_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_WORDS: dict[str, int | float | bool] = {
    "true": True, "false": False, "inf": math.inf, "nan": math.nan,
}  # fmt: skip
_KEYWORDS = ("def", "where", "in", "and", "or", "not", "for")
#: Words that are not names; the last two may begin an assignment.
_NO_NAMES = frozenset((*_WORDS, *_KEYWORDS, "max", "min"))

#: Names of tokens in messages; all operators share one.
_TOKENS = {
    "NAME": "a name",
    "NUMBER": "a number",
    "UPDATE": "an assignment (= += *= max= min=, with ! to start afresh)",
    "LPAR": "'('",
    "RPAR": "')'",
    "LSQB": "'['",
    "RSQB": "']'",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "COMMA": "','",
    "COLON": "':'",
    "SEMICOLON": "';'",
    "WHERE": "'where'",
    "DEF": "'def'",
    "FOR": "'for'",
    "IN": "'in'",
    "__ANON_0": "'->'",
    "MINUSMORETHAN": "'->'",
    "$END": "the end of the text",
}
_EXPRESSION_STARTS = {"NAME", "NUMBER", "LPAR", "SUM", "TILDE", "NOT"}


def parse(text: str) -> Source:
    """The surface syntax of a text.

    Raises
    ------
    LanguageError : with a caret under the first token that cannot be parsed.
    """
    if len(text) > MAX_LENGTH:
        raise LanguageError(f"the text has {len(text)} characters; the limit is {MAX_LENGTH}")
    if not text.strip():
        raise LanguageError("the text is empty", hint="try C[i,j] +=! A[i,k] * B[k,j]")
    form = form_of(text, _words_and_numbers(), _NO_NAMES)
    alike = None if form is None else _templates.get(form.text)
    if form is not None and alike is not None and alike.fits(form):
        with suppress(_MistakeError):  # parsing finds it again
            return alike.source_of(text, form, _literal)
    source = _parsed(text)
    if form is not None and len(_templates) < MAX_TEMPLATES:
        _templates[form.text] = Template(source, form)
    return source


#: Parsed texts by the text of their form.
_templates: dict[str, Template] = {}


def _parsed(text: str) -> Source:
    try:
        found: object = _Builder().transform(_parser().parse(text))
    except UnexpectedToken as error:
        raise _token_error(text, error) from None
    except UnexpectedCharacters as error:
        at = int(error.pos_in_stream or 0)
        qualified = re.match(r"\.(\w+)", text[at:])
        hint = ""
        if qualified and qualified[1] in DTYPES:
            hint = f"an element type is written without its library: {qualified[1]}"
        raise LanguageError(
            f"{text[at]!r} is not a character of the language", text, Span(at, at + 1), hint
        ) from None
    except VisitError as error:
        mistake = error.orig_exc
        if not isinstance(mistake, _MistakeError):
            raise mistake from None
        raise LanguageError(mistake.message, text, mistake.span, mistake.hint) from None
    assert isinstance(found, _Parts)
    source = found.source(text)
    _check_depth(source)
    _check_lines(source)
    return source


@cache
def _parser() -> Lark:
    return load_parser()


@cache
def _words_and_numbers() -> re.Pattern[str]:
    """Matches a word, or a number as the group of that name."""
    name, number = (_parser().get_terminal(kind).pattern.to_regexp() for kind in ("NAME", "NUMBER"))
    return re.compile(f"{name}|(?P<number>{number})")


class _MistakeError(Exception):
    """A mistake found while nodes are built, where the text is not available."""

    def __init__(self, message: str, span: Span, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.span, self.hint = message, span, hint


class _Parts:
    """The parts of a text, collected before they become a `Source`."""

    def __init__(self, body: tuple[Node, ...], head: _Head | None = None) -> None:
        self.body, self.head = body, head

    def source(self, text: str) -> Source:
        temps = tuple(n for n in self.body if isinstance(n, Declaration))
        statements = tuple(n for n in self.body if isinstance(n, Assignment))
        if self.head is None:
            if temps:
                raise LanguageError(
                    "a declaration is allowed only in a definition",
                    text,
                    temps[0].span,
                    _python_hint(text, temps[0].span) or "write def f(float32 X[N]) -> (Y) { … }",
                )
            return Source(text, None, (), (), (), (), (), statements)
        h = self.head
        return Source(
            text, h.name, h.sizes, h.inputs, h.outputs, h.constraints, temps, statements
        )  # fmt: skip


class _Head:
    def __init__(
        self,
        name: Name,
        sizes: tuple[Name, ...],
        inputs: tuple[Declaration, ...],
        outputs: tuple[Declaration | Name, ...],
        constraints: tuple[Node, ...],
    ) -> None:
        self.name, self.sizes, self.inputs = name, sizes, inputs
        self.outputs, self.constraints = outputs, constraints


def _token_span(token: Token) -> Span:
    start = int(token.start_pos or 0)
    return Span(start, start + len(token))


def _span(meta: Meta) -> Span:
    # A rule that matched nothing has no position; no node is built from one.
    return Span(int(getattr(meta, "start_pos", 0)), int(getattr(meta, "end_pos", 0)))


def _name(token: Token) -> Name:
    return Name(_token_span(token), str(token))


def _literal(text: str, span: Span) -> int | float:
    if text[:2] in ("0x", "0X"):
        value: int | float = int(text, 16)
    elif text.isdigit():
        if len(text) > 30:
            raise _MistakeError("the number does not fit 64 bits", span)
        value = int(text)
    else:
        value = float(text)
        if math.isinf(value):
            raise _MistakeError("the number does not fit float64", span, "write inf if meant")
    if isinstance(value, int) and value >= 1 << 64:
        raise _MistakeError("the number does not fit 64 bits", span)
    return value


def _nodes(items: tuple[Node, ...] | None) -> tuple[Node, ...]:
    return items or ()


@v_args(meta=True)
class _Builder(Transformer_NonRecursive[Token, Any]):
    """Builds the nodes innermost first, without recursion: depth is checked afterwards."""

    def start(self, meta: Meta, items: list[Any]) -> _Parts:
        (item,) = items
        return item if isinstance(item, _Parts) else _Parts(item)

    def definition(self, meta: Meta, items: list[Any]) -> _Parts:
        name, sizes, inputs, outputs, constraints, body = items
        head = _Head(_name(name), sizes or (), inputs or (), outputs, constraints or ())
        return _Parts(body, head)

    def sizes(self, meta: Meta, items: list[Token]) -> tuple[Name, ...]:
        return tuple(_name(t) for t in items if t is not None)

    def declarations(self, meta: Meta, items: list[Declaration]) -> tuple[Declaration, ...]:
        return tuple(i for i in items if i is not None)

    def declaration(self, meta: Meta, items: list[Any]) -> Declaration:
        dtype, tensor, shape = items
        return Declaration(_span(meta), _name(dtype), _name(tensor), _nodes(shape))

    def outputs(
        self, meta: Meta, items: list[Declaration | Name]
    ) -> tuple[Declaration | Name, ...]:
        return tuple(i for i in items if i is not None)

    def output(self, meta: Meta, items: list[Declaration]) -> Declaration:
        return items[0]

    def bare_output(self, meta: Meta, items: list[Token]) -> Name:
        return _name(items[0])

    def constraints(self, meta: Meta, items: list[Node]) -> tuple[Node, ...]:
        return tuple(items)

    def body(self, meta: Meta, items: list[Any]) -> tuple[Node, ...]:
        flat = (i if isinstance(i, tuple) else (i,) for i in items)
        return tuple(node for nodes in flat for node in nodes)

    def item(self, meta: Meta, items: list[Any]) -> Any:
        return items[0]

    def loop(self, meta: Meta, items: list[Any]) -> tuple[Assignment, ...]:
        index, lo, hi, *statements = items
        start = _span(meta).start
        span = Span(start, int(getattr(meta, "end_pos", 0)))
        bounds = RangeClause(Span(_token_span(index).start, hi.span.end), _name(index), lo, hi)
        loop = Loop(span, bounds)
        for s in statements:
            if isinstance(s, tuple):
                inner = s[0].loop.span
                raise _MistakeError(
                    "blocks cannot be nested",
                    Span(inner.start, inner.start + len("for")),
                    "the loops inside a step follow from the indices of its statements",
                )
        if not statements:
            raise _MistakeError("there is no statement in this block", span)
        # Every statement of the block gets its range.
        return tuple(replace(s, clauses=(bounds, *s.clauses), loop=loop) for s in statements)

    def label(self, meta: Meta, items: list[Token]) -> Name:
        return _name(items[0])

    def statement(self, meta: Meta, items: list[Any]) -> Assignment:
        label, target, op, value, clauses = items
        text = str(op)
        if text == "=!":
            raise _MistakeError(
                "'=!' does not exist: a plain '=' overwrites anyway",
                _token_span(op),
                "write = to store, or +=! to sum from zero",
            )
        span = Span((label or target).span.start, int(getattr(meta, "end_pos", 0)))
        return Assignment(
            span, label, target, text.rstrip("!"), text.endswith("!"), value, clauses or ()
        )

    def where(self, meta: Meta, items: list[Node]) -> tuple[Node, ...]:
        return tuple(items)

    def range_clause(self, meta: Meta, items: list[Any]) -> RangeClause:
        index, lo, hi = items
        return RangeClause(_span(meta), _name(index), lo, hi)

    def guard_clause(self, meta: Meta, items: list[Node]) -> Node:
        return items[0]

    def expressions(self, meta: Meta, items: list[Node]) -> tuple[Node, ...]:
        return tuple(i for i in items if i is not None)

    def access(self, meta: Meta, items: list[Any]) -> Access:
        tensor, indices = items
        return Access(_span(meta), _name(tensor), _nodes(indices))

    def call(self, meta: Meta, items: list[Any]) -> Call:
        fn, args = items
        return Call(_span(meta), _name(fn), _nodes(args))

    def parens(self, meta: Meta, items: list[Node]) -> Node:
        return items[0]

    def name(self, meta: Meta, items: list[Token]) -> Node:
        token = items[0]
        if str(token) in _WORDS:
            return Number(_token_span(token), _WORDS[str(token)])
        return _name(token)

    def number(self, meta: Meta, items: list[Token]) -> Number:
        span = _token_span(items[0])
        return Number(span, _literal(str(items[0]), span))

    def prefix(self, meta: Meta, items: list[Any]) -> Node:
        sign: Token = items[0]
        arg: Node = items[1]
        if sign == "+":
            return arg
        if isinstance(arg, Number) and not isinstance(arg.value, bool):
            return Number(_span(meta), -arg.value)
        return Apply(_span(meta), "neg", (arg,))

    def infix(self, meta: Meta, items: list[Any]) -> Apply:
        left, op, right = items
        return Apply(_span(meta), _INFIX[str(op)], (left, right))

    def comparison(self, meta: Meta, items: list[Any]) -> Chain:
        fns = tuple(_COMPARE[str(op)] for op in items[1::2])
        return Chain(_span(meta), fns, tuple(items[::2]))

    def _binary(self, fn: str, meta: Meta, items: list[Node]) -> Apply:
        return Apply(_span(meta), fn, tuple(items))

    def or_(self, meta: Meta, items: list[Node]) -> Apply:
        return self._binary("or", meta, items)

    def and_(self, meta: Meta, items: list[Node]) -> Apply:
        return self._binary("and", meta, items)

    def not_(self, meta: Meta, items: list[Node]) -> Apply:
        return self._binary("not", meta, items)

    def bitor(self, meta: Meta, items: list[Node]) -> Apply:
        return self._binary("bitor", meta, items)

    def bitxor(self, meta: Meta, items: list[Node]) -> Apply:
        return self._binary("bitxor", meta, items)

    def bitand(self, meta: Meta, items: list[Node]) -> Apply:
        return self._binary("bitand", meta, items)

    def bitnot(self, meta: Meta, items: list[Node]) -> Apply:
        return self._binary("bitnot", meta, items)


def _token_error(text: str, error: UnexpectedToken) -> LanguageError:
    token: Token = error.token
    expected = set(error.accepts or error.expected)
    if token.type == "$END":
        end = len(text.rstrip())
        return LanguageError(
            f"the text ends where {_wanted(expected)} is expected", text, Span(end, end + 1)
        )
    span = _token_span(token)
    for word in [*re.finditer(r"[A-Za-z_]\w*", text[: span.start])][-2:]:
        meant = [k for k in _KEYWORDS if is_near(word[0], k) or word[0].lower() == k != word[0]]
        if meant:
            where = Span(*word.span())
            message = f"{word[0]!r} is not understood here"
            return LanguageError(message, text, where, f"did you mean {meant[0]!r}?")
    hint = _python_hint(text, span) or _hint(text, token, expected)
    return LanguageError(
        f"found {str(token)!r} where {_wanted(expected)} is expected", text, span, hint
    )


#: What assigns in place of a word that numpy or torch has for it.
_UPDATES = {
    "maximum": "max=", "amax": "max=", "minimum": "min=", "amin": "min=", "sum": "+=", "add": "+=",
    "prod": "*=", "mul": "*=",
}  # fmt: skip


def _hint(text: str, token: Token, expected: set[str]) -> str:
    """What may have been meant by a token that is not expected."""
    if token == "[" and expected == {"NAME"}:
        return "a declaration begins with its element type: float32 A[N,K]"
    if expected == {"LSQB"}:
        return "a shape follows the name: float32 A[N,K], or float32 a[] for a scalar"
    if token == ":" and "LBRACE" in expected:
        return "a body is in braces: def f(float32 X[N]) -> (Y) { … }"
    if token == ":" and expected & {"__ANON_0", "MINUSMORETHAN"}:
        return "outputs and a body follow: def f(float32 X[N]) -> (Y) { … }"
    assigns = re.match(r"\s*=(!?)", text[int(token.end_pos or 0) :])
    if "UPDATE" in expected and assigns and str(token) in _UPDATES:
        return f"did you mean {_UPDATES[str(token)] + assigns[1]!r}?"
    if token.type != "UPDATE" and (token.type != "COMPARE" or "UPDATE" not in expected):
        return ""
    if expected & {"RSQB", "RPAR"} and "UPDATE" not in expected:
        return "is a bracket not closed?"
    if "COMPARE" in expected and str(token) == "=":
        return "equality is written =="
    return "a statement assigns to an element: Y[i] = X[i], or s[] = 0 when s is a scalar"


def _python_hint(text: str, span: Span) -> str:
    """How an operator of Python that the language lacks is written, if one ends there."""
    if text[span.start - 1 : span.end] == "**":
        return "a power is written pow(x, 2), or x * x"
    if re.search(r"=[^\n;{}]*[\w\])] +if\b[^\n;{}]*\Z", text[: span.end]):
        return "a choice is written select(condition, a, b)"
    return ""


def _wanted(expected: set[str]) -> str:
    if expected >= {"NAME", "NUMBER"}:
        rest = expected - _EXPRESSION_STARTS
        words = ["an expression", *sorted(_TOKENS[t] for t in rest if t in _TOKENS)]
    else:
        words = sorted({_TOKENS.get(t, "an operator") for t in expected})
    if not words:
        return "something else"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _check_depth(source: Source) -> None:
    roots: list[Node] = [*source.constraints]
    roots += [e for d in (*source.inputs, *source.temps) for e in d.shape]
    roots += [e for d in source.outputs if isinstance(d, Declaration) for e in d.shape]
    roots += [e for s in source.statements for e in (s.target, s.value, *s.clauses)]
    for root in roots:
        pending = [(root, 0)]
        while pending:
            node, depth = pending.pop()
            if depth > MAX_DEPTH:
                raise _too_deep(root, node, source.text)
            below = children(node)
            # Chains, and min or max of several arguments, become nested binary operations.
            many = isinstance(node, Chain) or (
                isinstance(node, Call) and node.fn.name in ("min", "max")
            )
            step = max(1, len(below) - 1) if many else 1
            pending += [(child, depth + step) for child in below]


#: Operators that are chained without parentheses, and what messages call the series.
_SERIES = {
    **dict.fromkeys(("add", "sub"), "a sum of {} terms"),
    **dict.fromkeys(("mul", "div", "floordiv", "mod"), "a product of {} factors"),
    **dict.fromkeys(("and", "or"), "a condition of {} parts"),
}


def _too_deep(root: Node, node: Node, text: str) -> LanguageError:
    """The error for an expression that is too deep at `node`: by a long series, or by nesting."""
    count, series = 0, node
    pending = [root]
    while pending:
        top = pending.pop()
        terms, first = 1, top
        while _kind(first) and _kind(first) == _kind(top):
            terms += 1
            pending += children(first)[1:]
            first = children(first)[0]
        pending += [first] if terms > 1 else children(first)
        if terms > count:
            count, series = terms, top
    if count <= MAX_DEPTH // 2:
        span = Span(node.span.start, node.span.start + 1)
        message = f"the expression is nested deeper than {MAX_DEPTH} levels"
        return LanguageError(message, text, span, "split it with a temporary")
    return LanguageError(
        f"{_kind(series).format(count)} is too long: an expression has at most {MAX_DEPTH} levels, "
        "and each operator is one",
        text,
        Span(series.span.start, series.span.start + 1),
        "split it into statements: T[i] = …; Y[i] = T[i] + …",
    )


def _kind(node: Node) -> str:
    """The name of the series that ends with this operator; "" for other nodes."""
    return _SERIES.get(node.fn, "") if isinstance(node, Apply) else ""


def _check_lines(source: Source) -> None:
    items = sorted((*source.temps, *source.statements), key=lambda n: n.span.start)
    for before, after in pairwise(items):
        between = source.text[before.span.end : after.span.start]
        if not any(c in between for c in "\n;{}"):
            raise LanguageError(
                "two statements on one line",
                source.text,
                Span(after.span.start, after.span.start + 1),
                _python_hint(source.text, after.span)
                or "put a ';' or a new line between them, or an operator if it is one statement",
            )
