"""Tessera: a multi-level superoptimizer for tensor programs.

>>> import tessera as ts
>>> g = ts.Graph("scale")
>>> y = g.output(g.input("X", (4, 8), "f32") * 2.0)
>>> print(repr(g))
<Graph scale(X: f32[4,8]), 3 operators>
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera._core import version as __version__
    from tessera.api import optimize, superoptimize
    from tessera.errors import Error
    from tessera.frontends.trace import trace
    from tessera.graph import Graph
    from tessera.operators import operator
    from tessera.options import Options
    from tessera.result import Result
    from tessera.source import load
    from tessera.verification import Verdict, verify

__all__ = [
    "Error",
    "Graph",
    "Options",
    "Result",
    "Verdict",
    "__version__",
    "load",
    "operator",
    "optimize",
    "superoptimize",
    "trace",
    "verify",
]

# Where each name lives; it is imported when it is first used.
_HOME = {
    "Error": "errors",
    "Graph": "graph",
    "Options": "options",
    "Result": "result",
    "Verdict": "verification",
    "load": "source",
    "operator": "operators",
    "optimize": "api",
    "superoptimize": "api",
    "trace": "frontends.trace",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = importlib.import_module("tessera._core").version
    elif name in _HOME:
        value = getattr(importlib.import_module(f"tessera.{_HOME[name]}"), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"tessera.{name}"):
        return importlib.import_module(f"tessera.{name}")
    else:
        raise AttributeError(f"module 'tessera' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
