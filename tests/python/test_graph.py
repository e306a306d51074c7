"""The program builder: operators, promotion, block graphs, text, and the place that errors name."""

import copy
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tessera import Graph, _core, ops
from tessera.errors import BadInputError, IoError, UnsupportedError, UsageError
from tessera.graph import _FUNCTIONS
from tessera.tensor import Tensor


def rmsnorm_linear() -> Graph:
    g = Graph("rmsnorm_linear")
    x = g.input("X", (16, 1024), "f32")
    gain = g.input("G", (1024,), "f32")
    w = g.input("W", (1024, 4096), "f32")
    norm = g.sqrt(g.mean(g.square(x), axis=-1, keepdims=True) + 1e-6)
    g.output(g.matmul(x * gain / norm, w), "Y")
    return g


def test_text_round_trip() -> None:
    g = rmsnorm_linear()
    assert Graph.parse(str(g)) == g
    assert hash(Graph.parse(str(g))) == hash(g)
    assert "const {value=1e-06}" in str(g)
    assert repr(g).startswith("<Graph rmsnorm_linear(X: f32[16,1024], G: f32[1024], W: f32[")


def test_names_do_not_matter_but_structure_does() -> None:
    a, b, c = Graph("a"), Graph("b"), Graph("c")
    a.output(a.exp(a.input("x", (2, 3))))
    b.output(b.exp(b.input("y", (2, 3))))
    c.output(c.log(c.input("x", (2, 3))))
    assert a == b
    assert a != c
    assert a != "a"


def test_every_method_has_a_function_and_every_operator_a_method() -> None:
    for name in _FUNCTIONS.split():
        assert callable(ops.function(name)), name
        assert callable(getattr(Graph, name))
    # operators that other names reach, or that only the block builder or front ends need
    reached = {
        "input", "const", "iota", "neg", "not", "cast", "max", "min", "and", "or", "eq", "ne",
        "lt", "le", "gt", "ge", "reduce_max", "reduce_min", "broadcast", "unsqueeze", "concat",
        "gather", "custom", "opaque", "kernel", "thread", "iter", "accum", "accum_rescale", "save",
        "power", "atan2", "conv", "conv_transpose", "pool_sum", "pool_max",
    }  # fmt: skip
    missing = {row["name"] for row in _core.operators()} - reached - set(_FUNCTIONS.split())
    assert not missing


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("f32", 1.0, "f32"),
        ("f32", np.float64(1), "f64"),
        ("f16", 2, "f16"),
        ("f32", "f64", "f64"),
        ("i32", 1.5, "f64"),
        ("i8", "i32", "i32"),
        ("bf16", 1.0, "bf16"),
        ("bf16", "f32", "f32"),
        ("bool", "f32", "f32"),
    ],
)
def test_promotion(left: str, right: object, result: str) -> None:
    g = Graph("g")
    x = g.input("x", (4,), left)
    y = g.input("y", (4,), right) if isinstance(right, str) else right
    from tessera.types import dtype_name

    assert dtype_name((x + y).dtype) == result
    assert dtype_name((y * x).dtype) == result


def test_low_precision_floats_stay_in_the_builder() -> None:
    g = Graph("g")
    x = g.input("x", (4, 4), "bf16")
    assert (x @ x).dtype == np.dtype(ml_dtypes.bfloat16)


def test_kernel_context() -> None:
    g = Graph("two_kernels")
    x = g.input("X", (16, 64))
    w = g.input("W", (64, 32))
    with g.kernel([x, w], grid=[4], loops=[8]) as k:
        a = k.iter(x, fmap=[1])
        b = k.iter(w, imap=[1], fmap=[0])
        k.save(k.accum(a @ b) * 0.5, omap=[1], name="Y")
    (y,) = k.outputs
    g.output(y)
    g.validate()
    assert y.shape == (16, 32)
    assert y.name == "Y"
    assert (a.shape, b.shape) == ((16, 8), (8, 8))
    assert Graph.parse(str(g)) == g


def test_kernel_context_refuses_what_is_not_an_argument() -> None:
    g = Graph("g")
    x, y = g.input("x", (4,)), g.input("y", (4,))
    with (
        pytest.raises(BadInputError, match="not among the kernel's inputs"),
        g.kernel([x], grid=2) as k,
    ):
        k.iter(y, imap=[0])
    with pytest.raises(UsageError, match="after its `with` block"):
        _ = g.kernel([x], grid=2).outputs


def test_failed_kernel_leaves_the_graph_as_it_was() -> None:
    g = Graph("g")
    x = g.input("x", (8, 4))
    before = str(g)
    with pytest.raises(BadInputError), g.kernel([x], grid=2) as k:
        k.save(k.iter(x, imap=[5]), omap=[0])
    assert str(g) == before


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g, x: g.matmul(x, x), r"matmul: inner dimensions differ"),
        (lambda g, x: g.sum(x, axis=2), r"axis 2 is out of bounds"),
        (lambda g, x: g.reshape(x, (5, 5)), r"reshape"),
        (lambda g, x: g.reshape(x, (-1, 5)), r"cannot reshape"),
        (lambda g, x: g.transpose(x, (0, 0)), r"not a permutation"),
        (lambda g, x: x[4], r"index 4 is out of bounds for axis 0 with extent 4"),
        (lambda g, x: x[1:1], r"is empty"),
        (lambda g, x: x[0, 0, 0], r"too many indices"),
        (lambda g, x: g.squeeze(x, 0), r"does not have extent 1"),
        (lambda g, x: x + np.ones(8), r"declare it as an input"),
        (lambda g, x: x + None, r"None is not an operand"),
        (lambda g, x: g.input("x", (1,)), r"declared twice"),
        (lambda g, x: g.input("e", (0, 2)), r"every extent must be positive"),
        (lambda g, x: g.input("e", (2,), "f31"), r"unknown dtype"),
        (lambda g, x: g.concatenate([x, g.input("z", (3, 3))]), r"concat"),
        (lambda g, x: x + Graph("h").input("x", (4, 8)), r"belongs to another graph"),
        (lambda g, x: g.output(3), r"not a tensor of this graph"),
        (lambda g, x: g.input("i", (2,), "i8") + 300, r"300"),
    ],
)
def test_mistakes_name_the_line_and_the_reason(build, message: str) -> None:  # type: ignore[no-untyped-def]
    g = Graph("g")
    x = g.input("x", (4, 8))
    with pytest.raises(BadInputError, match=message) as caught:
        build(g, x)
    assert caught.value.location is not None
    assert Path(caught.value.location.file).name == "test_graph.py"
    assert isinstance(caught.value, ValueError)


def test_unsupported_dtype_names_the_input() -> None:
    with pytest.raises(UnsupportedError, match="input z: dtype complex64 is not supported"):
        Graph("g").input("z", (3,), np.complex64)


def test_parse_errors_have_a_place() -> None:
    text = "graph g {\n  x = input : f32[4]\n  y = frobnicate x : f32[4]\n  return y\n}\n"
    with pytest.raises(BadInputError) as caught:
        Graph.parse(text, "some.ug")
    assert caught.value.location is not None
    assert caught.value.location[:2] == ("some.ug", 3)
    assert str(caught.value).startswith("some.ug:3:")


def test_symbols_bind() -> None:
    g = Graph("g")
    x = g.input("x", ("N", 8))
    g.output(g.sum(x * 2.0, axis=1))
    assert g.bind(N=5).outputs[0].shape == (5,)


def test_save_is_all_or_nothing(tmp_path: Path) -> None:
    g = rmsnorm_linear()
    g.save(tmp_path / "g.ug")
    assert Graph.parse((tmp_path / "g.ug").read_text()) == g
    with pytest.raises(IoError, match="cannot be written"):
        g.save(tmp_path / "missing" / "g.ug")
    assert [p.name for p in tmp_path.iterdir()] == ["g.ug"]


def test_tensor_refuses_to_be_a_value() -> None:
    x = Graph("g").input("x", (4,))
    assert isinstance(x, Tensor)
    for use in (bool, float, int, np.asarray, lambda t: t.item(), lambda t: t.tolist()):
        with pytest.raises(UnsupportedError):
            use(x)
    assert len(x) == 4
    assert [t.shape for t in x] == [()] * 4


def test_graphs_are_pickled_as_text() -> None:
    g = rmsnorm_linear()
    assert pickle.loads(pickle.dumps(g)) == g
    assert copy.deepcopy(g) == g
