"""Calls of ONNX models: compiled for their shapes, in a race with onnxruntime, or interpreted."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed")
runtime: Any = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
from onnx import helper  # noqa: E402

from tessera import _core  # noqa: E402
from tessera.errors import BadInputError, ToolMissingError  # noqa: E402
from tessera.frontends.onnx import Model  # noqa: E402

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


def text(body: str, opset: int = 20, **known: Any) -> Any:
    domains = f'["" : {opset}, "my" : 1]'
    made = onnx.parser.parse_model(f"<ir_version: 10, opset_import: {domains}> {body}")
    made.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in known.items())
    return made


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
