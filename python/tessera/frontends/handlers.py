"""What imports the operators of another library: functions, by the operators' names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeVar

from tessera.types import Function

F = TypeVar("F", bound=Function)


class Handlers(dict[str, Function]):
    """Handlers by the names of their operators. Called with names, registers a function for them.

    `marked`: the names that were registered with a mark, by it: `handles("Loop", slow=True)`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.marked: dict[str, set[str]] = defaultdict(set)

    def __call__(self, *names: str, **marks: bool) -> Callable[[F], F]:
        def register(handler: F) -> F:
            self.table({" ".join(names): handler}, **marks)
            return handler

        return register

    def table(self, rows: Mapping[str, Function], **marks: bool) -> None:
        """Registers rows, whose keys are names, or several with spaces between them."""
        for names, handler in rows.items():
            self.update(dict.fromkeys(names.split(), handler))
            for mark in marks:
                self.marked[mark].update(names.split())
