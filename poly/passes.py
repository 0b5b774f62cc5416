"""`Pass`: one step of a pipeline.  A target's pipeline is tuples of these, so that it can be shown.

The passes themselves are elsewhere: over programs in `poly.rewrites`, over graphs in
`poly.graph_passes`, over loops in `codegen`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from poly.errors import FarkasError, ScheduleError

T = TypeVar("T")


@dataclass(frozen=True)
class Pass(Generic[T]):
    """A pure function from a value to an equivalent value of the same kind.

    run : called with the value, then with the attributes of the context that `needs` names
    exact : whether every bit of a result stays the same, so that it may run in exact mode
    """

    run: Callable[..., T]
    needs: tuple[str, ...] = ()
    exact: bool = False

    @property
    def name(self) -> str:
        """The function's name."""
        return self.run.__name__

    @property
    def about(self) -> str:
        """The first sentence of the function's docstring."""
        return first_sentence(self.run)

    def __call__(self, value: T, context: Any = None) -> T:
        """The value after the pass."""
        return self.run(value, *(getattr(context, name) for name in self.needs))


def run_passes(value: T, passes: Iterable[Pass[T]], context: Any, check: Callable[[T], T]) -> T:
    """Run passes in turn on a value and verify the result.

    context : passes read attributes of it; check : the verifier, which returns its argument

    Raises
    ------
    FarkasError : from a pass, or from the verifier, naming the pass after which it failed.
    """
    passes, result = tuple(passes), value
    try:
        for step in passes:
            result = step(result, context)
        return check(result)
    except ScheduleError:
        raise
    except Exception:
        _find_fault(value, passes, context, check)
        raise


def _find_fault(value: T, passes: Iterable[Pass[T]], context: Any, check: Callable[[T], T]) -> None:
    """Run passes again, verifying after each; slow, so done only after a failure.

    Raises
    ------
    FarkasError : from the verifier, with the name of the pass.
    """
    for step in passes:
        value = step(value, context)
        try:
            check(value)
        except FarkasError as error:
            error.add_note(f"after the pass {step.name}")
            raise


def first_sentence(documented: object) -> str:
    """The first sentence of a docstring, as one line."""
    text = " ".join((documented.__doc__ or "").split("\n\n")[0].split())
    match = re.match(r"(.*?[.:])(?= |$)", text)
    return match[1].rstrip(":").rstrip(".") + "." if match else text
