"""Exported C11 compiles without a warning, computes what the interpreter does, and needs nothing
but libc and libm; for AArch64 it is cross-compiled and run by qemu where these are installed."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.cli import main
from tessera.errors import UnsupportedError
from tessera.export import export_c
from tessera.frontends.trace import trace_call
from tessera.source import Program, example_arrays, load

ROOT = Path(__file__).resolve().parents[2]
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
Arrays = list[np.ndarray[Any, np.dtype[Any]]]


def aligned(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes at a multiple of 64."""
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def compiled(folder: Path, name: str, compiler: str = "gcc", *flags: str) -> ctypes.CDLL:
    library = folder / f"{name}.{compiler}.so"
    subprocess.run(
        [compiler, *WARNINGS, *(flags or ("-O2",)), "-shared", "-fPIC", "-o", library,
         folder / f"{name}.c", "-lm"],
        check=True,
    )  # fmt: skip
    return ctypes.CDLL(str(library))


def call(folder: Path, found: dict[str, Any], inputs: Arrays, results: Arrays, **how: Any) -> int:
    """The exported function on arrays: its arguments, not its data."""
    function = getattr(compiled(folder, found["name"], **how), found["function"])
    memory = [*inputs, *results]
    if found["weights_bytes"]:
        blob = aligned(found["weights_bytes"])
        blob[:] = np.fromfile(folder / f"{found['name']}.bin", np.uint8)
        memory.append(blob)
    if found["workspace_bytes"]:
        memory.append(aligned(found["workspace_bytes"]))
    return int(function(*(a.ctypes.data_as(ctypes.c_void_p) for a in memory)))


def check(folder: Path, graph: ts.Graph, arrays: Arrays, **data: Any) -> dict[str, Any]:
    """Exports, compiles, runs and compares with the interpreter; `arrays`: of the arguments."""
    found = export_c(graph, folder, data=data)
    held = {**graph.weights, **data}
    given = iter(arrays)
    inputs = [held[n] if n in held else next(given) for n in graph.input_types()]
    expected = graph.run(*inputs)
    expected = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    for compiler in ("gcc", "clang"):
        if not shutil.which(compiler):
            assert compiler != "gcc"
            continue
        results = [np.empty_like(np.ascontiguousarray(e)) for e in expected]
        assert call(folder, found, [np.ascontiguousarray(a) for a in arrays], results,
                    compiler=compiler) == 0  # fmt: skip
        for result, reference in zip(results, expected, strict=True):
            if result.dtype.kind in "biu":
                np.testing.assert_array_equal(result, reference)
            else:
                close = 2e-2 if result.dtype.itemsize == 2 else 2e-5
                wanted = np.asarray(reference).astype(np.float64)
                largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)  # what cancels
                np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=close,
                                           atol=close * largest)  # fmt: skip
    return found


def of_function(function: Callable[..., Any], *arrays: Any) -> Program:
    traced = trace_call(function, arrays, {})
    return Program(traced.graph, traced, function)


SMALL = [p for p in sorted((ROOT / "tests/corpus").glob("*.ug")) if "fused" not in p.stem]


@pytest.mark.parametrize("path", SMALL, ids=lambda p: p.stem)
def test_corpus(path: Path, tmp_path: Path) -> None:
    graph = load(path)
    sizes = [int(np.prod(shape)) for _, shape in graph.input_types().values()]
    if max(sizes) > 1 << 20:
        found = export_c(graph, tmp_path)
        compiled(tmp_path, found["name"])
        return
    check(tmp_path, graph, example_arrays(graph, 1))


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x: Any, g: Any) -> Any:
    m = x.mean(-1, keepdims=True)
    return (x - m) / np.sqrt(((x - m) ** 2).mean(-1, keepdims=True) + 1e-5) * g


def many(x: Any, y: Any) -> Any:
    return np.where(x > y, np.tanh(x), y // 1 + x**3), x <= y, (x * 10).astype(np.int64) % 7


TABLE = np.linspace(-1, 1, 30, dtype=np.float32).reshape(5, 6)


def looked_up(i: Any) -> Any:
    return np.take(TABLE, i, axis=0) * 2


def of_one(x: Any) -> Any:
    return x * x + 1


F32 = np.random.default_rng(0).standard_normal((7, 53)).astype(np.float32)


@pytest.mark.parametrize(
    ("function", "arrays"),
    [
        (softmax, [F32]),
        (layer_norm, [F32, F32[0]]),
        (many, [F32, F32[::-1].copy()]),
        (many, [F32.astype(np.float64), F32[::-1].astype(np.float64)]),
        (looked_up, [np.array([[0, 4, -1], [2, -5, 1]])]),
        (of_one, [np.array(3, np.float32)]),
        (of_one, [np.arange(-5, 5, dtype=np.int32)]),
        (of_one, [F32.astype(np.float16)]),
        (of_one, [F32.astype(ml_dtypes.bfloat16)]),
    ],
    ids=lambda v: v.__name__ if callable(v) else str(v[0].dtype),
)
def test_numpy(function: Callable[..., Any], arrays: Arrays, tmp_path: Path) -> None:
    program = of_function(function, *arrays)
    found = check(tmp_path, program.graph, arrays, **program.data)
    assert found["compared"] > 0
    assert (found["compared_exactly"] > 0) or function is not layer_norm
    if function is looked_up:
        assert found["weights_bytes"] >= TABLE.nbytes


def test_sums_of_sixteen_bit_products_are_wider(tmp_path: Path) -> None:
    """The products are larger than f16's largest number, and cancel."""
    graph = ts.Graph.parse("graph p { x = input : f16[2,8]\n w = input : f16[8,3]\n"
                           "y = matmul x, w\n return y }")  # fmt: skip
    x = np.where(np.arange(16).reshape(2, 8) % 2, -400, 400).astype(np.float16)
    found = export_c(graph, tmp_path)
    y = np.empty((2, 3), np.float16)
    assert call(tmp_path, found, [x, np.full((8, 3), 300, np.float16)], [y]) == 0
    np.testing.assert_array_equal(y, np.zeros((2, 3)))


def test_an_index_out_of_range_is_told(tmp_path: Path) -> None:
    program = of_function(looked_up, np.array([0, 1]))
    found = export_c(program.graph, tmp_path, data=program.data)
    result = [np.empty((2, 6), np.float32)]
    assert call(tmp_path, found, [np.array([0, 4])], result) == 0
    assert call(tmp_path, found, [np.array([0, 5])], result) == 1


def test_names_that_c_has_uses_for_are_others(tmp_path: Path) -> None:
    """Of functions, loops, totals, helpers and the function itself."""
    graph = ts.Graph.parse(
        "graph x {\n  i0 = input : f32[5,40]\n  x = input : f32[5,40]\n  totals = input : f32[40]\n"
        "  square_f32 = sqr i0\n  workspace = add square_f32, x\n"
        "  weights = sum workspace {axes=[1]}\n  larger_f32 = max workspace, totals\n"
        "  int64_t = sqrt larger_f32\n  expf = exp int64_t\n  return weights, expf\n}"
    )
    check(tmp_path, graph, example_arrays(graph, 1))


def onnx_model(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)
    shapes = {"w": (6, 3, 3, 3), "b": (6,), "v": (6 * 4 * 4, 10), "c": (10,)}
    data = [
        numpy_helper.from_array((rng.standard_normal(s) / 3).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "c"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 10])], data,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def test_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    onnx_model(tmp_path / "net.onnx")
    graph = load(tmp_path / "net.onnx")
    x = np.random.default_rng(2).standard_normal((2, 3, 8, 8)).astype(np.float32)
    found = check(tmp_path, graph, [x])
    assert found["weights_bytes"] >= 4 * (6 * 27 + 6 + 960 + 10)


MAIN = """
#include <stdio.h>
#include "softmax.h"
static _Alignas(64) char workspace[SOFTMAX_WORKSPACE_BYTES + 1];
int main(void) {
  static float x[7 * 53], y[7 * 53];
  if (fread(x, 4, 7 * 53, stdin) != 7 * 53) return 2;
  if (softmax(x, y, workspace) != 0) return 3;
  return fwrite(y, 4, 7 * 53, stdout) == 7 * 53 ? 0 : 4;
}
"""


@pytest.mark.parametrize("target", ["here", "aarch64"])
def test_a_program_of_its_own(target: str, tmp_path: Path) -> None:
    compiler, before = "gcc", list[str]()
    if target == "aarch64":
        compiler = "aarch64-linux-gnu-gcc"
        before = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
        for tool in (compiler, before[0]):
            if not shutil.which(tool):
                warnings.warn(f"no {tool} here: C for AArch64 is not run", stacklevel=1)
                pytest.skip(f"{tool} is not installed")
    program = of_function(softmax, F32)
    export_c(program.graph, tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    subprocess.run(
        [compiler, *WARNINGS, "-O3", "main.c", "softmax.c", "-lm", "-o", "main"],
        check=True, cwd=tmp_path,
    )  # fmt: skip
    ran = subprocess.run(
        [*before, tmp_path / "main"], input=F32.tobytes(), stdout=subprocess.PIPE, check=True
    )
    result = np.frombuffer(ran.stdout, np.float32).reshape(F32.shape)
    np.testing.assert_allclose(result, softmax(F32), rtol=1e-5)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prog.py"
    path.write_text(
        'import numpy as np\ndef twice(x: "f32[4]"):\n    return x * 2 + np.arange(4, dtype="f4")\n'
    )
    folder = tmp_path / "out"
    assert main(["export", str(path), "--c", "-o", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["compared"] == 4
    assert (
        sorted(p.suffix for p in folder.iterdir()) == [".bin", ".c", ".h"][-len(found["files"]) :]
    )
    text = (folder / "twice.h").read_text()
    assert "x: f32[4], row-major" in text
    assert "in f64, within rounding" in text
    assert main(["export", str(path), "-o", str(folder)]) == 64
    assert main(["export", str(path), "--c", "-o", str(folder), "--name", "a/b"]) == 65


def test_what_c_is_not_made_for_is_named(tmp_path: Path) -> None:
    fused = load(ROOT / "tests/corpus/rmsnorm_linear_fused.ug")
    assert any(op["op"] == "kernel" for op in fused.ops)
    with pytest.raises(UnsupportedError, match=r"optimize prog\.py -o fast\.py"):
        export_c(fused, tmp_path)


def test_where_rounding_decides(tmp_path: Path) -> None:
    """Two orders of one sum: which is greater is chance, and no reason to refuse the program."""

    def same_sums(x: Any) -> Any:
        y = np.exp(x)
        return (y.sum(1) >= y @ np.ones(x.shape[1], x.dtype)) * np.float32(1)

    program = of_function(same_sums, np.ones((64, 200), np.float32))
    found = export_c(program.graph, tmp_path, data=program.data)
    assert found["compared"] == 0
    assert "where a number is rounded" in (tmp_path / "same_sums.h").read_text()
