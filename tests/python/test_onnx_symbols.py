"""Open extents of ONNX models: what exporters compute with them stays a symbol."""

from __future__ import annotations

from operator import eq, floordiv, ge, lt, mod
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import tessera as ts  # noqa: E402
from tessera.emit import emit  # noqa: E402
from tessera.errors import BadInputError, UnsupportedError  # noqa: E402
from tessera.extents import Extent, NeedsExtentError  # noqa: E402
from tessera.frontends.onnx import Model  # noqa: E402
from tessera.frontends.onnx.export import to_onnx  # noqa: E402

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
N = helper.make_node
OPEN = {"x": [FLOAT, ["batch", "seq", 4]]}


def model(nodes: list[Any], inputs: Any = None, **arrays: Any) -> Any:
    values = [helper.make_tensor_value_info(n, *t) for n, t in (inputs or OPEN).items()]
    known = {n: np.asarray(a) for n, a in arrays.items()}
    tensors = [numpy_helper.from_array(a, n) for n, a in known.items()]
    out = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(nodes, "net", values, [out], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    return made


def reference(proto: Any, feeds: dict[str, Any]) -> list[Any]:
    return list(ReferenceEvaluator(proto).run(None, feeds))


def sizes(x: str = "x") -> list[Any]:
    """batch, seq as scalars and as vectors of one, as exporters write them."""
    return [
        N("Shape", [x], ["dims"]),
        N("Gather", ["dims", "zero"], ["b"]), N("Gather", ["dims", "one"], ["s"]),
        N("Unsqueeze", ["b", "axis0"], ["b1"]), N("Unsqueeze", ["s", "axis0"], ["s1"]),
    ]  # fmt: skip


KNOWN: dict[str, Any] = {"zero": np.int64(0), "one": np.int64(1), "two": np.int64(2),
                         "minus": np.int64(-1), "axis0": [0], "axis1": [1]}  # fmt: skip


def check(proto: Any, symbolic: bool = True) -> Any:
    """The program of symbols, and those of numbers, against ONNX's own evaluator."""
    g = Model(proto).graph()
    rng = np.random.default_rng(0)
    for b, s, p in ((1, 5, 2), (3, 4, 1), (2, 7, 6)):
        extents: dict[str, int] = {"batch": b, "seq": s}
        if "past" in str(proto.graph.input):
            extents["past"] = p
        bound = g.bind(**extents)
        feeds = {
            n: (rng.standard_normal(shape) * 2).astype(dtype)
            for n, (dtype, shape) in bound.input_types().items()
            if n not in bound.weights
        }
        want = reference(proto, feeds)[0]
        programs = [bound]
        if symbolic:
            programs.append(g.with_core(g.core.bind_symbols(list(extents.items()))))
        for program in programs:
            got = program.run(*feeds.values())[0]
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
            assert got.shape == want.shape
    return g


def shape_of(g: Any) -> Any:
    return g.outputs[0].shape


def test_heads_are_split_and_merged() -> None:
    nodes = [
        *sizes(),
        N("Concat", ["b1", "s1", "heads"], ["split"], axis=0),
        N("Reshape", ["x", "split"], ["h"]),
        N("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]),
        N("Transpose", ["t"], ["u"], perm=[0, 2, 1, 3]),
        N("Mul", ["s", "four"], ["n"]), N("Unsqueeze", ["n", "axis0"], ["n1"]),
        N("Concat", ["b1", "n1"], ["merge"], axis=0),
        N("Reshape", ["u", "merge"], ["y"]),
    ]  # fmt: skip
    g = check(model(nodes, heads=[2, 2], four=np.int64(4), **KNOWN))
    assert shape_of(g) == ("batch", "seq*4")
    text = str(g)
    assert "[batch,seq,2,2]" in text
    assert ts.Graph.parse(text) == g


def test_rows_of_all_sequences_are_one_axis() -> None:
    nodes = [
        N("Reshape", ["x", "rows"], ["r"]),
        N("Gemm", ["r", "w", "c"], ["z"]),
        *sizes(),
        N("Concat", ["b1", "s1", "last"], ["back"], axis=0),
        N("Reshape", ["z", "back"], ["y"]),
    ]
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    g = check(model(nodes, rows=[-1, 4], last=[-1], w=w, c=w[0], **KNOWN))
    assert shape_of(g) == ("batch", "seq", 3)
    assert "[batch*seq,4]" in str(g)
    source: dict[str, Any] = {}
    exec(emit(g), source)
    x = np.ones((2, 5, 4), np.float32)
    got = source["net"](x, *g.weights.values())
    np.testing.assert_allclose(got, g.bind(batch=2, seq=5).run(x)[0])


def test_masks_of_ranges_and_expansions() -> None:
    nodes = [
        *sizes(),
        N("Range", ["zero", "s", "one"], ["at"]),
        N("Unsqueeze", ["at", "axis0"], ["row"]), N("Unsqueeze", ["at", "axis1"], ["column"]),
        N("LessOrEqual", ["row", "column"], ["causal"]),
        # torch's expand: -1 says as it is
        N("Concat", ["b1", "minus1", "s1"], ["asked"], axis=0),
        N("Shape", ["asked"], ["rank"]), N("ConstantOfShape", ["rank"], ["ones"], value=ONE),
        N("Mul", ["ones", "minus"], ["minuses"]), N("Equal", ["asked", "minuses"], ["is"]),
        N("Where", ["is", "ones", "asked"], ["shape"]),
        N("Expand", ["causal", "shape"], ["mask"]),
        N("Concat", ["b1", "s1", "s1"], ["square"], axis=0),
        N("ConstantOfShape", ["square"], ["zeros"]),
        N("Where", ["mask", "zeros", "low"], ["y1"]),
        N("ReduceSum", ["x", "axis2"], ["sums"], keepdims=1),
        N("Add", ["y1", "sums"], ["y"]),
    ]  # fmt: skip
    g = check(model(nodes, minus1=[-1], low=np.float32(-9), axis2=[2], **KNOWN))
    assert shape_of(g) == ("batch", "seq", "seq")
    with pytest.raises(UnsupportedError, match="ONNX needs numbers for seq; bind them"):
        to_onnx(g)
    to_onnx(g.bind(batch=1, seq=3))


ONE = numpy_helper.from_array(np.array([1]))


def test_positions_are_taken_from_a_table() -> None:
    """The first seq rows of a table of 64, the last token, and a mean over a counted axis."""
    nodes = [
        *sizes(),
        N("Slice", ["table", "axis0", "s1", "axis0"], ["rows"]),
        N("Add", ["x", "rows"], ["z"]),
        N("Gather", ["z", "minus"], ["last"], axis=1),
        N("ReduceSum", ["z", "axis1"], ["sum"], keepdims=0),
        N("Cast", ["s"], ["count"], to=FLOAT), N("Div", ["sum", "count"], ["mean"]),
        N("Add", ["last", "mean"], ["m"]), N("Unsqueeze", ["m", "axis1"], ["m1"]),
        N("Concat", ["one1", "s1", "s1"], ["copies"], axis=0), N("Tile", ["m1", "copies"], ["y"]),
    ]  # fmt: skip
    table = np.random.default_rng(3).standard_normal((64, 4)).astype(np.float32)
    g = check(model(nodes, table=table, one1=[1], **KNOWN))
    assert shape_of(g) == ("batch", "seq", "seq*4")


def test_a_cache_is_joined_and_cut() -> None:
    inputs = {**OPEN, "cache": [FLOAT, ["batch", "past", 4]]}
    nodes = [
        *sizes("cache"),
        N("Concat", ["cache", "x"], ["all"], axis=1),
        N("Slice", ["all", "s1", "end", "axis1"], ["new"]),
        N("Slice", ["all", "axis0", "axis1", "axis1"], ["first"]),
        N("Slice", ["all", "minus1", "end", "axis1"], ["last"]),
        N("Concat", ["new", "first", "all", "last"], ["y"], axis=1),
    ]
    g = check(model(nodes, inputs, end=[np.iinfo(np.int64).max], minus1=[-1], **KNOWN))
    assert shape_of(g) == ("batch", "past+seq*2+2", 4)


def test_elements_by_index() -> None:
    nodes = [
        *sizes(),
        N("Range", ["zero", "s", "one"], ["at"]),
        N("Unsqueeze", ["at", "axis1"], ["at1"]),
        N("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        N("GatherND", ["t", "at1"], ["g"]),
        N("Shape", ["g"], ["gdims"]), N("Expand", ["zero", "gdims"], ["places"]),
        N("GatherElements", ["g", "places"], ["e"], axis=1),
        N("Split", ["e"], ["p", "q"], axis=2),
        N("Pow", ["p", "power"], ["pp"]),
        N("Concat", ["pp", "q"], ["y"], axis=2),
    ]  # fmt: skip
    g = check(model(nodes, power=np.float32(2), **KNOWN))
    assert shape_of(g) == ("seq", "batch", 4)


def test_attention_to_a_cache_by_einsum() -> None:
    inputs = {**OPEN, "cache": [FLOAT, ["batch", "past", 4]]}
    nodes = [
        *sizes(), N("Shape", ["cache"], ["cdims"]), N("Gather", ["cdims", "one"], ["p"]),
        N("Concat", ["cache", "x"], ["k"], axis=1),
        N("Einsum", ["x", "k"], ["a"], equation="bid,bjd->bij"),
        N("Trilu", ["a", "p"], ["low"], upper=0), N("Trilu", ["a", "p"], ["high"], upper=1),
        N("Sub", ["low", "high"], ["m"]),
        N("Einsum", ["m", "k"], ["r"], equation="bij,bjd->bid"),
        N("Unsqueeze", ["r", "axis1"], ["image"]),
        N("Shape", ["image"], ["idims"]), N("Slice", ["idims", "axis0", "three"], ["lead"]),
        N("Concat", ["lead", "eight"], ["larger"], axis=0),
        N("Resize", ["image", "", "", "larger"], ["y"]),
    ]  # fmt: skip
    g = check(model(nodes, inputs, three=[3], eight=[8], **KNOWN))
    assert shape_of(g) == ("batch", 1, "seq", 8)


HALVED = [
    *sizes(),
    N("Div", ["s", "two"], ["half"]), N("Unsqueeze", ["half", "axis0"], ["half1"]),
    N("Slice", ["x", "axis0", "half1", "axis1"], ["y"]),
]  # fmt: skip


def test_what_symbols_do_not_decide_waits_for_numbers() -> None:
    g = check(model(HALVED, **KNOWN), symbolic=False)
    for use in (str, lambda g: g.inputs, lambda g: ts.superoptimize(g, budget=1)):
        with pytest.raises(NeedsExtentError, match=r"Div node.*divides seq by 2.*bind\(seq=…\)"):
            use(g)
    assert "divides seq by 2" in repr(g)
    half = g.bind(seq=6)
    assert shape_of(half) == ("batch", 3, 4)
    assert shape_of(half.bind(batch=2)) == (2, 3, 4)
    floats = [*sizes(), N("Cast", ["s"], ["f"], to=FLOAT), N("Mul", ["f", "part"], ["h"]),
              N("Cast", ["h"], ["i"], to=INT64), N("Unsqueeze", ["i", "axis0"], ["half1"]),
              HALVED[-1]]  # fmt: skip
    g = check(model(floats, part=np.float32(0.5), **KNOWN), symbolic=False)
    assert "follows from open extents; give numbers for seq" in repr(g)
    grid = [N("Pow", ["four", "half"], ["p"]), N("Cast", ["p"], ["i"], to=INT64),
            N("Unsqueeze", ["i", "axis0"], ["i1"]), N("Concat", ["to", "i1", "i1"], ["t"], axis=0),
            N("Reshape", ["x", "t"], ["y"])]  # fmt: skip
    g = check(model(grid, four=np.float32(4), half=np.float32(0.5), to=[0, 0], **KNOWN))
    assert shape_of(g) == ("batch", "seq", 2, 2)
    branches = {}
    for name in ("then", "else"):
        made = helper.make_tensor_value_info(f"{name}_y", FLOAT, None)
        nodes = [*HALVED, N("Neg", ["y"], [f"{name}_y"])]
        branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], [made])
    asked = [N("If", ["c"], ["y"], **branches)]
    proto = model(asked, {**OPEN, "c": [BOOL, []]}, **KNOWN)
    assert shape_of(Model(proto).graph().bind(batch=1, seq=4)) == (1, 2, 4)
    squeezed = [N("Unsqueeze", ["x", "axis0"], ["u"]), N("Squeeze", ["u"], ["y"])]
    g = check(model(squeezed, **KNOWN), symbolic=False)
    assert "takes axes of extent 1 away" in repr(g)
    windows = [N("MaxPool", ["x"], ["y"], kernel_shape=[2])]
    g = check(model(windows, {"x": [FLOAT, ["batch", 3, "seq"]]}), symbolic=False)
    with pytest.raises(NeedsExtentError, match=r"MaxPool.*number of seq"):
        g.validate()


def test_binding_is_importing_with_extents() -> None:
    proto = model([*sizes(), N("Concat", ["b1", "rest"], ["to"], axis=0),
                   N("Reshape", ["x", "to"], ["y"])], rest=[-1], **KNOWN)  # fmt: skip
    g = Model(proto).graph()
    assert g.bind(batch=2, seq=3) == Model(proto).graph(extents={"batch": 2, "seq": 3})
    for extents in ({"sequence": 3}, {"batch": 2, "bach": 3}):
        with pytest.raises(BadInputError, match=r"no open extent.*those it has are batch, seq"):
            g.bind(**extents)
    with pytest.raises(BadInputError, match="no open extent 'n'"):
        Model(proto).graph(extents={"n": 1})
    g.output(g.outputs[0] * 2.0, "twice")  # no longer the model's program
    assert [t.name for t in g.bind(batch=2, seq=3).outputs] == ["y", "twice"]


def test_extents_are_what_numbers_say() -> None:
    """Sums, products, quotients and comparisons, at random numbers."""
    rng = np.random.default_rng(5)
    names = ["a", "b", "c"]
    decided = 0
    for _ in range(300):
        values = {n: int(rng.integers(1, 6)) for n in names}
        pool: list[tuple[Any, int]] = [(Extent.of(n), v) for n, v in values.items()]
        for _ in range(6):
            (x, m), (y, n) = (pool[int(rng.integers(len(pool)))] for _ in range(2))
            k = int(rng.integers(-2, 4))
            pool += [(x + y, m + n), (x * y, m * n), (x - k, m - k), (k * x - y, k * m - n)]
            for what in (floordiv, mod, lt, eq, ge):
                try:
                    found = what(x * y, x) if m else NotImplemented
                except (NeedsExtentError, ZeroDivisionError):
                    continue
                decided += 1
                assert m == 0 or eval(str(found), {}, values) == what(m * n, m)
        for found, want in pool:
            assert eval(str(found), {}, values) == want
            assert str(Extent.of(str(found))) == str(found)
    assert decided > 1000


def test_arithmetic_of_symbols_is_bounded() -> None:
    """A number and a symbol, squared over and over, the symbol's square taken off again."""
    nodes = [*sizes(), N("Concat", ["s1", "three"], ["v0"], axis=0),
             N("Mul", ["s1", "s1"], ["ss"]), N("Sub", ["ss", "s1"], ["off"]),
             N("Concat", ["off", "axis0"], ["offs"], axis=0)]  # fmt: skip
    for i in range(60):
        nodes += [
            N("Mul", [f"v{i}", f"v{i}"], [f"w{i}"]),
            N("Sub", [f"w{i}", "offs"], [f"v{i + 1}"]),
        ]
    nodes += [N("Cast", ["v60"], ["c"], to=FLOAT), N("Add", ["x", "c"], ["y"])]
    g = Model(model(nodes, {"x": [FLOAT, ["batch", "seq", 2]]}, three=[3], **KNOWN)).graph()
    assert "too large" in repr(g)
    big = [N("Shape", ["x"], ["d"]), N("Tile", ["d", "many"], ["t"]),
           N("Cast", ["t"], ["c"], to=FLOAT), N("Add", ["x", "c"], ["y"])]  # fmt: skip
    g = Model(model(big, many=[10000])).graph()
    assert "computes 30000 numbers" in repr(g)
    with pytest.raises(NeedsExtentError):
        Extent.of("a") * (1 << 63)
