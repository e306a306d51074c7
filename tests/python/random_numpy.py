"""Random small NumPy programs of all dtypes, compared with plain NumPy.

`python -m tests.python.random_numpy SECONDS [SEED]` runs until time is up and prints what differs;
test_random_numpy.py runs a few of them, or TESSERA_RANDOM_PROGRAMS. Rewrites are also compared at
other sizes, where they claim to be right there.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from quick import QUICK

import tessera as ts
from tessera import _core
from tessera.drop_in import DropIn
from tessera.emit import compile_source, emit
from tessera.errors import Error, UnsupportedError
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import unflatten
from tessera.graph import Graph
from tessera.options import Options
from tessera.verification import verify

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i1", "u1", "?", "f8", "f4", "i4", "i8"]
RARE = ["i2", "u4", "c16", ">f8", "O"]
UNARY = ["-{}", "np.abs({})", "{} * 2", "{} + {}", "{} * {}", "np.square({})", "np.sign({})",
         "{}.T", "{}.sum(axis=0)", "{}.sum()", "{}.sum(axis=-1)", "{}.mean(axis=0)", "{}.max()",
         "{}.min(axis=0)", "{} ** 2", "{} ** 3", "{} + 1", "{} - 1", "1 - {}", "{} / 2", "2 * {}",
         "{}.astype(np.float64)", "{}.astype(np.float32)", "{}.astype(np.int64)", "~{}",
         "{}.astype(np.int8)", "{} % 3", "{} > 0", "({} > 0).astype(np.int32)", "{} // 2",
         "np.sqrt(np.abs({}))", "np.exp(-np.abs({}))", "np.log(np.abs({}) + 1)", "np.prod({})",
         "np.cumsum({})", "np.ravel({})", "np.clip({}, -1, 2)", "np.where({} > 0, {}, 0)",
         "np.mean({})", "np.dot({}, {}.T)", "np.any({})", "np.trace(np.atleast_2d({}))",
         "{}[::-1]", "{}[..., :1]", "{} * 2.5", "{} * True", "np.float32(3) * {}",
         "{} << 1", "{} >> 2", "{} & 7", "{} // 5", "{}[{} > 0].sum()", "{}[{} < 1].mean()",
         "({}[{} > 0] * 2).sum()", "{}[..., 1:] - {}[..., :-1]"]  # fmt: skip
BINARY = ["{} + {}", "{} - {}", "{} * {}", "{} / {}", "np.maximum({}, {})", "np.minimum({}, {})",
          "np.where({} > {}, 1, 0)", "{} @ {}", "{} == {}", "{} % {}", "np.dot({}, {})",
          "np.stack([{}, {}])", "{} < {}", "np.outer({}, {})", "({} > 0) & ({} > 0)",
          "np.arctan2({}, {})", "np.power({}, {})", "{} * {} + {} * {}", "{}[..., -1] * {}",
          "{}[0] - {}[0]", "{}[..., :1] / {}"]  # fmt: skip
SHAPES = [(3, 3), (3, 3), (3, 3), (3,), (4, 3), (), (1, 3), (3, 1)]
WIDE = {3: 19, 4: 36}  # extents of some programs, which vectors and tiles do not divide


def random_source(rng: np.random.Generator) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """A function `f` as text, and arrays to call it with."""
    count = int(rng.integers(1, 4))
    wide = rng.random() < 0.3
    arrays = [random_array(rng, wide) for _ in range(count)]
    names = [f"x{i}" for i in range(count)]
    lines = []
    for step in range(int(rng.integers(1, 7))):
        if rng.random() < 0.5:
            form = UNARY[rng.integers(len(UNARY))]
            picks = [names[rng.integers(len(names))]] * form.count("{}")
        else:
            form = BINARY[rng.integers(len(BINARY))]
            a, b = (names[rng.integers(len(names))] for _ in range(2))
            picks = ([a, b] * form.count("{}"))[: form.count("{}")]
        lines.append(f"    t{step} = {form.format(*picks)}")
        names.append(f"t{step}")
        names = names[-5:]
    result = f"t{len(lines) - 1}"
    if rng.random() < 0.2:
        result = f"({result}, {names[rng.integers(len(names))]})"
    parameters = ", ".join(f"x{i}" for i in range(count))
    return f"def f({parameters}):\n" + "\n".join(lines) + f"\n    return {result}\n", arrays


def random_array(rng: np.random.Generator, wide: bool = False) -> np.ndarray[Any, Any]:
    dtype = np.dtype(RARE[rng.integers(len(RARE))] if rng.random() < 0.03 else
                     DTYPES[rng.integers(len(DTYPES))])  # fmt: skip
    shape = SHAPES[rng.integers(len(SHAPES))]
    shape = tuple(WIDE.get(n, n) for n in shape) if wide else shape
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        wide = rng.random() < 0.5
        low, high = (info.min, info.max) if wide else (max(info.min, -5), 5)
        return np.asarray(rng.integers(low, high, shape, endpoint=True, dtype=dtype))
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    values = rng.standard_normal(shape) * rng.choice([0.5, 1, 3])
    if rng.random() < 0.2:
        values = np.round(values)
    array = np.asarray(values).astype(dtype)
    return np.asarray(array[::-1]) if shape and rng.random() < 0.2 else array


def run(function: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*[a.copy() for a in arrays])
        except Exception as error:
            return error


def difference(ours: Any, theirs: Any, scalars: bool = True, eps: float = 0.0) -> str:
    """Why two results or exceptions are not the same; empty where they are.

    `eps` is that of floats on the way, if coarser.

    Without `scalars` an array of no axes is as good as a number.
    """
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        same = type(ours) is type(theirs) and str(ours) == str(theirs)
        return "" if same else f"{ours!r} instead of {theirs!r}"
    if isinstance(theirs, tuple):
        if not isinstance(ours, tuple) or len(ours) != len(theirs):
            return f"{type(ours).__name__} instead of a tuple"
        return next(
            filter(None, (difference(a, b, scalars) for a, b in zip(ours, theirs, strict=True))), ""
        )
    if scalars and type(ours) is not type(theirs):
        return f"{type(ours).__name__} instead of {type(theirs).__name__}"
    a, b = np.asarray(ours), np.asarray(theirs)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
    if b.dtype.kind != "f":
        return "" if np.array_equal(a, b) else f"{a!r} instead of {b!r}"
    finite = np.isfinite(b)
    eps = max(eps, float(np.finfo(b.dtype).eps))
    scale = np.max(np.abs(b[finite].astype(np.float64)), initial=1.0)
    with np.errstate(all="ignore"):
        near = np.abs(np.subtract(a, b, dtype=np.float64)[finite]) <= 1e4 * eps * scale
    return "" if near.all() else f"{a!r} instead of {b!r}"


def unstable(function: Any, arrays: list[np.ndarray[Any, Any]]) -> bool:
    """Whether rounding decides: a small change of the inputs, or casts that C does not define."""
    before = run(function, arrays)
    rng = np.random.default_rng(0)
    for _ in range(4):
        moved = [
            np.asarray(a * (1 + 4 * np.finfo(a.dtype).eps * rng.standard_normal(a.shape)), a.dtype)
            if a.dtype.kind == "f"
            else a
            for a in arrays
        ]
        if difference(run(function, moved), before):
            return True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function(*arrays)
        except Exception:
            return False
    return any("invalid value" in str(w.message) for w in caught)


def resized(array: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """An array like this with longer axes, those of extent 1 excepted, of its own values."""
    shape = [2 * n + 7 if n > 1 else n for n in array.shape]
    return np.asarray(rng.choice(array.reshape(-1), shape), array.dtype)


def at_other_sizes(
    function: Any, arrays: list[np.ndarray[Any, Any]], rng: np.random.Generator
) -> tuple[str, str]:
    """How a rewrite that is proved for other sizes differs there, and its source; "" where not."""
    try:
        traced = trace_call(function, arrays, {})
        if traced.extra:
            return "", ""
        fields = {**Options().fields(), "engine": "synth", "budget": 1.0}
        found = _core.search(traced.graph.core, fields, None)["candidates"][:1]
        graph = Graph.from_core(found[0]["graph"]) if found else traced.graph
        if not verify(traced.graph, graph, seed=1).equal:
            return "", ""
        drop_in = DropIn(traced.graph, function, traced, "g", arrays)
        spelling: dict[str, Any] = {}
        if not drop_in.proved_at_other_sizes(graph, Options()):
            if (least := drop_in.least_extents(graph, Options())) is None:
                return "", ""
            spelling = {"these_ties": least[0]}
        else:
            spelling = {"these_ranks": drop_in.needs_rank_guards(graph, Options())}
        source = drop_in.source(graph, **spelling)
    except Error:
        return "", ""
    others = [resized(a, rng) for a in arrays]
    expected, got = run(function, others), run(compile_source(source, "g"), others)
    if isinstance(expected, Exception) or isinstance(got, ValueError):
        return "", ""
    why = difference(got, expected)
    return ("", "") if not why or unstable(function, others) else (why, source)


def accepted_sources(
    function: Any, arrays: list[np.ndarray[Any, Any]]
) -> Iterator[tuple[Any, str]]:
    """The program's own source and every rewrite of it that is proved, as functions."""
    try:
        traced = trace_call(function, arrays, {})
    except Error:
        return
    fields = {**Options().fields(), "engine": "synth", "budget": 2.0}
    found = [
        Graph.from_core(c["graph"])
        for c in _core.search(traced.graph.core, fields, None)["candidates"]
    ]
    for n, graph in enumerate([traced.graph, *found[:4]]):
        try:
            source = emit(graph, "numpy", name="g")
        except UnsupportedError:
            continue
        if n > 0 and not verify(traced.graph, graph, seed=1).equal:
            continue
        made = compile_source(source, "g")

        def call(*args: Any, made: Any = made) -> Any:
            out = made(*args, *traced.extra)
            out = list(out) if isinstance(out, (tuple, list)) else [out]
            return unflatten(traced.results, out)

        yield call, source


def check(seed: int, kernels: bool, sizes: bool = True) -> list[str]:
    """What is wrong with one random program."""
    rng = np.random.default_rng(seed)
    text, arrays = random_source(rng)
    scope: dict[str, Any] = {"np": np}
    exec(text, scope)
    function = scope["f"]
    expected = run(function, arrays)
    told = f"seed {seed}\n{text}" + "".join(f"    x{i} = {a!r}\n" for i, a in enumerate(arrays))
    wrong = []
    if kernels:
        optimised = ts.optimize(**QUICK)(function)
        for _ in range(2):
            if why := difference(run(optimised, arrays), expected):
                if not unstable(function, arrays):
                    wrong.append(f"@optimize: {why}\n{told}")
                break
    if isinstance(expected, Exception):
        return wrong
    for call, source in accepted_sources(function, arrays):
        why = difference(run(call, arrays), expected, scalars=False)
        if why and not unstable(function, arrays):
            wrong.append(f"source: {why}\n{told}{source}")
    if sizes:
        why, source = at_other_sizes(function, arrays, rng)
        if why:
            wrong.append(f"source at other sizes: {why}\n{told}{source}")
    return wrong


def main() -> int:
    seconds = float(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    end, count, failures = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        for problem in check(seed + count, kernels=count % 10 == 0):
            failures += 1
            print(problem, flush=True)
        count += 1
    print(f"{count} programs, {failures} differ")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
