"""The corpus of NumPy programs: functions annotated with types and domains."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tessera.frontends.traced import Spec
from tessera.source import run_file

FOLDER = Path(__file__).resolve().parent / "corpus" / "numpy"


@dataclass(frozen=True)
class CorpusProgram:
    """One function of the corpus, with the types and domains of its arguments."""

    group: str  # the file's name: statistics, physics, …
    name: str
    function: Callable[..., Any]
    specs: dict[str, Spec]

    def arguments(self, seed: int = 0) -> list[np.ndarray[Any, Any]]:
        """Random arguments in the domain, the same for the same seed."""
        rng = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        return [spec.sample(rng) for spec in self.specs.values()]


def programs(group: str = "*", folder: Path = FOLDER) -> Iterator[CorpusProgram]:
    """All programs of the corpus, or those of one group, in the order of the files."""
    for path in sorted(folder.glob(f"{group}.py")):
        for name, function in run_file(path).items():
            if not inspect.isfunction(function) or function.__code__.co_filename != str(path):
                continue
            if name.startswith("_"):  # what several programs of a file share
                continue
            parameters = inspect.signature(function).parameters.values()
            specs = {p.name: Spec.parse(p.annotation) for p in parameters}
            yield CorpusProgram(path.stem, name, function, specs)
