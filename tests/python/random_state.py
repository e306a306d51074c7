"""Random NumPy programs with state outside, views, writes and effects, decorated and not.

`python -m tests.python.random_state COUNT [SEED]` prints what differs; test_random_state.py runs
some of them. A program is made twice, each with state of its own; one of the two is decorated. Both
are called on equal arrays while the state changes in between, and what they return, leave behind
and share must be the same. Of 40 all but one run as emitted source, which needs no compiler.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from random_numpy import difference

import tessera as ts
from tessera.call_forms import FunctionCall
from tessera.contest import Choice
from tessera.decorator import Optimized
from tessera.emit import compile_source, emit
from tessera.frontends.traced import Traced
from tessera.options import Options
from tessera.result import Result

STATE = """
import enum, functools, io, itertools, math, os, types
import numpy as np

w, v = np.arange(1.0, 4.0), np.ones((2, 3))
row, index = v[0], np.array([0, 2])
items, table, names = [1.0, 2.0], {"w": np.full(3, 2.0), "n": 3}, {"a", "b"}
box = types.SimpleNamespace(w=np.full(3, 0.5), rate=0.25, on=True)
log, steps, scale, out = [], itertools.count(1), 2.0, np.zeros((2, 3))
text, cut, whole = io.StringIO(), np.arange(12.0).reshape(2, 6)[:, ::-2], np.array([3, -1, 2])
rec = np.zeros(3, [("a", float), ("n", int)])
part = functools.partial(lambda x, k: x * k, k=1.5)
Kind = enum.Enum("Kind", {"A": 2, "B": 3})

class Layer:
    gain = 1.5
    def __init__(self):
        self.w = np.full(3, 1.25)
    def __call__(self, x):
        return x * self.w + self.gain

layer = Layer()

def helper(x, k=w, *, gain=1.0):
    return x * k.sum() + scale * gain

def lazily(x):
    try:
        return x * late
    except NameError:
        return x * 3

def change(n):
    global scale, w, late
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
    elif n == 15: part.keywords["k"] += 1
    elif n == 16: helper.__kwdefaults__ = {"gain": helper.__kwdefaults__["gain"] + 1}
    elif n == 17: cut[0, 0] += 1; whole[1] += 1
    elif n == 18: os.environ["TESSERA_STATE"] = str(len(items) + 1)
    elif n == 19: late = scale + 1
    elif n == 20: rec["a"][1] += 2; rec[2] = (1.0, 5)
    elif n == 21: w.shape = (3, 1) if w.ndim == 1 else (3,)

def state():
    return [w, v, items, list(table.values()), sorted(names), vars(box), list(log), repr(steps),
            scale, vars(layer), index, out, text.getvalue(), cut, whole]
"""
CHANGES = 22
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
np.add.reduce(x) * w|np.maximum.accumulate(x)|np.multiply.reduce(x, axis=-1, keepdims=True) * y
np.subtract.outer(w, w)[:2] + x|x // 2|x % 3|x // y|x.astype(np.float32) * y|x.astype(int) * y
(x > 0) & (y > 0)|~(x > y)|x ** 2|np.round(x)|np.floor(x) * y|x.cumsum(axis=0)|x.argmax(axis=-1)
np.where(x > 0, np.nan, y)|np.where(x > 0, -0.0, y)|1 / x|np.log(np.abs(x))|x / (y - y)|x * np.inf
x.max(initial=0)|x[..., ::-1] * 1|x[..., None] * w|np.broadcast_to(w, (2, 3)) * x|x - x.mean()
part(x)|part(x, k=scale)|x * Kind.A.value|x * type(layer).gain|x * layer.__class__.gain|lazily(x)
x * float(os.environ.get("TESSERA_STATE", "2"))|x * getattr(box, "rate")|np.float32(2) * x|cut * x
x * np.int8(3)|x * whole|x ** whole|x[:, whole - 1] + 0|np.take(x, whole, axis=-1)|x * cut.sum()
x * int(cut[0, 0])|x * cut.strides[1]|x * rec["a"]|x * float(rec[1]["a"])|x * whole.tolist()[1]
helper(x, gain=2.0)|np.ravel(x, order="K").reshape(x.shape) + 0|x.flatten("F")
x.reshape(3, 2, order="F")|np.ravel(x, order="A")|np.hypot(x, y)|np.arctan2(y, x)
np.sign(x) * y|np.fmax(x, y)|-x|abs(x)
x.sum(dtype=np.float32)|x.var(axis=0) * w|x.any(axis=0) * w|np.count_nonzero(x) + y|x * True
np.concatenate([x, y])[:2] * 2|x * (3 if w.ndim == 1 else 5)|x @ w|np.dot(w, x.T)
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
np.multiply(x, 2, out=out)|np.add.at(out, (0, 1), 1.0)|np.add.at(x, (0, 1), 1)|v[0] += 1
row[:] = 3|print(len(log), file=text)|x.sort()|np.negative(x, out=x)|cut[0] = 1|out[:] = x; x = out
y = x[::-1]; y[0] = 9|y = np.empty_like(x); np.add(x, 1, out=y)|y = x.copy(); y[x > 0] *= -1
with np.errstate(divide="raise"): y = y / (x - x)|y = 1 / 0 if log else y|x = x.reshape(-1)
log.append(1); raise ValueError("now")|assert x.ndim == 2|y = x.copy(); np.add.at(y, (0, 1), 5)
x += 1|y = x|z = x; z *= 2|x = x.copy(); x[0] = w|x = x + 0; x += y
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
RESULTS = ["t", "t", "t", "t", "(t, x)", "(t, t)", "[t, t[0]]", "{'a': t, 'b': y}", "x", "t.T",
           "w", "(t, items)", "(t, log)", "cut", "[y, y]",
           "(t, t + 1)", "t[:, ::2] + 0", "np.asarray(t)", "(t, out)", "t.sum()"]  # fmt: skip


def random_program(rng: np.random.Generator) -> tuple[str, list[int]]:
    """A program, and the changes between its calls."""
    lines = []
    for _ in range(int(rng.integers(1, 4))):
        lines.append(f"t = {EXPRESSIONS[rng.integers(len(EXPRESSIONS))]}")
        if rng.random() < 0.1:
            lines.insert(0 if rng.random() < 0.5 else len(lines),
                         EFFECTS[rng.integers(len(EFFECTS))])  # fmt: skip
        if rng.random() < 0.5:
            lines.append("y = t" if rng.random() < 0.5 else "x = t + 0 * x")
    lines.append(f"return {RESULTS[rng.integers(len(RESULTS))]}")
    if any(line.startswith(("w = ", "scale")) for line in lines):
        lines.insert(0, "global w, scale")
    body = "".join(f"    {line}\n" for line in lines)
    return f"{STATE}\ndef f(x, y):\n{body}", [int(n) for n in rng.integers(0, CHANGES, 4)]


def random_argument(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Floats of two axes as a rule, one in ten of them special; else of any kind and layout."""
    shape = (2, 3) if rng.random() < 0.92 else [(), (3,), (1, 3), (0, 3), (2, 1)][rng.integers(5)]
    values = np.asarray(rng.standard_normal(shape)).round(2)
    if rng.random() < 0.1:
        values = np.asarray(rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1e300], shape))
    with np.errstate(all="ignore"):
        kind = "f8" if rng.random() < 0.75 else ["f4", "f2", "i8", "i4", "i1", "u1", "?"][
            rng.integers(7)
        ]  # fmt: skip
        values = np.asarray(values if kind[0] == "f" else np.nan_to_num(values, posinf=9) * 3 % 90)
        values = values.astype(kind)
    return laid_out(values, int(rng.integers(-8, 4)))


def laid_out(values: np.ndarray[Any, Any], how: int) -> np.ndarray[Any, Any]:
    """The same values otherwise in memory: by columns, backwards, or with gaps."""
    if how == 1:
        return np.asfortranarray(values)
    if how == 2 and values.ndim:
        return values[::-1].copy()[::-1]
    if how == 3 and values.ndim:
        return np.repeat(values, 2, axis=-1)[..., ::2]
    return values


def again(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that lies in memory as the array does."""
    if array.base is None:
        return array.copy(order="K")
    back = array.ndim > 0 and array.strides[0] < 0
    return laid_out(np.ascontiguousarray(array).reshape(array.shape), 2 if back else 3)


class _Source(Result):
    """A traced function that runs as its emitted source."""

    def __init__(self, function: Callable[..., Any], traced: Traced) -> None:
        self._call, self.original, self.choice = (
            FunctionCall(function, traced), traced.graph, Choice("source"))  # fmt: skip
        copies = [n for n, output in enumerate(traced.graph.outputs) if output.shape != ()]
        scalars, plain = (
            [
                n
                for n, o in enumerate(traced.graph.outputs)
                if o.shape == () and traced.forms[n] == f
            ]
            for f in ("scalar", "array")
        )
        text = emit(traced.graph, name="program", copies=copies, as_scalars=scalars,
                    as_arrays=plain)  # fmt: skip
        self._source = compile_source(text, "program")
        self._run, self._direct, self._target, self.details = self._source, None, "", {}
        self._certificate = None

    interpreted = False


def sourced(function: Callable[..., Any]) -> Optimized:
    """The function as @optimize would have it, were sources always faster."""
    return Optimized(function, Options(tune=False), lambda f, traced, *_, **__: _Source(f, traced))


def strides(value: Any) -> list[int]:
    """Of the axes along which there are steps."""
    if not isinstance(value, np.ndarray) or value.size == 0:
        return []
    return [s for s, n in zip(value.strides, value.shape, strict=True) if n > 1]


def outcome(scope: dict[str, Any], f: Callable[..., Any], given: Sequence[Any]) -> list[Any]:
    """What a call returns, shares and leaves behind, and what writing to its results does."""
    arrays = [again(a) for a in given]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = f(*arrays)
        except Exception as error:
            return [repr(error), *arrays, scope["state"]()]
    parts = list(result.values()) if isinstance(result, dict) else result
    parts = list(parts) if isinstance(parts, (tuple, list)) else [parts]
    values = [np.copy(p) for p in parts]
    shape: list[Any] = [type(result).__name__, *((type(p).__name__, strides(p)) for p in parts)]
    shape += [a is b for a in parts for b in (*parts, *arrays)]
    if isinstance(parts[0], np.ndarray) and parts[0].flags.writeable:
        parts[0][...] = 11.0  # seen by whatever shares its memory
    return [values, shape, [np.copy(p) for p in parts], arrays, scope["state"]()]


def differing(ours: Any, theirs: Any, eps: float = 0.0) -> str:
    """Why two outcomes are not the same; `eps` is that of the coarsest floats among arguments."""
    if isinstance(theirs, (list, tuple)):
        if type(ours) is not type(theirs) or len(ours) != len(theirs):
            return f"{ours!r} instead of {theirs!r}"
        pairs = zip(ours, theirs, strict=True)
        return next(filter(None, (differing(a, b, eps) for a, b in pairs)), "")
    if isinstance(theirs, dict):
        return differing(sorted(ours.items()), sorted(theirs.items()), eps)
    if isinstance(theirs, (np.ndarray, np.generic)):
        return difference(ours, theirs, eps=eps)
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
    given = [random_argument(rng) for _ in range(2)]
    os.environ.pop("TESSERA_STATE", None)
    eps = max((float(np.finfo(a.dtype).eps) for a in given if a.dtype.kind == "f"), default=0.0)
    traced = False
    for n, kind in enumerate([None, None, *changes, None]):
        if kind is not None:
            for scope in scopes:
                scope["change"](kind)
        for _ in range(2):
            expected = outcome(scopes[0], plain, given)
            found = outcome(scopes[1], ours, given)
            if why := differing(found, expected, eps):
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
