"""Programs as files for use without Tessera: plain C11, a header, and weights as a binary file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tessera import _core
from tessera.errors import BadInputError, UnsupportedError
from tessera.files import require_folder, write_files
from tessera.graph import Graph
from tessera.types import Array, Record


def export_c(
    graph: Graph, folder: str | Path, *, data: Mapping[str, Array] | None = None, name: str = ""
) -> Record:
    """Writes NAME.c and NAME.h, and NAME.bin where there is data; returns what the header says.

    `data`: arrays for inputs that are to be no arguments but come along in NAME.bin, besides the
    graph's weights. The program is exported as it is, validated and run against the interpreter.

    >>> h = ts.Graph("doubled")
    >>> h.output(h.input("x", "f32[4]") * 2)
    >>> sorted(p.name for p in export_c(h, folder)["files"])
    ['doubled.c', 'doubled.h']
    """
    graph.validate()
    name = name or graph.name
    if not name or Path(name).name != name or name.startswith("."):
        raise BadInputError(f"'{name}' is no name for files; give one with --name")
    held = {**graph.weights, **(data or {})}
    inputs = graph.input_types()
    found = _core.export_c(graph.core, [n in held for n in inputs], name)
    files: dict[Path, list[bytes]] = {
        Path(folder) / f"{name}.c": [found.pop("source").encode()],
        Path(folder) / f"{name}.h": [found.pop("header").encode()],
    }
    if found["weights_bytes"]:
        placed = zip(inputs, found["offsets"], strict=True)
        blob = bytearray(found["weights_bytes"])
        for own, at in placed:
            if at < 0:
                continue
            raw = np.ascontiguousarray(held[own]).tobytes()
            blob[at : at + len(raw)] = raw
        if len(blob) != found["weights_bytes"]:
            raise UnsupportedError(f"the data of {graph.name} is not of its types")
        files[Path(folder) / f"{name}.bin"] = [bytes(blob)]
    for path in files:
        require_folder(path)
    write_files(files)
    return {"name": name, "files": list(files), **found}
