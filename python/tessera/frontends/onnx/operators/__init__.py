"""What each ONNX operator means in Tessera's; importing this registers all handlers."""

from tessera.frontends.onnx.operators import (  # noqa: F401
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
