"""ONNX operators that are made of others: recurrent layers, scattering, counting, sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tessera.errors import BadInputError  # noqa: E402
from tessera.frontends.onnx import Model  # noqa: E402

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(
    node: Any, given: dict[str, Any], outputs: list[int], known: tuple[str, ...], opset: int
) -> Any:
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
        if n not in known
    ]
    results = [
        helper.make_tensor_value_info(n, kind, None)
        for n, kind in zip(node.output, outputs, strict=True)
    ]
    weights = [numpy_helper.from_array(given[n], n) for n in known]
    graph = helper.make_graph([node], "net", inputs, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def run(
    node: Any,
    given: dict[str, Any],
    outputs: list[int] | None = None,
    known: tuple[str, ...] = (),
    opset: int = 20,
    opaque: bool = False,
) -> tuple[list[Any], Any]:
    """The results in the interpreter (none of a program with opaque nodes) and the program."""
    made = Model(model(node, given, outputs or [FLOAT], known, opset), opaque=opaque)
    arrays = {n: a for n, a in given.items() if n not in known}
    graph, taken = made.program(arrays)
    if "opaque" in str(graph) or "onnx." in str(graph):
        return [], graph
    return graph.run(*[arrays[n] for n in taken]), graph


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_a_sequence_ends_where_its_length_says() -> None:
    """Both directions; what lies behind the end is 0 and does not reach the last state."""
    x, w, r = random(4, 3, 2), random(2, 5, 2), random(2, 5, 5)
    lengths = np.array([4, 1, 3], np.int32)
    node = helper.make_node(
        "RNN", ["x", "w", "r", "", "n"], ["y", "last"], hidden_size=5, direction="bidirectional"
    )
    (y, last), _ = run(node, {"x": x, "w": w, "r": r, "n": lengths}, [FLOAT, FLOAT])
    for b, n in enumerate(lengths):
        for way in range(2):
            h = np.zeros(5)
            for t in range(n)[:: -1 if way else 1]:
                h = np.tanh(w[way] @ x[t, b] + r[way] @ h)
                np.testing.assert_allclose(y[t, way, b], h, atol=1e-6)
            np.testing.assert_allclose(last[way, b], h, atol=1e-6)
            assert not y[n:, way, b].any()


def test_gates_of_a_gru_before_and_after_the_reset() -> None:
    x, w, r, bias = random(3, 2, 4), random(1, 9, 4), random(1, 9, 3), random(1, 18)

    def sigmoid(v: Any) -> Any:
        return 1 / (1 + np.exp(-v))

    for linear in (0, 1):
        node = helper.make_node(
            "GRU", ["x", "w", "r", "b"], ["y", "h"], hidden_size=3, linear_before_reset=linear
        )
        (_, last), _ = run(node, {"x": x, "w": w, "r": r, "b": bias}, [FLOAT, FLOAT])
        (wz, wr, wh), (rz, rr, rh) = np.split(w[0], 3), np.split(r[0], 3)
        bz, br, bh, cz, cr, ch = np.split(bias[0], 6)
        h = np.zeros((2, 3))
        for t in range(3):
            z = sigmoid(x[t] @ wz.T + h @ rz.T + bz + cz)
            reset = sigmoid(x[t] @ wr.T + h @ rr.T + br + cr)
            inner = reset * (h @ rh.T + ch) if linear else (reset * h) @ rh.T + ch
            h = (1 - z) * np.tanh(x[t] @ wh.T + inner + bh) + z * h
        np.testing.assert_allclose(last[0], h, atol=1e-5)


def test_long_sequences_and_unclear_activations_stay_with_onnxruntime() -> None:
    def program(steps: int, **attributes: Any) -> str:
        node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=3, **attributes)
        given = {"x": random(steps, 1, 2), "w": random(1, 3, 2), "r": random(1, 3, 3)}
        return str(run(node, given, opaque=True)[1])

    assert "onnx.RNN" not in program(64)
    assert "onnx.RNN" in program(65)
    assert "onnx.RNN" in program(2, activations=["ScaledTanh"])
    scaled = {"activation_alpha": [1.5], "activation_beta": [0.5]}
    assert "onnx.RNN" not in program(2, activations=["ScaledTanh"], **scaled)
    with pytest.raises(BadInputError, match="activation 'Sine' is not known"):
        program(2, activations=["Sine"])
    with pytest.raises(BadInputError, match="names of 1 activations"):
        program(2, activations=[1])


@pytest.mark.parametrize("known", [(), ("at",)])
def test_scattered_elements(known: tuple[str, ...]) -> None:
    """Rows that the indices do not reach stay; negative indices count from the end."""
    x, updates = random(4, 3), random(2, 2)
    at = np.array([[-1, 0], [1, 2]], np.int64)
    node = helper.make_node("ScatterElements", ["x", "at", "u"], ["y"], axis=0)
    (y,), graph = run(node, {"x": x, "at": at, "u": updates}, known=known)
    want = x.copy()
    for i in range(2):
        for j in range(2):
            want[at[i, j], j] = updates[i, j]
    np.testing.assert_array_equal(y, want)
    assert ("eq" in str(graph)) == (not known)  # known places are one selection


def test_scattered_slices_meet() -> None:
    x, updates = random(3, 2, 2), random(2, 2, 2)
    at = np.array([[1], [1]], np.int64)
    for reduction, combine in {"add": np.add, "mul": np.multiply, "max": np.maximum,
                               "min": np.minimum}.items():  # fmt: skip
        node = helper.make_node("ScatterND", ["x", "at", "u"], ["y"], reduction=reduction)
        (y,), _ = run(node, {"x": x, "at": at, "u": updates})
        want = x.copy()
        want[1] = combine(combine(x[1], updates[0]), updates[1])
        np.testing.assert_allclose(y, want, rtol=1e-6)
    node = helper.make_node("ScatterND", ["x", "at", "u"], ["y"])
    with pytest.raises(BadInputError, match="out of range"):
        run(node, {"x": x, "at": at + 2, "u": updates}, known=("at",))


def test_a_large_scatter_stays_one_node() -> None:
    node = helper.make_node("ScatterND", ["x", "at", "u"], ["y"])
    given = {"x": random(4096, 8), "at": np.zeros((256, 1), np.int64), "u": random(256, 8)}
    assert "onnx.ScatterND" in str(run(node, given, opaque=True)[1])
    (y,), _ = run(node, given | {"at": np.arange(256)[:, None]}, known=("at",))
    np.testing.assert_array_equal(y[:256], given["u"])


@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_with_ties_and_nan(largest: int) -> None:
    x = np.array([[1, np.nan, 3, 3, -np.inf, 1], [0, -0.0, np.inf, 2, np.nan, np.nan]], np.float32)
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"], largest=largest)
    (values, index), _ = run(node, {"x": x, "k": np.array([6])}, [FLOAT, INT64], ("k",))
    key = np.where(np.isnan(x), np.inf, x)  # NaN behind the infinities: largest of all
    order = np.array([
        sorted(range(6), key=lambda j: (bool(np.isnan(x[i, j])), key[i, j]) if not largest
               else (not np.isnan(x[i, j]), -key[i, j]))
        for i in range(2)
    ])  # fmt: skip
    np.testing.assert_array_equal(index, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def test_nodes_are_kept_whole_for_a_model_to_come() -> None:
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"])
    proto = model(node, {"x": random(2, 5), "k": np.array([3])}, [FLOAT, INT64], ("k",), 20)
    assert "onnx.TopK" not in str(Model(proto).graph())
    graph = Model(proto, whole=True).graph()
    assert "onnx.TopK" in str(graph)
    assert "TopK (opset 20) is kept whole" in graph.notes[0]


def test_shifts_by_any_count() -> None:
    x = np.array([-9, 7, -(2**63), 2**62, -1], np.int64)
    for count in (0, 1, 31, 62, 63, 64, -3):
        y = np.full(5, count, np.int64)
        for way, function in {"LEFT": np.left_shift, "RIGHT": np.right_shift}.items():
            node = helper.make_node("BitShift", ["x", "y"], ["z"], direction=way)
            (z,), _ = run(node, {"x": x, "y": y}, [INT64])
            np.testing.assert_array_equal(z, function(x, y), f"{way} {count}")


def test_products_of_all_that_come_before() -> None:
    x = random(3, 5)
    node = helper.make_node("CumProd", ["x", "axis"], ["y"], reverse=1, exclusive=1)
    (y,), _ = run(node, {"x": x, "axis": np.array(1)}, known=("axis",), opset=26)
    want = np.ones((3, 5), np.float32)
    want[:, :-1] = np.cumprod(x[:, :0:-1], 1)[:, ::-1]
    np.testing.assert_allclose(y, want, rtol=1e-5)


def test_indices_computed_from_constants_are_known() -> None:
    """As exporters write them: a running sum less one, put into a list of places."""
    nodes = [
        helper.make_node("CumSum", ["ones", "axis"], ["sum"]),
        helper.make_node("ScatterElements", ["sum", "at", "new"], ["rows"]),
        helper.make_node("Gather", ["x", "rows"], ["y"]),
    ]
    known = {"ones": np.ones(3, np.int64), "axis": np.array(0), "at": np.array([0]),
             "new": np.array([5])}  # fmt: skip
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", FLOAT, [7])],
        [helper.make_tensor_value_info("y", FLOAT, [3])],
        [numpy_helper.from_array(a, n) for n, a in known.items()],
    )  # fmt: skip
    x = random(7)
    made = Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    program, _ = made.program({"x": x})
    assert "cumsum" not in str(program)
    np.testing.assert_array_equal(program.run(x)[0], x[[5, 2, 3]])


def text(body: str, **known: Any) -> Any:
    made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {body}')
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in known.items())
    return made


def by_onnxruntime(made: Any, arrays: dict[str, Any]) -> list[Any]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, arrays))


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("how", ['auto_pad="SAME_UPPER"', 'auto_pad="SAME_LOWER"',
                                 "output_shape=[9]", "output_shape=[10]"])  # fmt: skip
def test_transposed_convolutions_with_more_behind(how: str, dilation: int) -> None:
    """`output_padding` beside what says how long the result is."""
    made = text(
        f"g (float[1,1,5] x) => (float[a,b,c] y) {{ y = ConvTranspose<strides=[2], "
        f"dilations=[{dilation}], output_padding=[1], {how}>(x, w) }}", w=random(1, 1, 3),
    )  # fmt: skip
    x = random(1, 1, 5)
    graph, _ = Model(made, opaque=False).program({"x": x})
    np.testing.assert_allclose(graph.run(x)[0], by_onnxruntime(made, {"x": x})[0], 1e-5, 1e-6)


def test_a_condition_longer_than_its_axis() -> None:
    keep = np.array([1, 0, 0, 1, 1, 1], bool)
    made = text("g (float[4] x) => (float[n] y) { y = Compress<axis=0>(x, c) }", c=keep)
    x = random(4)
    np.testing.assert_array_equal(Model(made)(x)[0], x[[0, 3]])


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("lengths", [[5, 1, 1], [-1, 1, 1], [0, 4, 2]])
def test_lengths_beyond_the_axis_are_refused(lengths: list[int], known: bool) -> None:
    x, counts = random(4, 3), np.array(lengths)
    weights = {"w": random(1, 2, 1), "r": random(1, 2, 2)}
    for body, kind, more in (
        ("(float[4,3] x{}) => (float[4,3] y) {{ y = ReverseSequence(x, l) }}", np.int64, {}),
        ("(float[4,3] x{}) => (float[a,b,c,d] y) {{ a = Constant<value_ints=[2]>() "
         "z = Unsqueeze(x, a) y = RNN<hidden_size=2>(z, w, r, , l) }}", np.int32, weights),
    ):  # fmt: skip
        counts = counts.astype(kind)
        given = "" if known else f", {np.dtype(kind)}[3] l"
        made = text("g " + body.format(given), **more, **({"l": counts} if known else {}))
        arrays = {"x": x} if known else {"x": x, "l": counts}
        for call in (
            Model(made),
            lambda made=made, **a: Model(made).run(a, lambda g, v: g.run(*v)),
        ):
            if lengths[0]:
                with pytest.raises(BadInputError):
                    call(**arrays)
            else:
                np.testing.assert_allclose(
                    call(**arrays)[0], by_onnxruntime(made, arrays)[0], 1e-5, 1e-6
                )


def test_elements_of_places_that_are_not_there() -> None:
    """More indices than the data has rows, and a constant index beyond its axis."""
    body = "g (float[2,2] x) => (float[a,b] y) { y = GatherElements<axis=1>(x, i) }"
    for index in (np.zeros((4, 2), np.int64), np.array([[0, 1], [2, 0]])):
        with pytest.raises(BadInputError):
            Model(text(body, i=index))(random(2, 2))


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_at_places_that_are_no_numbers(mode: str, padding: str) -> None:
    places = np.zeros((1, 2, 2, 2), np.float32)
    places[0, 0, 0, 0], places[0, 1, 0, 1], places[0, 1, 1, 1] = np.nan, -np.inf, np.inf
    made = text(
        "g (float[1,1,3,3] x, float[1,2,2,2] t) => (float[a,b,c,d] y) "
        f'{{ y = GridSample<mode="{mode}", padding_mode="{padding}">(x, t) }}'
    )
    feed = {"x": random(1, 1, 3, 3), "t": places}
    graph, _ = Model(made, opaque=False).program(feed)
    np.testing.assert_allclose(
        graph.run(*feed.values())[0], by_onnxruntime(made, feed)[0], 1e-5, 1e-6
    )


ONE = "n = Constant<value_int=1>() on = Cast<to=9>(n)"
LEFT = {
    "another type": "(float[4] x) => (float[4] y) { c = Cast<to=4>(x) y = Cast<to=1>(c) }",
    "texts": "(float[4] x) => (float[4] y) { c = Cast<to=8>(x) y = Cast<to=1>(c) }",
    "a constant of another type": "(float[4] x) => (float[4] y) { a = Constant<value_float=2.0>() "
        "c = Cast<to=5>(a) d = Cast<to=1>(c) y = Add(x, d) }",
    "integers between others": "(uint8[1,1,2,2] x) => (uint8[a,b,c,d] y) { "
        's = Constant<value_floats=[1.0, 1.0, 2.0, 2.0]>() y = Resize<mode="linear">(x, , s) }',
    "sums of what is repeated": "(float[3] x, float[1] z) => (float y) "
        '{ y = Einsum<equation="i,i->">(x, z) }',
    "nine axes": "(float[8,64] x) => (float[512] y) { "
        "a = Constant<value_ints=[2,2,2,2,2,2,2,2,2]>() u = Reshape(x, a) v = Transpose(u) "
        "b = Constant<value_ints=[-1]>() y = Reshape(v, b) }",
    "no steps": f"(float[2] x) => (float[2] s, float[m,2] y) {{ {ONE} "
        "o = Constant<value_int=0>() s, y = Loop(o, on, x)<body = l (int64 i, bool c, float[2] a) "
        "=> (bool d, float[2] b, float[2] e) "
        "{ d = Identity(c) b = Add(a, a) e = Identity(a) }> }",
    "a body that does not work": "(float[1,2,3] x) => (float[a,b,c,d] y) "
        "{ s = Constant<value_ints=[1,1,3,4]>() y = AffineGrid(x, s) }",
}  # fmt: skip


@pytest.mark.parametrize("body", LEFT.values(), ids=list(LEFT))
def test_what_programs_do_not_hold_stays_nodes(body: str) -> None:
    made = text(f"g {body}")
    kinds = {v.name: v.type.tensor_type for v in made.graph.input}
    feed = {
        name: (10 * abs(random(*(d.dim_value for d in kind.shape.dim)))).astype(
            helper.tensor_dtype_to_np_dtype(kind.elem_type)
        )
        for name, kind in kinds.items()
    }
    for a, b in zip(Model(made)(**feed), by_onnxruntime(made, feed), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def test_what_is_dropped_at_random_stays_a_node() -> None:
    body = f"(float[64] x) => (float[64] y) {{ r = Constant<value_float=0.5>() {ONE} "
    made = Model(text(f"g {body} y = Dropout(x, r, on) }}"))(np.ones(64, np.float32))[0]
    assert set(made) == {0, 2}
