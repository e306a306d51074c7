"""What a second process is spared: AOTAutograd's passes and importing.

Of a graph that is one part the program is kept as JSON (a `KeptPart`), with the text of what was
compiled; nothing that is read is run but such programs, whose results PyTorch has to agree with
in each process. Kept are graphs that need nothing of AOTAutograd at run time: their inputs are not
changed, their results alias nothing, their extents are numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.fx import GraphModule
from torch.fx.node import Target

from tessera import _core
from tessera._core import version
from tessera.cache_folder import kept_json
from tessera.errors import Error
from tessera.frontends.torch.importer import Output
from tessera.options import own_pattern_folders
from tessera.patterns import SUFFIX, body_states, read_pattern
from tessera.types import Object, Record, Value, Values

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta

log = logging.getLogger("tessera.torch")


@dataclass(frozen=True)
class KeptPart:
    """What a graph that is one part runs as."""

    weights: list[bool]  # by argument
    operators: int
    program: str  # as imported
    lossy: list[str]  # ways of computing that lost too many digits
    compiled: str
    results: list[Output]  # as of a Program: ["out", position, order of axes] or a number
    code: str  # a digest of what `compiled` became
    origin: str  # and own patterns

    @classmethod
    def of(cls, record: Record, arguments: int) -> KeptPart:
        """Of what JSON held; raises ValueError, KeyError or TypeError where that is no part."""
        part = cls(**record)
        part.results[:] = [tuple(r) if isinstance(r, list) else r for r in part.results]
        texts = (part.program, part.compiled, part.code, part.origin)
        if not (
            len(part.weights) == arguments
            and all(isinstance(w, bool) for w in part.weights)
            and all(isinstance(t, str) for t in (*texts, *part.lossy))
            and all(_is_result(r) for r in part.results)
        ):
            raise ValueError("not a part")
        return part


def _is_result(value: Output) -> bool:
    if isinstance(value, tuple):
        kind, at, order = value
        return (kind == "out" and isinstance(at, int)
                and sorted(order) == list(range(len(order))))  # fmt: skip
    return value is None or isinstance(value, (bool, int, float))


@contextlib.contextmanager
def cache_in(folder: str | None) -> Iterator[None]:
    """Compiled code is looked for and kept in a folder."""
    before = os.environ.get("TESSERA_CACHE_DIR")
    if folder is not None:
        os.environ["TESSERA_CACHE_DIR"] = folder
    try:
        yield
    finally:
        if folder is not None:
            if before is None:
                del os.environ["TESSERA_CACHE_DIR"]
            else:
                os.environ["TESSERA_CACHE_DIR"] = before


def like(x: Value, device: str) -> Value:
    """A tensor to trace with in place of one, of no values."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout is not torch.strided:
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


class LaterGraph:
    """A Dynamo graph, which PyTorch can run, and its ATen graph, made where somebody asks."""

    def __init__(self, module: GraphModule, trace: Callable[[], GraphModule]) -> None:
        self._dynamo, self._trace = module, trace

    @functools.cached_property
    def _module(self) -> GraphModule:
        return self._trace()

    def __getattr__(self, name: str) -> Value:
        return getattr(self._module, name)

    def __call__(self, *args: Object) -> Value:
        return self._dynamo(*args)


class Kept:
    """The place of one Dynamo graph's program; `key` is None where it cannot be kept."""

    def __init__(self, module: GraphModule, inputs: Values) -> None:
        self.module, self._placeholders = module, len(inputs)
        self.direct: torch.nn.Module | None = None  # runs it without AOTAutograd's wrappers
        try:
            text = "\n".join(_facts(module, inputs))
        except Exception as why:  # also what this version of PyTorch does not have
            log.info("tessera: a program is not kept on disk: %s", why)
            self.key: str | None = None
        else:
            self.key = digest(text)

    def read(self) -> KeptPart | None:
        """What was kept, where it was made as it would be now."""
        record = kept_json(self.key) if self.key is not None else None
        if record is None:
            return None
        try:
            part = KeptPart.of(record, self._placeholders)
        except (ValueError, KeyError, TypeError) as error:  # of another build
            log.info("tessera: a kept program cannot be read: %s", error)
            return None
        return part if part.origin == origin() + own_key() else None

    def write(self, **facts: Value) -> None:
        """Keeps the program of a graph that is one part; `facts`: of a KeptPart."""
        if self.key is not None and all(_is_result(r) for r in facts["results"]):
            _core.store_text(self.key, json.dumps(dataclasses.asdict(KeptPart(**facts))))

    def is_all(self, graph: GraphModule, meta: ViewAndMutationMeta | None) -> bool:
        """Whether calls need nothing beyond the graph (changed inputs, results that are views of
        inputs or of each other, subclasses)."""
        from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta

        plain = (OutputType.non_alias, OutputType.unsafe_view_alias)
        return (
            self.key is not None
            and meta is not None
            and len(graph.graph.find_nodes(op="placeholder")) == self._placeholders
            and not any(i.mutates_data or i.mutates_metadata for i in meta.input_info)
            and all(o.output_type in plain for o in meta.output_info)
            and meta.num_intermediate_bases == 0
            and meta.grad_enabled_mutation is None
            and not meta.tokens
            and all(isinstance(m, PlainTensorMeta) for m in meta.subclass_inp_meta)
        )


class _NotKeptError(Exception):
    """What a key cannot say."""


def _facts(module: GraphModule, inputs: Values) -> Iterator[str]:
    """All that the ATen graph of a Dynamo graph follows from."""
    if torch.is_grad_enabled() or torch._C._is_any_autocast_enabled():
        raise _NotKeptError("gradients or autocast are on")
    yield f"{version} {torch.__version__} {torch.version.git_version}"
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


def _input(value: Value) -> str:
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor):
        raise _NotKeptError(f"an input that is a {type(value).__name__}")
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        raise _NotKeptError("an input that is not plain")
    if not all(isinstance(d, int) for d in (*value.shape, *value.stride(), value.storage_offset())):
        raise _NotKeptError("an extent that is a symbol")
    return repr((isinstance(value, torch.nn.Parameter), value.dtype, tuple(value.shape),
                 value.stride(), value.storage_offset(), value.device,
                 value.requires_grad))  # fmt: skip


def _is_pytorchs(target: Target) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in ("aten", "prims")
    module = getattr(target, "__module__", None) or ""
    return type(target).__name__ == "builtin_function_or_method" or module in (
        "torch.functional", "torch.nn.functional", "_operator")  # fmt: skip


@functools.cache
def origin() -> str:
    """Names the code that imports, and the machine that programs are for."""
    folder = Path(__file__).parent / "frontends" / "torch"
    code = "".join(p.read_text() for p in sorted(folder.glob("*.py")))
    return digest(f"{version} {_core.machine()['isa']} {code}")


def own_key() -> str:
    """Changes with each pattern that does not ship, and with what is known of its bodies; "" where
    there is none."""
    folders = own_pattern_folders()
    if not folders:
        return ""
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
