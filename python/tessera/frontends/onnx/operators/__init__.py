"""What each ONNX operator means in Tessera's; importing this registers all handlers."""

from tessera.frontends.onnx.operators import (
    convolution,
    elementwise,
    movement,
    reduction,
    resize,
)

__all__ = ["convolution", "elementwise", "movement", "reduction", "resize"]
