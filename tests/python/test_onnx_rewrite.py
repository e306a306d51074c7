"""ONNX in, ONNX with less work in it out; operators that programs write out are written as one."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import tessera as ts  # noqa: E402
from tessera.api import find_highs  # noqa: E402
from tessera.cli import main  # noqa: E402
from tessera.frontends.onnx import load  # noqa: E402
from tessera.frontends.onnx.export import to_onnx, written  # noqa: E402
from tessera.frontends.onnx.rewrite import rewrite_model  # noqa: E402
from tessera.options import Options  # noqa: E402


def types(graph: ts.Graph) -> list[str]:
    return [n.op_type for n in to_onnx(graph).graph.node]


def agrees(graph: ts.Graph, *arrays: Any) -> None:
    made = to_onnx(graph)
    onnx.checker.check_model(made, full_check=True)
    feed = dict(zip(graph.input_types(), arrays, strict=True))
    got = ReferenceEvaluator(made).run(None, feed)
    for a, b in zip(got, graph.run(*arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_softmax_is_written_as_one() -> None:
    g = ts.Graph("attention")
    x = g.input("x", (3, 4, 5), "f32")
    shifted = x - g.max(x, axis=1, keepdims=True)
    e = g.exp(shifted)
    total = g.sum(e, axis=1, keepdims=True)
    g.output(e / total)
    g.output(shifted - g.log(total))
    assert types(g) == ["Softmax", "LogSoftmax"]
    agrees(g, normal(3, 4, 5))


def test_what_only_looks_like_softmax_is_not() -> None:
    g = ts.Graph("rows")
    x = g.input("x", (4, 5), "f32")
    e = g.exp(x - g.max(x, axis=1, keepdims=True))
    g.output(e / g.sum(e, axis=0, keepdims=True))  # is one, over the other axis, of e's operand
    other = g.exp(x - g.max(x, axis=0, keepdims=True))
    g.output(e / g.sum(other, axis=1, keepdims=True))  # of another exponential
    assert types(g).count("Softmax") == 1
    assert types(g).count("Sub") == 2
    agrees(g, normal(4, 5))


@pytest.mark.parametrize(("scale", "bias"), [(False, False), (True, False), (True, True)])
def test_layer_normalization_is_written_as_one(scale: bool, bias: bool) -> None:
    g = ts.Graph("norm")
    x = g.input("x", (2, 3, 8), "f32")
    centred = x - g.mean(x, axis=-1, keepdims=True)
    y = centred / g.sqrt(g.mean(centred * centred, axis=-1, keepdims=True) + 1e-3)
    arrays = [normal(2, 3, 8)]
    for given, name in ((scale, "w"), (bias, "b")):
        if given:
            operand = g.input(name, (8,), "f32")
            y = operand * y if name == "w" else y + operand
            arrays.append(normal(8))
    g.output(y)
    assert types(g) == ["LayerNormalization"]
    agrees(g, *arrays)


def test_other_variances_are_left_alone() -> None:
    g = ts.Graph("norm")
    x = g.input("x", (3, 8), "f32")
    centred = x - g.mean(x, axis=-1, keepdims=True)
    columns = g.mean(centred * centred, axis=0, keepdims=True)
    g.output(centred / g.sqrt(columns + 1e-3))
    raw = g.mean(x * x, axis=-1, keepdims=True)
    g.output(centred / g.sqrt(raw + 1e-3))
    assert "LayerNormalization" not in types(g)
    agrees(g, normal(3, 8))


def test_results_get_the_names_that_are_asked_for() -> None:
    g = ts.Graph("twice")
    x = g.input("x", (3,), "f32")
    y = g.exp(x)
    for result in (y, y, x):
        g.output(result)
    made = to_onnx(g, ["a", "b", "c"])
    onnx.checker.check_model(made, full_check=True)
    assert [v.name for v in made.graph.output] == ["a", "b", "c"]
    given = normal(3)
    for got, want in zip(
        ReferenceEvaluator(made).run(None, {"x": given}), g.run(given), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def chain(folder: Path) -> Path:
    """(A B) v, where A (B v) is a hundred times less work."""
    f32 = TensorProto.FLOAT
    nodes = [helper.make_node("MatMul", ["A", "B"], ["AB"]),
             helper.make_node("MatMul", ["AB", "v"], ["y"])]  # fmt: skip
    shapes: dict[str, list[int | str]] = {"A": [300, 300], "B": [300, 300], "v": [300, "n"]}
    inputs = [helper.make_tensor_value_info(n, f32, s) for n, s in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", f32, [300, "n"])]
    made = helper.make_model(
        helper.make_graph(nodes, "chain", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    made.ir_version = 9
    path = folder / "chain.onnx"
    onnx.save(made, str(path))
    return path


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx's reference evaluator under onnxruntime's name."""

    class Session:
        def __init__(self, model: Any, *_: Any, **__: Any) -> None:
            self.model = ReferenceEvaluator(onnx.load(model) if isinstance(model, str) else
                                            onnx.load_from_string(model))  # fmt: skip

        def run(self, outputs: Any, feed: Any) -> Any:
            return self.model.run(outputs, feed)

    stand_in = ModuleType("onnxruntime")
    stand_in.__spec__ = importlib.machinery.ModuleSpec("onnxruntime", None)
    stand_in.SessionOptions = lambda: ModuleType("options")  # type: ignore[attr-defined]
    stand_in.InferenceSession = Session  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnxruntime", stand_in)


def test_a_model_with_less_work_in_it(
    runtime: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = chain(tmp_path), tmp_path / "fast.onnx"
    assert main(["optimize", str(source), "--shape", "n=1", "-o", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["improved"]
    assert said["speedup"] > 1.03
    assert said["certificate"].startswith("certificate")
    saved = onnx.load(str(out))
    assert [v.name for v in saved.graph.input] == ["A", "B", "v"]
    assert [v.name for v in saved.graph.output] == ["y"]
    assert len(saved.graph.node) == 2
    x = {"A": normal(300, 300), "B": normal(300, 300), "v": normal(300, 1)}
    got: Any = ReferenceEvaluator(saved).run(None, x)
    np.testing.assert_allclose(got[0], x["A"] @ (x["B"] @ x["v"]), rtol=1e-3, atol=1e-3)


def test_a_model_too_large_for_one_file(
    runtime: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.frontends.onnx.model_file.MOST_INSIDE", 1000)
    source, out = chain(tmp_path), tmp_path / "fast.onnx"
    made = onnx.load(str(source))
    del made.graph.input[0]
    made.graph.initializer.append(onnx.numpy_helper.from_array(normal(300, 300), "A"))
    onnx.save(made, str(source), save_as_external_data=True, location="source.data")
    assert main(["optimize", str(source), "--shape", "n=1", "-o", str(out)]) == 0
    assert (tmp_path / "fast.onnx.data").stat().st_size == 300 * 300 * 4 + -300 * 300 * 4 % 4096
    assert out.stat().st_size < 2000
    assert len(onnx.load(str(out)).graph.node) == 2
    x = {"B": normal(300, 300), "v": normal(300, 1)}
    got: Any = ReferenceEvaluator(str(out)).run(None, x)
    np.testing.assert_allclose(got[0], normal(300, 300) @ (x["B"] @ x["v"]), rtol=1e-3, atol=1e-3)


def test_results_that_differ_are_not_taken(
    runtime: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter that writes something else is caught by what it computes."""
    from tessera.frontends.onnx import rewrite as module

    def wrong(graph: ts.Graph, outputs: Any = ()) -> Any:
        made = written(graph, outputs)
        made.proto.graph.node[-1].op_type = "Add"
        made.proto.graph.node[-1].input[:] = ["v", "v"]
        return made

    monkeypatch.setattr(module, "written", wrong)
    source = chain(tmp_path)
    found = rewrite_model(load(source, extents={"n": 1}), source=source)
    assert not found.improved
    assert any("off by" in why for why in found.rejected)
    assert found.model == source.read_bytes()


def test_without_a_runtime_the_model_of_costs_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = rewrite_model(load(chain(tmp_path), extents={"n": 1}), options=Options(budget=9))
    assert found.improved
    assert "not installed" in found.not_measured
    assert found.original_us == 0


@pytest.mark.parametrize("where", ["highspy/libhighs.so.1", "highsbox/highs_dist/lib/libhighs.so"])
def test_highs_is_taken_from_pythons_packages(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / where
    library.parent.mkdir(parents=True)
    library.touch()
    for package in ("highspy", "highsbox"):  # before those that are installed
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for named in ("", "other.so"):
        monkeypatch.setattr(os, "environ", {"TESSERA_HIGHS": named} if named else {})
        find_highs()
        assert os.environ["TESSERA_HIGHS"] == (named or str(library))


def test_open_extents_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["optimize", str(chain(tmp_path)), "-o", str(tmp_path / "fast.onnx")])
    assert code == 65
    assert "--shape N=" in capsys.readouterr().err
    assert not (tmp_path / "fast.onnx").exists()


def test_a_model_that_asks_for_nan_keeps_its_answer(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("IsNaN", ["x"], ["n"]),
        helper.make_node("Where", ["n", "zero", "x"], ["z"]),
        helper.make_node("Add", ["z", "z"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 8]) for n in "xy")
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])
    path = tmp_path / "zeroed.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "zeroed", [x], [y], [zero])), path)
    found = ts.superoptimize(load(path), budget=3)
    given = normal(8, 8)
    given[2, 3] = np.nan
    np.testing.assert_array_equal(found(given), np.where(np.isnan(given), 0, given) * 2)


def test_a_model_with_data_beside_it_keeps_its_nodes(tmp_path: Path) -> None:
    """Where nothing faster is found; the data is in the file that is written."""
    w = normal(4, 4)
    text = "g (float[4,4] x) => (float[4,4] y) { y = Softplus(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    model.graph.node.append(helper.make_node("Add", ["y", "w"], ["z"]))
    model.graph.output[0].name = "z"
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.data",
              size_threshold=0)  # fmt: skip
    made = rewrite_model(load(tmp_path / "m.onnx", whole=True), source=tmp_path / "m.onnx",
                         options=Options(budget=0.1))  # fmt: skip
    made.save(tmp_path / "out.onnx")
    (tmp_path / "m.data").unlink()
    saved = onnx.load(str(tmp_path / "out.onnx"))
    if not made.improved:
        assert saved.graph.node == model.graph.node
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(saved.graph.initializer[0]), w)
