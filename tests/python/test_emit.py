"""Emitted source runs, gives what the original gives, and traces back to an equal program."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from test_trace import FLOAT_ONLY, TOLERANCE, UNARY, X, array
from test_trace_functions import FLOATS, FUNCTIONS

import tessera as ts
from tessera import trace
from tessera.emit import FLAVOURS, IDIOMS, call_of, compile_source, emit
from tessera.errors import UnsupportedError, UsageError
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import Spec

Arrays = list[np.ndarray[Any, np.dtype[Any]]]
ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
        ),
    )
    for name in FLAVOURS
]


def run(source: str, name: str, flavour: str, arrays: Arrays) -> Arrays:
    """What a library computes from emitted source, as NumPy arrays."""
    convert: Callable[[Any], Any] = np.asarray
    if flavour == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        convert = jax.numpy.asarray
    elif flavour == "torch":
        import torch

        convert = torch.from_numpy
    results = compile_source(source, name)(*map(convert, arrays))
    return [np.asarray(r) for r in (results if isinstance(results, tuple) else (results,))]


def used(graph: ts.Graph) -> set[int]:
    return {i for op in graph.ops for i in op["inputs"]} | set(graph.core.outputs)


def check(
    function: Callable[..., Any], *args: Any, flavour: str = "numpy", proved: bool = True
) -> str:
    """Values, dtypes and shapes of the emitted source against the program, and the way back."""
    traced = trace_call(function, args, {})
    arrays = [np.asarray(a) for a in (*traced.arguments, *traced.extra)]
    source = emit(traced.graph, flavour, name="emitted")
    expected = traced.graph.run(*arrays)
    found = run(source, "emitted", flavour, arrays)
    assert len(found) == len(expected), source
    least = max(TOLERANCE.get(a.dtype, 0) for a in arrays)
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), source
        tolerance = max(TOLERANCE.get(b.dtype, 0), least if b.dtype in TOLERANCE else 0)
        np.testing.assert_allclose(
            a.astype(np.float64),
            b.astype(np.float64),
            rtol=tolerance,
            atol=tolerance * max(1.0, float(np.abs(b.astype(np.float64)).max())),
            err_msg=source,
        )
    if flavour == "numpy" and traced.graph.inputs[0].id in used(traced.graph):
        again = trace(compile_source(source, "emitted"), *arrays)
        verdict = again == traced.graph or ts.verify(traced.graph, again)
        assert verdict or (not proved and verdict.unknown), source
    return source


@pytest.mark.parametrize("flavour", LIBRARIES)
@pytest.mark.parametrize("dtype", ["f4", "i4"])
@pytest.mark.parametrize("name", UNARY)
def test_functions(name: str, dtype: str, flavour: str) -> None:
    check(UNARY[name], array(X, dtype), flavour=flavour)


@pytest.mark.parametrize("flavour", LIBRARIES)
@pytest.mark.parametrize("name", FLOAT_ONLY)
def test_float_functions(name: str, flavour: str) -> None:
    check(FLOAT_ONLY[name], array(X, "f8"), flavour=flavour)


@pytest.mark.parametrize("dtype", ["f2", ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", FLOAT_ONLY)
def test_float_functions_of_16_bits(name: str, dtype: Any) -> None:
    check(FLOAT_ONLY[name], array(X, dtype))


# What compares values for equality or holds NaN is beyond the field that proofs are made in.
UNPROVED = {"argmin", "isclose", "allclose", "nanmean", "nan_to_num", "argmax nan",
            # Indices computed from data: into a table of which not all positions are alike.
            "index pairs", "index pairs inside", "index outer pair",
            "index int and array"}  # fmt: skip


@pytest.mark.parametrize("flavour", LIBRARIES)
@pytest.mark.parametrize("name", [*FUNCTIONS, *FLOATS])
def test_derived_functions(name: str, flavour: str) -> None:
    function = (FUNCTIONS | FLOATS)[name]
    check(function, array(X, "f8"), flavour=flavour, proved=name not in UNPROVED)


A, B, C = "f32[6,5]", "f32[6,5]", "f32[5,6]"


def body(function: Callable[..., Any], *types: str, flavour: str = "numpy") -> str:
    """What is returned, as one line."""
    lines = emit(trace(function, *types), flavour).splitlines()
    return lines[-1].strip().removeprefix("return ")


@pytest.mark.parametrize(
    ("function", "types", "expected"),
    [
        (lambda a, b: np.sum(a * b, axis=1), (A, B), "np.vecdot(a, b)"),
        (lambda a, b: np.sum(a * b.T, axis=1), (A, C), "np.vecdot(a, b.T)"),
        (lambda a, b: np.sum(a * b, axis=0), (A, B), 'np.einsum("ij,ij->j", a, b)'),
        (lambda a, b: np.sum(a * b.T, axis=0), (A, C), "np.vecdot(a.T, b)"),
        (lambda a, b: np.sum(a * b), (A, B), "np.vdot(a, b)"),
        (lambda a, b: np.sum(a.T * b.T), (A, B), "np.vdot(a, b)"),
        (lambda a, b: a @ b.T, (A, B), "a @ b.T"),
        (lambda a, b: a @ b, ("f32[6]", "f32[6]"), "np.dot(a, b)"),
        (lambda a, b: b @ a @ b, ("f32[6,6]", "f32[6]"), "np.dot(np.dot(b, a), b)"),
        (lambda a, b: a @ b, ("f32[3,4,5]", "f32[5]"), "a @ b"),
        (lambda a, b: np.tensordot(a, b, axes=(2, 0)), ("f32[2,3,4]", "f32[4,5]"),
         "np.tensordot(a, b, axes=1)"),
        (lambda a, b: np.tensordot(a, b, axes=(0, 1)), ("f32[4,2,3]", "f32[5,4]"),
         "np.tensordot(a, b, axes=(0, 1))"),
        (lambda a, b: np.tensordot(a, b, axes=([0, 2], [1, 0])), ("f32[4,2,3]", "f32[3,4,2]"),
         "np.tensordot(a, b, axes=([0, 2], [1, 0]))"),
        (lambda a: np.diag(a), ("f32[6]",), "np.diag(a)"),
        (lambda a: np.diag(a), ("f32[6,5]",), "a.diagonal()"),
        (lambda a: np.trace(a.T, -1), (A,), "np.trace(a.T, -1)"),
        (lambda a: a[:, None] - a[None], (A,), "a[:, None] - a"),
        (lambda a: (a - a.mean(axis=1, keepdims=True)) ** 3, (A,),
         "(a - a.mean(axis=1, keepdims=True)) ** 3"),
        (lambda a: -(a**2), ("f32[6]",), "-(a * a)"),
        (lambda a: (-a) * 2 - (1 - a), ("f32[6]",), "-a * 2 - (1 - a)"),
        (lambda a: a - (a - 1 - a), ("f32[6]",), "a - (a - 1 - a)"),
        (lambda a: np.where((a > 0) & ~(a < 1), a, 0), (A,), "np.where((a > 0) & ~(a < 1), a, 0)"),
        (lambda a: np.all(a > 0, axis=1), (A,), "(a > 0).all(axis=1)"),
        (lambda a: a[1, ::2], (A,), "a[1, ::2]"),
        (lambda a: a[..., 0][:, None], ("f32[3,4,5]",), "a[:, None, :, 0]"),
        (lambda a: np.repeat(a, 3, axis=1), (A,), "np.repeat(a, 3, axis=1)"),
        (lambda a: a[:, [4, 0]], (A,), "a[:, [4, 0]]"),
        (lambda a: np.stack([a[1:], a[:-1]], axis=1), ("f32[6]",),
         "np.stack([a[1:], a[:-1]], axis=1)"),
        (lambda a: np.stack([a[1], a[3]], axis=1), (A,), "np.stack([a[1], a[3]], axis=1)"),
        (lambda a: a.sum(axis=0, dtype=np.float64), (A,), "a.astype(np.float64).sum(axis=0)"),
        (lambda a: a.astype(np.int32).max(), (A,), "a.astype(np.int32).max()"),
        (lambda a: a / (1 + np.exp(-a)), (A,), "a / (1 + np.exp(-a))"),
        (lambda a: a * np.float32(0.1) + 1e-20, (A,), "a * 0.1 + 1e-20"),
        (lambda a: np.maximum(a, -np.inf), (A,), "np.maximum(a, -np.inf)"),
        (lambda a: a + np.ones((6, 1), np.float32), (A,), "a + 1"),
        (lambda a: a @ np.ones(5, np.float32), (A,), "np.dot(a, np.ones((5,), np.float32))"),
    ],
)  # fmt: skip
def test_idioms(function: Callable[..., Any], types: tuple[str, ...], expected: str) -> None:
    assert body(function, *types) == expected
    rng = np.random.default_rng(0)
    check(function, *(Spec.parse(t).sample(rng) for t in types))


def test_idioms_of_other_libraries() -> None:
    def f(a: Any, b: Any) -> Any:
        return np.sum(np.maximum(a * b, 0), axis=1, keepdims=True).max()

    assert body(f, A, B, flavour="jax") == "jnp.maximum(a * b, 0).sum(axis=1, keepdims=True).max()"
    assert (
        body(f, A, B, flavour="torch")
        == "torch.clamp(a * b, min=0).sum(dim=1, keepdim=True).amax()"
    )


def test_shared_and_long_values_get_names() -> None:
    def f(x: Any) -> Any:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    assert emit(trace(f, A), notes=["assumes x > 0"]) == (
        "import numpy as np\n\n\n"
        "def f(x):\n"
        "    # x: float32 (6, 5)\n"
        "    # assumes x > 0\n"
        "    e = np.exp(x - x.max(axis=1, keepdims=True))\n"
        "    return e / e.sum(axis=1, keepdims=True)\n"
    )
    long = emit(trace(lambda x: sum(x * 2.0**k + np.sin(x * k) for k in range(12)), A))
    assert max(map(len, long.splitlines())) <= 100


def test_a_filled_array_becomes_a_stack() -> None:
    def f(x: Any) -> Any:
        y = np.zeros_like(x)
        y[0] = x[0]
        for i in range(1, len(x)):
            y[i] = y[i - 1] * 0.5 + x[i]
        return y

    source = emit(trace(f, "f64[3,4]"))
    assert source.splitlines()[-3:] == [
        "    t = x[0] * 0.5 + x[1]",
        "    t2 = t * 0.5 + x[2]",
        "    return np.stack([x[0], t, t2])",
    ] or source.endswith("    return np.stack([x[0], t, t * 0.5 + x[2]])\n")


def test_near_misses_of_idioms_are_not_taken_for_them() -> None:
    g = ts.Graph("g")
    x, i, j = g.input("x", (6, 6)), g.input("i", (3,), "i64"), g.input("j", (3,), "i64")
    flat = g.reshape(x, 36)
    g.output(g.slice(flat, [0], [36], [6]))  # the first column, not the diagonal
    wrapped = g.where(g.less(i, 0), g.add(i, 6), j)
    g.output(g.emit("gather", [x, wrapped], {"axis": 0}))
    counted = g.emit("iota", [], {"axis": 0, "type": ("i64", [4])})
    g.output(g.emit("gather", [x, g.subtract(g.const(5, "i64"), counted)], {"axis": 0}))
    x_, i_, j_ = np.arange(36, dtype=np.float32).reshape(6, 6), np.array([0, -1, 2]), np.arange(3)
    found = compile_source(emit(g), "g")(x_, i_, j_)
    for ours, theirs in zip(found, g.run(x_, i_, j_), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_names_that_python_or_the_library_uses() -> None:
    g = ts.Graph("lambda")
    a, b = g.input("class", (3,)), g.input("np", (3,))
    g.output(a + b)
    source = emit(g)
    assert "def program(class_, np_):" in source
    np.testing.assert_array_equal(compile_source(source, "program")(np.ones(3), np.ones(3)), 2)


def test_symbols_become_extents_of_arguments() -> None:
    g = ts.Graph("f")
    x = g.input("x", ("N", 4))
    g.output(g.matmul(g.const(1, "f32", ("N",)), x))
    source = emit(g)
    assert "np.ones((x.shape[0],), np.float32)" in source
    found = compile_source(source, "f")(np.ones((7, 4), np.float32))
    np.testing.assert_array_equal(found, np.full(4, 7, np.float32))


def test_constants_may_be_spelled_out() -> None:
    def f(x: Any) -> Any:
        return x * np.array([0.25, 0.5, np.inf], np.float32)

    traced = trace_call(f, ("f32[2,3]",), {})
    source = emit(traced.graph, constants={"inner0": traced.extra[0]})
    assert "inner0 = np.array([0.25, 0.5, np.inf], dtype=np.float32)" in source
    x = np.ones((2, 3), np.float32)
    found = compile_source(source, "f")(x)
    np.testing.assert_array_equal(found, f(x))
    assert found.dtype == np.float32
    with pytest.raises(UnsupportedError, match="too long"):
        emit(traced.graph, constants={"inner0": np.arange(5000.0)})


def test_what_has_no_spelling() -> None:
    g = ts.load(ROOT / "examples/softmax.ug")
    with pytest.raises(UsageError, match="choose one of numpy, jax, torch"):
        emit(g, "matlab")
    h = ts.Graph("k")
    x = h.input("x", (8,))
    with h.kernel([x], grid=2) as k:
        k.save(k.iter(x, imap=[0]) * 2.0, omap=[0])
    h.output(k.outputs[0])
    with pytest.raises(UnsupportedError, match="fused kernel"):
        emit(h)


def test_emit_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tessera.cli import main

    program = tmp_path / "p.py"
    program.write_text(
        "import numpy as np\n"
        'def f(x: "f32[4,3] > 0"):\n'
        "    return np.sqrt(x) * np.array([1.0, 2.0, 4.0], np.float32)\n"
    )
    assert main(["emit", str(program), "--emit", "numpy"]) == 0
    source = capsys.readouterr().out
    x = np.full((4, 3), 9, np.float32)
    np.testing.assert_array_equal(compile_source(source, "f")(x), np.tile([3, 6, 12], (4, 1)))
    assert main(["emit", str(program), "--emit", "torch", "--json"]) == 0
    assert '"source": "import torch' in capsys.readouterr().out


def spelled(function: Callable[..., Any], idioms: tuple[str, ...], *types: str) -> list[str]:
    """The statements of the function, after its comment."""
    source = emit(trace(function, *types), idioms=idioms)
    return [line.strip() for line in source.partition("def ")[2].splitlines()[2:]]


@pytest.mark.parametrize(
    ("idiom", "function", "expected"),
    [
        ("square", lambda a, b, c: a * a + np.square(b), ["return np.square(a) + np.square(b)"]),
        ("ones", lambda a, b, c: a.sum(axis=0),
         ["return np.dot(np.ones(len(a), np.float32), a)"]),
        ("ones", lambda a, b, c: a.sum(axis=1),
         ["return np.dot(a, np.ones(a.shape[1], np.float32))"]),
        ("ones", lambda a, b, c: c.sum(),
         ["return np.dot(c, np.ones(c.shape[1], np.float32)).sum()"]),
        ("einsum", lambda a, b, c: (a * c[0, :5]).sum(axis=0),
         ['return np.einsum("ij,j->j", a, c[0, :-1])']),
        ("einsum", lambda a, b, c: a.sum(), ['return np.einsum("ij->", a)']),
        ("direct", lambda a, b, c: a.max(axis=0), ["return np.maximum.reduce(a, axis=0)"]),
        ("direct", lambda a, b, c: a.sum(), ["return np.add.reduce(a, axis=None)"]),
        ("direct", lambda a, b, c: a[0].mean(), ["return np.add.reduce(a[0]) / len(a[0])"]),
        ("direct", lambda a, b, c: a.mean(), ["return np.add.reduce(a, axis=None) / a.size"]),
        ("direct", lambda a, b, c: a.mean(axis=1),
         ["return np.add.reduce(a, axis=1) / a.shape[1]"]),
        ("direct", lambda a, b, c: c @ a[:, 0], ["return c.dot(a[:, 0])"]),
        ("reuse", lambda a, b, c: (a + b) * b, ["t = a + b", "t *= b", "return t"]),
        ("reuse", lambda a, b, c: 1 - np.exp(-a),
         ["t = -a", "np.exp(t, out=t)", "np.subtract(1, t, out=t)", "return t"]),
        ("reuse", lambda a, b, c: b / (a - b), ["t = a - b", "np.divide(b, t, out=t)", "return t"]),
        ("reuse", lambda a, b, c: a * (2 * b), ["t = 2 * b", "t *= a", "return t"]),
    ],
)  # fmt: skip
def test_other_spellings(idiom: str, function: Callable[..., Any], expected: list[str]) -> None:
    types = ("f32[6,5]", "f32[6,5]", "f32[5,6]")
    assert spelled(function, (idiom,), *types) == expected
    rng = np.random.default_rng(2)
    arrays = [rng.random([int(d) for d in t[4:-1].split(",")], np.float32) for t in types]
    source = emit(trace(function, *types), name="f", idioms=(idiom,))
    before = [a.copy() for a in arrays]
    result, expect = compile_source(source, "f")(*arrays), function(*arrays)
    assert (result.dtype, result.shape) == (expect.dtype, expect.shape)
    np.testing.assert_allclose(result, expect, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a * b,  # of the caller's arrays nothing is written over,
        lambda a, b: a.T * b.T,
        lambda a, b: a.reshape(30) + 1,
        lambda a, b: a[1:] * 2,
        lambda a, b: (a + b).T,  # nor is what only looks at another array in another way,
        lambda a, b: (a + b)[0] * a,  # nor a row under a matrix,
        lambda a, b: (a > b) * 1,  # nor a mask under numbers,
        lambda a, b: (a.astype(np.float32) + 1) * b.astype(np.float64),  # nor f32 under f64,
        lambda a, b: np.add(a, b).sum() * a.sum(),  # nor a number
    ],
)
def test_what_is_not_written_over(function: Callable[..., Any]) -> None:
    assert spelled(function, ("reuse",), "f64[6,5]", "f64[6,5]") == spelled(
        function, (), "f64[6,5]", "f64[6,5]"
    )


def test_what_is_needed_again_is_not_written_over() -> None:
    def f(a: Any, b: Any) -> Any:
        t = a + b
        u = t * b
        return u - t, np.sqrt(u)

    source = emit(trace(f, "f64[6,5]", "f64[6,5]"), name="f", idioms=("reuse",))
    a, b = np.random.default_rng(2).random((2, 6, 5))
    for ours, theirs in zip(compile_source(source, "f")(a, b), f(a, b), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-15)


@pytest.mark.parametrize("flavour", LIBRARIES)
@pytest.mark.parametrize("name", [*FUNCTIONS, *FLOATS])
def test_all_idioms_at_once(name: str, flavour: str) -> None:
    x = array(X, "f8")
    traced = trace_call((FUNCTIONS | FLOATS)[name], [x], {})
    arrays = [np.asarray(a) for a in (*traced.arguments, *traced.extra)]
    source = emit(traced.graph, flavour, name="f", idioms=IDIOMS[flavour])
    before = [a.copy() for a in arrays]
    for ours, theirs in zip(
        run(source, "f", flavour, arrays), traced.graph.run(*arrays), strict=True
    ):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), source
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=source)
    for now, then in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_idioms_that_there_are_not() -> None:
    with pytest.raises(UsageError, match="choose from ones"):
        emit(trace(lambda a: a + 1, A), "jax", idioms=("reuse",))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_a_choice_between_two_numbers_has_its_dtype(dtype: Callable[[int], Any]) -> None:
    x = np.array([-1, 0, 2], np.int8)
    graph = trace(lambda x: np.where(x > 0, dtype(1), dtype(0)), x)
    assert compile_source(emit(graph, "numpy", name="g"), "g")(x).dtype == dtype


def test_results_made_of_nothing_are_written_down() -> None:
    def f(x: Any) -> Any:
        table = np.arange(100.0) ** 0.5
        return np.exp(x), table, {"zeros": np.zeros((100, 50)), "ones": -np.ones(9, np.int32)}

    traced = trace_call(f, ("f64[5]",), {})
    x = np.arange(5.0)
    source = emit(traced.graph, call=call_of(f, traced))
    found, table, rest = compile_source(source, "f")(x)
    np.testing.assert_array_equal(found, f(x)[0])
    np.testing.assert_array_equal(table, f(x)[1])
    for name, expected in f(x)[2].items():
        assert rest[name].dtype == expected.dtype
        np.testing.assert_array_equal(rest[name], expected)
    long = trace_call(lambda x: (x + 1, np.arange(5000.0)), ("f64[5]",), {})
    with pytest.raises(UnsupportedError, match="5000 elements is too long for source"):
        emit(long.graph, call=call_of(lambda x: (x + 1, np.arange(5000.0)), long))


@pytest.mark.parametrize(
    ("constant", "text", "others"),
    [
        (np.inf, "np.inf", [1.0, -np.inf, np.nan]),
        (-np.inf, "-np.inf", [np.inf]),
        (np.nan, "np.nan", [0.0, np.inf]),
        (np.int64(0), "np.int64(0)", [1, False]),
        (np.float32(0.5), "np.float32(0.5)", [0.25]),
        (np.float32, "np.float32", [np.float64, float, None]),
        (np.bool_, "np.bool", [np.int8]),
        (float, "float", [np.float32, int]),
        (slice(0, 3), "slice(0, 3, None)", [slice(0, 4), 3]),
        ((1, (np.inf, "inf")), '(1, (np.inf, "inf"))', [(1, (0.0, "inf"))]),
    ],
)
@pytest.mark.parametrize("flavour", LIBRARIES)
def test_constants_of_a_call_are_checked(
    constant: Any, text: str, others: list[Any], flavour: str
) -> None:
    def f(x: Any, constant: Any = constant) -> Any:
        return x + 1

    traced = trace_call(f, ("f32[5]",), {})
    source = emit(traced.graph, flavour, call=call_of(f, traced))
    assert f"def f(x, constant={text}):" in source
    made = compile_source(source, "f")
    x = arrays_of(flavour, np.ones(5, np.float32))
    assert float(made(x)[0]) == float(made(x, constant)[0]) == 2
    for other in others:
        with pytest.raises(ValueError, match="made for constant"):
            made(x, other)


def arrays_of(flavour: str, x: Any) -> Any:
    return importlib.import_module("torch").from_numpy(x) if flavour == "torch" else x


def test_one_array_at_two_places_of_a_result() -> None:
    def f(x: Any) -> Any:
        y = np.exp(x) * 2
        return {"raw": y, "out": [y, x]}

    traced = trace_call(f, ("f64[5]",), {})
    made = compile_source(emit(traced.graph, call=call_of(f, traced)), "f")(np.arange(5.0))
    assert made["raw"] is made["out"][0]
    np.testing.assert_array_equal(made["raw"], f(np.arange(5.0))["raw"])


def test_names_that_are_not_ascii() -> None:
    def größe(ß: Any, *, k: Any) -> Any:
        return ß * 2 + k["é"] + k["²"]

    traced = trace_call(größe, ("f64[5]",), {"k": {"é": "f64[5]", "²": "f64[5]"}})
    made = compile_source(emit(traced.graph, name="größe", call=call_of(größe, traced)), "größe")
    x = np.arange(5.0)
    np.testing.assert_array_equal(made(ß=x, k={"é": x, "²": 1 - x}), 2 * x + 1)


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: Pair(x, x + 1), "it returns a Pair, a class of its own"),
        (lambda torch: torch + 1, "its parameter torch has the name of a module"),
        (lambda x, k=print: x + 1, "k is <built-in function print>"),
        (lambda x: {1j: x + 1}, "it returns a dict of "),
    ],
)
def test_calls_that_have_no_text_are_told(function: Any, why: str) -> None:
    traced = trace_call(function, ("f64[5]",), {})
    with pytest.raises(UnsupportedError, match=why):
        call_of(function, traced)


@pytest.mark.parametrize("flavour", LIBRARIES)
def test_guards_of_dtypes(flavour: str) -> None:
    graph = trace(lambda x, of_a_long_name: x[of_a_long_name] + 1, "f32[5]", "i64[2]")
    source = emit(graph, flavour, name="f", these_dtypes=True)
    if flavour == "jax":  # where arrays of 64 bits may be of 32
        assert "raise" not in source
        return
    made = compile_source(source, "f")
    x, i = (arrays_of(flavour, a) for a in (np.ones(5, np.float32), np.zeros(2, np.int64)))
    assert float(made(x, i)[0]) == 2
    with pytest.raises(ValueError, match="made for x of float32"):
        made(arrays_of(flavour, np.ones(5)), i)
    with pytest.raises(ValueError, match="made for of_a_long_name of int64"):
        made(x, arrays_of(flavour, np.zeros(2, np.int32)))


@pytest.mark.parametrize("flavour", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_integers_at_their_ends(dtype: Any, flavour: str) -> None:
    least, most = (dtype(v) for v in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    x = np.array([least, -7, 0, 5, most], dtype)
    y = np.array([-2, 0, 3, 0, -7], dtype)
    source = check(lambda x, y: (x + least, x - 3, x // 3, x // y, x % y, x % dtype(0), 7 % y),
                   x, y, flavour=flavour, proved=False)  # fmt: skip
    assert "x - 3" in source or flavour == "torch"
    assert dtype == np.int64 or "x // 3" in source


def test_what_has_numbers_of_64_bits_has_jax_compute_in_them() -> None:
    wide = '\njax.config.update("jax_enable_x64", True)\n'
    cases: list[tuple[Callable[..., Any], tuple[str, ...], bool]] = [
        (lambda x: x // 3, ("i32[4]",), False),
        (lambda x, y: x // y, ("u8[4]", "u8[4]"), False),
        (lambda x: x / 3, ("i32[4]",), True),
        (lambda x: x.sum(), ("i32[4]",), True),
        (lambda x: x + 1, ("f64[4]",), True),
        (lambda x: x.mean() + 0.5, ("f32[4]",), False),
    ]
    for function, types, has in cases:
        assert (wide in emit(trace(function, *types), "jax")) == has


@pytest.mark.parametrize("flavour", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_floats_become_the_low_bits_of_integers(dtype: Any, flavour: str) -> None:
    x = np.array([-1, 300, -129.5, 7.9], np.float32)
    source = check(lambda x: x.astype(dtype), x, flavour=flavour)
    assert ("# JAX casts floats beyond int32 to its ends" in source) == (flavour == "jax")


@pytest.mark.parametrize("flavour", LIBRARIES)
def test_constants_keep_within_their_dtype(flavour: str) -> None:
    least, most = np.finfo(np.float32).min, np.finfo(np.float16).max
    check(lambda x: np.maximum(x, least), np.array([1, -np.inf], np.float32), flavour=flavour)
    g = ts.Graph("g")
    x = g.input("x", (2,), "f16")
    g.output(g.minimum(x, g.const(65510, "f16")))  # rounds to the largest, 65504
    g.output(g.minimum(x, g.const(70000, "f16")))  # to infinity
    found = run(emit(g, flavour), "g", flavour, [np.array([1, np.inf], np.float16)])
    np.testing.assert_array_equal(found, [[1, most], [1, np.inf]])


@pytest.mark.parametrize("flavour", LIBRARIES)
def test_the_sign_of_nan_is_nan(flavour: str) -> None:
    check(lambda x: np.sign(x * 2), np.array([np.nan, -3, 0, np.inf]), flavour=flavour)


def test_bfloat16_stays_itself_beside_numbers() -> None:
    g = ts.Graph("g")
    x = g.input("x", (5,), "bf16")
    tenth, half = g.const(0.1, "bf16"), g.const(0.5, "bf16")
    power = g.emit("pow", [x], {"exponent": "-3/2"})
    for t in (x * tenth, g.equal(x, tenth), g.maximum(x, g.const(-np.inf, "bf16")), x - half,
              g.where(g.less(x, half), x, half), power, x * g.const(3, "bf16")):  # fmt: skip
        g.output(t)
    for op in ("gelu", "gelu_tanh", "silu", "sigmoid"):
        g.output(g.emit(op, [x], {}))
    arrays = [np.array([0.1, 0.5, 2, 3, 7], ml_dtypes.bfloat16)]
    for ours, theirs in zip(run(emit(g), "g", "numpy", arrays), g.run(*arrays), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours.astype("f4"), theirs.astype("f4"), rtol=0.02)


def test_deep_programs() -> None:
    """Chains longer than Python's stack are spelled in lines."""
    text = "\n".join(f"  x{i + 1} = sin x{i}" for i in range(3000))
    graph = ts.Graph.parse(f"graph g {{\n  x0 = input : f32[3]\n{text}\n  return x3000\n}}")
    assert emit(graph).count("np.sin") == 3000
