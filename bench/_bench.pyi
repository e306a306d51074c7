from collections.abc import Callable, Sequence
from typing import Any

from tessera._core import Graph

def bench_verify(
    injected: int,
    equal: int,
    seed: int = 1,
    threads: int = 0,
    progress: Callable[[Any], None] | None = None,
    deep: int = 0,
    branches: int = 0,
    kind: str = "",
) -> tuple[list[dict[str, Any]], bool]: ...
def bench_kernel_faults(count: int, seed: int = 1, threads: int = 0) -> dict[str, Any]: ...
def random_program(
    seed: int, dtype: str = "f32", kernel_chance: float = 0.35, max_extent: int = 7
) -> Graph: ...
def filter(
    spec: Graph, candidates: Sequence[Graph], seed: int = 1, threads: int = 0
) -> list[bool]: ...
def set_cuda_folders(folders: list[str]) -> None: ...
def use_cuda_driver(path: str) -> None: ...
def read_fragments(
    source: str, kernels: Sequence[tuple[str, int, int, int, bool]], device: int = 0
) -> list[list[int]]: ...
def cuda_compiled(
    graph: Graph, target: str, target_directory: str, disable: set[str] = ...
) -> list[dict[str, Any]]: ...
