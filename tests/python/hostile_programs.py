"""NumPy programs that ask for things at the edge of what a trace can know.

Each in hostile_programs.txt defines `f`; where they are needed also `given()`, its arguments,
`change(n)`, which changes what it reads between calls, and `state()`, what it might have changed.
"""

from __future__ import annotations

from pathlib import Path

PRELUDE = """
import abc, asyncio, collections, contextlib, copy, ctypes, dataclasses, enum, functools, inspect
import itertools, math, operator, os, random, sys, threading, time, types, typing, warnings
import numpy as np

def given():
    return [np.arange(6.0).reshape(2, 3) + 1]

def change(n):
    pass

def state():
    return []

w = np.array([1.0, 2.0, 3.0])
scale = 2.0
"""

PROGRAMS = Path(__file__).with_name("hostile_programs.txt").read_text()


def programs() -> dict[str, str]:
    """Names, and texts."""
    parts = [p.partition("\n") for p in ("\n" + PROGRAMS).split("\n== ")[1:]]
    assert len({name for name, _, _ in parts}) == len(parts)
    return {name: PRELUDE + text for name, _, text in parts}
