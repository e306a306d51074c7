"""ONNX operators at the ends of their ranges, and values that callers may replace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

import tessera  # noqa: E402
from tessera.errors import BadInputError, UnsupportedError  # noqa: E402
from tessera.frontends.onnx import Model, export, load  # noqa: E402
from tessera.frontends.onnx.rewrite import rewrite_model  # noqa: E402
from tessera.options import Options  # noqa: E402

Arrays = dict[str, Any]
RNG = np.random.default_rng(0)


def info(name: str, array: Any) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def network(nodes: list[Any], given: Arrays, known: Arrays | None = None, ir: int = 10,
            opset: int = 20) -> Any:  # fmt: skip
    """A model with the result y; `known`: initialisers, those that are `given` too replaceable."""
    graph = helper.make_graph(
        nodes, "net", [info(n, a) for n, a in given.items()],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(a, n) for n, a in (known or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def one(op: str, given: Arrays, known: Arrays | None = None, opset: int = 20, **attrs: Any) -> Any:
    """A model of one operator, whose operands are in the order of `given` and `known`."""
    node = helper.make_node(op, [*given, *(known or {})], ["y"], **attrs)
    return network([node], given, known, opset=opset)


def peer(model: Any, arrays: Arrays) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, arrays)[0]


# --- integers
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_integers_are_divided_exactly(dtype: Any) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    ends = [least, least + 1, -7, -1, 1, 3, 5, 7, most // 3, most - 1, most]
    ends += [1764320000123456789] if dtype == np.int64 else []
    pairs = [(a, b) for a in [*ends, 0] for b in ends if (a, b) != (least, -1)]
    x, y = (np.array(v, dtype) for v in zip(*pairs, strict=True))
    (quotient,) = Model(one("Div", {"a": x, "b": y}))(x, y)
    (rest,) = Model(one("Mod", {"a": x, "b": y}, fmod=1))(x, y)
    signs = [1 if (a < 0) == (b < 0) else -1 for a, b in pairs]
    want = [s * (abs(a) // abs(b)) for s, (a, b) in zip(signs, pairs, strict=True)]
    np.testing.assert_array_equal(quotient, np.array(want, dtype))
    np.testing.assert_array_equal(
        rest, np.array([a - q * b for q, (a, b) in zip(want, pairs, strict=True)], dtype)
    )


# --- lengths
@pytest.mark.parametrize("how", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
def test_resize_counts_as_onnxruntime_does(how: str) -> None:
    for n in (1, 5, 7, 10, 13):
        x = RNG.standard_normal((1, 1, 2, n)).astype(np.float32)
        for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil", None):
            for scale in (0.3, 1 / 3, 0.6, 0.7, 0.9, 1.1, 1.7, 2.0, 2.3):
                if int(np.float32(scale) * np.float32(n)) == 0:
                    continue
                scales = np.array([1, 1, 1, scale], np.float32)
                node = helper.make_node(
                    "Resize", ["x", "", "s"], ["y"], mode="nearest" if rounding else "linear",
                    coordinate_transformation_mode=how, nearest_mode=rounding or "floor",
                )  # fmt: skip
                model = network([node], {"x": x}, {"s": scales})
                want = peer(model, {"x": x})
                (got,) = Model(model)(x)
                np.testing.assert_allclose(got, want, 1e-5, 1e-5, err_msg=f"{n} {rounding} {scale}")


def test_resize_of_old_opsets_and_fractions() -> None:
    x = RNG.standard_normal((1, 1, 2, 10)).astype(np.float32)
    for scale in (0.3, 0.6, 0.7, 1.1, 2.3):
        scales = np.array([1, 1, 1, scale], np.float32)
        model = one("Resize", {"x": x}, {"s": scales}, opset=10)
        np.testing.assert_array_equal(Model(model)(x)[0], peer(model, {"x": x}))
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear",
                            coordinate_transformation_mode="align_corners")  # fmt: skip
    model = network([node], {"x": x}, {"s": np.array([1, 1, 1, 0.77], np.float32)})
    with pytest.raises(UnsupportedError, match="fraction"):
        Model(model, opaque=False)(x)


# --- positions
POSITIONS: dict[str, tuple[Arrays, dict[str, Any]]] = {
    "GatherElements": ({"i": np.array([[[0, -3, 2, 1]]])}, {"axis": 1}),
    "GatherND": ({"i": np.array([[0, -1], [1, 2]])}, {}),
    "ScatterElements": (
        {"i": np.array([[[0, 1, -1, 2]]]), "u": np.ones((1, 1, 4), np.float32)}, {"axis": 1},
    ),
    "ScatterND": ({"i": np.array([[0, 1], [1, -1]]), "u": np.ones((2, 4), np.float32)}, {}),
}  # fmt: skip


@pytest.mark.parametrize("op", POSITIONS)
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_positions_out_of_range_are_refused(op: str, reduction: str) -> None:
    more, attrs = POSITIONS[op]
    if "u" in more:
        attrs = {**attrs, "reduction": reduction}
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    model = one(op, {"x": x, **more}, **attrs)
    ours = Model(model)
    np.testing.assert_allclose(ours(x=x, **more)[0], peer(model, {"x": x, **more}), 1e-6)
    for wrong in (3, -4):
        index = more["i"].copy()
        index[..., -1] = wrong
        with pytest.raises(BadInputError, match="out of range"):
            ours(x=x, **{**more, "i": index})


# --- initialisers that are inputs
X, W, S = RNG.standard_normal((2, 4)), RNG.standard_normal((4, 4)), np.array(2.0)


def replaceable(ir: int = 10) -> Any:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]),
             helper.make_node("Mul", ["t", "s"], ["y"])]  # fmt: skip
    return network(nodes, {"w": W, "s": S, "x": X}, {"w": W, "s": S}, ir)


def test_a_call_replaces_initialisers() -> None:
    model = Model(replaceable())
    assert model.inputs == ["x"]
    np.testing.assert_allclose(model(X)[0], X @ W * 2)
    np.testing.assert_allclose(model(X, w=W + 1)[0], X @ (W + 1) * 2)
    np.testing.assert_allclose(model(x=X, s=np.array(5.0), w=W - 1)[0], X @ (W - 1) * 5)
    np.testing.assert_allclose(model(X)[0], X @ W * 2)
    with pytest.raises(BadInputError, match="no input 'w'"):
        Model(replaceable(ir=3))(X, w=W)


def test_a_shape_that_a_call_replaces() -> None:
    node = helper.make_node("Reshape", ["x", "d"], ["y"])
    d = np.array([4, 2])
    model = network([node], {"x": X, "d": d}, {"d": d})
    for shape in ((4, 2), (8, 1), (1, 8)):
        given = {} if shape == (4, 2) else {"d": np.array(shape)}
        assert Model(model)(X, **given)[0].shape == shape


def test_what_is_written_keeps_initialisers_replaceable(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file, other = tmp_path / "net.onnx", tmp_path / "other.onnx"
    onnx.save(replaceable(), file)
    graph = load(file, whole=True)
    assert list(graph.weights) == ["w", "s"]
    export.export(graph, other)
    rewrite_model(graph, source=file, options=Options(budget=1.0)).save(tmp_path / "fast.onnx")
    for written in (other, tmp_path / "fast.onnx"):
        model = onnx.load(written)
        np.testing.assert_allclose(peer(model, {"x": X}), X @ W * 2)
        np.testing.assert_allclose(
            peer(model, {"x": X, "w": W + 1, "s": np.array(5.0)}), X @ (W + 1) * 5
        )
    assert [i.name for i in load(file, values={"s": S}).inputs] == ["w", "x"]


# --- the ends of ranges
@pytest.mark.parametrize(
    ("op", "of"),
    [("Asinh", np.arcsinh), ("Acosh", np.arccosh), ("Atanh", np.arctanh), ("Sinh", np.sinh),
     ("Cosh", np.cosh)],
)  # fmt: skip
def test_hyperbolic_functions_at_the_ends(op: str, of: Any) -> None:
    x = np.array([0, -0.0, 0.5, -0.5, 1, 1e-30, 89, -89, 1e20, -1e20, 3e38, -3e38, np.inf, -np.inf,
                  np.nan], np.float32)  # fmt: skip
    with np.errstate(all="ignore"):
        want = of(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(Model(one(op, {"x": x}))(x)[0], want, 1e-5)


def test_the_logarithm_of_a_sum_of_infinities() -> None:
    x = np.array([[1, np.inf], [-np.inf, -np.inf], [1, -np.inf], [np.nan, 1]], np.float32)
    made = Model(one("ReduceLogSumExp", {"x": x}, {"a": np.array([1])}, keepdims=0))(x)[0]
    np.testing.assert_allclose(made, [np.inf, -np.inf, 1, np.nan])


@pytest.mark.parametrize("zeros", [[-0.0] * 3, [-0.0, 0.0, -0.0], [0.0, -0.0, 0.0]])
def test_signs_of_zeros_in_initialisers(zeros: list[float]) -> None:
    x = np.ones(3, np.float32)
    made = Model(one("Div", {"x": x}, {"z": np.array(zeros, np.float32)}))(x)[0]
    np.testing.assert_array_equal(made, np.copysign(np.inf, zeros))


@pytest.mark.parametrize("reverse", [0, 1])
def test_exclusive_sums_are_of_what_comes_before(reverse: int) -> None:
    x = np.array([1e-3, 1e6, np.inf, 2], np.float32)
    model = one("CumSum", {"x": x}, {"a": np.array(0)}, exclusive=1, reverse=reverse)
    before = np.cumsum([0, *(x[::-1] if reverse else x)[:-1]], dtype=np.float32)
    np.testing.assert_array_equal(Model(model)(x)[0], before[::-1] if reverse else before)


def same(made: Any, want: Any) -> None:
    """Also with the signs of zeros."""
    np.testing.assert_allclose(made, want, 1e-6)
    np.testing.assert_array_equal(np.signbit(made), np.signbit(want))


def test_angles_are_written_with_the_signs_of_zeros_and_infinities() -> None:
    ends = np.array([0, -0.0, 2, -2, 1e-45, -3e38, np.inf, -np.inf], np.float32)
    y, x = (a.ravel() for a in np.meshgrid(ends, ends))
    graph = tessera.trace(lambda y, x: np.arctan2(y, x), y, x)
    same(peer(export.written(graph).whole(), {"y": y, "x": x}), np.arctan2(y, x))
    for op, of in (("Atan", np.arctan), ("Acos", np.arccos), ("Asin", np.arcsin)):
        t = np.array([0, -0.0, 0.5, -1, 1], np.float32)
        same(
            peer(export.written(Model(one(op, {"x": t})).program({"x": t})[0]).whole(), {"x": t}),
            of(t),
        )


def test_arctan_is_one_node() -> None:
    for angle, ops in ((1, ["Atan"]), (2, ["Constant", "Abs"])):
        graph = tessera.trace(lambda x, angle=angle: np.arctan2(x, np.float32(angle)), "f32[3]")
        made = [n.op_type for n in export.written(graph).whole().graph.node]
        assert made[: len(ops)] == ops
        assert (len(made) == 1) == (angle == 1)


def test_remainders_of_floats_have_the_sign_of_the_divisor() -> None:
    ends = np.array([0, 1, -1, 2.5, -2.5, 1e-45, -1e-45, np.inf, -np.inf, np.nan], np.float32)
    x, y = (a.ravel() for a in np.meshgrid(ends, ends))
    with np.errstate(invalid="ignore"):
        want = x % y
    graph = tessera.trace(lambda x, y: x % y, x, y)
    np.testing.assert_array_equal(peer(export.written(graph).whole(), {"x": x, "y": y}), want)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("of", [np.log1p, np.expm1])
def test_log1p_and_expm1_are_written_with_all_their_digits(of: Any, dtype: Any) -> None:
    ends = np.finfo(dtype)
    sizes = np.geomspace(float(ends.tiny) * 4, float(ends.max) / 2, 500)
    x = np.concatenate([sizes, -sizes, [0, -1, 1, np.inf, -np.inf, np.nan]]).astype(dtype)
    with np.errstate(all="ignore"):
        want = of(x.astype(np.longdouble)).astype(dtype)
    written = export.to_onnx(tessera.trace(of, x))
    np.testing.assert_allclose(peer(written, {"x": x}), want, 4 * float(ends.eps), float(ends.tiny))


def test_integer_constants_are_written_with_all_their_digits() -> None:
    k, large = np.arange(4), np.int64(2**62 + 1)
    pads = np.array([1, 1])
    models = [one(op, {"k": k}, {"c": large}) for op in ("Add", "Mul", "Max")]
    models.append(one("Pad", {"k": k}, {"p": pads, "c": large}))
    for model in models:
        written = export.to_onnx(Model(model).graph())
        np.testing.assert_array_equal(peer(written, {"k": k}), peer(model, {"k": k}))


@pytest.mark.parametrize("exponent", [np.inf, -np.inf, np.nan])
def test_powers_without_a_finite_exponent(exponent: float) -> None:
    x = np.array([0, 0.5, 1, 2], np.float32)
    model = one("Pow", {"x": x}, {"e": np.array(exponent, np.float32)})
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(Model(model)(x)[0], x**exponent)
