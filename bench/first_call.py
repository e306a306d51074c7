"""What a first call of `@ts.optimize` takes beyond the function's own time, in milliseconds.

python -m bench.first_call

In a first process, and in a second one that finds everything in the cache; with how long it took
until the winner ran. Each figure is the median of so many processes, whose caches are their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

_PROCESSES = 1


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def layernorm(x: Any, g: Any) -> Any:
    m = x.mean(axis=-1, keepdims=True)
    return (x - m) / np.sqrt(((x - m) ** 2).mean(axis=-1, keepdims=True) + 1e-5) * g


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def silu(x: Any, y: Any) -> Any:
    return x / (1 + np.exp(-x)) * y


def distances(a: Any, b: Any) -> Any:
    return np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=-1))


def diagonal(a: Any, b: Any) -> Any:
    return np.diag(a @ b.T).copy()


def cosine(a: Any, b: Any) -> Any:
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def hinge(x: Any, y: Any) -> Any:
    return np.maximum(0, 1 - x * y).mean(axis=-1)


def standard(x: Any) -> Any:
    return (x - x.mean(axis=0)) / x.std(axis=0)


def attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ k.T / 8) @ v


def _cases() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal((64, 256)).astype(np.float32) for _ in range(3))
    one = [(f, (a,)) for f in (softmax, gelu, standard)]
    two = [(f, (a, b)) for f in (silu, diagonal, cosine, hinge)]
    return [*one, *two, (layernorm, (a, b[0])), (distances, (a[:, :16], b[:, :16])),
            (attention, (a, b, c))]  # fmt: skip


def child(number: int) -> None:
    """Measures one function; prints JSON."""
    import tessera as ts

    function, args = _cases()[number]
    function(*args)
    start = perf_counter()
    function(*args)
    own = perf_counter() - start
    fast = ts.optimize(function)
    start = perf_counter()
    fast(*args)
    first = perf_counter() - start
    fast.wait(200)
    ready = perf_counter() - start
    fast(*args)
    (status,) = fast.status()
    print(json.dumps([first - own, ready, f"{status.runs} {status.speedup or 0:.3g}x"]))


def main() -> None:
    for number, (function, _) in enumerate(_cases()):
        rows: list[list[list[Any]]] = [[], []]
        for _ in range(_PROCESSES):
            with tempfile.TemporaryDirectory() as folder:
                environment = os.environ | {"TESSERA_CACHE_DIR": folder, "TESSERA_WAIT": "0"}
                for turn in rows:
                    ran = subprocess.run(
                        [sys.executable, "-m", "bench.first_call", str(number)],
                        env=environment, cwd=Path(__file__).parents[1], check=True,
                        capture_output=True, text=True,
                    )  # fmt: skip
                    turn.append(json.loads(ran.stdout))
        told = []
        for turn in rows:
            extra, ready = (median(row[n] for row in turn) for n in (0, 1))
            told.append(f"{extra * 1e3:6.1f} ms, winner after {ready:5.2f} s ({turn[0][2]})")
        print(f"{function.__name__:10} first {told[0]}; second {told[1]}", flush=True)


if __name__ == "__main__":
    child(int(sys.argv[1])) if sys.argv[1:] else main()
