"""Every program of the corpus: traced or plain, it gives what NumPy gives; so does its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from bench.corpus import CorpusProgram, programs
from tessera.emit import compile_source, emit
from tessera.errors import Error
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import unflatten

PROGRAMS = list(programs())

# Programs that run as plain NumPy, and why.
PLAIN = {
    "median_filter_free": "np.median is not supported",
    "bootstrap_mean": "draws random numbers",
    "bisect": "branches on the value",
    "spectrum": "np.fft.rfft is not supported",
    "ground_state": "np.linalg.eigh is not supported",
    "hue_branch": "branches on the value",
    "draw_in_place": "in place",
    "dropout": "draws random numbers",
    "early_stop": "branches on the value",
    "top_k": "np.sort is not supported",
    "fft_convolve": "np.fft.rfft is not supported",
    "solve_system": "np.linalg.solve is not supported",
}


def leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from leaves(v)
    else:
        yield value


def same(ours: Any, theirs: Any, inputs: list[Any]) -> None:
    found, expected = list(leaves(ours)), list(leaves(theirs))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        eps = max(np.finfo(x.dtype).eps for x in (b, *inputs) if x.dtype.kind == "f")
        scale = np.max(np.abs(b[np.isfinite(b)]), initial=1e-30)
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=2e4 * eps, atol=500 * eps * scale
        )


def plain(program: CorpusProgram, arguments: list[Any]) -> Any:
    with np.errstate(all="ignore"):
        return program.function(*[a.copy() for a in arguments])


def ids(program: CorpusProgram) -> str:
    return f"{program.group}.{program.name}"


def test_the_corpus_is_large() -> None:
    names = [ids(p) for p in PROGRAMS]
    assert len(set(names)) == len(names)
    assert sum(p.group == "stenso" for p in PROGRAMS) == 33
    assert sum(p.group != "stenso" for p in PROGRAMS) >= 150
    assert set(PLAIN) <= {p.name for p in PROGRAMS}


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_programs_trace_and_come_back_as_source(program: CorpusProgram) -> None:
    if program.name == "reshape_dot":  # 64 MB and 3 GFLOP in the interpreter
        program = smaller(program, 20)
    arguments = program.arguments()
    if program.name in PLAIN:
        with pytest.raises(Error, match=PLAIN[program.name]):
            trace_call(program.function, arguments, {})
        return
    expected = plain(program, arguments)
    traced = trace_call(program.function, arguments, {})
    inputs = [*traced.arguments, *traced.extra]
    same(unflatten(traced.results, traced.graph.run(*inputs)), expected, arguments)

    source = emit(traced.graph, name="emitted")
    emitted: Callable[..., Any] = compile_source(source, "emitted")
    with np.errstate(all="ignore"):
        results = emitted(*inputs)
    many = len(traced.graph.outputs) > 1
    same(unflatten(traced.results, results if many else [results]), expected, arguments)


def smaller(program: CorpusProgram, extent: int) -> CorpusProgram:
    specs = {
        name: type(spec)(spec.dtype, (extent,) * len(spec.shape), spec.domain)
        for name, spec in program.specs.items()
    }
    return CorpusProgram(program.group, program.name, program.function, specs)


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.name in PLAIN], ids=ids)
def test_plain_programs_are_decorated_unseen(program: CorpusProgram) -> None:
    arguments = program.arguments()
    np.random.seed(0)
    expected = plain(program, arguments)
    np.random.seed(0)
    with pytest.warns(RuntimeWarning, match=f"{program.group}.py:"):
        same(ts.optimize(budget=1)(program.function)(*arguments), expected, arguments)
