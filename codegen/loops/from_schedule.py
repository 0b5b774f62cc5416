"""Convert schedule tree -> isl AST -> loop IR.

isl's code generator (Grosser, Verdoolaege, Cohen, "Polyhedral AST Generation Is More Than
Scanning Polyhedra", TOPLAS 2015) makes the loops and their bounds.  Its loop variables are named
by schedule depth, which together with the ``band:n`` marks identifies the loop of our tree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import islpy as isl

from codegen.loops.index_ranges import depends_on, replace_var
from codegen.loops.nodes import Block, Buffer, Combine, For, If, Instance, LoopNode, Wait, block
from codegen.loops.traverse import children_of, map_children, walk_loops
from codegen.loops.verify import LoopError
from poly.buffers.copies import Copy
from poly.buffers.pad_tiles import with_padding
from poly.deps.instances import member_limits
from poly.deps.legality import budget
from poly.deps.scop import Scop
from poly.errors import CapacityError, ScheduleError, UndecidedError
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    add,
    indices_of,
    maximum,
    minimum,
    mul,
    neg,
    reads_of,
    sub,
    substitute,
)
from poly.ir.intrinsics import ACCUMULATOR
from poly.ir.linear_form import normal
from poly.lower.auxiliary_statements import Combination, Fence
from poly.lower.isl_tree import (
    Around,
    IslBand,
    IslPromote,
    IslTree,
    kernel_context,
    kernel_to_isl,
    to_isl,
)
from poly.lower.launches import Launch, padded_scop
from poly.lower.place_barriers import with_barriers
from poly.schedule.loop_kinds import only_on_gpu
from poly.schedule.schedule import Schedule
from poly.sets.isl_names import dim, dims
from poly.tree.kinds import Mark, Scope, Tensorized
from poly.tree.nodes import Member

_MAX_DEPTH = 64
_ITERATORS = dims("c", _MAX_DEPTH)
_NOTHING = Block(())
#: isl's operation budget for generating the loops of one kernel.
AST_BUDGET = 400_000_000


@dataclass(frozen=True)
class LoopProgram:
    """The loops of a schedule, with the copies that its promotions introduced."""

    schedule: Schedule
    body: LoopNode
    copies: dict[str, Copy]


def build_loops(schedule: Schedule) -> LoopProgram:
    """Generate the loops of a schedule.

    Raises
    ------
    ScheduleError : isl exceeded its budget.
    """
    scop = with_padding(schedule.tree, schedule.scop)
    if reason := only_on_gpu(schedule.tree):
        raise ScheduleError(reason)
    with budget(scop, "code generation", AST_BUDGET):
        tree = to_isl(schedule.tree, scop)
        body = converted(tree, scop, scop.context)
    return _checked(schedule, body, tree)


def build_kernel(schedule: Schedule, launch: Launch) -> LoopProgram:
    """Generate the loops of a launch: what each thread runs, inside of loops on blocks and threads.

    Raises
    ------
    ScheduleError : isl exceeded its budget.
    """
    scop = padded_scop(launch, schedule.scop)
    with budget(scop, "code generation", AST_BUDGET):
        barriers = with_barriers(launch, scop, schedule.dependences)
        tree = kernel_to_isl(launch, barriers, scop)
        context = kernel_context(tree, scop)
        body = converted(tree, scop, context)
        grid = [_size_expression(e, scop) for e in launch.grid]
    thread: Expr = Const(0)
    for name, count in reversed([*zip(launch.thread_names, launch.block, strict=True)]):
        thread = add(mul(thread, Const(count)), Index(name))
    for name, share in tree.shares.items():
        index = thread if share.divisor == 1 else Op("floordiv", (thread, Const(share.divisor)))
        most = share.modulus or -(-launch.threads // share.divisor)
        if share.modulus:
            index = Op("mod", (index, Const(share.modulus)))
        body = For(name, index, add(index, Const(1)), 1, body, Mark.OWN_THREAD, name, (0, most - 1))
    for axis, (name, count) in enumerate(zip(launch.thread_names, launch.block, strict=True)):
        body = For(name, Const(0), Const(count), 1, body, Mark.THREAD, name, axis=axis)
    for axis, (name, extent) in enumerate(zip(launch.block_names, grid, strict=True)):
        body = For(name, Const(0), extent, 1, body, Mark.BLOCK, name, axis=axis)
    return _checked(schedule, body, tree)


def _size_expression(value: isl.PwAff, scop: Scop) -> Expr:
    """A function of sizes as an expression."""
    build = isl.AstBuild.from_context(scop.context)
    return _Converter(IslTree(), scop).expr(build.expr_from_pw_aff(value), {})


def converted(tree: IslTree, scop: Scop, context: isl.Set) -> LoopNode:
    """The loops that isl generates for a tree.

    Raises
    ------
    ScheduleError : loops are nested too deeply.
    """
    deepest = max((at.depth + len(at.members) for at in tree.bands), default=0)
    if deepest > _MAX_DEPTH:
        raise CapacityError(
            f"the schedule nests {deepest} loops, the limit is {_MAX_DEPTH}; tile fewer dimensions"
        )
    ctx = scop.context.get_ctx()
    build = isl.AstBuild.from_context(context)
    names = isl.IdList.alloc(ctx, _MAX_DEPTH)
    for name in _ITERATORS:
        names = names.add(isl.Id(name, context=ctx))
    build = build.set_iterators(names)
    ast = build.node_from_schedule(tree.schedule)
    return _Converter(tree, scop).node(ast, {}, None)


def _checked(schedule: Schedule, body: LoopNode, tree: IslTree) -> LoopProgram:
    if schedule.is_draft:
        raise ScheduleError("the schedule is a draft: its steps are not checked, call .checked()")
    copies = {name: c for name, c in tree.copies.items() if isinstance(c, Copy)}
    copies |= {z.name: z for c in copies.values() if c.within for z in [zeros_of(c)]}
    _check_buffers(body, schedule.scop, copies)
    return LoopProgram(schedule, body, copies)


def zeros_of(c: Copy) -> Copy:
    """A copy of zeros, for the elements of a padded buffer that are outside of the tensor."""
    return replace(c, name=f"{c.buffer}_zero", op="+=", within="")


def _check_buffers(body: LoopNode, scop: Scop, copies: dict[str, Copy]) -> None:
    """Refuse loops in which a buffer is filled in another loop than it is used in.

    isl copies a mark to each part of the code it encloses, and may put these parts in separate
    loops, for instance around an isolated iteration.
    """
    for node in walk_loops(body):
        if not isinstance(node, Buffer):
            continue
        names = {n.statement for n in walk_loops(node.body) if isinstance(n, Instance)}
        own = {n: c for n, c in copies.items() if c.buffer == node.name}
        inside = [scop.statement(n) for n in names & node.inside if n in scop.by_name]
        writes = any(s.target.tensor == node.tensor for s in inside)
        reads = any(
            r.tensor == node.tensor and (node.accesses is None or (s.name, r) in node.accesses)
            for s in inside
            for r in reads_of(s.value)
        )
        filled = writes or any(c.inward for n, c in own.items() if n in names)
        emptied = any(not c.inward for n, c in own.items() if n in names)
        leaves = any(not c.inward for c in own.values())
        if (writes and leaves and not emptied) or ((reads or emptied) and not filled):
            raise UndecidedError(
                f"{node.name} cannot be generated: isl fills this buffer in another loop "
                "than it is used in; promote further in, or do not isolate a loop around it"
            )


class _Converter:
    """Convert an isl AST to loop IR; `env` maps isl's iterators to expressions."""

    def __init__(self, tree: IslTree, scop: Scop) -> None:
        self.tree, self.scop = tree, scop
        self.sizes = frozenset(scop.program.sizes)
        launch = tree.launch
        #: Parameters that are block or thread indices.
        self.gpu_indices: frozenset[str] = frozenset(tree.shares)
        if launch is not None:
            self.sizes |= {*launch.host_names}
            self.gpu_indices |= {*launch.block_names, *launch.thread_names}
        self.dtypes = scop.program.dtypes

    def node(self, ast: isl.AstNode, env: dict[str, Expr], at: IslBand | None) -> LoopNode:
        kind = ast.get_type()
        types = isl.ast_node_type
        if at is not None and at.full is not None and not _has_loop_of(ast, at):
            body = self.node(ast, env, replace(at, full=None))
            return _in_versions(self._condition(at.full, env), body)
        if kind == types.for_:
            return self._for(ast, env, at)
        if kind == types.if_:
            return self._if(ast, env, at)
        if kind == types.block:
            listed = ast.block_get_children()
            inner = [self.node(listed.get_at(k), env, at) for k in range(listed.n_ast_node())]
            return block(join_buffers(inner))
        if kind == types.mark:
            what, number = ast.mark_get_id().get_name().split(":")
            if what == "band":
                return self.node(ast.mark_get_node(), env, self.tree.bands[int(number)])
            body = self.node(ast.mark_get_node(), env, at)
            return self._buffer(self.tree.promotes[int(number)], body, env)
        if kind == types.user:
            return self._instance(ast.user_get_expr(), env, at)
        raise LoopError(f"unknown isl AST node type {kind}")

    def _if(self, ast: isl.AstNode, env: dict[str, Expr], at: IslBand | None) -> LoopNode:
        cond = self.expr(ast.if_get_cond(), env)
        then = self.node(ast.if_get_then_node(), env, at)
        if isinstance(cond, Const) and cond.value:
            return then
        other = self.node(ast.if_get_else_node(), env, at) if ast.if_has_else_node() else None
        if then == _NOTHING:
            return _NOTHING if other is None else If(Op("not", (cond,)), other)
        return If(cond, then, other)

    def _condition(self, iterations: isl.Set, env: dict[str, Expr]) -> Expr:
        """The condition that the current iteration of the loops around is one of these.

        isl may have left out a loop, which then has one iteration at most.
        """
        for k in reversed(range(iterations.dim(isl.dim_type.set))):
            if _ITERATORS[k] not in env:
                iterations = iterations.project_out(isl.dim_type.set, k, 1)
        left = [name for name in _ITERATORS if name in env][: iterations.dim(isl.dim_type.set)]
        first = iterations.dim(isl.dim_type.param)
        here = iterations.move_dims(isl.dim_type.param, first, isl.dim_type.set, 0, len(left))
        for k, name in enumerate(left):
            here = here.set_dim_name(isl.dim_type.param, first + k, name)
        build = isl.AstBuild.from_context(self.scop.context)
        return _plain(self.expr(build.expr_from_set(here.params().coalesce()), env))

    def _buffer(self, found: IslPromote, body: LoopNode, env: dict[str, Expr]) -> LoopNode:
        """The buffer of a promotion around the code that uses it."""
        promote, plan = found.node, found.plan
        fragment = promote.scope == Scope.FRAGMENT
        return Buffer(
            promote.buffer,
            promote.tensor,
            ACCUMULATOR if fragment else promote.dtype or self.dtypes[promote.tensor],
            (*((2,) if promote.ahead else ()), *promote.layout.box(plan.sizes)),
            promote.layout,
            Scope.REGISTER if promote.scope == Scope.PARTIAL else promote.scope,
            body,
            # isl omits loops of one iteration; such a loop does not tell iterations apart.
            tuple(env.get(_ITERATORS[k], Const(0)) for k in range(len(found.around))),
            halves=promote.ahead,
            padded=promote.padded,
            accesses=promote.accesses,
            inside=found.inside,
            origins=tuple(
                None if o is None else self._origin(o, found.around, env, promote.buffer)
                for o in plan.origins
            ),
        )

    def _instance(self, call: isl.AstExpr, env: dict[str, Expr], at: IslBand | None) -> LoopNode:
        """An instance of a statement, or the copy, barrier or combination that it stands for."""
        args = [self.expr(call.get_op_arg(k), env) for k in range(1, call.get_op_n_arg())]
        name = call.get_op_arg(0).get_id().get_name()
        fence = self.tree.copies.get(name)
        if isinstance(fence, Combination):
            return self._combine(fence)
        if isinstance(fence, Fence):
            return Wait() if fence.barrier else _NOTHING
        if isinstance(fence, Copy) and fence.within:
            zeros = Instance(zeros_of(fence).name, tuple(args))
            return If(self._within(fence, args), Instance(name, tuple(args)), zeros)
        if isinstance(fence, Copy) and fence.matrix and at is not None:
            return _as_matrix(fence, args, at, env)
        return Instance(name, tuple(args))

    def _origin(
        self, origin: Expr, around: tuple[Around, ...], env: dict[str, Expr], buffer: str
    ) -> tuple[Expr, Expr]:
        """Where elements of a buffer begin: in terms of ``p0', p1', …``, and for those inside."""
        iteration: dict[str, Expr] = {}
        for k, loop in enumerate(around):
            launch = self.tree.launch
            given = launch.parameter_of(loop.member) if launch is not None else None
            value = env.get(_ITERATORS[k]) or (Index(given) if given is not None else None)
            if value is None and loop.only is not None:
                value = Const(loop.only)
            if loop.apart:
                name = dim("p", len(iteration))
                if value is None and name in indices_of(origin):
                    raise UndecidedError(
                        f"{buffer} cannot be generated: isl has left out {loop.member.name}, in "
                        "which the buffer begins at varying indices; promote further in"
                    )
                iteration[name] = value or Const(0)
        return origin, substitute(origin, indices=iteration)

    def _within(self, c: Copy, args: list[Expr]) -> Expr:
        """The condition that an instance of a copy has something to copy."""
        within = isl.Set(c.within)
        names = dims("x", within.dim(isl.dim_type.set))
        first = within.dim(isl.dim_type.param)
        within = within.move_dims(isl.dim_type.param, first, isl.dim_type.set, 0, len(names))
        for k, name in enumerate(names):
            within = within.set_dim_name(isl.dim_type.param, first + k, name)
        build = isl.AstBuild.from_context(self.scop.context)
        return self.expr(build.expr_from_set(within.params()), dict(zip(names, args, strict=True)))

    def _combine(self, c: Combination) -> Combine:
        element = Read(c.buffer, (Const(0),) * c.rank)
        return Combine(element, c.op, self.dtypes[c.tensor], c.threads)

    def _for(self, ast: isl.AstNode, env: dict[str, Expr], at: IslBand | None) -> LoopNode:
        iterator = ast.for_get_iterator().get_id().get_name()
        lower = self.expr(ast.for_get_init(), env)
        member = _member(at, iterator)
        once = ast.for_is_degenerate()
        # A matrix of one row is still a matrix.
        row = member is not None and isinstance(member.mark, Tensorized) and lower == Const(0)
        if once and not row:
            return self.node(ast.for_get_body(), {**env, iterator: lower}, at)
        var = _variable(member.name if member else iterator, env)
        inner = {**env, iterator: Index(var)}
        step = 1 if once else ast.for_get_inc().get_val().to_python()
        upper = Const(1) if once else self._upper(ast.for_get_cond(), iterator, inner)
        body = self.node(ast.for_get_body(), inner, at)
        if body == _NOTHING:
            return _NOTHING
        if member is not None and isinstance(body, If) and self._holds_for_all(member, body, var):
            cond = _plain(replace_var(body.cond, var, lower))
            loop = For(var, lower, upper, step, body.then, member.mark, member.name)
            other = None if body.other is None else replace(loop, body=body.other)
            return If(cond, loop, other)
        if member is None:
            return For(var, lower, upper, step, body)
        limits = None
        known = isinstance(lower, Const) and isinstance(upper, Const)
        bounded = isinstance(member.mark, Tensorized) or member.mark in (
            Mark.VECTOR, Mark.UNROLL, Mark.WIDE)  # fmt: skip
        if not known and bounded:
            limits = member_limits(member, self.scop)
        return For(var, lower, upper, step, body, member.mark, member.name, limits)

    def _holds_for_all(self, member: Member, body: If, var: str) -> bool:
        """Whether adjacent elements that are copied together satisfy a condition all or none.

        Conditions of a padded copy are such, see `poly.buffers.promotion`; isl's other conditions
        may differ between the elements.
        """
        if member.mark != Mark.WIDE:
            return False
        copied = body.then
        copy = self.tree.copies.get(copied.statement) if isinstance(copied, Instance) else None
        padded = isinstance(copy, Copy) and copy.within and body.other is not None
        return bool(padded) or not depends_on(body.cond, var)

    def _upper(self, cond: isl.AstExpr, iterator: str, env: dict[str, Expr]) -> Expr:
        ops = isl.ast_expr_op_type
        kind = cond.get_op_type()
        left = cond.get_op_arg(0)
        is_plain = left.get_type() == isl.ast_expr_type.id and left.get_id().get_name() == iterator
        if not is_plain or kind not in (ops.lt, ops.le):
            raise LoopError(f"unknown form of loop condition: {cond.to_C_str()}")
        bound = self.expr(cond.get_op_arg(1), env)
        return add(bound, Const(1)) if kind == ops.le else bound

    def expr(self, e: isl.AstExpr, env: dict[str, Expr]) -> Expr:
        kind = e.get_type()
        if kind == isl.ast_expr_type.int:
            return Const(int(e.get_val().to_python()))
        if kind == isl.ast_expr_type.id:
            name = e.get_id().get_name()
            if name in env:
                return env[name]
            if name in self.sizes:
                return Size(name)
            if name in self.gpu_indices:
                return Index(name)
            raise LoopError(f"isl's {name} is neither a loop nor a size")
        args = [self.expr(e.get_op_arg(k), env) for k in range(e.get_op_n_arg())]
        return _operation(e.get_op_type(), args)


def _has_loop_of(ast: isl.AstNode, at: IslBand) -> bool:
    """Whether a loop of a band is still to come."""
    kind, types = ast.get_type(), isl.ast_node_type
    if kind == types.for_:
        name = ast.for_get_iterator().get_id().get_name()
        if _member(at, name) is not None:
            return True
        return _has_loop_of(ast.for_get_body(), at)
    if kind == types.if_:
        parts = [ast.if_get_then_node()]
        parts += [ast.if_get_else_node()] if ast.if_has_else_node() else []
        return any(_has_loop_of(c, at) for c in parts)
    if kind == types.block:
        listed = ast.block_get_children()
        return any(_has_loop_of(listed.get_at(k), at) for k in range(listed.n_ast_node()))
    return kind == types.mark and _has_loop_of(ast.mark_get_node(), at)


def _in_versions(cond: Expr, body: LoopNode) -> LoopNode:
    """What is below an isolated loop, once for full tiles and once for the others: the same code,
    which `codegen.loops.simplify_in_context` simplifies by what is known in either.
    """
    return body if body == _NOTHING or isinstance(cond, Const) else If(cond, body, body)


def join_buffers(children: list[LoopNode]) -> list[LoopNode]:
    """Join the buffers of one promotion where isl has copied its mark to each child of a sequence.

    Buffers of one promotion in the same iteration of the loops above are one buffer, which must
    live from the first to the last of them.  isl's blocks need not follow the tree, so buffers are
    joined across them.
    """
    children = [n for c in children for n in (c.children if isinstance(c, Block) else (c,))]
    keys = [_open_buffers(c) for c in children]
    for first, found in enumerate(keys):
        for key in found:
            # Up to the next iteration's buffer of the same name.
            stop = first + 1
            while stop < len(keys) and all(k == key for k in keys[stop] if k[0] == key[0]):
                stop += 1
            last = max(n for n in range(first, stop) if key in keys[n])
            if last == first:
                continue
            inside = children[first : last + 1]
            whole = next(
                b for c in inside for b in walk_loops(c) if isinstance(b, Buffer) and b.key == key
            )
            body = block(join_buffers([_without(c, key) for c in inside]))
            merged = replace(whole, body=body)
            return join_buffers([*children[:first], merged, *children[last + 1 :]])
    return children


def _open_buffers(node: LoopNode) -> list[tuple[str, tuple[Expr, ...]]]:
    """Keys of the buffers below whose iteration is not told apart by a loop below, outer first."""
    own = [node.key] if isinstance(node, Buffer) else []
    found = dict.fromkeys([*own, *(k for c in children_of(node) for k in _open_buffers(c))])
    if isinstance(node, For):
        return [k for k in found if not any(depends_on(e, node.var) for e in k[1])]
    return list(found)


def _without(node: LoopNode, key: object) -> LoopNode:
    node = map_children(node, lambda c: _without(c, key))
    return node.body if isinstance(node, Buffer) and node.key == key else node


def _as_matrix(c: Copy, args: list[Expr], at: IslBand, env: dict[str, Expr]) -> LoopNode:
    """An instance of a copy, in loops of one iteration for those that isl has left out."""
    first = len(at.members) - len(c.matrix)
    args, around = list(args), list[Member]()
    for n, d in enumerate(c.matrix, first):
        if _ITERATORS[at.depth + n] not in env:
            around.append(at.members[n])
            args[c.depth + d] = add(args[c.depth + d], Index(at.members[n].name))
    body: LoopNode = Instance(c.name, tuple(args))
    for m in reversed(around):
        body = For(m.name, Const(0), Const(1), 1, body, m.mark, m.name)
    return body


def _plain(cond: Expr) -> Expr:
    """A condition with its sides in normal form."""
    if not isinstance(cond, Op):
        return cond
    logical = cond.fn in ("and", "or", "not")
    return Op(cond.fn, tuple(_plain(a) if logical else normal(a) for a in cond.args))


def _operation(kind: isl.ast_expr_op_type, args: list[Expr]) -> Expr:
    ops = isl.ast_expr_op_type
    if kind == ops.add:
        return add(*args)
    if kind == ops.sub:
        return sub(*args)
    if kind == ops.mul:
        return mul(*args)
    if kind == ops.minus:
        return neg(*args)
    if kind == ops.min:
        return minimum(*args)
    if kind == ops.max:
        return maximum(*args)
    if kind in (ops.and_, ops.and_then, ops.or_, ops.or_else):
        fn = "and" if kind in (ops.and_, ops.and_then) else "or"
        result = args[0]
        for arg in args[1:]:
            # isl emits conditions such as `i == 0 || 1`.
            if Const(1) in (result, arg):
                other = arg if result == Const(1) else result
                result = Const(1) if fn == "or" else other
            else:
                result = Op(fn, (result, arg))
        return result
    simple = {
        ops.div: "div",
        ops.fdiv_q: "floordiv",
        ops.pdiv_q: "div",
        ops.pdiv_r: "fmod",
        ops.zdiv_r: "fmod",
        ops.cond: "select",
        ops.select: "select",
        ops.eq: "eq",
        ops.le: "le",
        ops.lt: "lt",
        ops.ge: "ge",
        ops.gt: "gt",
    }
    if kind not in simple:
        raise LoopError(f"unknown isl operation type {kind}")
    return Op(simple[kind], tuple(args))


def _member(at: IslBand | None, iterator: str) -> Member | None:
    if at is None:
        return None
    position = _ITERATORS.index(iterator) - at.depth
    return at.members[position] if 0 <= position < len(at.members) else None


def _variable(name: str, env: dict[str, Expr]) -> str:
    """The loop's own name, made unique among the enclosing loops."""
    taken = {e.name for e in env.values() if isinstance(e, Index)}
    unique, count = name, 2
    while unique in taken:
        unique, count = f"{name}_{count}", count + 1
    return unique
