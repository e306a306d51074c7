"""Workloads as ONNX models, made operator by operator, for onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.workloads import Array, Kit, Workload


class Value:
    """A tensor of a model under construction, with Python's operators."""

    def __init__(self, kit: OnnxKit, name: str) -> None:
        self.kit, self.name = kit, name

    def __add__(self, other: Any) -> Value:
        return self.kit.node("Add", self, other)

    def __sub__(self, other: Any) -> Value:
        return self.kit.node("Sub", self, other)

    def __mul__(self, other: Any) -> Value:
        return self.kit.node("Mul", self, other)

    def __truediv__(self, other: Any) -> Value:
        return self.kit.node("Div", self, other)


class OnnxKit(Kit):
    """The programs' functions as ONNX operators, in the forms that onnxruntime fuses."""

    def __init__(self, dtype: np.dtype[Any], ranks: dict[str, int]) -> None:
        super().__init__()
        self.dtype = dtype
        self.ranks = ranks  # of inputs
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, op: str, *inputs: Any, **attributes: Any) -> Value:
        from onnx import helper

        names = [x.name if isinstance(x, Value) else self.constant(x) for x in inputs]
        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [result], **attributes))
        return Value(self, result)

    def constant(self, value: Any, dtype: Any = None) -> str:
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        array = np.asarray(value, dtype or self.dtype)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def _axes(self, axis: int) -> Value:
        return Value(self, self.constant([axis], np.int64))

    def matmul(self, a: Value, b: Value) -> Value:
        return self.node("MatMul", a, b)

    def transposed(self, a: Value) -> Value:
        rank = self.ranks.get(a.name, 4)
        order = [*range(rank - 2), rank - 1, rank - 2]
        return self.node("Transpose", a, perm=order)

    def rms(self, x: Value, eps: float = 1e-6, axis: int = -1) -> Value:
        mean = self.node("ReduceMean", self.node("Pow", x, 2.0), self._axes(axis), keepdims=1)
        return x / self.node("Sqrt", mean + eps if eps else mean)

    def softmax(self, s: Value) -> Value:
        return self.node("Softmax", s, axis=-1)

    def exp(self, x: Value) -> Value:
        return self.node("Exp", x)

    def sum(self, x: Value) -> Value:
        return self.node("ReduceSum", x, self._axes(-1), keepdims=1)

    def silu(self, x: Value) -> Value:
        return x * self.node("Sigmoid", x)


def model(workload: Workload, arrays: Sequence[Array]) -> Any:
    """The workload as a model; weights are initializers, which onnxruntime packs once."""
    from onnx import TensorProto, helper, numpy_helper

    names = list(workload.shapes)
    dtype = arrays[0].dtype
    element = helper.np_dtype_to_tensor_dtype(dtype)
    kit = OnnxKit(dtype, {n: a.ndim for n, a in zip(names, arrays, strict=True)})
    result = workload.program(kit, *[Value(kit, n) for n in names])
    inputs, initializers = [], list(kit.constants)
    for name, array in zip(names, arrays, strict=True):
        if name in workload.weights:
            initializers.append(numpy_helper.from_array(array, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, element, array.shape))
    assert element != TensorProto.UNDEFINED
    output = helper.make_tensor_value_info(result.name, element, None)
    graph = helper.make_graph(kit.nodes, workload.family, inputs, [output], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def session(workload: Workload, arrays: Sequence[Array], threads: int) -> Any:
    """A callable that runs the model on the arrays."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    onnx_model = model(workload, arrays)
    made = onnxruntime.InferenceSession(
        onnx_model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {n: a for n, a in zip(workload.shapes, arrays, strict=True)
            if n not in workload.weights}  # fmt: skip
    return lambda: made.run(None, feed)[0]
