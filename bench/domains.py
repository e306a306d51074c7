"""Are the rewrites of NumPy programs as defined and as accurate as their originals?

    .venv/bin/python -m bench.domains [GROUP[:NAME]] [--candidates N] [--seeds N]

Takes the programs of bench/corpus/numpy, asks synthesis for candidates and the verifier for its
verdict, and runs what it accepts in NumPy:

* bitwise: what `--level bitwise` accepts, on NaN, infinities, zeros of both signs, subnormal and
  largest numbers: where one side is NaN or infinite, the other is the same;
* default: what is accepted by default, over the program's domain and its edges: where the original
  is finite, the rewrite is finite;
* accuracy: root mean square error against f64 (longdouble for f64 programs), over ordinary, large
  and small magnitudes, cancelling and shifted inputs, as a ratio to the original's.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.corpus import CorpusProgram, programs
from tessera import _core
from tessera.emit import compile_source, emit
from tessera.errors import Error, UnsupportedError
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import Spec, Traced
from tessera.graph import Graph
from tessera.options import Options
from tessera.special_values import (
    differing,
    differs_at_edges,
    edge_inputs,
    results,
    zeros_of_other_sign,
)
from tessera.verification import verify

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., Any]


@dataclass
class Report:
    """What was found for one rewrite; empty lists are good."""

    program: str
    source: str
    bitwise: bool
    special: list[str] = field(default_factory=list)  # NaN or infinity on one side only
    zeros: list[str] = field(default_factory=list)  # zeros of another sign
    undefined: list[str] = field(default_factory=list)  # the original is finite, the rewrite not
    accuracy: dict[str, float] = field(default_factory=dict)  # family: ratio of RMS errors


def accepted(
    program: CorpusProgram, traced: Traced, bitwise: bool, most: int
) -> Iterator[tuple[Function, str]]:
    """Candidates of synthesis that are taken for the program, as NumPy functions with source."""
    graph, name = traced.graph, program.name
    fields = {**Options().fields(), "engine": "synth", "budget": 8.0}
    for candidate in _core.search(graph.core, fields, None)["candidates"][:most]:
        found = Graph.from_core(candidate["graph"])
        try:
            source = emit(found, "numpy", name=name)
        except UnsupportedError:
            continue
        made = compile_source(source, name)

        def rewritten(*arrays: Array, call: Function = made) -> Any:
            return call(*arrays, *traced.extra)

        if not verify(graph, found, level="bitwise" if bitwise else "close", seed=1).equal:
            continue
        if bitwise and differs_at_edges(program.function, rewritten, program.arguments(3)):
            continue
        yield rewritten, source


# --- inputs -----------------------------------------------------------------------------------


def domain_inputs(specs: dict[str, Spec], rng: np.random.Generator) -> Iterator[list[Array]]:
    """Inputs within the domain, of which some or all elements are at its edges."""

    def edges(spec: Spec, dtype: np.dtype[Any]) -> Array:
        low, high, with_low, with_high = spec.domain
        if dtype.kind != "f":
            return spec.sample(rng).reshape(-1)[:1] if spec.shape else spec.sample(rng).reshape(1)
        one = dtype.type
        big = one(1e10 if dtype.itemsize > 2 else 1e2)  # overflow is another matter
        lowest = -big if low == -np.inf else one(low)
        highest = big if high == np.inf else one(high)
        if not with_low and low > -np.inf:
            lowest = np.nextafter(lowest, one(np.inf))
        if not with_high and high < np.inf:
            highest = np.nextafter(highest, one(-np.inf))
        inner = [x for x in (one(0), -one(0), np.finfo(dtype).tiny) if lowest <= x <= highest]
        return np.array([lowest, highest, *inner], dtype)

    for share in (0.05, 0.5, 1.0):
        for _ in range(3):
            result = []
            for spec in specs.values():
                array = spec.sample(rng)
                values = edges(spec, array.dtype)
                where = rng.random(array.shape) < share
                result.append(
                    np.asarray(np.where(where, rng.choice(values, array.shape), array), array.dtype)
                )
            yield result
    samples = [spec.sample(rng) for spec in specs.values()]
    for n in range(5):
        yield [
            np.full(a.shape, v[n % len(v)])
            for a, v in (
                (a, edges(s, a.dtype)) for a, s in zip(samples, specs.values(), strict=True)
            )
        ]


def accuracy_inputs(
    specs: dict[str, Spec], rng: np.random.Generator
) -> Iterator[tuple[str, list[Array]]]:
    """Inputs within the domain: ordinary, large, small, of mixed sizes, cancelling, shifted."""

    def made(change: Callable[[Array], Array]) -> list[Array]:
        result = []
        for spec in specs.values():
            a = spec.sample(rng)
            if a.dtype.kind == "f" and spec.domain[1] == np.inf and spec.domain[0] in (0, -np.inf):
                b = np.asarray(change(a.astype(np.float64)), a.dtype)
                a = b if spec.domain[0] == -np.inf or (b > 0).all() else a
            result.append(a)
        return result

    def cancelling(a: Array) -> Array:
        flat = a.reshape(-1).copy()
        flat[1::2] = -flat[: len(flat) // 2 * 2 : 2][: len(flat[1::2])] * (1 + 1e-4)
        return flat.reshape(a.shape)

    yield "ordinary", made(lambda a: a)
    yield "large", made(lambda a: a * 1e3)
    yield "small", made(lambda a: a * 1e-3)
    yield "mixed", made(lambda a: a * 10.0 ** rng.integers(-4, 4, a.shape))
    yield "cancelling", made(cancelling)
    yield "shifted", made(lambda a: 1e3 + a)
    yield "negative", made(lambda a: -np.abs(a))


# --- comparing --------------------------------------------------------------------------------


def squared_error(found: Array, exact: Array, own: Array) -> tuple[float, float]:
    """Sum of squared distances from the exact result where all are finite, and of its squares."""
    distance = np.abs(found.astype(exact.dtype) - exact)
    finite = np.isfinite(exact) & np.isfinite(distance) & np.isfinite(own)
    return float(np.sum(distance[finite] ** 2)), float(np.sum(np.abs(exact[finite]) ** 2))


def smaller(program: CorpusProgram) -> CorpusProgram:
    """The program at smaller extents, where it allows them."""
    specs = {
        n: dataclasses.replace(s, shape=tuple(d if int(d) <= 64 else int(d) // 4 for d in s.shape))
        for n, s in program.specs.items()
    }
    reduced = dataclasses.replace(program, specs=specs)
    try:
        trace_call(program.function, [], dict(specs))
        results(program.function, *reduced.arguments())
    except Exception:  # sizes that the function says itself, indices of larger arrays
        return program
    return reduced


def check(program: CorpusProgram, bitwise: bool, most: int, seeds: int) -> Iterator[Report]:
    """Everything that this file promises, for the accepted rewrites of one program."""
    try:
        traced = trace_call(program.function, [], dict(program.specs))
    except Error:
        return
    for rewritten, source in accepted(program, traced, bitwise, most):
        report = Report(f"{program.group}.{program.name}", source, bitwise)
        rng = np.random.default_rng(7)
        if bitwise:
            for _ in range(seeds):
                for arrays in edge_inputs([s.sample(rng) for s in program.specs.values()], rng):
                    compare_special(report, program.function, rewritten, arrays)
        else:
            for _ in range(seeds):
                for arrays in domain_inputs(program.specs, rng):
                    compare_defined(report, program.function, rewritten, arrays)
            compare_accuracy(report, program, rewritten, rng, seeds)
        yield report


def compare_special(
    report: Report, original: Function, rewritten: Function, arrays: list[Array]
) -> None:
    try:
        expected = results(original, *[a.copy() for a in arrays])
    except Exception:  # its own business: an index out of range, weights that are all zero
        return
    for a, b in zip(expected, results(rewritten, *arrays), strict=True):
        if special := differing(a, b):
            report.special.append(f"{special} of {a.size}")
        if zeros := zeros_of_other_sign(a, b):
            report.zeros.append(f"{zeros} of {a.size}")


def compare_defined(
    report: Report, original: Function, rewritten: Function, arrays: list[Array]
) -> None:
    for a, b in zip(results(original, *arrays), results(rewritten, *arrays), strict=True):
        if a.dtype.kind != "f":
            continue  # truths at edges flip by rounding
        lost = np.isfinite(a) & ~np.isfinite(b)
        if lost.any():
            first = tuple(int(i) for i in np.argwhere(lost)[0])
            report.undefined.append(
                f"{int(lost.sum())} of {a.size}: {a[first]!r} became {b[first]!r}"
            )


def compare_accuracy(
    report: Report,
    program: CorpusProgram,
    rewritten: Function,
    rng: np.random.Generator,
    seeds: int,
) -> None:
    sums: dict[str, list[float]] = {}
    small = sum(a.size for a in program.arguments()) < 200_000
    for _ in range(24 * seeds if small else 4 * seeds):
        for family, arrays in accuracy_inputs(program.specs, rng):
            wide = [_widened(a) for a in arrays]
            try:
                exact = results(program.function, *wide)
            except (TypeError, ValueError):  # functions that longdouble lacks
                continue
            ours, theirs = results(rewritten, *arrays), results(program.function, *arrays)
            for n, (e, x, y) in enumerate(zip(exact, theirs, ours, strict=True)):
                if x.dtype.kind != "f" or e.dtype == x.dtype:
                    continue
                theirs_sum, size = squared_error(x, e, x)
                # What rounding the results alone leaves is no error of either program.
                least = size * (float(np.finfo(x.dtype).eps) / 4) ** 2
                s = sums.setdefault(f"{family} {n}", [0.0, 0.0])
                s[0] += theirs_sum + least
                s[1] += squared_error(y, e, x)[0]
    report.accuracy = {
        f: (b / a) ** 0.5 if a > 0 else float(b > 0) * 1e9 for f, (a, b) in sums.items()
    }


def _widened(a: Array) -> Array:
    if a.dtype.kind != "f":
        return a
    return a.astype(np.longdouble if a.dtype == np.float64 else np.float64)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="?", default="*", metavar="GROUP[:NAME]")
    parser.add_argument("--candidates", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    group, _, name = args.which.partition(":")
    reports = []
    for program in programs(group):
        if name and program.name != name:
            continue
        program = smaller(program)
        for bitwise in (True, False):
            for report in check(program, bitwise, args.candidates, args.seeds):
                reports.append(report)
                worst = {f: r for f, r in report.accuracy.items() if r > 2}
                if report.special or report.zeros or report.undefined or worst:
                    kind = "bitwise" if bitwise else "default"
                    body = report.source.split("\n\n\n", 1)[-1].strip().splitlines()[1:]
                    print(f"{report.program} ({kind}): {'; '.join(b.strip() for b in body)}")
                    for title, found in (("special", report.special), ("zeros", report.zeros),
                                         ("undefined", report.undefined)):  # fmt: skip
                        if found:
                            print(f"    {title}: {len(found)} times, first {found[0]}")
                    for f, r in worst.items():
                        print(f"    accuracy {f}: {r:.2f}x the error")
                    sys.stdout.flush()
    bitwise_reports = [r for r in reports if r.bitwise]
    ratios = [r for report in reports for r in report.accuracy.values()]
    special = sum(bool(r.special) for r in bitwise_reports)
    zeros = sum(bool(r.zeros) for r in bitwise_reports)
    print(f"bitwise: {len(bitwise_reports)} rewrites, {special} differ in NaN or infinity,")
    print(f"    {zeros} in a zero's sign")
    undefined = sum(bool(r.undefined) for r in reports)
    print(f"default: {len(reports) - len(bitwise_reports)} rewrites, {undefined} less defined;")
    print(f"    accuracy: {len(ratios)} families, {sum(r > 2 for r in ratios)} worse than twice,")
    print(f"    worst {max(ratios, default=0):.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
