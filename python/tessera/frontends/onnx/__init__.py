"""ONNX models: `load` reads one as a Graph, `Model` runs one whose shapes calls decide.

`export.export` writes a Graph as a model.
"""

from tessera.frontends.onnx.model import Model, load

__all__ = ["Model", "load"]
