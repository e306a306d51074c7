"""`tessera bench pet --ablate`: what PET's Figures 13 and 14 vary (OSDI'21, §8.5), by counts.

Programs are those of bench/corpus/pet: the paper's operators (Table 3) and examples.
"transformations" (Figure 13): one search whose mutants are told apart by whether they needed a
correction; costs are those of the machine's model, nothing is timed. "depth and rounds" (Figure
14): the search inside `tessera optimize`, with mutants mutated again, at depths 1 to 5 and 2 to 4
rounds. Each search has so many steps, so that counts do not depend on the machine's load.

Costs are of a back end without transforms of dilated windows, as PET's libraries were: with them
no mutant is worth another round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tessera import _core
from tessera.api import superoptimize
from tessera.errors import UsageError
from tessera.graph import Graph
from tessera.options import Options

Row = dict[str, Any]
FOLDER = Path(__file__).resolve().parent / "corpus" / "pet"
_OTHERS = ("mugraph", "synth", "patterns", "learnt", "fold")
_RARE = "plan:rare-transforms"
_STEPS, _FEW = 20_000, 2_000  # of the first search; half as many in each further round
_BOTH = ("dilated", "strided")  # what Figure 14 has whole models for: CSRNet's and ResNet's part
_DEPTHS, _ROUNDS = (1, 2, 3, 4, 5), (2, 3, 4)


def run(
    options: Options, case: str | None, quick: bool, tell: Callable[[str], None]
) -> Iterator[Row]:
    """One row per program, then one per program, depth and number of rounds."""
    names = [p.stem for p in sorted(FOLDER.glob("*.ug"))]
    names.remove("csrnet")  # three subprograms: for `tessera optimize`
    if case is not None and case not in names:
        raise UsageError(f"--case: '{case}' is not one of {', '.join(names)}")
    steps = _FEW if quick else _STEPS
    for name in names:
        if case in (None, name):
            tell(f"{name}: transformations")
            yield _row(name, options) | _transformations(name, options, steps)
    for name in names:
        if case != name and (case is not None or name not in _BOTH):
            continue
        for depth in _DEPTHS[1:3] if quick else _DEPTHS:
            for rounds in _ROUNDS[:1] if quick else _ROUNDS:
                tell(f"{name}: depth {depth}, {rounds} rounds")
                yield _row(name, options) | _deeper(name, options, depth, rounds, steps)


def _row(name: str, options: Options) -> Row:
    graph = _graph(name)
    shape = {n: list(s) for n, (_, s) in graph.input_types().items()}
    return {"suite": "pet", "case": name, "shape": shape, "dtype": "f32", "target": options.target}


def _graph(name: str) -> Graph:
    return Graph.parse((FOLDER / f"{name}.ug").read_text())


def _transformations(name: str, options: Options, steps: int) -> Row:
    settings = ("mutate.depth=4", f"mutate.steps={steps}", "mutate.candidates=100",
                *options.settings)  # fmt: skip
    chosen = options.replace(budget=300.0, settings=settings, disable=(*options.disable, _RARE))
    fields = chosen.fields() | {"engine": "mutate"}
    record = _core.search(_graph(name).core, fields, None)
    report = record["report"]
    original = report["original_cost"]
    found: dict[str, list[float]] = {"equal": [], "corrected": []}
    for candidate in record["candidates"]:
        corrected = "corrected: " in candidate["derivation"]
        found["corrected" if corrected else "equal"].append(candidate["model_s"])
    gains = {k: original / min([*costs, original]) for k, costs in found.items()}
    return {
        "ablation": "transformations",
        "stop": report["stop"],
        "steps": report["graphs"],
        "search_s": report["seconds"],
        **{k: int(report["figures"].get(k, 0)) for k in ("mutants", "partial", "proven")},
        "proved_equal": len(found["equal"]),
        "proved_corrected": len(found["corrected"]),
        "model_gain": gains | {"both": max(gains.values())},
    }


def _deeper(name: str, options: Options, depth: int, rounds: int, steps: int) -> Row:
    settings = (f"mutate.depth={depth}", f"mutate.rounds={rounds}", f"mutate.steps={steps}",
                *options.settings)  # fmt: skip
    chosen = options.replace(budget=120.0, settings=settings, cache=False,
                             disable=(*options.disable, *_OTHERS, _RARE))  # fmt: skip
    (told,) = superoptimize(_graph(name), options=chosen).details["subprograms"]
    best = min((a["model_s"] for a in told["alternatives"]), default=told["original_s"])
    return {
        "ablation": "depth and rounds",
        "depth": depth,
        "rounds": rounds,
        "reached_rounds": told["rounds"],
        "stop": told["stop"],
        "steps": told["tried"],
        "search_s": told["search_s"],
        **{k: told[k] for k in ("mutants", "partial", "corrected")},
        "alternatives": len(told["alternatives"]),
        "model_gain": {"best": max(1.0, told["original_s"] / best)},
    }
