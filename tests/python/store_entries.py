"""Entries that are what they say, for tests of stores: made by hand, without a search."""

from __future__ import annotations

import functools

from tessera import Graph, _core, verify
from tessera.options import Options
from tessera.store.entry import Entry

# By name: a program, and one that computes the same.
PAIRS = {
    "twice": ("t = add x, x : f32[8,4]", "c = const {value=2} : f32[]\n t = mul x, c : f32[8,4]"),
    "square": ("t = mul x, x : f32[8,4]", "t = sqr x : f32[8,4]"),
}


def program(body: str, name: str = "g") -> str:
    """The text of a program of one input and one result."""
    return f"graph {name} {{\n x = input : f32[8,4]\n {body}\n return t\n}}"


def resealed(entry: Entry, **changes: str) -> Entry:
    """An entry with fields changed, and the key that follows from them; nothing is looked at."""
    changed = Entry({**entry.fields, **changes})
    return changed if "key" in changes else Entry({**changed.fields, "key": changed.own_key()})


@functools.cache
def _sound(name: str) -> Entry:
    original, graph = (program(body, name) for body in PAIRS[name])
    a, b = Graph.parse(original), Graph.parse(graph)
    certificate = verify(a, b, seed=7).certificate
    fields = {
        "kind": "program", **_core.entry_key(a.core, Options().fields()), "made": "2026-01-02",
        "original_spread": "0.01", "original": original, "improved": "yes", "original_s": "2e-06",
        "seconds": "1e-06", "spread": "0.02", "speedup": "2", "model_s": "0", "rank": "1",
        "origin": "synth", "derivation": "by hand", "graph": graph, "certificate": str(certificate),
    }  # fmt: skip
    return Entry(fields).checked()


def entry(name: str = "twice", **changes: str) -> Entry:
    """A sound entry of this device, with these changes."""
    return resealed(_sound(name), **changes)


def many(count: int) -> list[Entry]:
    """Different sound entries, of two programs in turns."""
    return [entry(("twice", "square")[n % 2], options=f"seed {n}") for n in range(count)]
