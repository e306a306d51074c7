"""Tessera: a multi-level superoptimizer for tensor programs."""

from tessera._core import version as __version__

__all__ = ["__version__"]
