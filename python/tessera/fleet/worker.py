"""A process of LocalExecutor: does one task after another."""

from __future__ import annotations

import gc

from tessera.fleet.tasks import work
from tessera.racer import serve
from tessera.types import Record, Value


def _answer(order: Record, _: list[Value]) -> tuple[Record, tuple[()]]:
    gc.collect()  # nothing else does in such a process
    return {"answers": work(order["task"], order["requests"])}, ()


def main(*__: str) -> None:
    """The process."""
    serve(_answer)
