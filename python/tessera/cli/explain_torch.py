"""`tessera explain model.py` of a PyTorch model: what becomes of it under torch.compile."""

from __future__ import annotations

import inspect
import re
import time
import timeit
from collections.abc import Mapping
from pathlib import Path

from tessera.cli import common
from tessera.errors import BadInputError, Location
from tessera.files import read_text
from tessera.options import package
from tessera.source import run_file
from tessera.types import Arguments, Function, Record, Value

_IMPORTS_TORCH = re.compile(r"^\s*(import|from)\s+torch\b", re.MULTILINE)
_RUNS = 5


Found = tuple[Value, Arguments, Record]  # a model, and what it is called with


def model_in(src: str) -> Found | None:
    """A file's PyTorch model with example arguments; None where SRC is something else.

    The model is the file's `model`, or the name behind the colon: a torch.nn.Module, or a class or
    function that makes one. `example_inputs`: a tensor, a tuple of arguments, a dict of keyword
    arguments, or a function that returns one of these.
    """
    path, _, name = src.partition(":") if ".py:" in src else (src, "", "")
    if not path.endswith(".py") or not Path(path).exists():
        return None
    if not _IMPORTS_TORCH.search(read_text(Path(path))):
        return None
    torch = package("torch", f"{path} uses PyTorch, which is not installed")
    names = run_file(Path(path))
    where = Location(path)
    model = names.get(name or "model")
    own = names["__name__"]
    modules = [n for n, v in names.items() if isinstance(v, type)
               and issubclass(v, torch.nn.Module) and v.__module__ == own]  # fmt: skip
    if model is None:
        if not name and modules:
            raise BadInputError(
                f"which model is to be explained? Write model = {modules[0]}(...), or name it: "
                f"{path}:{modules[0]}", where)  # fmt: skip
        return None
    if callable(model) and not isinstance(model, torch.nn.Module):
        if not isinstance(model, type) and not name and inspect.signature(model).parameters:
            return None  # a function of arrays
        model = _made(model, name or "model", where)
    if not isinstance(model, torch.nn.Module):
        return None
    if "example_inputs" not in names:
        raise BadInputError("example_inputs is missing: write example_inputs = "
                            "(torch.randn(...),), the arguments of one call, or a dict of them",
                            where)  # fmt: skip
    given = names["example_inputs"]
    given = _made(given, "example_inputs", where) if callable(given) else given
    if isinstance(given, Mapping):
        return model, (), dict(given)
    return model, tuple(given) if isinstance(given, (tuple, list)) else (given,), {}


def _made(function: Function, name: str, where: Location) -> Value:
    try:
        return function()
    except Exception as error:
        raise BadInputError(
            f"{name}() failed: {type(error).__name__}: {error}; it is called without arguments",
            where) from error  # fmt: skip


def explain_model(found: Found, src: str, as_json: bool) -> int:
    """Compiles and runs the model, and prints kernels with their times, patterns and the rest."""
    import torch

    from tessera import torch_backend

    model, args, kwargs = found
    model.eval()
    compiled = torch.compile(model, backend="tessera", options={"wait": True})

    def seconds(function: Function) -> float:
        return min(timeit.repeat(lambda: function(*args, **kwargs), number=1, repeat=_RUNS))

    with torch.no_grad():
        try:
            model(*args, **kwargs)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise BadInputError(f"the model does not run with example_inputs: {why}",
                                Location(src)) from error  # fmt: skip
        start = time.perf_counter()
        compiled(*args, **kwargs)
        first = time.perf_counter() - start
        ours, eager = seconds(compiled), seconds(model)
    reports, text = torch_backend.REPORTS, torch_backend.explain()
    facts = {
        "model": type(model).__name__, "graphs": len(reports), "first_s": first,
        "ours_us": ours * 1e6, "eager_us": eager * 1e6,
        "operators": sum(r.operators for r in reports), "kernels": sum(r.kernels for r in reports),
        "eager": {n: why for r in reports for n, why in r.eager.items()},
    }  # fmt: skip
    if as_json:
        common.print_json({**facts, "lines": text.splitlines()})
        return 0
    console = common.stdout()
    times = f"{common.duration(ours)} a call, PyTorch's eager {common.duration(eager)}"
    console.print(f"[bold]{facts['model']}[/]: {times}; ready after {first:.1f} s", highlight=False)
    console.print(text, markup=False, highlight=False)
    return 0
