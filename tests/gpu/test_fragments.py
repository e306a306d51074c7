"""Which thread of the GPU holds which element, against what the emulator says (fragments.txt)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import _bench
from tessera import _core

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "unit/backend/cuda_fragments.cuh"
KEPT = {line.split()[0]: line.split() for line in (HERE / "fragments.txt").read_text().splitlines()}


def hash_of(words: list[int]) -> int:
    """FNV-1a, 64 bits, over little-endian words."""
    value = 0xCBF29CE484222325
    for word in words:
        for byte in word.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def needs(name: str) -> tuple[int, bool]:
    """The compute capability that a kernel needs, and whether it runs on that one alone."""
    if name.startswith("fragment_wide"):
        return 9, True
    return (9, False) if name.startswith(("fragment_store", "fragment_box")) else (8, False)


@pytest.mark.parametrize("name", list(KEPT))
def test_fragment(name: str) -> None:
    arch = _core.cuda_machine()["devices"][0]["arch"]
    major = int("".join(c for c in arch if c.isdigit())) // 10
    least, alone = needs(name)
    if major < least or (alone and major != least):
        pytest.skip(f"{name} is not for compute capability {major}")
    _, threads, count, hashed, *first = KEPT[name]
    box, suffix = name.startswith("fragment_box"), name.rpartition("_")[2]
    columns = 0 if not box else int(suffix) if suffix.isdigit() else 64
    kernel = (name, int(threads), int(count), columns, "swizzled" in name)
    (words,) = _bench.read_fragments(SOURCE.read_text(), [kernel])
    assert [f"{w:x}" for w in words[:32]] == first
    assert f"{hash_of(words):x}" == hashed, "differs beyond the first 32 words"
