"""Random NumPy programs with state outside, views, writes and effects, decorated and not.

`python -m tests.python.random_state COUNT [SEED]` prints what differs; test_random_state.py runs
some of them. A program is made twice, each with state of its own; one of the two is decorated. Both
are called on equal arrays while the state changes in between, and what they return, leave behind
and share must be the same. Of 40 all but one run as emitted source, which needs no compiler.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from random_numpy import difference

import tessera as ts
from tessera.contest import Choice
from tessera.decorator import Optimized
from tessera.emit import compile_source, emit
from tessera.frontends.trace import Traced
from tessera.options import Options
from tessera.result import FunctionCall, Result

STATE = """
import itertools, math, types
import numpy as np

w, v = np.arange(1.0, 4.0), np.ones((2, 3))
row, index = v[0], np.array([0, 2])
items, table, names = [1.0, 2.0], {"w": np.full(3, 2.0), "n": 3}, {"a", "b"}
box = types.SimpleNamespace(w=np.full(3, 0.5), rate=0.25, on=True)
log, steps, scale, out = [], itertools.count(1), 2.0, np.zeros((2, 3))

class Layer:
    gain = 1.5
    def __init__(self):
        self.w = np.full(3, 1.25)
    def __call__(self, x):
        return x * self.w + self.gain

layer = Layer()

def helper(x, k=w):
    return x * k.sum() + scale

def change(n):
    global scale, w
    if n == 0: w[:] = w + 1
    elif n == 1: w = np.full(3, 5.0)
    elif n == 2: v[0, 1] += 2
    elif n == 3: items.append(4.0)
    elif n == 4: table["w"][1] = 7; table["n"] += 1
    elif n == 5: names.add(str(len(names)))
    elif n == 6: box.w[0] = -3.0; box.rate += 1
    elif n == 7: box.on = not box.on
    elif n == 8: layer.w *= 2
    elif n == 9: layer.gain = 9.0
    elif n == 10: scale += 1
    elif n == 11: index[0] = 1
    elif n == 12: layer.w = np.full(3, 8.0)
    elif n == 13: Layer.gain = 2.5
    elif n == 14: items[:1] = [-1.0]

def state():
    return [w, v, items, list(table.values()), sorted(names), vars(box), list(log), repr(steps),
            scale, vars(layer), index, out]
"""
EXPRESSIONS = (
    """
x + y|x * 2 - y|x * w|x * np.sqrt(np.abs(w))|x - w.mean()|x * -w|x * (w / w.sum())|x + v|x * row
x * int(w[0])|x * float(v.mean())|x * len(items)|x + sum(items)|x * table["w"]|x * table["n"]
x * len(names)|x * box.w.max()|x * (box.rate if box.on else 3.0)|layer(x)|layer.w * x|helper(x)
helper(x, v)|x[:, index].sum(axis=1, keepdims=True) * y|np.where(w > 2, x, y)|x * scale|x @ v.T @ v
x * (2 if w[0] > 2 else 3)|x * (2 if (v > 2).any() else 3)|np.maximum(x, v)|np.exp(-np.abs(x * w))
x[0] * y|x[::-1] * y|x.T.reshape(2, 3) + y|np.outer(w, w)[:2] * x|x * math.sqrt(abs(scale))
x * np.linalg.norm(w)|x + np.arange(3.0)|np.stack([x[0], w]) * y|x * np.sort(w)|x - np.median(v)
x.sum() + y|x.mean(axis=0) * w + y|np.clip(x, -w.max(), 1.0)|x * w[1:].sum()|x * np.array(items[:1])
x * max(items)|x * ("a" in names)|x + np.interp(0.5, [0, 1], w[:2])|x * len(repr(items))
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
EFFECTS = (
    """
log.append(1)|log.append(len(log))|y = y + next(steps)|out[0, 0] += 1|out += x
box.rate = box.rate + 1|items.append(1.0)|table["n"] += 1|np.add(out, 1, out=out)
layer.w = layer.w + 1|names.add(str(len(log)))|np.copyto(out, x)|box.seen = True
w[0] = 2.0|out.fill(x.size)|layer.count = 1|items.pop() if items else 0|x[0, 0] = 3.0
x += 1|y = x|z = x; z *= 2|x = x.copy(); x[0] = w|x = x + 0; x += y
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
RESULTS = ["t", "t", "t", "t", "(t, x)", "(t, t)", "[t, t[0]]", "{'a': t, 'b': y}", "x", "t.T",
           "w", "(t, t + 1)", "t[:, ::2] + 0", "np.asarray(t)", "(t, out)", "t.sum()"]  # fmt: skip


def random_program(rng: np.random.Generator) -> tuple[str, list[int]]:
    """A program, and the changes between its calls."""
    lines = []
    for _ in range(int(rng.integers(1, 4))):
        lines.append(f"t = {EXPRESSIONS[rng.integers(len(EXPRESSIONS))]}")
        if rng.random() < 0.15:
            lines.insert(0 if rng.random() < 0.5 else len(lines),
                         EFFECTS[rng.integers(len(EFFECTS))])  # fmt: skip
        if rng.random() < 0.5:
            lines.append("y = t" if rng.random() < 0.5 else "x = t + 0 * x")
    lines.append(f"return {RESULTS[rng.integers(len(RESULTS))]}")
    if any(line.startswith(("w = ", "scale")) for line in lines):
        lines.insert(0, "global w, scale")
    body = "".join(f"    {line}\n" for line in lines)
    return f"{STATE}\ndef f(x, y):\n{body}", [int(n) for n in rng.integers(0, 16, 4)]


class _Source(Result):
    """A traced function that runs as its emitted source."""

    def __init__(self, function: Callable[..., Any], traced: Traced) -> None:
        self._call, self.original, self.choice = (
            FunctionCall(function, traced), traced.graph, Choice("source"))  # fmt: skip
        copies = [n for n, output in enumerate(traced.graph.outputs) if output.shape != ()]
        self._source = compile_source(emit(traced.graph, name="program", copies=copies), "program")
        self._run, self._direct, self._target, self.details = self._source, None, "", {}  # type: ignore[assignment]
        self._certificate = None

    interpreted = False  # type: ignore[assignment]


def sourced(function: Callable[..., Any]) -> Optimized:
    """The function as @optimize would have it, were sources always faster."""
    return Optimized(function, Options(tune=False), lambda f, traced, *_, **__: _Source(f, traced))


def outcome(scope: dict[str, Any], f: Callable[..., Any], given: Sequence[Any]) -> list[Any]:
    """What a call returns, shares and leaves behind, and what writing to its results does."""
    arrays = [np.array(a) for a in given]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = f(*arrays)
        except Exception as error:
            return [repr(error), *arrays, scope["state"]()]
    parts = list(result.values()) if isinstance(result, dict) else result
    parts = list(parts) if isinstance(parts, (tuple, list)) else [parts]
    values = [np.copy(p) for p in parts]
    shape = [type(result).__name__, *((type(p).__name__, getattr(p, "strides", 0)) for p in parts)]
    shape += [a is b for a in parts for b in (*parts, *arrays)]
    if isinstance(parts[0], np.ndarray) and parts[0].flags.writeable:
        parts[0][...] = 11.0  # seen by whatever shares its memory
    return [values, shape, [np.copy(p) for p in parts], arrays, scope["state"]()]


def differing(ours: Any, theirs: Any) -> str:
    if isinstance(theirs, (list, tuple)):
        if type(ours) is not type(theirs) or len(ours) != len(theirs):
            return f"{ours!r} instead of {theirs!r}"
        return next(filter(None, map(differing, ours, theirs)), "")
    if isinstance(theirs, dict):
        return differing(sorted(ours.items()), sorted(theirs.items()))
    if isinstance(theirs, (np.ndarray, np.generic)):
        return difference(ours, theirs)
    return "" if ours == theirs else f"{ours!r} instead of {theirs!r}"


def check(seed: int, compiled: bool | None = None) -> tuple[str, bool]:
    """What is wrong with a program, and whether it was traced."""
    rng = np.random.default_rng(seed)
    text, changes = random_program(rng)
    compiled = seed % 40 == 0 if compiled is None else compiled
    scopes: list[dict[str, Any]] = [{"__name__": "plain"}, {"__name__": "ours"}]
    for scope in scopes:
        exec(text, scope)
    plain, f = scopes[0]["f"], scopes[1]["f"]
    ours = ts.optimize(budget=0.05, cache=False)(f) if compiled else sourced(f)
    given = [rng.standard_normal((2, 3)).round(2) for _ in range(2)]
    traced = False
    for n, kind in enumerate([None, None, *changes, None]):
        if kind is not None:
            for scope in scopes:
                scope["change"](kind)
        for _ in range(2):
            expected = outcome(scopes[0], plain, given)
            found = outcome(scopes[1], ours, given)
            if why := differing(found, expected):
                return f"seed {seed}, call {n}, changes {changes}: {why}\n{text}", traced
        traced = traced or any(e.result is not None for e in ours._known.values())
    return "", traced


def main() -> int:
    count = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    failures = traced = 0
    for n in range(count):
        problem, followed = check(seed + n)
        traced += followed
        if problem:
            failures += 1
            print(problem.replace(STATE, ""), flush=True)
    print(f"{count} programs with state, {traced} traced, {failures} differ")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
