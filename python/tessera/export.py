"""Programs as files for use without Tessera: plain C11, a header, and weights as a binary file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tessera import _core
from tessera.errors import BadInputError
from tessera.files import require_folder, write_files
from tessera.graph import Graph
from tessera.types import Array, Record, format_type


def export_c(
    graph: Graph, folder: str | Path, *, data: Mapping[str, Array] | None = None, name: str = ""
) -> Record:
    """Writes NAME.c and NAME.h, and NAME.bin where there is data; returns what the header says.

    `data`: arrays for inputs that are to be no arguments but come along in NAME.bin, besides the
    graph's weights. The program is exported as it is, validated and run against the interpreter.

    >>> import tempfile
    >>> h = Graph("doubled")
    >>> _ = h.output(h.input("x", (4,)) * 2)
    >>> sorted(p.name for p in export_c(h, tempfile.mkdtemp())["files"])
    ['doubled.c', 'doubled.h']
    """
    graph.validate()
    name = name or graph.name
    plain = name.isprintable() and not set(name) & set('"\\')
    if not name or not plain or Path(name).name != name or name.startswith("."):
        raise BadInputError(f"'{name}' is no name for files; give one with --name")
    held = {**graph.weights, **(data or {})}
    inputs = graph.input_types()
    found = _core.export_c(graph.core, [n in held for n in inputs], name)
    files: dict[Path, list[bytes]] = {
        Path(folder) / f"{name}.c": [found.pop("source").encode()],
        Path(folder) / f"{name}.h": [found.pop("header").encode()],
    }
    if found["weights_bytes"]:
        blob = bytearray(found["weights_bytes"])
        for (own, (dtype, shape)), at in zip(inputs.items(), found["offsets"], strict=True):
            if at < 0:
                continue
            array = np.asarray(held[own])
            if array.shape != tuple(shape) or array.dtype != dtype:
                raise BadInputError(f"the data of {own} is not {format_type(dtype, shape)}")
            raw = array.tobytes()
            blob[at : at + len(raw)] = raw
        files[Path(folder) / f"{name}.bin"] = [bytes(blob)]
    for path in files:
        require_folder(path)
    write_files(files)
    return {"name": name, "files": list(files), **found}
