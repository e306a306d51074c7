"""What a first call of `@ts.optimize` takes beyond the function's own time, in milliseconds.

python -m bench.first_call [--json FILE]

In a first process, and in a second one that finds everything in the cache, with how long it took
until the winner ran; and what a first call takes that waits for it (wait=True, an empty cache).
Each figure is the median of so many processes, whose caches are their own.
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
from time import perf_counter, sleep, strftime
from typing import Any

import numpy as np

from tessera.machine import machine_description

_PROCESSES = 3


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


def zscore(x: Any) -> Any:
    return np.clip((x - np.median(x)) / np.std(x), -3, 3)


def logsumexp(x: Any) -> Any:
    m = x.max(axis=1, keepdims=True)
    return (m + np.log(np.exp(x - m).sum(axis=1, keepdims=True)))[:, 0]


def mse(x: Any, y: Any) -> Any:
    return ((x - y) ** 2).mean()


def polynomial(x: Any) -> Any:
    return 3 * x**4 - 2 * x**3 + x**2 - 5 * x + 1


def covariance(x: Any) -> Any:
    d = x - x.mean(axis=0)
    return d.T @ d / (len(x) - 1)


def quadratic(x: Any, a: Any) -> Any:
    return np.sum((x @ a) * x, axis=1)


def moving_average(x: Any) -> Any:
    s = np.cumsum(x, axis=1)
    return (s[:, 8:] - s[:, :-8]) / 8


def gravity(p: Any) -> Any:
    d = p[:, None, :] - p[None, :, :]
    return (d / (np.sum(d * d, axis=-1, keepdims=True) + 0.01) ** 1.5).sum(axis=1)


def mask(x: Any) -> Any:
    return np.where(x > 0, np.log1p(np.abs(x)), 0.1 * x)


def rotary(x: Any, c: Any, s: Any) -> Any:
    half = x.shape[-1] // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * c + turned * s


def _cases() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal((64, 256)).astype(np.float32) for _ in range(3))
    one = [(f, (a,)) for f in (softmax, gelu, standard, zscore, logsumexp, polynomial, covariance,
                               moving_average, mask)]  # fmt: skip
    two = [(f, (a, b)) for f in (silu, diagonal, cosine, hinge, mse)]
    return [*one, *two, (layernorm, (a, b[0])), (distances, (a[:, :16], b[:, :16])),
            (attention, (a, b, c)), (quadratic, (a, np.concatenate([a, b, c, a]))),
            (gravity, (a[:, :3],)), (rotary, (a, b, c))]  # fmt: skip


def child(number: int, waits: bool) -> None:
    """Measures one function; prints JSON."""
    import tessera as ts

    function, args = _cases()[number]
    function(*args)
    start = perf_counter()
    function(*args)
    own = perf_counter() - start
    fast = ts.optimize(wait=waits)(function)
    start = perf_counter()
    fast(*args)
    first = perf_counter() - start
    while "background" in fast.status()[0].why:
        sleep(0.005)
    ready = perf_counter() - start
    fast(*args)
    (status,) = fast.status()
    print(json.dumps([first - own, ready, f"{status.runs} {status.speedup or 0:.3g}x"]))


def _measured(number: int, folder: str, waits: bool) -> list[Any]:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.first_call", str(number), *["wait"][: int(waits)]],
        env=os.environ | {"TESSERA_CACHE_DIR": folder, "TESSERA_WAIT": "0"},
        cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True,
    )  # fmt: skip
    row: list[Any] = json.loads(ran.stdout)
    return row


def main() -> None:
    rows: list[dict[str, Any]] = []
    for number, (function, _) in enumerate(_cases()):
        turns: dict[str, list[list[Any]]] = {"first": [], "second": [], "waiting": []}
        for _ in range(_PROCESSES):
            with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
                turns["first"].append(_measured(number, folder, False))
                turns["second"].append(_measured(number, folder, False))
                turns["waiting"].append(_measured(number, other, True))
        row: dict[str, Any] = {"function": function.__name__}
        for turn, took in turns.items():
            extra, winner = (median(t[k] for t in took) for k in (0, 1))
            row[turn] = {"extra_s": extra, "winner_s": winner, "runs": took[0][2]}
        rows.append(row)
        print(f"{row['function']:14} first {_text(row['first'])}; second {_text(row['second'])}; "
              f"waiting {row['waiting']['extra_s']:.2f} s", flush=True)  # fmt: skip
    for turn in ("first", "second", "waiting"):
        extra, winner = (sorted(r[turn][k] for r in rows) for k in ("extra_s", "winner_s"))
        print(f"{turn}: median {median(extra) * 1e3:.1f} ms, most {extra[-1] * 1e3:.1f} ms; "
              f"winner after {median(winner):.2f} s, {winner[-1]:.2f} s at most")  # fmt: skip
    late = [r["first"]["winner_s"] / r["waiting"]["winner_s"] for r in rows]
    print(f"in the background the winner ran after {median(late):.2f} times what waiting takes")
    if sys.argv[1:2] == ["--json"]:
        record = {"date": strftime("%Y-%m-%d"), "machine": machine_description(), "rows": rows}
        Path(sys.argv[2]).write_text(json.dumps(record, indent=1) + "\n")


def _text(turn: dict[str, Any]) -> str:
    extra, winner = turn["extra_s"] * 1e3, turn["winner_s"]
    return f"{extra:6.1f} ms, winner after {winner:5.2f} s ({turn['runs']})"


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] != "--json":
        child(int(sys.argv[1]), "wait" in sys.argv)
    else:
        main()
