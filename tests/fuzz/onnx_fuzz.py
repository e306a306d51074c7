"""Fuzzes reading and writing of ONNX models by Atheris (libFuzzer for Python): whatever the bytes
are, a model is read or refused by an Error with exit code 65, in bounded time and memory.

    python tests/fuzz/onnx_fuzz.py CORPUS [flags of libFuzzer]

An empty folder CORPUS is filled with ONNX's own node tests first.
"""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atheris
import onnx
from google.protobuf.message import DecodeError

with atheris.instrument_imports(include=["tessera.frontends.onnx", "tessera.ops"]):
    import tessera.frontends.onnx.operators  # noqa: F401
    from tessera.errors import Error, UnsupportedError
    from tessera.frontends.onnx import Model
    from tessera.frontends.onnx.export import to_onnx


def seeds(folder: Path) -> None:
    """Models of ONNX's node tests that are small, one for each kind of operator."""
    from bench.onnx_nodes import node_cases

    folder.mkdir(parents=True, exist_ok=True)
    seen: set[frozenset[str]] = set()
    for case in node_cases() if not any(folder.iterdir()) else []:
        data = case.model.SerializeToString()
        if len(data) < 4096 and frozenset(case.ops) not in seen:
            seen.add(frozenset(case.ops))
            (folder / f"{case.name}.onnx").write_bytes(data)


def mutate(data: bytes, size: int, seed: int) -> bytes:
    """Bytes as libFuzzer changes them, or one field of the model they are."""
    rng = random.Random(seed)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        field = rng.choice(list(fields(model)))
    except (DecodeError, IndexError):
        return bytes(atheris.Mutate(data, size))
    if rng.random() < 0.2:
        return bytes(atheris.Mutate(data, size))
    message, name, at = field
    value = getattr(message, name) if at is None else getattr(message, name)[at]
    others = [getattr(m, n) if i is None else getattr(m, n)[i] for m, n, i in fields(model)]
    new = rng.choice([v for v in others if type(v) is type(value)])
    if isinstance(value, int) and rng.random() < 0.5:
        new = rng.choice([0, 1, -1, 2, 3, 7, 2**31 - 1, -(2**31), 2**62, value + 1])
    elif isinstance(value, bytes) and rng.random() < 0.5:
        new = bytes(atheris.Mutate(value, len(value) + 8))
    with contextlib.suppress(ValueError):  # out of range for the field
        if at is None:
            setattr(message, name, new)
        else:
            getattr(message, name)[at] = new
    return bytes(model.SerializeToString()[:size])


def fields(message: Any) -> Iterator[tuple[Any, str, int | None]]:
    """Numbers and texts in a message, and where they are in a list."""
    for field, value in message.ListFields():
        repeated = field.is_repeated
        if field.type == field.TYPE_MESSAGE:
            for inner in value if repeated else [value]:
                yield from fields(inner)
        else:
            places: list[int | None] = [*range(min(len(value), 8))] if repeated else [None]
            yield from ((message, field.name, i) for i in places)


def one(data: bytes) -> None:
    try:
        graph = Model(data).graph()
    except Error as error:
        if error.exit_code != 65:
            raise
        return
    with contextlib.suppress(UnsupportedError):
        to_onnx(graph)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folders = [Path(a) for a in sys.argv[1:] if not a.startswith("-")]
    for folder in folders[:1]:
        seeds(folder)
    atheris.Setup(
        [*sys.argv, "-rss_limit_mb=4096", "-timeout=30", "-max_len=16384"],
        one,
        custom_mutator=mutate,
    )
    atheris.Fuzz()
