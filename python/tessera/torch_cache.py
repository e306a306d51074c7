"""What a second process is spared: AOTAutograd's passes, cutting into kernels, the comparison.

Of AOTAutograd the graph of ATen operators alone is kept; parts and programs are made of it anew
(their code has a cache of its own). Kept are graphs that need nothing of AOTAutograd at run time:
their inputs are not changed, their results alias nothing, their extents are numbers. Of programs
the text is kept that `fuse` made, and which code PyTorch has agreed with.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tessera import _core
from tessera._core import version
from tessera.errors import Error
from tessera.files import write_bytes
from tessera.frontends.torch.fuse import fuse
from tessera.graph import Graph
from tessera.options import own_pattern_folders
from tessera.store import cache_directory

log = logging.getLogger("tessera.torch")


@dataclass(frozen=True)
class KeptPart:
    """What a graph that is one part runs as, once PyTorch has agreed: it is not even read then."""

    weights: list[bool]  # by argument
    operators: int
    program: str  # as imported
    fused: str
    results: list[Any]  # as of a Program
    code: str  # a digest of what `fused` is compiled to
    fusion: str  # and own patterns


class LaterGraph:
    """A graph module that is read where somebody asks for it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @functools.cached_property
    def _module(self) -> Any:
        from torch._subclasses.fake_tensor import FakeTensorMode

        return _graph_from(self._data, FakeTensorMode())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __call__(self, *args: Any) -> Any:
        return self._module(*args)


class KeptGraph:
    """The place of one Dynamo graph's ATen graph; `key` is None where it cannot be kept."""

    def __init__(self, module: Any, inputs: Sequence[Any]) -> None:
        self._placeholders = len(inputs)
        self._folder = cache_directory() / "graphs"
        try:
            text = "\n".join(_facts(module, inputs))
        except Exception as why:  # also what this version of PyTorch does not have
            log.info("tessera: a traced graph is not kept on disk: %s", why)
            self.key: str | None = None
        else:
            self.key = hashlib.sha256(text.encode()).hexdigest()

    @property
    def _path(self) -> Path:
        return self._folder / f"{self.key}.pickle"

    def read(self) -> tuple[Any, set[int]] | None:
        """The ATen graph and which of its inputs are weights; None where there is none."""
        if self.key is None or not _is_private(self._path):
            return None
        try:
            fixed, graph = pickle.loads(self._path.read_bytes())
            return _graph_from(graph, torch._guards.TracingContext.get().fake_mode), fixed
        except Exception as error:  # of another build, or damaged: it is traced again
            log.info("tessera: a kept graph cannot be read: %s", error)
            return None

    def read_part(self) -> tuple[KeptPart, LaterGraph] | None:
        """The graph as one part with its program; None where none is kept."""
        path = self._path.with_suffix(".part")
        if self.key is None or not _is_private(path) or not _is_private(self._path):
            return None
        try:
            part = pickle.loads(path.read_bytes())
            graph = pickle.loads(self._path.read_bytes())[1]
        except Exception as error:
            log.info("tessera: a kept program cannot be read: %s", error)
            return None
        return (part, LaterGraph(graph)) if part.fusion == fusion() + own_key() else None

    def write_part(self, **facts: Any) -> None:
        """Keeps the program of a graph that is one part; `facts`: of a KeptPart."""
        if self.key is not None and _is_private(self._path):
            with contextlib.suppress(Exception):  # no room
                write_bytes(self._path.with_suffix(".part"), pickle.dumps(KeptPart(**facts)))

    def write(self, graph: Any, fixed: set[int]) -> None:
        """Keeps a graph as AOTAutograd made it, where nothing but the graph is to be run."""
        if self.key is None:
            return
        try:
            from torch.fx._graph_pickler import GraphPickler, Options

            if not self._is_all(graph, torch._guards.TracingContext.get().fw_metadata):
                return
            data = GraphPickler.dumps(graph, Options(node_metadata_key_filter=lambda k: k == "val"))
            for folder in (self._folder.parent, self._folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_private(self._folder):
                write_bytes(self._path, pickle.dumps((fixed, data)))
        except Exception as error:  # no room, or a value that PyTorch does not write
            log.info("tessera: a traced graph is not kept on disk: %s", error)

    def _is_all(self, graph: Any, meta: Any) -> bool:
        """Whether calls need nothing beyond the graph (changed inputs, results that are views of
        inputs or of each other, subclasses)."""
        from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta

        plain = (OutputType.non_alias, OutputType.unsafe_view_alias)
        return (
            len(graph.graph.find_nodes(op="placeholder")) == self._placeholders
            and not any(i.mutates_data or i.mutates_metadata for i in meta.input_info)
            and all(o.output_type in plain for o in meta.output_info)
            and meta.num_intermediate_bases == 0
            and meta.grad_enabled_mutation is None
            and not meta.tokens
            and all(isinstance(m, PlainTensorMeta) for m in meta.subclass_inp_meta)
        )


def _graph_from(data: bytes, mode: Any) -> Any:
    from torch.fx._graph_pickler import GraphPickler

    made: Any = GraphPickler.loads(data, mode)
    for node in made.graph.find_nodes(op="placeholder"):
        node.target = node.name  # Dynamo's own are long, and slow to make others from
    made.recompile()  # without, it has no `forward`
    return made


class _NotKeptError(Exception):
    """What a key cannot say."""


def _facts(module: Any, inputs: Sequence[Any]) -> Iterator[str]:
    """All that the ATen graph of a Dynamo graph follows from."""
    if torch.is_grad_enabled() or torch._C._is_any_autocast_enabled():
        raise _NotKeptError("gradients or autocast are on")
    yield f"{version} {torch.__version__} {torch.version.git_version}"
    yield hashlib.sha256(Path(__file__).with_name("torch_backend.py").read_bytes()).hexdigest()
    yield repr((torch.get_default_dtype(), torch.is_inference_mode_enabled(),
                torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.enabled,
                torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled(),
                torch.backends.cuda.mem_efficient_sdp_enabled(),
                torch._functorch.config.codegen_config()))  # fmt: skip
    placeholders = module.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(inputs):
        raise _NotKeptError("parameters that are not inputs")
    for node, value in zip(placeholders, inputs, strict=True):
        yield _input(value)
        yield str(node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))
    for node in module.graph.nodes:
        if node.op == "call_function" and not _is_pytorchs(node.target):
            raise _NotKeptError(f"{node.target} is not PyTorch's")
        if node.op in ("get_attr", "call_module"):
            raise _NotKeptError(f"{node.op} {node.target}")
    yield module.code


def _input(value: Any) -> str:
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor):
        raise _NotKeptError(f"an input that is a {type(value).__name__}")
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        raise _NotKeptError("an input that is not plain")
    if not all(isinstance(d, int) for d in (*value.shape, *value.stride(), value.storage_offset())):
        raise _NotKeptError("an extent that is a symbol")
    return repr((isinstance(value, torch.nn.Parameter), value.dtype, tuple(value.shape),
                 value.stride(), value.storage_offset(), value.device,
                 value.requires_grad))  # fmt: skip


def _is_pytorchs(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in ("aten", "prims")
    module = getattr(target, "__module__", None) or ""
    return type(target).__name__ == "builtin_function_or_method" or module in (
        "torch.functional", "torch.nn.functional", "_operator")  # fmt: skip


def _is_private(path: Path) -> bool:
    """Whether nobody else can have put it there: it is code for whoever reads it."""
    try:
        info = path.stat()
    except OSError:
        return False
    return info.st_uid == os.geteuid() and not info.st_mode & 0o022


def kept_fusion(graph: Graph) -> Graph:
    """What `fuse` makes of a program, read where it was made before."""
    key = digest(f"fused {fusion()} {graph}")
    if (text := _core.find_text(key)) is not None:
        return Graph.parse(text)
    made = fuse(graph)
    _core.store_text(key, str(made))
    return made


class Agreed:
    """That code gave PyTorch's results in a first run: known by the operators it was made from, the
    program as imported, the code, and versions."""

    def __init__(self, eager: Any, program: Graph, code: str) -> None:
        facts = ("agreed", torch.__version__, fusion(), eager.code, str(program), code)
        self._key = digest("\n".join(facts))

    def is_known(self) -> bool:
        return _core.find_text(self._key) is not None

    def keep(self) -> None:
        _core.store_text(self._key, "")


@functools.cache
def fusion() -> str:
    """Names the code that imports and fuses, and what it fuses for."""
    folder = Path(__file__).parent / "frontends" / "torch"
    code = "".join(p.read_text() for p in sorted(folder.glob("*.py")))
    return digest(f"{version} {_core.machine()['isa']} {code}")


def own_key() -> str:
    """Changes with each pattern that does not ship, and with what is known of its bodies; "" where
    there is none."""
    folders = own_pattern_folders()
    if not folders:
        return ""
    from tessera.patterns import SUFFIX, body_states, read_pattern

    facts: list[str] = []
    for path in (p for folder in folders for p in sorted(Path(folder).glob("*" + SUFFIX))):
        try:
            pattern = read_pattern(path)
            facts.append(f"{pattern.text}\n{body_states(pattern)}")
        except Error as error:
            facts.append(str(error))
    return digest("\n".join(facts))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
