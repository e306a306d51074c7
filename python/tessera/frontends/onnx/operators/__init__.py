"""What each ONNX operator means in Tessera's; importing this registers all handlers."""

from tessera.frontends.onnx.operators import (
    convolution,
    elementwise,
    movement,
    quantized,
    recurrent,
    reduction,
    resize,
    sampling,
    scatter,
    sorting,
)

__all__ = ["convolution", "elementwise", "movement", "quantized", "recurrent", "reduction",
           "resize", "sampling", "scatter", "sorting"]  # fmt: skip
