"""Programs for a GPU, from Python: on a stand-in for the driver, and without any."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tessera as ts
from bench.workloads import WORKLOADS
from tessera import _core
from tessera.cli.app import cli
from tessera.cuda import DeviceRunner, is_device_array, to_device, to_host
from tessera.errors import (
    BadInputError,
    DeviceError,
    NotFoundError,
    OutOfMemoryError,
    UnsupportedError,
    UsageError,
    WrongTypeError,
)
from tessera.options import target_directory

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "build/release/libtessera_stand_in_cuda.so"
CUBLASLT = ROOT / "build/release/libtessera_stand_in_cublaslt.so"
CUDNN = ROOT / "build/release/libtessera_stand_in_cudnn.so"
OPTIONS: dict[str, Any] = {"target": "cuda", "budget": 100, "cache": False, "threads": 1}
QUICK = {**OPTIONS, "disable": ("mugraph", "patterns", "fold")}  # one kernel per operator


class StandIn:
    """The stand-in's controls, and the driver functions that a host program would call."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(LIBRARY))
        self.library.stand_in_allocated.restype = ctypes.c_int64
        self.reset()

    def reset(self, devices: int = 2, memory: int = 1 << 28) -> None:
        self.library.stand_in_reset(
            devices, 9, 0, ctypes.c_int64(memory), ctypes.c_int64(227 << 10)
        )
        _core.use_cuda_driver(str(LIBRARY))

    def calls(self, function: str) -> int:
        return int(self.library.stand_in_calls(function.encode()))

    def fail(self, function: str, result: int, nth: int = 1) -> None:
        self.library.stand_in_fail(function.encode(), nth, result)

    def stream(self) -> int:
        """A stream that the default one does not wait for."""
        handle = ctypes.c_void_p()
        self.enter()
        assert self.library.cuStreamCreate(ctypes.byref(handle), 1) == 0
        self.leave()
        return int(handle.value or 0)

    def synchronize(self, stream: int) -> None:
        self.enter()
        assert self.library.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
        self.leave()

    @contextmanager
    def captured(self, stream: int) -> Iterator[list[Any]]:
        """What is put on the stream, as a graph that can be replayed."""
        made: list[Any] = []
        graph = ctypes.c_void_p()
        self.enter()
        assert self.library.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 0) == 0
        yield made
        assert self.library.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
        self.leave()
        made.append(graph)

    def replay(self, made: list[Any], stream: int) -> None:
        run = ctypes.c_void_p()
        self.enter()
        instantiate = self.library.cuGraphInstantiateWithFlags
        assert instantiate(ctypes.byref(run), made[0], ctypes.c_ulonglong(0)) == 0
        assert self.library.cuGraphLaunch(run, ctypes.c_void_p(stream)) == 0
        assert self.library.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
        self.leave()

    def enter(self) -> None:
        context, device = ctypes.c_void_p(), self.device()
        assert self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert self.library.cuCtxPushCurrent_v2(context) == 0

    def leave(self) -> None:
        context = ctypes.c_void_p()
        assert self.library.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
        assert self.library.cuDevicePrimaryCtxRelease_v2(self.device()) == 0

    def device(self) -> ctypes.c_int:
        number = ctypes.c_int()
        assert self.library.cuDeviceGet(ctypes.byref(number), 0) == 0
        return number


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    if not LIBRARY.exists():
        pytest.skip("the stand-in for CUDA's driver is not built (ninja tessera_stand_in_cuda)")
    yield StandIn()
    _core.use_cublaslt("")
    _core.use_cudnn("")
    _core.use_cuda_driver("")


def program(weight: bool = False) -> ts.Graph:
    """y = (x + h)·h with h = g·g."""
    g = ts.Graph("small")
    x = g.input("x", (8, 64), "f32")
    gain = g.input("g", (64,), "f32", weight=weight)
    h = gain * gain
    g.output((x + h) * h)
    return g


X = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
G = np.linspace(1, 2, 64, dtype=np.float32)
Y = (X + G * G) * (G * G)


def optimized(**options: Any) -> Any:
    return ts.superoptimize(program(options.pop("weight", False)), **{**QUICK, **options})


def close(array: Any, expected: Any = Y) -> None:
    np.testing.assert_allclose(to_host(array), expected, rtol=1e-4, atol=1e-5)


def test_a_graph_runs_on_the_device(stand_in: StandIn) -> None:
    result = ts.superoptimize(program(), **OPTIONS)
    assert result.improved
    assert "measured" in {c.fate for c in result.candidates}
    assert result.details["device"] == "Stand-in 0 (cuda:0, compute capability 9.0)"
    assert result.details["not_measured"] == ""
    assert result.original_us > 0
    assert result.kernels[0]["threads"] >= 32
    x, g = to_device(X), to_device(G)
    close(result(x, g))
    close(result(g=g, x=x))
    out = to_device(np.zeros_like(X))
    assert result(x, g, out=out) is out
    close(out)


def test_a_function_runs_on_the_device(stand_in: StandIn) -> None:
    def scaled(x: Any, pair: Any) -> Any:
        return {"y": (x + pair[0]) * pair[1], "z": x * 2}

    result = ts.superoptimize(scaled, X, (G, G), **QUICK)
    x, g = to_device(X), to_device(G)
    assert is_device_array(x)
    assert not is_device_array(X)
    with pytest.raises(BadInputError, match="to_device"):
        result(X, (G, G))
    got = result(x, (g, g))
    close(got["y"], (X + G) * G)
    close(got["z"], X * 2)


def test_weights_are_prepared_once(stand_in: StandIn) -> None:
    result = optimized(weight=True, freeze=True)
    x, g = to_device(X), to_device(G)
    close(result(x, g))
    launches = stand_in.calls("cuLaunchKernel")
    close(result(x, g))
    later = stand_in.calls("cuLaunchKernel") - launches
    g.write((2 * G).tobytes())
    result.refresh()
    close(result(x, g), (X + 4 * G * G) * (4 * G * G))
    assert stand_in.calls("cuLaunchKernel") - launches - later > later
    result = optimized(weight=True)  # no promise, nothing is kept
    close(result(x, g), (X + 4 * G * G) * (4 * G * G))
    g.write(G.tobytes())
    close(result(x, g))


class Foreign:
    """Another library's array, by DLPack."""

    def __init__(self, array: Any, device: int = 0) -> None:
        self.array, self.device = array, device
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__(stream=stream)


def test_libraries_do_their_part(stand_in: StandIn, tmp_path: Path) -> None:
    """A product by cuBLASLt among kernels: chosen, run, checked, and told to whoever looks."""
    g = ts.Graph("mixed")
    x, w = g.input("x", (16, 64), "f32"), g.input("w", (64, 32), "f32")
    g.output(g.tanh(g.matmul(g.exp(x), w)))
    a, b = X.reshape(16, 32), np.ones((64, 32), np.float32) / 64
    a = np.concatenate([a, a], 1)
    want = np.tanh(np.exp(a) @ b)
    _core.use_cublaslt(str(CUBLASLT))
    result = ts.superoptimize(g, **QUICK)
    calls = [k["call"] for k in result.kernels if k.get("library") == "cuBLASLt"]
    assert calls == ["matmul f32 1x16x32x64"]
    before = stand_in.calls("stand_in_enqueue")
    close(result(to_device(a), to_device(b)), want)
    assert stand_in.calls("stand_in_enqueue") == before + 1
    result.save(tmp_path / "k.cu")
    assert "// No kernel: cuBLASLt does it" in (tmp_path / "k.cu").read_text()
    without = ts.superoptimize(g, **{**QUICK, "disable": (*QUICK["disable"], "library")})
    assert not any("library" in k for k in without.kernels)
    close(without(to_device(a), to_device(b)), want)
    tf32 = ts.superoptimize(g, **QUICK, tf32=True)
    assert [k["call"] for k in tf32.kernels if "call" in k] == ["matmul f32 1x16x32x64 tf32"]


def test_convolutions_are_cudnns(stand_in: StandIn) -> None:
    """With bias and activation one call; without cuDNN kernels."""
    g = ts.Graph.parse(
        "graph conv {\nx = input : f32[1,4,6,6]\nw = input : f32[8,4,3,3]\n"
        "b = input : f32[8,1,1]\ny = conv x, w {low=[1,1], high=[1,1]}\nz = add y, b\n"
        "r = relu z\nreturn r\n}"
    )
    random = np.random.default_rng(3)
    x, w, b = (
        random.standard_normal(s).astype(np.float32)
        for s in ((1, 4, 6, 6), (8, 4, 3, 3), (8, 1, 1))
    )
    without = ts.superoptimize(g, **QUICK)
    assert not any("library" in k for k in without.kernels)
    _core.use_cudnn(str(CUDNN))
    result = ts.superoptimize(g, **QUICK)
    assert [(k["library"], k["call"]) for k in result.kernels] == [
        ("cuDNN", "conv f32 1x4x6x6 by 8x3x3 low 1,1 high 1,1 bias relu")
    ]
    padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    want = np.maximum(np.einsum("chwij,kcij->khw", windows, w) + b, 0)[None]
    before = stand_in.calls("stand_in_enqueue")
    close(result(*map(to_device, (x, w, b))), want)
    assert stand_in.calls("stand_in_enqueue") == before + 1
    close(without(*map(to_device, (x, w, b))), want)


def test_attention_races_against_cudnn(stand_in: StandIn) -> None:
    """What the search finds has to beat the library's call, which is the original's code."""
    _core.use_cudnn(str(CUDNN))
    g = ts.Graph("attention")
    q, k, v = (g.input(n, (1, 16, 16), "f16") for n in "qkv")
    e = g.exp(g.matmul(q, g.transpose(k, (0, 2, 1))))
    g.output(g.matmul(e / g.sum(e, (2,), keepdims=True), v))
    result = ts.superoptimize(g, **OPTIONS)
    assert {c.fate for c in result.candidates} & {"measured", "chosen"}
    random = np.random.default_rng(4)
    arrays = [random.standard_normal((1, 16, 16)).astype(np.float16) / 2 for _ in range(3)]
    a, b, c = (x.astype(np.float64) for x in arrays)
    p = np.exp(a @ b.transpose(0, 2, 1))
    want = p / p.sum(2, keepdims=True) @ c
    got = to_host(result(*map(to_device, arrays)))
    assert np.abs(got - want).max() < 4e-3
    alone = ts.superoptimize(g, **QUICK)
    assert [x["call"] for x in alone.kernels if "call" in x] == ["attention f16 1x1x16x16x16"]


def test_old_gpus_are_refused(stand_in: StandIn) -> None:
    stand_in.library.stand_in_reset(1, 7, 5, ctypes.c_int64(1 << 30), ctypes.c_int64(64 << 10))
    _core.use_cuda_driver(str(LIBRARY))
    with pytest.raises(UnsupportedError, match=r"capability 7.5\) is too old: .* capability 8.0"):
        optimized(target="cuda")
    result = optimized(target="cuda:sm_80")
    assert "no GPU here is sm_80" in result.details["not_measured"]


def test_arrays_of_other_libraries_come_by_dlpack(stand_in: StandIn) -> None:
    result = optimized()
    x, g = Foreign(to_device(X)), Foreign(to_device(G))
    copies = stand_in.calls("cuMemcpyDtoDAsync_v2")
    made = result(x, g)
    close(made)
    assert x.streams == [1]  # the default stream, as DLPack calls it
    assert stand_in.calls("cuMemcpyDtoDAsync_v2") == copies
    # Results speak it as well.
    view = _core.ForeignArray(made.__dlpack__())
    assert (view.address, view.dtype, view.shape) == (made.address, "f32", [8, 64])
    assert (view.contiguous, view.device_type, view.device) == (True, 2, 0)
    with pytest.raises(BadInputError, match="on cuda:1; the program runs on Stand-in 0"):
        result(Foreign(to_device(X), 1), g)
    capsule = made.__dlpack__()
    _core.ForeignArray(capsule)
    with pytest.raises(BadInputError, match="used before"):
        _core.ForeignArray(capsule)
    strided = _core.ForeignArray(X.T.__dlpack__())
    assert (strided.contiguous, strided.shape, strided.device_type) == (False, [64, 8], 1)


def test_another_stream_waits_for_a_result(stand_in: StandIn) -> None:
    stream = stand_in.stream()
    made = to_device(X)
    waits = stand_in.calls("cuStreamWaitEvent")
    made.__dlpack__(stream=1)
    assert stand_in.calls("cuStreamWaitEvent") == waits
    made.__dlpack__(stream=stream)
    assert stand_in.calls("cuStreamWaitEvent") == waits + 1


@dataclass(frozen=True)
class Where:
    """A torch device."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


class Tensor:
    """What Tessera asks of a torch tensor on a device."""

    layout = "torch.strided"
    requires_grad = False

    def __init__(self, array: Any, where: str = "cuda", index: int = 0) -> None:
        self.array = array
        self.device = Where(where, index)
        dtype, shape = array.type
        self.dtype = {"f32": "torch.float32", "f16": "torch.float16"}[dtype]
        self.shape = tuple(shape)
        self.strided = self.negative = False
        self.offset = 0

    def is_neg(self) -> bool:
        return self.negative

    def resolve_neg(self) -> Tensor:
        return Tensor(to_device(-to_host(self.array)))

    def is_contiguous(self) -> bool:
        return not self.strided

    def contiguous(self) -> Tensor:
        return Tensor(self.array)

    def data_ptr(self) -> int:
        return int(self.array.address) + self.offset

    def numel(self) -> int:
        return int(np.prod(self.shape))

    def element_size(self) -> int:
        return 4


@pytest.fixture
def torch(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of torch as is looked at, with a current stream of its own."""
    module: Any = types.ModuleType("torch")
    module.Tensor = Tensor
    module.float32 = "f32"
    module.empty = lambda shape, dtype, device: Tensor(
        _core.DeviceArray(int(device.removeprefix("cuda:")), dtype, list(shape))
    )
    module.stream = stand_in.stream()
    current = types.SimpleNamespace(cuda_stream=module.stream)
    module.cuda = types.SimpleNamespace(current_stream=lambda device: current)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_tensors_in_tensors_out_on_the_current_stream(stand_in: StandIn, torch: Any) -> None:
    result = optimized()
    x, g = Tensor(to_device(X)), Tensor(to_device(G))
    result(x, g)
    # Calls only put work on torch's stream.
    before = stand_in.calls("cuStreamSynchronize")
    made = result(x, g)
    assert isinstance(made, Tensor)
    assert stand_in.calls("cuStreamSynchronize") == before
    assert np.isnan(to_host(made.array)).all()
    stand_in.synchronize(torch.stream)
    close(made.array)


def test_the_decorator_takes_tensors(stand_in: StandIn, torch: Any) -> None:
    """@ts.optimize: a program per type, on torch's stream, captured in graphs; typed errors."""

    @ts.optimize(**QUICK)
    def scaled(x: Any, pair: Any) -> Any:
        return {"y": np.tanh(x + pair[0]) * pair[1], "z": x * 2}

    x, g = Tensor(to_device(X)), Tensor(to_device(G))
    scaled(x, (g, g))
    launches = stand_in.calls("cuLaunchKernel")
    waits = stand_in.calls("cuStreamSynchronize")
    got = scaled(x, (g, g))
    assert stand_in.calls("cuLaunchKernel") > launches
    assert stand_in.calls("cuStreamSynchronize") == waits
    stand_in.synchronize(torch.stream)
    assert isinstance(got["y"], Tensor)
    close(got["y"].array, np.tanh(X + G) * G)
    close(got["z"].array, X * 2)

    # A call in a capture is replayed by the graph; a program is not made there.
    torch.cuda.is_current_stream_capturing = lambda: True
    with stand_in.captured(torch.stream) as graph:
        again = scaled(x, (g, g))
    x.array.write((2 * X).tobytes())
    stand_in.replay(graph, torch.stream)
    close(again["z"].array, X * 4)
    half = Tensor(to_device(X.astype(np.float16)))
    with pytest.raises(UsageError, match="nothing is optimised while a CUDA graph is captured"):
        scaled(half, (g, g))
    del torch.cuda.is_current_stream_capturing

    with pytest.raises(BadInputError, match="a tensor is on cpu:0, and the program runs on a GPU"):
        scaled(Tensor(to_device(X), "cpu"), (g, g))
    elsewhere = Tensor(to_device(X), index=1)
    with pytest.raises(BadInputError, match="x is on cuda:1"):
        scaled(elsewhere, (g, g))
    odd = Tensor(to_device(X))
    odd.offset = 4
    with pytest.raises(BadInputError, match="no multiple of 16 bytes"):
        scaled(odd, (g, g))
    strided = Tensor(to_device(X))
    strided.strided = True
    with pytest.warns(RuntimeWarning, match="x is not contiguous and is copied"):
        scaled(strided, (g, g))
    torch.is_grad_enabled = lambda: True
    trained = Tensor(to_device(X))
    trained.requires_grad = True
    with pytest.raises(BadInputError, match=r"x requires a gradient, which the program does not"):
        scaled(trained, (g, g))


def test_the_decorator_takes_arrays_by_dlpack(stand_in: StandIn) -> None:
    @ts.optimize(**QUICK)
    def twice(x: Any) -> Any:
        return np.exp(x) * 2

    x = to_device(X)
    close(twice(Foreign(x)), np.exp(X) * 2)
    allocated = stand_in.library.stand_in_allocated()
    made = twice(Foreign(x))
    assert stand_in.library.stand_in_allocated() - allocated == X.nbytes  # nothing but the result
    close(made, np.exp(X) * 2)


def test_tensors_are_looked_at(stand_in: StandIn, torch: Any) -> None:
    result = optimized()
    x, g = Tensor(to_device(X)), Tensor(to_device(G))
    with pytest.raises(BadInputError, match=r"g is on cuda:1; the .*: give g.to\('cuda:0'\)"):
        result(x, Tensor(to_device(G), "cuda", 1))
    odd = Tensor(to_device(X))
    odd.offset = 4
    with pytest.raises(BadInputError, match="multiple of 16 bytes"):
        result(odd, g)
    with pytest.raises(BadInputError, match=r"x must be f32\[8,64\], not float32\[64\]"):
        result(g, g)
    with pytest.raises(WrongTypeError, match=r"x must be f32\[8,64\], not float16\[8,64\]"):
        result(Tensor(to_device(X.astype(np.float16))), g)
    strided = Tensor(to_device(X))
    strided.strided = True
    with pytest.warns(RuntimeWarning, match="x is not contiguous and is copied in every call"):
        result(strided, g)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")  # it is said once
        made = result(strided, g)
        stand_in.synchronize(torch.stream)
        close(made.array)
    with pytest.raises(BadInputError, match="out must be contiguous"):
        result(x, g, out=strided)
    negative = Tensor(to_device(-X))
    negative.negative = True
    made = result(negative, g)
    stand_in.synchronize(torch.stream)
    close(made.array)


def test_results_do_not_overlap_what_is_read(stand_in: StandIn) -> None:
    graph = ts.Graph("rolled")
    square = graph.input("x", (64, 64), "f32")
    graph.output(square @ square)
    result = ts.superoptimize(graph, **QUICK)
    x = to_device(np.eye(64, dtype=np.float32))
    with pytest.raises(BadInputError, match="out shares memory with argument x"):
        result(x, out=x)


def test_bytes_side_by_side_are_no_race(stand_in: StandIn) -> None:
    """Neighbours of one byte are written by different threads."""
    g = ts.Graph("bytes")
    x = g.input("x", (33, 64), "i8")
    g.output(x @ g.transpose(x, (1, 0)))
    g.output(x < g.max(x, (1,), keepdims=True))
    array = np.random.default_rng(5).integers(-3, 4, (33, 64)).astype(np.int8)
    product, less = ts.superoptimize(g, **QUICK)(to_device(array))
    np.testing.assert_array_equal(to_host(product), (array.astype(int) @ array.T).astype(np.int8))
    np.testing.assert_array_equal(to_host(less), array < array.max(1, keepdims=True))


def test_bad_input_is_refused_and_harms_nothing(stand_in: StandIn, torch: Any) -> None:
    """Each by an error that names the limit; what is right works after every one."""
    result = optimized()
    x, g = Tensor(to_device(X)), Tensor(to_device(G))
    odd = Tensor(to_device(X))
    odd.offset = 4
    strided = types.SimpleNamespace(
        __dlpack_device__=lambda: (2, 0), __dlpack__=lambda stream=None: X.T.__dlpack__()
    )
    half = Tensor(to_device(X.astype(np.float16)))
    bad: list[tuple[Any, type[Exception], str]] = [
        (lambda: result(odd, g), BadInputError, "no multiple of 16 bytes"),
        (lambda: result(strided, g), BadInputError, r"must be f32\[8,64\]|not contiguous"),
        (lambda: result(Tensor(to_device(X, 1), index=1), g), BadInputError, "x is on cuda:1"),
        (lambda: result(Foreign(to_device(X, 1), 1), g), BadInputError, "on cuda:1"),
        (lambda: result(X, g), BadInputError, "a NumPy array; the program runs on Stand-in 0"),
        (lambda: result(half, g), WrongTypeError, r"f32\[8,64\], not float16"),
        (lambda: result(x), BadInputError, "expected 2 arrays, got 1|missing"),
        (lambda: result(x, g, out=half), WrongTypeError, "out must be f32"),
        (lambda: to_device(X, 7), NotFoundError, "no device cuda:7; there are 2"),
        (lambda: to_device(np.zeros(1 << 29, np.uint8)), OutOfMemoryError,
         "take 512 MiB, and 256 MiB of 256 MiB are free"),
    ]  # fmt: skip
    for call, kind, message in bad:
        with pytest.raises(kind, match=message):
            call()
        made = result(x, g)
        stand_in.synchronize(torch.stream)
        close(made.array)


def test_dtypes_that_gpus_or_tessera_lack_are_named(stand_in: StandIn, torch: Any) -> None:
    """Every dtype of the language runs from sm_80 on; older ones have no bf16."""
    g = ts.Graph("halves")
    x = g.input("x", (8, 64), "bf16")
    g.output(x + x)
    with pytest.raises(BadInputError, match="'sm_75' is no CUDA architecture from sm_80 on"):
        ts.superoptimize(g, **{**QUICK, "target": "cuda:sm_75"})
    result = optimized()
    small, gain = Tensor(to_device(X)), Tensor(to_device(G))
    small.dtype = "torch.float8_e4m3fn"
    with pytest.raises(WrongTypeError, match=r"x must be f32\[8,64\], not float8_e4m3fn\[8,64\]"):
        result(small, gain)
    with pytest.raises(WrongTypeError, match="tensors of float8_e4m3fn are not supported"):
        ts.optimize(**QUICK)(lambda x: x * 2)(small)
    complex_numbers = types.SimpleNamespace(
        __dlpack_device__=lambda: (2, 0),
        __dlpack__=lambda stream=None: X.astype(np.complex64).__dlpack__(),
    )
    with pytest.raises(UnsupportedError, match=r"this dtype \(DLPack code 5, 64 bits"):
        result(complex_numbers, gain)
    made = result(Tensor(to_device(X)), gain)
    stand_in.synchronize(torch.stream)
    close(made.array)
    stand_in.library.stand_in_reset(1, 7, 5, ctypes.c_int64(1 << 30), ctypes.c_int64(64 << 10))
    _core.use_cuda_driver(str(LIBRARY))
    with pytest.raises(UnsupportedError, match=r"7.5\) is too old: .* 8.0 and later \(bf16"):
        ts.superoptimize(g, **QUICK)


def test_small_devices_name_their_limits(stand_in: StandIn) -> None:
    g = ts.Graph("product")
    a, b = g.input("a", (64, 256), "f16"), g.input("b", (256, 64), "f16")
    g.output(a @ b)

    def on(memory: int, shared: int) -> Any:
        stand_in.library.stand_in_reset(1, 9, 0, ctypes.c_int64(memory), ctypes.c_int64(shared))
        _core.use_cuda_driver(str(LIBRARY))
        return ts.superoptimize(g, **QUICK)

    assert on(1 << 28, 20 << 10).kernels[0]["shared_bytes"] <= 20 << 10
    with pytest.raises(UnsupportedError, match="of shared memory, but 1024 is the limit"):
        on(1 << 28, 1 << 10)
    with pytest.raises(OutOfMemoryError, match="the inputs take 32 KiB, and 20 KiB of 20 KiB"):
        on(20 << 10, 227 << 10)


def test_failures_of_the_device_are_told(stand_in: StandIn) -> None:
    result = optimized()
    x, g = to_device(X), to_device(G)
    stand_in.fail("cuLaunchKernel", 701)
    with pytest.raises(DeviceError, match="cannot launch k0"):
        result(x, g)
    close(result(x, g))  # it was this call alone
    stand_in.fail("cuLaunchKernel", 912)
    with pytest.raises(UnsupportedError, match=r"k0 meets in clusters .* room for side by side"):
        result(x, g)
    stand_in.fail("cuMemAlloc_v2", 2)
    with pytest.raises(OutOfMemoryError, match="the results take 2 KiB"):
        result(x, g)
    stand_in.fail("cuLaunchKernel", 700)
    for _ in range(2):
        with pytest.raises(DeviceError, match="restart it"):
            result(x, g)
    with pytest.raises(MemoryError):
        raise OutOfMemoryError("also Python's own")


def test_the_drivers_interface_is_that_of_cudas_header() -> None:
    """Functions, numbers and structures, where a CUDA toolkit is installed."""
    folders = [Path("/usr/local/cuda/include"), *Path("/usr/local").glob("cuda-1[3-9]*/include")]
    include = next((f for f in folders if (f / "cuda.h").exists()), None)
    if include is None:
        pytest.skip("there is no cuda.h")
    done = subprocess.run(
        ["c++", "-std=c++20", "-fsyntax-only", f"-I{include}", f"-I{ROOT}/src",
         str(ROOT / "tests/stand_in/cuda_header.cpp")],
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_targets_are_told_apart(stand_in: StandIn) -> None:
    with pytest.raises(NotFoundError, match="no device cuda:7; there are 2"):
        optimized(target="cuda:7")
    with pytest.raises(UsageError, match="cuda:sm_80"):
        optimized(target="cuda:fast")
    with pytest.raises(UsageError, match="use cpu"):
        ts.Options(target="tpu")
    second = optimized(target="cuda:1")
    assert isinstance(second._run, DeviceRunner)
    x, g = to_device(X, 1), to_device(G, 1)
    made = second(x, g)
    assert made.device == 1
    close(made)


def test_without_a_gpu_it_is_compiled_and_emulated(tmp_path: Path) -> None:
    if _core.cuda_machine()["devices"]:
        pytest.skip("there is a GPU")
    result = optimized(target="cuda:sm_90a")
    assert "libcuda.so.1 is not found" in result.details["not_measured"]
    assert result.details["original_failed"] == ""
    assert result.details["check_s"] > 0
    assert all(0 < k["registers"] <= 255 for k in result.kernels)
    assert result.json()["kernels"] == result.kernels
    result.save(tmp_path / "k.cu")
    text = (tmp_path / "k.cu").read_text()
    assert "__global__" in text
    assert '#include "' not in text
    with pytest.raises(UsageError, match=r"or \.cu"):
        result.save(tmp_path / "k.cpp")
    with pytest.raises(NotFoundError, match=r"for a GPU .sm_90a. that is not here"):
        result(X, G)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_nvcc_makes_a_library_of_a_saved_file(tmp_path: Path, arch: str) -> None:
    """Without a warning, and with the function that runs it."""
    path = tmp_path / "k.cu"
    core = WORKLOADS["gqa"].graph(1, "f16").core
    path.write_text(_core.emit_cuda(core, f"cuda:{arch}", target_directory()).source)
    assert ("multiply_add_wide<0, 1>(r" in path.read_text()) == (arch == "sm_90a")
    command = ["nvcc", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC", "-Werror", "all-warnings",
               "-o", "k.so", "k.cu"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(tmp_path / "k.so"))
    if not _core.cuda_machine()["devices"]:  # an error comes back, not a crash
        assert getattr(library, f"run_{core.name}")(*[None] * 6) != 0


def test_a_budget_may_end_anywhere() -> None:
    """Also while the emulator runs the winner: what there is then comes back, and says so."""
    for n, budget in enumerate((0.4, 1.0, 1.4, 1.8)):
        g = ts.Graph("small")
        x = g.input("x", (8, 40 + n), "f32")  # others than in earlier runs, which are remembered
        g.output((x + x * x) * x)
        result = ts.superoptimize(g, target="cuda:sm_90a", budget=budget, cache=False, threads=1)
        assert result.improved or result.details["unfinished"]


def test_command_line(tmp_path: Path) -> None:
    if _core.cuda_machine()["devices"]:
        pytest.skip("there is a GPU")
    path = tmp_path / "small.ug"
    path.write_text(str(program()))
    run = CliRunner().invoke(cli, ["emit", str(path), "--target", "cuda:sm_80"])
    assert run.exit_code == 0
    assert "__global__" in run.output
    out = tmp_path / "k.cu"
    arguments = ["optimize", str(path), "--target", "cuda:sm_80", "--no-cache", "--budget", "10"]
    run = CliRunner().invoke(cli, [*arguments, "-o", str(out)])
    assert run.exit_code == 0, run.output
    said = " ".join(run.output.split())
    assert "nothing was measured: the kernels were compiled" in said
    assert "registers" in said
    assert "__global__" in out.read_text()
    run = CliRunner().invoke(cli, ["emit", str(path), "--target", "gpu"])
    assert run.exit_code != 0
    run = CliRunner().invoke(cli, ["doctor"])
    assert "CUDA driver" in run.output
    assert "NVRTC" in run.output
