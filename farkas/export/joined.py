"""`joined`: what C files of several instruction sets are made of, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from codegen.c.module import Module
from poly.errors import ArgumentError


def joined(modules: Sequence[Module]) -> Module:
    """One module of sections, each from one of the modules.

    modules : the same for several instruction sets, from that of the most features on; the last
        one has the weights of all

    Raises
    ------
    ArgumentError : instructions of users define names of their own, which would be there twice.
    """
    first, *others = modules
    for module in modules if others else ():
        used = (i for function, _ in module.functions for i in function.instructions)
        named = [i.name for i in used if i.by_user and i.setup.strip()]
        if named:
            raise ArgumentError(
                f"the instruction {named[0]!r} has a setup, of which a file can hold one: export "
                "for one instruction set"
            )
    if not others:
        return first
    names = " and ".join(module.isa.name for module in modules)
    about = first.about[0].replace(f"for {first.isa.name}.", f"for {names}.")
    weights = max((module.weights for module in modules), key=len)
    same = [replace(module, weights=weights) for module in modules]
    bound = max(module.bound for module in modules)
    return replace(same[0], about=(about, *first.about[1:]), bound=bound, others=tuple(same[1:]))
