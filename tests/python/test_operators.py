"""Operators that users state (`tessera.operator`)."""

import subprocess
import sys
from collections.abc import Callable
from math import lgamma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import _core
from tessera.errors import BadInputError
from tessera.graph import Graph
from tessera.runner import Runner

BUMP = "x / (1 + x*x*x*x)"
bump = ts.operator("bump", BUMP, law="odd")
hill = ts.operator("hill", "exp(-x*x)", law="even")
mix = ts.operator("mix", "hypot(x, y) > 2 ? x * y : x + y", law="commutative")
plain = ts.operator("plain", "1/2 + lgamma(fabs(x)) - 3e-2 * -x")


def program(body: Callable[..., Any], *names: str, dtype: str = "f32") -> Graph:
    g = Graph("program")
    g.output(body(*(g.input(n, (6, 5), dtype) for n in names)))
    return g


def verdict(before: Callable[..., Any], after: Callable[..., Any], *names: str) -> str:
    return ts.verify(program(before, *names), program(after, *names)).name


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_kernels_compute_what_the_interpreter_does(dtype: str) -> None:
    def body(x: Any, y: Any) -> Any:
        return bump(x) * hill(y) + mix(x, y) + plain(x)

    g = program(body, "x", "y", dtype=dtype)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(6, 5)).astype(t) for t, _ in g.input_types().values()]
    module = _core.compile(g.core)
    (got,) = Runner(module, list(g.input_types()))(arrays)
    x, y = (a.astype(np.float64) for a in arrays)
    mixed = np.where(np.hypot(x, y) > 2, x * y, x + y)
    expected = (
        x / (1 + x**4) * np.exp(-y * y) + mixed + 0.5 + np.vectorize(lgamma)(abs(x)) + 0.03 * x
    )
    error = {"f32": 1e-5, "f64": 1e-13, "f16": 2e-2, "bf16": 2e-1}[dtype]
    assert np.allclose(got.astype(np.float64), expected, rtol=error, atol=error)


def test_arrays_scalars_and_shapes() -> None:
    assert bump(2) == 2 / 17
    assert type(bump(2.0)) is np.float64
    assert bump(np.array([1, 3], np.float32)).dtype == np.float32
    assert mix(np.ones((3, 1)), np.zeros(4)).shape == (3, 4)
    with pytest.raises(TypeError, match="takes 2"):
        mix(1.0)


def test_proofs_know_the_law_and_nothing_else() -> None:
    assert (
        verdict(lambda x, y: bump(x - y) - bump(y - x), lambda x, y: 2 * bump(x - y), "x", "y")
        == "equal"
    )
    assert verdict(lambda x, y: hill(x - y), lambda x, y: hill(y - x), "x", "y") == "equal"
    assert verdict(mix, lambda x, y: mix(y, x), "x", "y") == "equal"
    free = ts.operator("bump", BUMP)  # odd as well, but it does not say so
    assert verdict(lambda x, y: free(x - y), lambda x, y: -free(y - x), "x", "y") == "unknown"
    assert verdict(bump, lambda x: x / (1 + x * x * x * x), "x") == "unknown"
    assert verdict(plain, lambda x: plain(x) * 1.001, "x") == "refuted"
    assert verdict(lambda x, y: bump(x - y), lambda x, y: bump(y - x), "x", "y") == "refuted"


def test_a_certificate_names_the_law() -> None:
    v = ts.verify(program(lambda x: -bump(x), "x"), program(lambda x: bump(-x), "x"))
    assert "assume operator bump" in v.text


def test_the_search_uses_the_law(tmp_path: Path) -> None:
    file = tmp_path / "g.ug"
    file.write_text(str(program(lambda x, y: bump(x - y) - bump(y - x), "x", "y")))
    command = [sys.executable, "-m", "tessera", "search", str(file), "--engine", "mugraph",
               "--budget", "5", "--show", "1"]  # fmt: skip
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told.count("= custom") == 1


@pytest.mark.parametrize(
    ("value", "law", "why"),
    [
        ("x +", "", "an operand is missing"),
        ("x y", "", "'y' is not understood"),
        ("system(x)", "", "neither x nor y"),
        ("(x", "", "'\\)' is missing"),
        ("pow(x)", "", "',' is missing"),
        ("(" * 500 + "x" + ")" * 500, "", "nested too deeply"),
        ("x" + " + x" * 3000, "", "longer than"),
        ("x*x", "odd", "it is not odd"),
        ("x + 1e-9", "even", "it is not even"),
        ("x - y", "commutative", "it is not commutative"),
        ("x*y", "odd", "functions of x are odd"),
        ("x", "linear", "law 'linear'"),
    ],
)
def test_what_is_no_operator_is_told(value: str, law: str, why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        ts.operator("f", value, law=law)


def test_text_keeps_them(tmp_path: Path) -> None:
    g = program(lambda x: bump(x), "x")
    file = tmp_path / "g.ug"
    file.write_text(str(g))
    assert str(ts.load(file)) == str(g)


def c_source(folder: Path, g: Graph) -> Path:
    file = folder / "g.ug"
    file.write_text(str(g))
    command = [sys.executable, "-m", "tessera", "export", str(file), "--c", "-o", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    (source,) = folder.glob("*.c")
    return source


def test_c_of_them_compiles(tmp_path: Path) -> None:
    source = c_source(tmp_path, program(lambda x, y: mix(x, y) + bump(x), "x", "y"))
    command = ["gcc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", str(source)]
    subprocess.run(command, check=True)


def test_c_of_sixteen_bits_is_rounded_not_cut(tmp_path: Path) -> None:
    assert "to_f16((float)" in c_source(tmp_path, program(bump, "x", dtype="f16")).read_text()


def test_values_are_those_of_double() -> None:
    assert bump(np.array([1e10], np.float32)) == np.float32(1e-30)
    away = ts.operator("away", "x*1e40/1e40")
    assert np.array_equal(away(np.array([1, 2], np.float32)), [1, 2])


def test_what_is_no_array_of_numpys() -> None:
    assert bump(np.zeros((0, 3), np.float32)).shape == (0, 3)
    with pytest.raises(BadInputError, match="texts"):
        ts.operator("f", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["x >= 0 ? 1 : -1", "x == 0 ? 1 : x", "x == 7 ? 1 : x"])
def test_laws_hold_at_zero_and_whole_numbers(value: str) -> None:
    with pytest.raises(BadInputError, match="not odd"):
        ts.operator("f", value, law="odd")
