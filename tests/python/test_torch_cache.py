"""Programs of graphs that are kept on disk: read where they are the same, and only there."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from tessera import torch_backend, torch_cache, torch_compare, torch_parts  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


class Traced:
    """Counts the graphs that AOTAutograd traces."""

    def __init__(self, monkeypatch: Any) -> None:
        self.count = 0
        real: Any = torch_backend.aot_autograd  # type: ignore[attr-defined]

        def counting(**kwargs: Any) -> Any:
            self.count += 1
            return real(**kwargs)

        monkeypatch.setattr(torch_backend, "aot_autograd", counting)

    def during(self, folder: Path, model: Any, *inputs: Any, grad: bool = False) -> int:
        """How many, of a model that begins anew; its results are compared."""
        before = self.count
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="tessera", options={"cache_dir": str(folder)})
        with torch.set_grad_enabled(grad):
            copies = [x.clone() for x in inputs]
            for _ in range(2):
                got, want = compiled(*inputs), model(*copies)
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(inputs, tuple(copies), rtol=1e-5, atol=1e-5)
                assert got.stride() == want.stride()
        return self.count - before


@pytest.fixture
def traced(monkeypatch: Any) -> Traced:
    return Traced(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"  # which nobody has made yet


def scaled(by: float) -> Callable[[Any], Any]:
    return lambda x: torch.softmax(x * by, -1) + 1


def test_a_graph_is_traced_once(traced: Traced, folder: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    x = torch.randn(600, 16)
    assert traced.during(folder, model, x) == 1
    assert traced.during(folder, model, x) == 0
    assert folder.stat().st_mode & 0o777 == 0o700  # as the core wants it
    (part,) = (p for r in torch_backend.REPORTS for p in r.parts)
    assert part.weights.bytes  # which are known to be weights
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert traced.during(folder, model, torch.randn(600, 16)) == 0


def test_another_graph_is_another(traced: Traced, folder: Path) -> None:
    x = torch.randn(8, 16)
    assert traced.during(folder, scaled(2.0), x) == 1
    assert traced.during(folder, scaled(2.0), x) == 0
    assert traced.during(folder, scaled(3.0), x) == 1
    for last in (2.5, 3.5):
        model = lambda x, last=last: x * torch.tensor([1.5, last]).repeat(8)  # noqa: E731
        assert traced.during(folder, model, x) == 1
        assert traced.during(folder, model, x) == 1  # constants of its own: nothing is kept
    assert traced.during(folder, scaled(2.0), torch.randn(9, 16)) == 1
    assert traced.during(folder, scaled(2.0), torch.randn(16, 8).t()) == 1
    assert traced.during(folder, scaled(2.0), x.double()) == 1
    torch.use_deterministic_algorithms(True)
    try:
        assert traced.during(folder, scaled(2.0), x) == 1
    finally:
        torch.use_deterministic_algorithms(False)


def kept(folder: Path) -> list[Path]:
    """Files of kept programs."""
    return [f for f in folder.glob("objects/*.txt") if f.read_bytes().startswith(b'{"weights"')]


NOT_KEPT: dict[str, Callable[[Any], Any]] = {
    "an argument is changed": lambda x: x.mul_(0.5).exp(),
    "a result is a view of an argument": lambda x: x.t(),
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_needs_more_than_the_graph_is_traced(name: str, traced: Traced, folder: Path) -> None:
    x = torch.randn(8, 16)
    first = traced.during(folder, NOT_KEPT[name], x)
    assert traced.during(folder, NOT_KEPT[name], x) == first
    assert not kept(folder)


def test_gradients_are_traced(traced: Traced, folder: Path) -> None:
    model, x = torch.nn.Linear(16, 16), torch.randn(8, 16)
    assert traced.during(folder, model, x, grad=True) == 1
    assert traced.during(folder, model, x, grad=True) == 1
    assert traced.during(folder, model, x) == 1
    for _ in range(2):
        assert traced.during(folder, scaled(2.0), x, grad=True) == 1


def plant(folder: Path, file: Path, content: bytes) -> None:
    """Puts other content in the place of a kept file, hashes and all."""
    (index,) = (i for i in folder.glob("index/*") if i.read_text().startswith(file.stem))
    digest = hashlib.sha256(content).hexdigest()
    (folder / "objects" / f"{digest}.txt").write_bytes(content)
    index.write_text(f"{digest} .txt {index.name}\n")


def test_a_damaged_or_foreign_file_is_not_read(traced: Traced, folder: Path) -> None:
    x = torch.randn(8, 16)
    assert traced.during(folder, scaled(2.0), x) == 1
    (file,) = kept(folder)
    whole = file.read_bytes()
    file.write_bytes(whole[:-50])
    assert traced.during(folder, scaled(2.0), x) == 1
    assert traced.during(folder, scaled(2.0), x) == 0
    for text in (b"[]", b"{}", b"null", b"1e999", b"[" * 100_000, whole.replace(b'"out"', b'"in"'),
                 whole.replace(b"[false]", b"[0, 1]"), whole[:40]):  # fmt: skip
        plant(folder, file, text)
        assert traced.during(folder, scaled(2.0), x) == 1
        assert traced.during(folder, scaled(2.0), x) == 0
    folder.chmod(0o777)
    assert traced.during(folder, scaled(2.0), x) == 1


def test_another_program_is_not_run(traced: Traced, folder: Path, caplog: Any) -> None:
    """One whose results PyTorch does not agree with: PyTorch runs the graph."""
    x = torch.randn(8, 16)
    assert traced.during(folder, scaled(2.0), x) == 1
    (file,) = kept(folder)
    whole = json.loads(file.read_text())
    assert traced.during(folder, scaled(3.0), x) == 1
    (other,) = {*kept(folder)} - {file}
    plant(folder, file, json.dumps({**json.loads(other.read_text())}).encode())
    assert whole["weights"] == json.loads(other.read_text())["weights"]
    with caplog.at_level(logging.WARNING, "tessera.torch"):
        traced.during(folder, scaled(2.0), x)  # compares the results
    assert "differs from PyTorch's" in caplog.text


def test_no_pickle_is_loaded(traced: Traced, folder: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "loaded"),)

    x = torch.randn(8, 16)
    traced.during(folder, scaled(2.0), x)
    evil = pickle.dumps((set(), Evil()))
    graphs = folder / "graphs"  # where pickles were once
    graphs.mkdir(mode=0o700, exist_ok=True)
    for index in folder.glob("index/*"):
        for end in (".pickle", ".part"):
            (graphs / f"{index.name}{end}").write_bytes(evil)
    (file,) = kept(folder)
    plant(folder, file, evil)
    for place in (*graphs.iterdir(), *folder.glob("objects/*.txt")):
        place.write_bytes(evil)
    assert traced.during(folder, scaled(2.0), x) == 1
    assert not (tmp_path / "loaded").exists()


def test_no_source_loads_pickles() -> None:
    package = Path(torch_cache.__file__).parent
    loading = re.compile(
        r"pickle\.load|Pickler\.load|marshal\.load|shelve\.|torch\.load|allow_pickle=True"
    )
    files = [*package.rglob("*.py")]
    assert len(files) > 50
    assert not [f.name for f in files if loading.search(f.read_text())]


def test_each_process_compares(traced: Traced, folder: Path, monkeypatch: Any) -> None:
    compared = [0]
    differ: Any = torch_parts.disagreement  # type: ignore[attr-defined]
    refuse = [True]  # what was refused is not kept

    def comparing(*args: Any) -> Any:
        compared[0] += 1
        return "not so" if refuse[0] else differ(*args)

    monkeypatch.setattr(torch_parts, "disagreement", comparing)
    x = torch.randn(8, 16)
    traced.during(folder, scaled(2.0), x)
    assert compared[0] == 1
    assert not kept(folder)
    refuse[0] = False
    traced.during(folder, scaled(2.0), x)
    assert compared[0] == 2
    assert kept(folder)
    traced.during(folder, scaled(2.0), x)
    assert compared[0] == 3
    traced.during(folder, scaled(3.0), x)  # other code
    assert compared[0] == 4


def test_a_graph_that_is_one_part_is_not_traced_again(
    traced: Traced, folder: Path, monkeypatch: Any
) -> None:
    built = [0]
    build: Any = torch_parts.build  # type: ignore[attr-defined]

    def building(*args: Any) -> Any:
        built[0] += 1
        return build(*args)

    monkeypatch.setattr(torch_parts, "build", building)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    x = torch.randn(600, 16)
    traced.during(folder, model, x)
    assert built == [1]
    assert traced.during(folder, model, x) == 0
    assert built == [1]
    (report,) = torch_backend.REPORTS[-1:]
    assert report.operators > 2
    assert report.parts[0].weights.bytes
    assert report.parts[0].kernels == report.parts[0].programs[-1].kernels
    assert "kernels a call" in torch_backend.explain(timed=False)  # asks for the graph
    # Where results are not alike at first sight, the graph in f64 decides.
    monkeypatch.setattr(torch_compare, "difference", lambda *_: "by some")
    assert traced.during(folder, model, x) == 1
    assert built == [1]
    # Where it would become other code, the graph is traced and everything done again.
    monkeypatch.setattr(torch_parts, "digest", lambda text: "other")
    assert traced.during(folder, model, x) == 1
    assert built == [2]
