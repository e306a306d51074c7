"""Nodes that Tessera does not know, run one at a time by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.errors import BadInputError, ToolMissingError
from tessera.frontends.onnx.reader import onnx_package

Array = np.ndarray[Any, Any]


class OpaqueNodes:
    """The meaning of a program's opaque operators: single-node models, by payload."""

    def __init__(self, models: Mapping[str, Any]) -> None:
        self.models = dict(models)
        self._sessions: dict[str, Any] = {}

    def __call__(self, function: str, payload: str, arrays: Sequence[Array]) -> list[Array]:
        """Results of one operator, as the interpreter has them: floats as f64, others as i64."""
        model = self.models[payload]
        helper = onnx_package().helper
        feeds = {}
        for value, array in zip(model.graph.input, arrays, strict=True):
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            feeds[value.name] = np.asarray(array).astype(dtype)
        session = self._session(function, payload)
        try:
            results = session.run(None, feeds)
        except Exception as error:
            raise BadInputError(f"{function}: onnxruntime refused: {error}") from None
        wide = []
        for result in results:
            a = np.asarray(result)
            wide.append(a.astype(np.int64 if a.dtype.kind in "biu" else np.float64))
        return wide

    def _session(self, function: str, payload: str) -> Any:
        if payload not in self._sessions:
            try:
                import onnxruntime
            except ImportError:
                raise ToolMissingError(
                    f"{function} is run by onnxruntime, which is not installed; "
                    "pip install onnxruntime"
                ) from None
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            self._sessions[payload] = onnxruntime.InferenceSession(
                self.models[payload].SerializeToString(), options,
                providers=["CPUExecutionProvider"],
            )  # fmt: skip
        return self._sessions[payload]
