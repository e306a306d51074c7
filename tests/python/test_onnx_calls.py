"""Calls of ONNX models: compiled for their shapes, in a race with onnxruntime, or interpreted."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed")
runtime: Any = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
from onnx import helper  # noqa: E402

from tessera import _core  # noqa: E402
from tessera.errors import BadInputError, OutOfMemoryError, ToolMissingError  # noqa: E402
from tessera.frontends.onnx import Model, bodies  # noqa: E402

RNG = np.random.default_rng(0)
W = RNG.standard_normal((16, 8)).astype(np.float32)
TABLE = RNG.standard_normal((10, 16)).astype(np.float32)
FLOAT, LONG = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def looked_up() -> Any:
    """Rows of a table by position, times a matrix."""
    nodes = [helper.make_node("Gather", ["table", "i"], ["rows"]),
             helper.make_node("MatMul", ["rows", "w"], ["p"]),
             helper.make_node("Relu", ["p"], ["y"])]  # fmt: skip
    values = [onnx.numpy_helper.from_array(v, n) for n, v in (("table", TABLE), ("w", W))]
    graph = helper.make_graph(
        nodes, "looked_up", [helper.make_tensor_value_info("i", LONG, ["n"])],
        [helper.make_tensor_value_info("y", FLOAT, ["n", 8])], values,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def expected(i: Any) -> Any:
    return np.maximum(TABLE[i] @ W, 0)


def calls(model: Any) -> list[Any]:
    return list(model._calls.values())


def test_each_shape_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    plain = _core.compile
    monkeypatch.setattr(_core, "compile", lambda g: compiled.append(g) or plain(g))  # type: ignore[func-returns-value]
    model = Model(looked_up(), opaque=False)
    for n in (3, 5, 3, 5, 3):
        i = RNG.integers(-10, 10, n)
        np.testing.assert_allclose(model(i)[0], expected(i), rtol=1e-5, atol=1e-6)
    assert len(compiled) == 2
    assert all(c.race.won for c in calls(model))  # nothing is left to onnxruntime


def test_the_slower_side_runs_no_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tessera.onnx")
    model = Model(looked_up())
    i = np.array([1, -1, 9])
    for _ in range(60):
        np.testing.assert_allclose(model(i)[0], expected(i), rtol=1e-5, atol=1e-6)
    (race,) = (c.race for c in calls(model))
    assert race.won is not None
    assert "onnxruntime" in caplog.text
    for won in (True, False):  # whoever it is
        model = Model(looked_up())
        model(i)
        (found,) = calls(model)
        found.race.won = won
        np.testing.assert_allclose(model(i)[0], expected(i), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("won", [None, True, False])
def test_positions_that_are_not_there_are_refused_whoever_runs(won: bool | None) -> None:
    model = Model(looked_up())
    model(np.array([1, 2]))
    (found,) = calls(model)
    found.race.won = won
    for wrong in (10, -11, 2**40):
        for _ in range(4):
            with pytest.raises(BadInputError, match="out of range"):
                model(np.array([1, wrong]))


def test_onnxruntime_that_computes_something_else_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Other:
        def run(self, _: Any, given: Any) -> Any:
            return [expected(given["i"]) * np.float32(1.01)]

    monkeypatch.setattr("tessera.frontends.onnx.model.session_of", lambda *_: Other())
    model = Model(looked_up())
    i = np.array([0, 4])
    for _ in range(3):
        np.testing.assert_allclose(model(i)[0], expected(i), rtol=1e-5, atol=1e-6)
    assert [c.race.won for c in calls(model)] == [True]


def test_without_a_compiler_it_is_interpreted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise ToolMissingError("no compiler")

    monkeypatch.setattr(_core, "compile", missing)
    model = Model(looked_up(), opaque=False)
    for _ in range(2):
        np.testing.assert_allclose(model(np.array([3]))[0], expected([3]), rtol=1e-5, atol=1e-6)
    assert caplog.text.count("is interpreted: no compiler") == 1


def one_node(kind: str, x: Any, *, type_: int = FLOAT, **attributes: Any) -> Any:
    graph = helper.make_graph(
        [helper.make_node(kind, ["x"], ["y"], **attributes)], "g",
        [helper.make_tensor_value_info("x", type_, x)],
        [helper.make_tensor_value_info("y", type_, None)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_calls_that_do_not_fit_are_errors() -> None:
    model, x = Model(one_node("Exp", [3, "n"])), np.ones((3, 4), np.float32)
    for arrays, named, said in [
        ((), {}, "missing argument x"), ((x, x), {}, "takes 1 arrays, not 2"),
        ((x,), {"x": x}, "x is given twice"), ((x[:2],), {}, "must have the shape"),
        ((x[0],), {}, "must have the shape"), ((), {"z": x}, "no input 'z'|missing"),
    ]:  # fmt: skip
        with pytest.raises(BadInputError, match=said):
            model(*arrays, **named)
    assert model(x[:, :2])[0].shape == (3, 2)


@pytest.mark.parametrize("leave", [False, True])
def test_positions_that_vary_have_few_programs(leave: bool) -> None:
    nodes = [helper.make_node("Slice", ["x", "s", "e"], ["y"])]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", FLOAT, [90, 2]), info("s", LONG, [1]), info("e", LONG, [1])],
        [info("y", FLOAT, None)],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model, x = Model(proto, opaque=leave), np.arange(180, dtype=np.float32).reshape(90, 2)
    for at in range(40):
        y = model(x, np.array([at]), np.array([at + 3]))[0]
        np.testing.assert_array_equal(y, x[at : at + 3])
    assert len(model._programs) == len(model._empty) == 32


@pytest.mark.parametrize(("kind", "value", "want", "attributes"), [
    ("AveragePool", np.full((1, 1, 64, 64), 30), 30, {"kernel_shape": [64, 64]}),
    ("Asinh", np.array([1000.0]), np.arcsinh(1000), {}),
    ("ReduceL2", np.full((4,), 300.0), 600, {"keepdims": 0}),
    ("MeanVarianceNormalization", np.array([[[[-400.0, 400]]]]), [[[[-1, 1]]]], {}),
])  # fmt: skip
def test_what_is_between_may_exceed_sixteen_bits(
    kind: str, value: Any, want: Any, attributes: Any
) -> None:
    x = value.astype(np.float16)
    proto = one_node(kind, x.shape, type_=onnx.TensorProto.FLOAT16, **attributes)
    y = Model(proto, opaque=False)(x)[0]
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.astype(float), np.broadcast_to(want, y.shape), rtol=1e-3)


def text(body: str) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "my" : 1]> {body}')


def function(name: str, inputs: list[str], *nodes: Any, overload: str = "") -> Any:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my", 1)]
    made = helper.make_function("my", name, inputs, ["y"], nodes, opsets)
    made.overload = overload
    return made


def test_functions_of_one_name_are_told_apart() -> None:
    model = text("g (float[4] x) => (float[4] y) { y = my.F(x) }")
    for name, op in (("first", "Neg"), ("second", "Abs")):
        inner = helper.make_node(op, ["x"], ["y"])
        model.functions.append(function("F", ["x"], inner, overload=name))
    model.graph.node[0].overload = "first"
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(Model(model)(x)[0], -x)


def test_operands_that_a_call_of_a_function_leaves_out() -> None:
    model = text("g (float[4] x) => (float[4] y) { y = my.F(x) }")
    inner = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    model.functions.append(function("F", ["x", "low", "high"], inner))
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(Model(model)(x)[0], x)


LOOP = """g (float[2] x) => (float[2] y) { n = Constant<value_int=20>() on = Constant<value_int=1>()
c = Cast<to=9>(on) y = Loop(n, c, x)<body = outer (int64 i, bool d, float[2] a) =>
(bool e, float[2] b) { e = Identity(d) b = Loop(n, d, a)<body = inner (int64 j, bool f, float[2] o)
=> (bool p, float[2] q) { p = Identity(f) q = Add(o, o) }> }> }"""


def test_bodies_that_are_written_out_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = text("g (float[4] x) => (float[4] y) { y = my.F5(x) }")
    calls.functions.append(function("F0", ["x"], helper.make_node("Neg", ["x"], ["y"])))
    for i in range(5):
        thrice = [helper.make_node(f"F{i}", [a], [b], domain="my") for a, b in ("xa", "ab", "by")]
        calls.functions.append(function(f"F{i + 1}", ["x"], *thrice))
    x = np.ones(4, np.float32)
    for model, n in ((calls, 4), (text(LOOP), 2)):
        Model(model).program({"x": x[:n]})
        with monkeypatch.context() as patch:
            patch.setattr(bodies, "_MOST_NODES", 300)
            with pytest.raises(BadInputError, match="make over 300 nodes"):
                Model(model).program({"x": x[:n]})


def test_a_shape_that_a_branch_passes_on() -> None:
    branch = "{}_branch = {} () => (int64[2] {}) {{ {} = Identity(s) }}"
    both = ", ".join(branch.format(n, n, n, n) for n in ("then", "else"))
    model = text("g (float[4] x, int64[2] s, bool c) => (float[a,b] y) "
                 f"{{ z = If(c)<{both}> y = Reshape(x, z) }}")  # fmt: skip
    x = np.arange(4, dtype=np.float32)
    made = Model(model)(x, np.array([2, 2]), np.array(True))[0]
    np.testing.assert_array_equal(made, x.reshape(2, 2))


@pytest.mark.parametrize("body", [
    "(float[4] x) => (float[n] y, int64[n] i) { k = Constant<value_ints=[0]>() y, i = TopK(x, k) }",
    "(float[4] x) => (float[n] y) { k = Constant<value_ints=[0]>() y = Tile(x, k) }",
    "(float[4] x) => (float[n] y) { k = Constant<value_ints=[-2, -2]>() y = Pad(x, k) }",
])  # fmt: skip
def test_results_of_no_elements(body: str) -> None:
    for made in Model(text(f"g {body}"))(np.arange(4, dtype=np.float32)):
        assert made.shape == (0,)


def test_products_over_no_elements() -> None:
    model = text("g (float[2,0] a, float[0,3] b, float[3] c) => (float[2,3] y) "
                 "{ y = Gemm(a, b, c) }")  # fmt: skip
    c = np.arange(3, dtype=np.float32)
    made = Model(model)(np.empty((2, 0), np.float32), np.empty((0, 3), np.float32), c)[0]
    np.testing.assert_array_equal(made, [c, c])


def test_models_are_copied_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that has been called, by a relative path, from another folder."""
    onnx.save(looked_up(), str(tmp_path / "m.onnx"))
    monkeypatch.chdir(tmp_path)
    model = Model("m.onnx")
    monkeypatch.chdir("/")
    i = np.array([1, 2])
    for one in (model, copy.deepcopy(model)):
        np.testing.assert_allclose(one(i)[0], expected(i), 1e-5, 1e-5)
    np.testing.assert_allclose(copy.deepcopy(model)(i)[0], expected(i), 1e-5, 1e-5)
    assert model._peer() is not None


def test_results_too_large_for_memory() -> None:
    def full(graph: Any, arrays: Any) -> Any:
        raise MemoryError("Unable to allocate 4.00 TiB")

    with pytest.raises(OutOfMemoryError, match=r"<model>: Unable to allocate 4\.00 TiB"):
        Model(looked_up()).run({"i": np.array([1])}, full)
