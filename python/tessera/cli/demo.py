"""The demonstration: three programs, each before and after, proved, and timed beside its rivals."""

from __future__ import annotations

import importlib.util
import inspect
import textwrap
import time
from collections.abc import Sequence
from functools import partial

import click
import numpy as np

from tessera import _core
from tessera.api import Progress, superoptimize
from tessera.cli.common import ProgressLine, duration, stdout
from tessera.cli.show import NOISY, PROVISIONAL
from tessera.compilers import find_compiler
from tessera.contest import as_entrant
from tessera.frontends.trace import trace_call
from tessera.graph import Graph
from tessera.options import Options
from tessera.race import Entrant, decide
from tessera.result import Result
from tessera.rewrite import rewrite
from tessera.types import Array, Function, Values
from tessera.verification import verify as prove

_LINES = 4  # of a µGraph
_SDPA = """import torch
def sdpa(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)
"""


def distances(x, mean, p):  # type: ignore[no-untyped-def]
    d = x - mean
    return np.diag(d @ p @ d.T)


def attention(q, k, v):  # type: ignore[no-untyped-def]
    s = q @ k.transpose(0, 2, 1)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)) @ v


def rmsnorm_linear(x, g, w):  # type: ignore[no-untyped-def]
    norm = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return (x * g / norm) @ w


def show_code(title: str, text: str, most: int = 999) -> None:
    lines = text.rstrip().splitlines()
    if len(lines) > most:
        lines[most:] = [f"… {len(lines) - most} more lines: tessera demo -v"]
    for n, line in enumerate(lines):
        stdout().print(f"   {title if n == 0 else '':8}{line}", markup=False, highlight=False)


def body(source: str) -> str:
    """Of a function, without its head and comments."""
    lines = [line for line in source.splitlines() if not line.strip().startswith("#")]
    start = next(n for n, line in enumerate(lines) if line.startswith("def "))
    return textwrap.dedent("\n".join(lines[start + 1 :]))


def show_verdict(ratio: float, text: str) -> None:
    color = "green" if ratio >= 1 else "yellow"
    stdout().print(f"   [bold {color}]{ratio:.2f}x[/]  {text}", highlight=False)


def normal(*shapes: tuple[int, ...], dtype: type = np.float32) -> list[Array]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(s) / max(1, s[-1]) ** 0.5).astype(dtype) for s in shapes]


def show_rewrite(options: Options, progress: Progress | None) -> None:
    stdout().print(
        "[bold]1  NumPy in, NumPy out[/]: distances of 300 points, as anybody writes them"
    )
    arrays = normal((300, 40), (40,), (40, 40), dtype=np.float64)
    tell = None if progress is None else lambda stage: progress({"stage": stage})
    traced = trace_call(distances, arrays, {})
    found = rewrite(traced.graph, options=options, function=distances, traced=traced, progress=tell)
    if not found.improved:
        why = "too noisy to tell" if found.undecided else "nothing faster was found and proved"
        show_verdict(1.0, f"the original is kept: {why}")
        return
    sizes = f" for all sizes {found.all_sizes}" if found.all_sizes else ""
    show_verdict(
        found.speedup,
        f"{duration(found.measured_us / 1e6)} against {duration(found.original_us / 1e6)} for the "
        f"original, both run by NumPy; proved equal{sizes}",
    )
    show_code("before", body(inspect.getsource(distances)))
    show_code("after", body(found.source))


def show_kernels(
    function: Function,
    arrays: Values,
    rivals: Sequence[tuple[str, Entrant]],
    options: Options,
    progress: Progress | None,
    verbose: bool,
) -> None:
    """One fused kernel beside NumPy and others, with its proof."""
    result = superoptimize(function, *arrays, options=options, progress=progress)
    graph, certificate = shown(result)
    original = as_entrant(partial(function, *arrays), result.original, arrays)
    ours = result.as_entrant(partial(result, *arrays))
    race = decide([original, ours, *(r for _, r in rivals)], 1.0, arrays, seconds=1.5, budget=20.0)
    numpy_times, times, *others = race.times
    told = [("NumPy", numpy_times), *zip((n for n, _ in rivals), others, strict=True)]
    if numpy_times is None or times is None:
        stdout().print("   no time was left to measure it")
    else:
        best, least = min(((n, t.median) for n, t in told if t), key=lambda x: x[1])
        listed = ", ".join(f"{n} {duration(t.median)}" for n, t in told if t)
        show_verdict(least / times.median, f"Tessera {duration(times.median)}; {listed}")
        if least < times.median:
            stdout().print(
                f"   {best} is faster on this machine; [bold]@ts.optimize[/] would call what is "
                "fastest of NumPy and its own kernels"
            )
        for said, why in ((race.undecided(1.0), NOISY), (race.provisional, PROVISIONAL)):
            if said:
                stdout().print(f"   [yellow]{why}[/]")
    if certificate is not None:
        chance = f"chance of a wrong acceptance ≤ 2^{certificate.record()['error_log2']:.0f}"
        stdout().print(f"   proved  equal over the real numbers; {chance}", highlight=False)
    if result.certificate is None:
        what = "; below is the runner-up" if certificate is not None else ""
        stdout().print(f"   the program compiled operator by operator was the fastest{what}")
    show_code("before", body(inspect.getsource(function)))
    lines = [line for line in str(graph).splitlines() if verbose or " = input " not in line]
    show_code("after", "\n".join(lines), len(lines) if verbose else _LINES)


def shown(result: Result) -> tuple[Graph, _core.Certificate | None]:
    """The winner and its certificate; where the original compiled as it is won, the runner-up's."""
    raced = [c for c in result.candidates if c.fate == "measured"]
    if result.certificate is not None or not raced:
        return result.graph, result.certificate
    best = max(raced, key=lambda c: c.speedup)
    return best.graph, prove(result.original, best.graph).certificate


@click.command(short_help="Three programs made faster, proved and timed, in a minute.")
@click.option("-v", "--verbose", is_flag=True, help="Whole µGraphs.")
def demo(verbose: bool) -> int:
    """Three programs made faster: each before and after, proved equal, timed beside its rivals.

    A NumPy function as less NumPy; attention as one fused kernel, beside NumPy and, where it is
    installed, PyTorch; RMSNorm + Linear as the µGraph of Mirage's Figure 3b.

    \b
    Examples:
      tessera demo        a minute
      tessera demo -v     with whole µGraphs
    """
    start = time.monotonic()
    options = Options(budget=30)
    stdout().print(f"[bold]Tessera {_core.version}[/]: a superoptimizer for tensor programs\n")
    with ProgressLine() as progress:
        show_rewrite(options, progress)
        find_compiler()
        if (machine := _core.machine())["compiler"] is None:
            why = machine["compiler_version"]
            stdout().print(f"\n2, 3  fused kernels: left out, {why}", markup=False)
            return 0
        stdout().print("\n[bold]2  one fused kernel[/]: attention, which never stores its scores")
        torch = Entrant(None, "torch", {"source": _SDPA, "name": "sdpa"})
        rivals = [("torch.compile", torch)] if importlib.util.find_spec("torch") else []
        arrays = normal((8, 64, 64), (8, 512, 64), (8, 512, 64))
        show_kernels(attention, arrays, rivals, options, progress, verbose)
        stdout().print(
            "\n[bold]3  Mirage's Figure 3b[/]: RMSNorm + Linear, one pass over the weights"
        )
        arrays = normal((16, 1024), (1024,), (1024, 4096))
        show_kernels(rmsnorm_linear, arrays, [], options, progress, verbose)
    stdout().print(f"\n{duration(time.monotonic() - start)} in all. Next: tessera --help")
    return 0
