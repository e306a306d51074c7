"""Tessera: a multi-level superoptimizer for tensor programs."""

from tessera._core import version as __version__
from tessera.errors import Error
from tessera.frontends.trace import trace
from tessera.graph import Graph
from tessera.source import load

__all__ = ["Error", "Graph", "__version__", "load", "trace"]
