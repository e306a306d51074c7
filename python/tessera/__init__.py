"""Tessera: a multi-level superoptimizer for tensor programs.

>>> import tessera as ts
>>> g = ts.Graph("scale")
>>> y = g.output(g.input("X", (4, 8), "f32") * 2.0)
>>> print(repr(g))
<Graph scale(X: f32[4,8]), 3 operators>
"""

from tessera._core import version as __version__
from tessera.api import optimize, superoptimize, verify
from tessera.errors import Error
from tessera.frontends.trace import trace
from tessera.graph import Graph
from tessera.options import Options
from tessera.result import Result, Verdict
from tessera.source import load

__all__ = [
    "Error",
    "Graph",
    "Options",
    "Result",
    "Verdict",
    "__version__",
    "load",
    "optimize",
    "superoptimize",
    "trace",
    "verify",
]
