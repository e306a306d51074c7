"""What `make demo` shows: a NumPy program, the search, the winner, the proof, the speed-up."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax

import tessera as ts
from tessera import _core
from tessera.cli.common import ProgressLine, count, duration, prunes
from tessera.contest import as_entrant
from tessera.race import Entrant, decide

FILE = Path(__file__).with_name("rmsnorm.py")
console = Console(highlight=False, width=100)


def section(title: str) -> None:
    console.print(Rule(f"[bold]{title}[/]", align="left", style="dim"))


def show_program() -> None:
    section("the program: plain NumPy (examples/rmsnorm.py)")
    text = FILE.read_text()
    function = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef))
    lines = text.splitlines()[function.lineno - 1 : function.end_lineno]
    lines[0] = lines[0].partition("  #")[0]
    console.print(Syntax("\n".join(lines), "python", background_color="default"))
    console.print("X f32[16,1024]   G f32[1024]   W f32[1024,4096]")


def show_search(result: ts.Result) -> None:
    section("search")
    details = result.json()
    if details["from_cache"]:
        console.print(
            "remembered from an earlier run; the winner was proved, compiled and checked again. "
            "To search anew: tessera cache clear"
        )
        return
    console.print(
        f"{count(details['values'])} values, {count(details['edges'])} edges, "
        f"{count(details['graphs'])} graphs, {count(details['tilings'])} tilings "
        f"in [bold]{duration(details['search_s'])}[/]; pruned: "
        f"{prunes(details['pruned'], 4) or 'nothing'}"
    )
    fates: dict[str, int] = {}
    for candidate in result.candidates:
        fates[candidate.fate] = fates.get(candidate.fate, 0) + 1
    console.print(
        f"{len(result.candidates)} candidates: "
        + ", ".join(f"{n} {fate}" for fate, n in fates.items())
        + f"; proofs {duration(details['verify_s'])}, compiling {duration(details['compile_s'])}, "
        f"measuring {duration(details['tune_s'])}"
    )


def best_candidate(result: ts.Result) -> tuple[ts.Graph, Any]:
    """The winner and its certificate; where the original won the race, the runner-up's."""
    if result.certificate is not None:
        return result.graph, result.certificate
    raced = [c for c in result.candidates if c.fate == "measured"]
    if raced:
        best = max(raced, key=lambda c: c.speedup)
        what = f"the runner-up, rank {best.rank}, {best.speedup:.2f}x"
        graph = best.graph
    else:  # remembered from an earlier run, without its candidates: search again
        found = _core.search(result.original.core, ts.Options().fields())["candidates"]
        if not found:
            return result.graph, None
        what, graph = "the search's first choice", ts.Graph.from_core(found[0]["graph"])
    console.print(f"The original, compiled operator by operator, won the race; here is {what}.")
    return graph, ts.verify(result.original, graph).certificate


def show_winner(graph: ts.Graph, most: int = 26) -> None:
    lines = str(graph).rstrip().splitlines()
    console.print("\n".join(lines[:most]), markup=False)
    if len(lines) > most:
        name = FILE.relative_to(FILE.parents[1])
        console.print(f"  … {len(lines) - most} more lines: tessera optimize {name} -o winner.ug")


def show_proof(certificate: Any) -> None:
    section("the proof")
    if certificate is None:
        console.print("the original was kept: nothing to prove")
        return
    c = certificate.record()
    fields = ", ".join(sorted({d["field"] for d in c["draws"]}))
    console.print(
        f"equal at {len(c['draws'])} draws over {fields}"
        f" on {c['coverage']}; chance of a wrong acceptance ≤ 2^{c['error_log2']:.0f}"
    )
    worst = max((f["worst_ratio"] for f in c["gate"]), default=0.0)
    console.print(
        f"numeric gate: {len(c['gate'])} families of inputs, "
        f"largest error {100 * worst:.0f} % of what is allowed; then the compiled code was run "
        "against the interpreter"
    )
    for assumption in c["assumptions"]:
        console.print(f"assumes {assumption}", markup=False)


def show_speed(result: ts.Result) -> None:
    section("speed: in turns with the NumPy original, each in processes of its own")
    from rmsnorm import rmsnorm_linear as program

    numpy_program: Callable[..., Any] = program
    rng = np.random.default_rng(0)
    X = rng.standard_normal((16, 1024), dtype=np.float32)
    G = rng.standard_normal(1024, dtype=np.float32)
    W = rng.standard_normal((1024, 4096), dtype=np.float32) / np.float32(32)
    difference = np.abs(result(X, G, W) - numpy_program(X, G, W)).max()
    original = as_entrant(partial(numpy_program, X, G, W), result.original, [X, G, W])
    kernel = {"graph": str(result.graph), "disable": [], "exact": False}
    threads = result.details["threads"]
    entrants = [original, Entrant(partial(result, X, G, W), f"tessera:{threads}", kernel)]
    race = decide(entrants, 1.0, [X, G, W], seconds=2.0, budget=20.0)
    numpy_times, ours = race.times
    console.print(f"NumPy    {numpy_times or 'gave no answer'}")
    console.print(f"Tessera  {ours or 'gave no answer'}")
    if numpy_times is not None and ours is not None:
        console.print(
            f"[bold green]{ours.ratio:.2f}x[/], between {ours.low:.2f} and {ours.high:.2f}: at the "
            f"better of one thread and {threads} (largest difference {difference:.1e})"
        )
    if race.undecided(1.0):
        console.print("[yellow]too noisy to tell who is faster[/]")
    if race.provisional:
        console.print("[yellow]provisional: other programs kept the machine busy[/]")
    console.print(
        f"against the original compiled as it is: {result.speedup:.2f}x "
        f"({duration(result.original_us / 1e6)} → {duration(result.measured_us / 1e6)})"
    )


def demo() -> int:
    start = time.monotonic()
    sys.path.insert(0, str(FILE.parent))
    from rmsnorm import example_inputs, rmsnorm_linear

    console.print(f"[bold]Tessera {ts.__version__}[/]: a superoptimizer for tensor programs\n")
    show_program()
    with ProgressLine() as progress:
        result = ts.superoptimize(
            rmsnorm_linear, *example_inputs.values(), budget=60, progress=progress
        )
    show_search(result)
    section("the winner: a µGraph")
    graph, certificate = best_candidate(result)
    show_winner(graph)
    show_proof(certificate)
    show_speed(result)
    console.print(f"\n{duration(time.monotonic() - start)} in all. Next: tessera --help")
    return 0


if __name__ == "__main__":
    sys.exit(demo())
