"""ONNX in and out: what is read, what is refused and how, and what comes back out."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import tessera as ts  # noqa: E402
from tessera.errors import BadInputError, Error, NotFoundError, ToolMissingError, UnsupportedError  # noqa: E402
from tessera.frontends.onnx import Model, load  # noqa: E402
from tessera.frontends.onnx.export import export, inexpressible, to_onnx  # noqa: E402

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


X3 = np.array([1.5, -2, 3], np.float32)


def value(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], arrays: dict[str, Any] | None = None,
    opset: int = 17,
) -> Any:  # fmt: skip
    tensors = [numpy_helper.from_array(a, n) for n, a in (arrays or {}).items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 9
    return made


def network() -> Any:
    """A small convolutional network with an open batch extent."""
    rng = np.random.default_rng(0)

    def w(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    return model(
        [
            helper.make_node("Conv", ["image", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", ["c1", "g", "b", "m", "v"], ["n1"]),
            helper.make_node("Relu", ["n1"], ["r1"]),
            helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[3, 3], strides=[2, 2],
                             pads=[1, 1, 1, 1]),
            helper.make_node("AveragePool", ["p1"], ["p2"], kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
            helper.make_node("ConvTranspose", ["p2", "w2"], ["c2"], strides=[2, 2],
                             output_padding=[1, 0]),
            helper.make_node("GlobalAveragePool", ["c2"], ["gap"]),
            helper.make_node("Flatten", ["gap"], ["flat"]),
            helper.make_node("Gemm", ["flat", "w3", "b3"], ["scores"], transB=1),
        ],
        [value("image", ["N", 3, 9, 8])],
        [value("scores", ["N", 5])],
        {"w1": w(8, 3, 3, 3), "b1": w(8), "g": w(8), "b": w(8), "m": w(8), "v": abs(w(8)) + 0.5,
         "w2": w(8, 4, 2, 3), "w3": w(5, 4), "b3": w(5)},
    )  # fmt: skip


def reference(proto: Any, feeds: dict[str, Any]) -> list[Any]:
    return list(ReferenceEvaluator(proto).run(None, feeds))


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(network(), str(path))
    return path


# --- in


def test_a_network_is_a_graph_with_weights(net: Path) -> None:
    g = ts.load(net)
    types = {n: s for n, (_, s) in g.input_types().items()}
    assert types["image"] == ("N", 3, 9, 8)
    assert set(g.weights) >= {"w1", "b1", "g", "b", "m", "v", "w2", "w3", "b3"}
    assert [t.name for t in g.outputs] == ["scores"]
    assert {"r1", "p1"} <= {g.core.tensor_name(t) for op in g.ops for t in op["results"]}
    x = np.random.default_rng(1).standard_normal((2, 3, 9, 8)).astype(np.float32)
    got = g.bind(N=2).run(x)[0]
    np.testing.assert_allclose(got, reference(network(), {"image": x})[0], rtol=1e-4, atol=1e-5)


def test_it_runs_compiled_and_weights_are_bound(net: Path) -> None:
    g = load(net, extents={"N": 2})
    result = ts.superoptimize(g, budget=3, disable=("mugraph",), cache=False)
    x = np.random.default_rng(2).standard_normal((2, 3, 9, 8)).astype(np.float32)
    want = reference(network(), {"image": x})[0]
    for out in (result(x), result(image=x)):
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)


def test_shapes_that_calls_decide() -> None:
    proto = model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [value("x", ["N", 6]), value("s", [2], INT64)],
        [value("y", None)],
    )
    with pytest.raises(UnsupportedError, match="comes from the input 's'"):
        Model(proto).graph()
    called = Model(proto)
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    for shape in ([3, 4], [6, -1]):
        np.testing.assert_array_equal(called(x, np.array(shape))[0], x.reshape(shape))
    fixed = Model(proto).graph(values={"s": np.array([3, 4])}, extents={"N": 2})
    assert list(fixed.input_types()) == ["x"]


def test_shape_arithmetic_of_exporters() -> None:
    """x.view(x.shape[0], -1), as it is exported with an open batch."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    proto = model(
        nodes,
        [value("x", ["N", 2, 3])],
        [value("y", None)],
        {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])},
    )
    assert Model(proto).graph().outputs[0].shape == ("N", 6)
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.testing.assert_array_equal(Model(proto)(x)[0], x.reshape(4, 6))


def test_what_leads_to_an_opaque_node_is_proved() -> None:
    rng = np.random.default_rng(0)
    u, d = rng.standard_normal((8, 40)), rng.standard_normal((40, 8))
    weights = {"u": u.astype(np.float32), "d": d.astype(np.float32), "k": np.array([3])}
    top = helper.make_node("TopK", ["h", "k"], ["y", ""])
    given, results = [value("x", [4, 8])], [value("y", [4, 3])]

    def loaded(nodes: list[Any]) -> ts.Graph:
        return load(model([*nodes, top], given, results, weights), whole=True)

    turns = [helper.make_node("MatMul", ["x", "u"], ["a"]),
             helper.make_node("MatMul", ["a", "d"], ["h"])]  # fmt: skip
    folded = [helper.make_node("MatMul", ["u", "d"], ["w"]),
              helper.make_node("MatMul", ["x", "w"], ["h"])]  # fmt: skip
    other = [*folded[:1], helper.make_node("MatMul", ["x", "w"], ["g"]),
             helper.make_node("Relu", ["g"], ["h"])]  # fmt: skip
    assert ts.verify(loaded(turns), loaded(turns)).name == "equal"
    assert ts.verify(loaded(turns), loaded(folded)).name == "equal"
    assert ts.verify(loaded(turns), loaded(other)).name == "unknown"


def test_an_unknown_node_that_nobody_reads_is_left_out() -> None:
    nodes = [helper.make_node("Unique", ["x"], ["u"]), helper.make_node("Relu", ["x"], ["y"])]
    g = load(model(nodes, [value("x", [4])], [value("y", [4])]))
    assert [op["op"] for op in g.ops] == ["input", "relu"]


@pytest.mark.parametrize("shape", [(), (5,), (3, 4)])
def test_one_scale_has_no_axis(shape: tuple[int, ...]) -> None:
    nodes = [helper.make_node("QuantizeLinear", ["x", "s"], ["q"], axis=1),
             helper.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=1)]  # fmt: skip
    x = np.full(shape, 0.74, np.float32)
    proto = model(nodes, [value("x", shape)], [value("y", shape)], {"s": np.float32(0.1)})
    np.testing.assert_allclose(Model(proto)(x)[0], np.full(shape, 0.7), rtol=1e-6)


def test_a_tensor_may_be_called_return() -> None:
    g = ts.Graph("g")
    g.output(g.input("return", (4,)) * 2)
    assert len(ts.Graph.parse(str(g)).ops) == len(g.ops)


def test_opaque_nodes() -> None:
    proto = model(
        [helper.make_node("Relu", ["x"], ["r"]),
         helper.make_node("TopK", ["r", "k"], ["v", "i"]),
         helper.make_node("Neg", ["v"], ["y"])],
        [value("x", [2, 300])], [value("y", [2, 3]), value("i", [2, 3], INT64)],
        {"k": np.array([3])},
    )  # fmt: skip
    g = Model(proto).graph()
    assert g.notes == [
        "TopK node 'v': the operator TopK (opset 17) is not supported in this form; it is left as "
        "it is and run by onnxruntime"
    ]
    with pytest.raises(UnsupportedError, match="TopK"):
        Model(proto, opaque=False).graph()
    if importlib.util.find_spec("onnxruntime") is None:
        with pytest.raises(ToolMissingError, match=r"TopK is run by onnxruntime, which is not"):
            ts.superoptimize(g, budget=2)
    back = to_onnx(g)
    assert [n.op_type for n in back.graph.node if n.op_type == "TopK"] == ["TopK"]
    x = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)
    for a, b in zip(reference(back, {"x": x}), reference(proto, {"x": x}), strict=True):
        np.testing.assert_array_equal(a, b)
    # the interpreter asks for its meaning, whoever gives it
    models = g.opaque.models  # type: ignore[union-attr]

    def run(function: str, payload: str, arrays: list[Any]) -> list[Any]:
        feeds = {models[payload].graph.input[0].name: np.asarray(arrays[0], np.float32)}
        v, i = reference(models[payload], feeds)
        return [v.astype(np.float64), i]

    g.opaque = run
    for a, b in zip(g.run(x), reference(proto, {"x": x}), strict=True):
        np.testing.assert_array_equal(a, b)


# --- out


def test_round_trip_keeps_names_and_meaning(net: Path, tmp_path: Path) -> None:
    g = ts.load(net)
    out = tmp_path / "out.onnx"
    export(g, out)
    onnx.checker.check_model(str(out), full_check=True)
    written = onnx.load(str(out))
    assert [v.name for v in written.graph.input] == ["image"]
    assert [v.name for v in written.graph.output] == ["scores"]
    assert {t.name for t in written.graph.initializer} >= set(g.weights)
    again = ts.load(out).bind(N=2)
    x = np.random.default_rng(3).standard_normal((2, 3, 9, 8)).astype(np.float32)
    want = g.bind(N=2).run(x)[0]
    np.testing.assert_allclose(again.run(x)[0], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reference(written, {"image": x})[0], want, rtol=1e-4, atol=1e-5)


def test_results_keep_their_names_whatever_they_are(tmp_path: Path) -> None:
    """An input, an initialiser, one value twice, and names that are equal but for their signs."""
    nodes = [
        helper.make_node("Identity", ["x"], ["größe:0"]),
        helper.make_node("Relu", ["x"], ["a.b"]),
        helper.make_node("Identity", ["a.b"], ["a_b"]),
    ]
    names = ["x", "größe:0", "a.b", "w", "a_b"]
    kinds = [value(name, [3]) for name in names]
    proto = model(nodes, [value("x", [3])], kinds, {"w": X3})
    graph = load(proto)
    for program in (graph, ts.superoptimize(graph, budget=1).original):
        again = to_onnx(program)
        assert [v.name for v in again.graph.output] == names
        assert [v.name for v in again.graph.input] == ["x"]
        results = zip(reference(again, {"x": -X3}), reference(proto, {"x": -X3}), strict=True)
        for ours, theirs in results:
            np.testing.assert_array_equal(ours, theirs)
    assert [v.name for v in to_onnx(graph, list("abcde")).graph.output] == list("abcde")


def test_fused_kernels_are_named_when_they_cannot_be_written() -> None:
    g = ts.Graph("fused")
    x = g.input("x", (64, 32))
    with g.kernel([x], grid=4) as k:
        k.save(k.iter(x, imap=[0]) * 2.0, omap=[0], name="doubled")
    g.output(k.outputs[0])
    assert inexpressible(g) == ["kernel doubled: a fused kernel of Tessera's own"]
    with pytest.raises(UnsupportedError, match="kernel doubled"):
        to_onnx(g)


# --- bad input


def relu() -> Any:
    return model([helper.make_node("Relu", ["x"], ["y"])], [value("x", [2])], [value("y", [2])])


def refused(proto: Any, match: str, kind: type[Error] = BadInputError) -> None:
    with pytest.raises(kind, match=match) as caught:
        Model(proto).graph()
    assert caught.value.exit_code == 65


def test_malformed_graphs() -> None:
    node = helper.make_node
    x, y = [value("x", [2])], [value("y", [2])]
    refused(model([node("Relu", ["a"], ["y"])], x, y), "neither an input, an initialiser nor")
    refused(
        model(
            [node("Neg", ["b"], ["a"]), node("Neg", ["a"], ["b"]), node("Neg", ["a"], ["y"])], x, y
        ),
        "not in order, or form a cycle",
    )
    refused(model([node("Neg", ["x"], ["y"]), node("Neg", ["x"], ["y"])], x, y), "exists already")
    refused(model([node("Neg", ["x"], ["z"])], x, y), "nothing makes the output")
    refused(
        model([node("Add", ["x", "w"], ["y"])], x, y, {"w": np.zeros(3, np.float32)}),
        "Add node 'y'.*do not broadcast",
    )
    refused(
        model(
            [node("Conv", ["x", "w"], ["y"])],
            [value("x", [1, 2, 5])],
            y,
            {"w": np.zeros((3, 3, 2), np.float32)},
        ),
        "Conv node 'y'.*channels",
    )
    refused(model([node("Transpose", ["x"], ["y"], perm=[3])], x, y), "Transpose")
    refused(model([node("Cast", ["x"], ["y"])], x, y), "lacks the attribute to")
    refused(model([node("Neg", ["x", "x"], ["y"])], x, y), "takes 1 operands, not 2")
    refused(
        model([node("Frobnicate", ["x"], ["y"])], x, [value("y", None)]),
        "Frobnicate",
        UnsupportedError,
    )
    refused(
        model([node("Neg", ["x"], ["y"])], [value("x", [2], TensorProto.STRING)], y),
        "string",
        UnsupportedError,
    )
    with pytest.raises(BadInputError, match="not valid UTF-8"):
        Model(relu().SerializeToString().replace(b"net", b"n\xff\xfe"))
    broken = relu()
    broken.opset_import[0].version = 99
    refused(broken, "opset 99", UnsupportedError)
    wrong = relu()
    tensor = wrong.graph.initializer.add(name="w", data_type=FLOAT, dims=[1 << 40, 1 << 20])
    refused(wrong, "would have")
    del tensor.dims[:]
    tensor.dims.append(4)
    refused(wrong, "holds 0 bytes where its shape")
    endless = model([node("ConstantOfShape", ["s"], ["y"])], x, y, {"s": np.array([1 << 40])})
    refused(endless, "too large")


def external(folder: Path, location: str, length: int = 8) -> Path:
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [2])], [value("y", [2])]
    )
    tensor = proto.graph.initializer.add(name="w", data_type=FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", "4"), ("length", str(length))):
        tensor.external_data.add(key=key, value=text)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_stays_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    data = np.array([0, 3, 4], np.float32).tobytes()
    (folder / "sub" / "w.bin").write_bytes(data)
    g = ts.load(external(folder, "sub/w.bin"))
    np.testing.assert_array_equal(g.weights["w"], [3, 4])
    (tmp_path / "secret").write_bytes(data)
    (folder / "link").symlink_to(tmp_path / "secret")
    for location in ("../secret", str(tmp_path / "secret"), "sub/../../secret", "link", ""):
        with pytest.raises(BadInputError, match="not inside the model's folder"):
            ts.load(external(folder, location))
    with pytest.raises(BadInputError, match="which is not there"):
        ts.load(external(folder, "absent.bin"))
    with pytest.raises(BadInputError, match="needs 8 bytes"):
        ts.load(external(folder, "sub/w.bin", length=1 << 40))


def test_files_that_are_no_models(tmp_path: Path, net: Path) -> None:
    data = net.read_bytes()
    path = tmp_path / "bad.onnx"
    for bad in (b"", b"\x00" * 100, b"not a model", data[: len(data) // 2]):
        path.write_bytes(bad)
        with pytest.raises(BadInputError, match=r"bad\.onnx"):
            ts.load(path)
    with pytest.raises(NotFoundError):
        ts.load(tmp_path / "absent.onnx")
    with path.open("wb") as file:
        file.truncate(1 << 33)  # sparse: nothing is written or read
    with pytest.raises(BadInputError, match="more than a protobuf message"):
        ts.load(path)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut out, doubled or swapped, a few times."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at, n = rng.randrange(len(out) or 1), rng.choice((1, 2, 4, 9, 40))
        kind = rng.randrange(5)
        if kind == 0:
            out[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del out[at : at + n]
        elif kind == 2:
            out[at:at] = out[at : at + n]
        elif kind == 3:
            out[at : at + n] = bytes(rng.choice((0, 1, 127, 128, 255)) for _ in range(n))
        else:
            other = rng.randrange(len(out) or 1)
            out[at : at + n], out[other : other + n] = out[other : other + n], out[at : at + n]
    return bytes(out)


def fuzz(seeds: list[bytes], rounds: int, seed: int, seconds: float = 1e9) -> dict[str, int]:
    """Loads mutated models; anything but a Graph or an Error with exit code 65 raises."""
    rng = random.Random(seed)
    counts: dict[str, int] = {}
    start = time.monotonic()
    for _ in range(rounds):
        if time.monotonic() - start > seconds:
            break
        data = mutated(rng.choice(seeds), rng)
        began = time.monotonic()
        kind = "graph"
        failure: Exception | None = None
        try:
            Model(data).graph()
        except Exception as error:
            kind = type(error).__name__
            failure = error
        if failure is not None and getattr(failure, "exit_code", 0) != 65:
            Path("fuzz_failure.onnx").write_bytes(data)
            raise AssertionError(f"{kind}: {failure}; the model is fuzz_failure.onnx")
        assert time.monotonic() - began < 30, "a hang"
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def test_atheris_finds_nothing_in_a_few_runs(net: Path, tmp_path: Path) -> None:
    """`make fuzz` has more of them, from all of ONNX's node tests."""
    pytest.importorskip("atheris")
    script = Path(__file__).parents[1] / "fuzz" / "onnx_fuzz.py"
    flags = ["-runs=300", "-seed=1", f"-artifact_prefix={tmp_path}/"]
    run = subprocess.run(
        [sys.executable, str(script), str(net.parent), *flags], capture_output=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert b"Done 300 runs" in run.stderr


def test_mutated_models_are_refused_or_read() -> None:
    small = model(
        [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1], strides=[2]),
         helper.make_node("Slice", ["c", "a", "b"], ["s"]),
         helper.make_node("Reshape", ["s", "t"], ["r"]),
         helper.make_node("Resize", ["r", "", "z"], ["y"])],
        [value("x", [1, 2, 6])], [value("y", None)],
        {"w": np.ones((3, 2, 3), np.float32), "a": np.array([0]), "b": np.array([1]),
         "t": np.array([1, 9]), "z": np.array([1, 2], np.float32)},
    )  # fmt: skip
    counts = fuzz([small.SerializeToString(), relu().SerializeToString()], 400, seed=1)
    assert counts["BadInputError"] > 50
    assert counts["graph"] > 4


def test_sparse_initialisers_are_written_out(tmp_path: Path) -> None:
    def sparse(name: str, dims: list[int], at: Any, values: Any = (3.0, -1.0)) -> Any:
        made = onnx.SparseTensorProto(dims=dims)
        made.values.CopyFrom(numpy_helper.from_array(np.array(values, np.float32), name))
        made.indices.CopyFrom(numpy_helper.from_array(np.array(at), f"{name}_at"))
        return made

    c = helper.make_node("Constant", [], ["c"], sparse_value=sparse("v", [2, 3], [[0, 1], [1, 2]]))
    nodes = [c, helper.make_node("Add", ["c", "s"], ["cs"]),
             helper.make_node("Add", ["cs", "x"], ["y"])]  # fmt: skip
    proto = model(nodes, [value("x", [2, 3])], [value("y", [2, 3])])
    proto.graph.sparse_initializer.append(sparse("s", [2, 3], [0, 5]))
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(Model(proto)(x)[0], [[4, 4, 1], [1, 1, -1]])
    for dims, at in (([2, 3], [0, 6]), ([2, 3], [[0, 1], [2, 0]]), ([2, 3], [-1, 0]),
                     ([2, 3], [[0], [1]]), ([1 << 30, 3], [0, 1]), ([2, 3], [0])):  # fmt: skip
        proto.graph.sparse_initializer[0].CopyFrom(sparse("s", dims, at))
        with pytest.raises(BadInputError, match="the sparse tensor 's'"):
            Model(proto).graph()


def test_integers_of_16_bits_that_are_only_converted() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=FLOAT),
             helper.make_node("Neg", ["f"], ["y"])]  # fmt: skip
    proto = model(nodes, [value("x", [4], TensorProto.UINT16)], [value("y", [4])])
    x = np.array([0, 1, 40000, 65535], np.uint16)
    np.testing.assert_array_equal(Model(proto)(x)[0], -x.astype(np.float32))
    with pytest.raises(BadInputError, match="x must be uint16, not int32"):
        Model(proto)(x.astype(np.int32))
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Cast", "org"
    with pytest.raises(UnsupportedError, match="uint16"):
        Model(proto).graph()
    nodes[0] = helper.make_node("Add", ["x", "x"], ["f"])
    proto = model(nodes, [value("x", [4], TensorProto.INT16)], [value("y", [4])])
    with pytest.raises(UnsupportedError, match="int16"):
        Model(proto).graph()


def test_large_weights_are_written_beside_the_model(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.frontends.onnx.export.LEAST_OUTSIDE", 300)
    g = load(net, extents={"N": 2})
    x = np.random.default_rng(2).standard_normal((2, 3, 9, 8)).astype(np.float32)
    want = g.run(x)[0]
    folder = tmp_path / "out"
    folder.mkdir()
    path, beside = folder / "big.onnx", folder / "big.onnx.data"

    def same() -> None:
        onnx.checker.check_model(str(path), full_check=True)
        np.testing.assert_array_equal(load(path).run(x)[0], want)
        moved = [t for t in onnx.load(path, load_external_data=False).graph.initializer
                 if t.data_location == t.EXTERNAL]  # fmt: skip
        names = {n for n, w in g.weights.items() if w.nbytes >= 300}
        assert {t.name for t in moved} == names != set()
        for t in moved:
            where = {e.key: e.value for e in t.external_data}
            assert where["location"] == "big.onnx.data"
            assert int(where["offset"]) % 4096 == 0
        feeds = {"image": x}
        (got,) = reference(onnx.load(path), feeds)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    export(g, path)
    assert not beside.exists()
    export(g, path, external=True)
    same()
    path.unlink()
    beside.unlink()
    monkeypatch.setattr("tessera.frontends.onnx.model_file.MOST_INSIDE", 1000)
    export(g, path)  # too large for one file
    same()
    before = {p: p.read_bytes() for p in folder.iterdir()}
    monkeypatch.setattr("tessera.frontends.onnx.model_file.Written._data", full_disk)
    with pytest.raises(Error, match="cannot be written: No space"):
        export(load(net, extents={"N": 3}), path)
    assert {p: p.read_bytes() for p in folder.iterdir()} == before
    for p in before:
        p.unlink()
    monkeypatch.undo()
    monkeypatch.setattr("tessera.frontends.onnx.export.LEAST_OUTSIDE", 300)
    real = Path.replace

    def refuses_the_model(self: Path, target: Path) -> Path:
        if target == path:
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", refuses_the_model)
    with pytest.raises(Error, match=r"big\.onnx.*cannot be written"):
        export(g, path, external=True)
    assert list(folder.iterdir()) == []


def full_disk(self: Any) -> Any:
    yield b"x" * 100
    raise OSError(28, "No space left on device")
