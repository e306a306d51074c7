"""What no program holds of an ONNX model: opaque nodes, values outside, results behind; and what a
program does hold though it looks as if not (8-bit integers, branches, empty tensors)."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import tessera as ts  # noqa: E402
from bench.onnx_nodes import run_graph  # noqa: E402
from tessera.errors import BadInputError, UnsupportedError  # noqa: E402
from tessera.frontends.onnx import Model  # noqa: E402
from tessera.frontends.onnx.export import to_onnx  # noqa: E402
from tessera.frontends.onnx.opaque import OpaqueNodes  # noqa: E402

Array = np.ndarray[Any, Any]
node = helper.make_node
rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


class Session:
    """ONNX's own evaluator in the place of onnxruntime."""

    def __init__(self, proto: Any) -> None:
        self.evaluator = ReferenceEvaluator(proto)

    def run(self, outputs: None, feeds: dict[str, Array]) -> list[Any]:
        return list(self.evaluator.run(outputs, feeds))

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(type="tensor(float)", shape=[])]  # of a rank that is not known


@pytest.fixture(autouse=True)
def _runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpaqueNodes, "_session", lambda self, f, p, t=0: Session(self.models[p]))


def model(
    nodes: list[Any], feeds: dict[str, Any], outputs: list[str], opset: int = 13, **arrays: Any
) -> Any:
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]
    graph = helper.make_graph(
        nodes, "net", inputs, [onnx.ValueInfoProto(name=o) for o in outputs], tensors
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("org", 1)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opsets, ir_version=10)
    )


def same(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.shape) == (np.asarray(b).dtype, np.asarray(b).shape)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def agree(proto: Any, feeds: dict[str, Any], *, compiled: bool = False, whole: bool = True) -> Any:
    """A model called, compiled and written again computes what it says; the model written."""
    want = ReferenceEvaluator(proto).run(None, feeds)
    called = Model(proto)
    same(called(**feeds), want)
    if compiled:
        same(called.run(feeds, lambda g, arrays: run_graph(g, arrays, "compiled")), want)
    written = to_onnx(Model(proto, whole=whole).graph())
    onnx.checker.check_model(written, full_check=True)
    same(ReferenceEvaluator(written).run(None, feeds), want)
    return written


DETECTION = [
    node("Mul", ["raw", "half"], ["scores"]),
    node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["selected"]),
    node("Gather", ["selected", "two"], ["places"], axis=1),
    node("Cast", ["places"], ["found"], to=TensorProto.FLOAT),
    node("Neg", ["scores"], ["negated"]),
]


def test_results_of_unknown_shape_are_computed_behind_the_program() -> None:
    corners = abs(normal(1, 12, 2))
    feeds = {"boxes": np.concatenate([corners, corners + 1], -1), "raw": normal(1, 3, 12)}
    half = np.array([0.5], np.float32)
    arrays: dict[str, Any] = {"half": half, "most": np.array([4]), "two": np.array(2),
                              "overlap": half, "least": half / 5}  # fmt: skip
    proto = model(DETECTION, feeds, ["scores", "found", "negated"], **arrays)
    written = agree(proto, feeds, compiled=True)
    assert [o.name for o in written.graph.output] == ["scores", "found", "negated"]
    assert [n.op_type for n in written.graph.node].count("NonMaxSuppression") == 1
    with pytest.raises(UnsupportedError, match="no program holds 'found'"):
        Model(proto).graph()
    with pytest.raises(UnsupportedError, match="NonMaxSuppression"):
        Model(proto, opaque=False)(**feeds)


def test_what_programs_lack_stays_with_what_reads_it() -> None:
    feeds = {"x": normal(3, 4)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]),
             node("DequantizeLinear", ["q", "s", "z"], ["d"]),
             node("Relu", ["d"], ["y"])]  # fmt: skip
    proto = model(nodes, feeds, ["y"], 21, s=np.float32(0.001), z=np.uint16(32768))
    assert agree(proto, feeds).opset_import[0].version == 21
    graph = Model(proto).graph()
    assert [n.split(":")[0] for n in graph.notes] == ["DequantizeLinear node 'd'"]
    # A result that depends on values, reduced to one that does not.
    nodes = [node("NonZero", ["x"], ["nz"]), node("ReduceSum", ["nz"], ["y"], keepdims=0)]
    agree(model(nodes, feeds, ["y"]), {"x": np.round(feeds["x"])})


def test_a_loop_that_ends_by_what_it_computes() -> None:
    body = helper.make_graph(
        [node("Add", ["s", "k"], ["s2"]), node("ReduceMax", ["s2"], ["m"], keepdims=0),
         node("Less", ["m", "limit"], ["go"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("c", TensorProto.BOOL, []),
         helper.make_tensor_value_info("s", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("s2", TensorProto.FLOAT, [3])],
    )  # fmt: skip
    nodes = [node("Loop", ["n", "t", "x"], ["e"], body=body), node("Neg", ["e"], ["y"])]
    feeds = {"x": normal(3)}
    arrays: dict[str, Any] = {
        "n": np.array(99),
        "t": np.array(True),
        "k": np.float32(1),
        "limit": np.float32(6),
    }
    proto = model(nodes, feeds, ["y"], **arrays)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [3]))
    agree(proto, feeds)
    assert len(Model(proto).graph().notes) == 1


def test_opaque_nodes_are_written_in_the_form_of_the_opset_that_is_written() -> None:
    feeds = {"x": normal(2, 300)}
    old = model([node("TopK", ["x"], ["v", "i"], k=3, axis=1)], feeds, ["v", "i"], 9)
    assert len(agree(old, feeds).graph.node[-1].input) == 2
    feeds = {"x": normal(9, 60), "at": np.arange(60).reshape(1, 60) % 9, "to": normal(1, 60)}
    scatter = model([node("Scatter", ["x", "at", "to"], ["y"])], feeds, ["y"], 9)
    written = to_onnx(Model(scatter, whole=True).graph())
    assert [n.op_type for n in written.graph.node] == ["ScatterElements"]
    feeds = {"x": normal(1, 2, 8, 8), "rois": np.array([[0, 0, 5, 6]], np.float32),
             "at": np.array([0])}  # fmt: skip
    pooled = model([node("RoiAlign", ["x", "rois", "at"], ["y"])], feeds, ["y"], 11)
    (made,) = to_onnx(Model(pooled).graph()).graph.node
    assert b"output_half_pixel" in [a.s for a in made.attribute]  # what it meant in opset 11
    feeds = {"x": normal(1, 1, 4, 4), "g": normal(1, 2, 2, 2)}
    sampled = model([node("GridSample", ["x", "g"], ["y"], mode="bilinear")], feeds, ["y"], 16)
    (made,) = to_onnx(Model(sampled, whole=True).graph()).graph.node
    assert [a.s for a in made.attribute] == [b"linear"]


def test_results_that_are_not_asked_for_take_no_place() -> None:
    feeds = {"x": normal(5, 2, 3)}
    nodes = [node("GRU", ["x", "w", "r"], ["", "h"], hidden_size=4), node("Neg", ["h"], ["y"])]
    agree(model(nodes, feeds, ["y"], 14, w=normal(1, 12, 3), r=normal(1, 12, 4)), feeds)


S, Z = np.float32(0.05), np.int8(3)
EIGHT = np.array([[-3.4, 0.025, 0.075, -0.125], [99, -99, 0.175, 2.2]], np.float32)
QUANTISED: dict[str, tuple[list[Any], dict[str, Any], int]] = {
    "one scale": ([node("QuantizeLinear", ["x", "s", "z"], ["y"])], {"s": S, "z": Z}, 13),
    "no zero point": ([node("QuantizeLinear", ["x", "s"], ["y"])], {"s": S}, 13),
    "a scale for each column": (
        [node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=-1),
         node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=1)],
        {"s": np.array([0.05, 0.1, 0.02, 1], np.float32), "z": np.array([1, 0, 200, 7], np.uint8)},
        21),
    "blocks": (
        [node("QuantizeLinear", ["x", "s"], ["q"], axis=1, block_size=2, output_dtype=3),
         node("DequantizeLinear", ["q", "s"], ["y"], axis=1, block_size=2)],
        {"s": np.array([[0.05, 0.1], [0.7, 0.2]], np.float32)}, 21),
    "a product": (
        [node("QuantizeLinear", ["x", "s", "z"], ["a"]),
         node("QLinearMatMul", ["a", "s", "z", "b", "s", "n", "t", "z"], ["y"])],
        {"s": S, "z": Z, "n": np.int8(-2), "t": np.float32(0.7),
         "b": rng.integers(-128, 128, (4, 3)).astype(np.int8)}, 13),
}  # fmt: skip


@pytest.mark.parametrize("case", QUANTISED)
def test_quantised_numbers(case: str) -> None:
    nodes, arrays, opset = QUANTISED[case]
    proto = model(nodes, {"x": EIGHT}, ["y"], opset, **arrays)
    assert not Model(proto).graph().notes
    agree(proto, {"x": EIGHT}, compiled=True, whole=False)
    whole = to_onnx(Model(proto, whole=True).graph())
    assert [n.op_type for n in whole.graph.node] == [n.op_type for n in nodes]


def test_quantised_convolutions() -> None:
    feeds = {"x": rng.integers(0, 256, (1, 2, 5, 5)).astype(np.uint8)}
    w = rng.integers(-99, 99, (3, 2, 3, 3)).astype(np.int8)
    scales = np.array([0.1, 0.02, 0.3], np.float32)
    arrays: dict[str, Any] = {
        "xs": S, "xz": np.uint8(128), "w": w, "ws": scales, "wz": np.array([0, 1, -2], np.int8),
        "ys": np.float32(2), "yz": np.uint8(100), "b": np.array([9, -99, 999], np.int32),
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    proto = model([node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])], feeds, ["y"], **arrays)
    agree(proto, feeds, compiled=True)
    proto = model([node("ConvInteger", ["x", "w", "z"], ["y"])], feeds, ["y"], w=w, z=np.uint8(7))
    agree(proto, feeds, compiled=True)
    with pytest.raises(UnsupportedError, match="no Conv of int32"):
        to_onnx(Model(proto).graph())


def choice(then: str, otherwise: str, *arguments: str) -> Any:
    def branch(op: str, name: str, arguments: Sequence[str] = ()) -> Any:
        made = node(op, ["x", *arguments], [name], name=name)
        return helper.make_graph([made], name, [], [onnx.ValueInfoProto(name=name)])

    branches = {"then_branch": branch(then, "a", arguments), "else_branch": branch(otherwise, "b")}
    return node("If", ["c"], ["y"], **branches)


def test_branches_that_an_input_chooses() -> None:
    x = abs(normal(3))
    for c in (True, False):
        feeds = {"c": np.array(c), "x": x}
        proto = model([choice("Exp", "Neg")], feeds, ["y"])
        agree(proto, feeds, compiled=True)
    # Of another shape, or with an index that may be out of range in the branch not taken: the
    # condition's value decides about the program.
    feeds = {"c": np.array(False), "x": x, "at": np.array([99, 99, 99])}
    for op, more in (("Shape", []), ("Gather", ["at"])):
        other = model([choice(op, "Neg", *more)], feeds, ["y"])
        same(Model(other)(**feeds), [-x])
        written = to_onnx(Model(other, whole=True).graph())
        assert [n.op_type for n in written.graph.node] == ["If"]


def test_models_of_nothing() -> None:
    weights = normal(4, 4, 3, 3)
    nodes = [node("Conv", ["x", "w"], ["c"]), node("ReduceSum", ["c"], ["s"], keepdims=0),
             node("ReduceMax", ["c"], ["m"], axes=[1, 2, 3], keepdims=0)]  # fmt: skip
    proto = model(nodes, {"x": np.empty((0, 4, 5, 5), np.float32)}, ["c", "s", "m"], w=weights)
    convolved, total, largest = Model(proto)(np.empty((0, 4, 5, 5), np.float32))
    assert convolved.shape == (0, 4, 3, 3)
    assert largest.shape == (0,)
    assert total == 0


def test_giant_and_tiny_constants_are_written_as_they_are() -> None:
    nodes = [node("LayerNormalization", ["x", "one"], ["n"]), node("Add", ["n", "tiny"], ["y"])]
    giant = {"x": np.empty((1, 1), np.float32)}
    proto = model(nodes, giant, ["y"], 17, one=np.ones(1, np.float32), tiny=np.float32(1e-42))
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = (1 << 31) - 1
    assert to_onnx(Model(proto).graph()).ByteSize() < 1 << 16
    values = [numpy_helper.to_array(a.t) for n in to_onnx(Model(proto).graph()).graph.node
              for a in n.attribute if a.name == "value"]  # fmt: skip
    assert np.float32(1e-42) in values


def test_the_runtime_knows_types_of_its_own_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [SimpleNamespace(type="tensor(float)", shape=[2, 3])]
    monkeypatch.setattr(Session, "get_outputs", lambda self: shown)
    monkeypatch.setattr(Session, "__init__", lambda self, proto: None)
    nodes = [node("Own", ["x"], ["o"], domain="org"), node("Neg", ["o"], ["y"])]
    proto = model(nodes, {"x": EIGHT}, ["y"])
    assert str(Model(proto).graph().outputs[0].shape) == "(2, 3)"
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    with pytest.raises(UnsupportedError, match=r"org\.Own.*needs known extents"):
        str(Model(proto).graph())


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "operands"),
    [("AveragePool", [1, 1, 1 << 31, 8], {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}, []),
     ("EyeLike", [1 << 16, 1 << 16], {}, []),
     ("Pad", [1 << 30], {"mode": "edge"}, [[1, 1]]),
     ("Resize", [1 << 30], {"mode": "linear"}, ["", "", [1 << 29]]),
     ("ScatterElements", [1 << 30], {}, [[0], np.zeros(1, np.float32)])],
)  # fmt: skip
def test_constants_that_follow_from_giant_extents_are_refused(
    op: str, shape: list[int], attributes: dict[str, Any], operands: list[Any]
) -> None:
    names = [o if o == "" else f"o{i}" for i, o in enumerate(operands)] if operands else []
    arrays = {n: np.asarray(o) for n, o in zip(names, operands, strict=True) if n}
    x = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), shape, [0] * len(shape))
    proto = model([node(op, ["x", *names], ["y"], **attributes)], {"x": x}, ["y"], 18, **arrays)
    with pytest.raises(BadInputError, match="too large to be computed while importing"):
        Model(proto).graph()


def test_long_slices_are_not_written_out() -> None:
    x = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), [1 << 40], [0])
    arrays = {"a": np.array([1]), "b": np.array([1 << 39]), "s": np.array([1 << 39, 1 << 39])}
    nodes = [node("Slice", ["x", "a", "b"], ["p"]), node("Split", ["x", "s"], ["q", "r"])]
    graph = Model(model(nodes, {"x": x}, ["p", "q"], 13, **arrays)).graph()
    assert [t.shape for t in graph.outputs] == [((1 << 39) - 1,), (1 << 39,)]


def test_opaque_nodes_in_the_middle_of_compiled_programs(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime's nodes between compiled kernels: several results, of which one is not read,
    other dtypes, and again by a program that another optimisation remembers."""
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path))
    feeds = {"x": normal(4, 300)}
    nodes = [node("Exp", ["x"], ["e"]), node("TopK", ["e", "k"], ["v", "i"]),
             node("Neg", ["v"], ["n"]), node("TopK", ["n", "two"], ["y", "unread"]),
             node("Cast", ["i"], ["f"], to=1), node("Neg", ["f"], ["z"])]  # fmt: skip
    proto = model(nodes, feeds, ["y", "z"], k=np.array([300]), two=np.array([2]))
    want: list[Any] = list(ReferenceEvaluator(proto).run(None, feeds))
    graph = Model(proto).graph()
    assert len(graph.notes) == 2
    for _ in range(2):
        result = ts.superoptimize(graph, budget=3)
        assert result.details["original_failed"] == ""
        for ours, theirs in zip(result(feeds["x"]), want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    with pytest.raises(UnsupportedError, match=r"would lack what this process computes.*TopK"):
        result.save(tmp_path / "y.cpp")
    result.save(tmp_path / "y.ug")

    class Failing(Session):
        def run(self, outputs: None, feeds: dict[str, Array]) -> list[Any]:
            raise RuntimeError("no more memory")

    session = OpaqueNodes._session
    monkeypatch.setattr(OpaqueNodes, "_session", lambda self, f, p, t=0: Failing(self.models[p]))
    with pytest.raises(BadInputError, match=r"onnx\.TopK: onnxruntime refused: no more memory"):
        result(feeds["x"])
    monkeypatch.setattr(OpaqueNodes, "_session", session)
    np.testing.assert_allclose(result(feeds["x"])[0], want[0], rtol=1e-5)


def test_branches_that_may_divide_by_zero_are_not_both_computed() -> None:
    x, by = np.array([3, -7, 9]), np.array([0, 2, 0])
    feeds = {"c": np.array(False), "x": x, "by": by}
    for op in ("Div", "Mod"):
        proto = model([choice(op, "Neg", "by")], feeds, ["y"])
        same(Model(proto)(**feeds), [-x])
        written = to_onnx(Model(proto, whole=True).graph())
        assert [n.op_type for n in written.graph.node] == ["If"]
    numbers = {"c": np.array(True), "x": x.astype(np.int32)}
    proto = model([choice("Div", "Neg", "by")], numbers, ["y"], by=np.array([2, 2, 2], np.int32))
    assert "If" not in [n.op_type for n in agree(proto, numbers).graph.node]
