"""Patterns from Python: both ways of registration, and calls of libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tessera import _core
from tessera.errors import BadInputError, NotFoundError
from tessera.options import users
from tessera.patterns import pattern_places, register, unregister

SCALED = """graph g {
  X = input : f32[24,40]
  m = mean X {axes=[1], keepdims=true}
  y = sub X, m
  z = relu y
  return z
}
"""
CENTRED = """
    x = input : f32[M,N]
    m = mean x {axes=[1], keepdims=true}
    y = sub x, m
    return y"""
KERNEL = """grid[x=M/4] {
    t = iter x {imap={x:0}}
    m = mean t {axes=[1], keepdims=true}
    o = sub t, m
    y = save o {omap={x:0}} : f32[M,N]
    return y
  }"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def graph(text: str) -> Any:
    return ts.Graph.from_core(_core.parse(text, "g.ug"))


def fits(text: str, name: str, **options: Any) -> list[str]:
    found = pattern_places(graph(text), ts.Options(**options))
    return [line for line in found.fits if line.startswith(f"pattern {name} at")]


def test_a_kernel_is_inserted_and_removed_while_running() -> None:
    added = register("centred", CENTRED, kernel=KERNEL, prologue=["x"], epilogue=True)
    assert added.prologue == ("x",)
    assert "epilogue relu" in fits(SCALED, "centred")[0]
    with pytest.raises(NotFoundError):
        unregister("centred", scope="user")
    unregister("centred")
    assert fits(SCALED, "centred") == []
    register("centred", CENTRED, kernel=KERNEL, scope="user", check=False)
    assert (users("patterns") / "centred.pattern").exists()
    unregister("centred", scope="user")


def test_a_kernel_that_is_not_the_meaning_is_refused() -> None:
    with pytest.raises(
        BadInputError, match=r"pattern wrong: the kernel in line \d+: y\[.*where the def gives .*M="
    ):
        register("wrong", CENTRED, kernel=KERNEL.replace("sub t", "add t"))
    with pytest.raises(BadInputError, match=r"wrong\.pattern:\d+"):
        register("wrong", CENTRED, kernel=KERNEL.replace("iter x", "iter z"))
    with pytest.raises(BadInputError, match="one of kernel, body and call"):
        register("wrong", CENTRED)
    with pytest.raises(BadInputError, match="is no name"):
        register("../up", CENTRED, kernel=KERNEL)
    assert fits(SCALED, "wrong") == []


def test_a_graph_is_a_meaning_with_some_sizes_open() -> None:
    program = graph("graph g {" + CENTRED.replace("[M,N]", "[6,10]") + "\n}")
    kernel = KERNEL
    try:
        added = register("centred", program, sizes={"M": 6, "N": 10}, kernel=kernel)
        assert added.inputs == (("x", "f32[M,N]"),)
        assert len(fits(SCALED.replace("z = relu y", "z = neg y"), "centred")) == 1
        fixed = register("centred", program, sizes={"M": 6}, kernel=kernel.replace("N]", "10]"))
        assert fixed.inputs == (("x", "f32[M,10]"),)
    finally:
        unregister("centred")
    with pytest.raises(BadInputError, match=r"a meaning is text, a Graph or a torch\.nn\.Module"):
        register("number", 3, kernel=kernel)
    with pytest.raises(BadInputError, match="two symbols have one extent"):
        register("twice", program, sizes={"M": 6, "N": 6}, kernel=kernel)


def test_an_explicit_graph_with_a_template_is_verified_in_its_place() -> None:
    # The +Graph of a norm, as an expert would draw it for T5: it also fits x / max|x|.
    loops = """    loop0 [M, para]
      loop1 [N, non-para, (reduceAny)]
      loop2 [N, para]"""
    register("centred", CENTRED, loops=loops, kernel=KERNEL, epilogue=True)
    try:
        assert fits(SCALED, "centred")
        absmax = SCALED.replace("m = mean X", "a = abs X\n  m = reduce_max a")
        absmax = absmax.replace("y = sub X, m", "y = div X, m")
        found = pattern_places(graph(absmax))
        assert not any("centred" in line for line in found.fits)
        why = next(line for line in found.nearly if line.startswith("centred at"))
        assert "no values of it give the pattern's meaning" in why
    finally:
        unregister("centred")


def test_a_module_with_code() -> None:
    torch = pytest.importorskip("torch")

    class Norm(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.gain = torch.nn.Parameter(torch.ones(40))

        def forward(self, x: Any) -> Any:
            return (x - x.mean(-1, keepdim=True)) * self.gain

    kernel = KERNEL.replace("o = sub t, m", "c = sub t, m\n    g = iter gain\n    o = mul c, g")
    register("of-module", Norm(), example=[torch.ones(24, 40)], sizes={"M": 24, "N": 40},
             kernel=kernel)  # fmt: skip
    try:
        scaled = SCALED.replace("  m =", "  G = input : f32[40]\n  m =").replace(
            "relu y", "mul G, y"
        )
        assert len(fits(scaled, "of-module")) == 1
    finally:
        unregister("of-module")


LINEAR = """graph g {
  X = input : f16[512,512]
  W = input : f16[512,512]
  y = matmul X, W
  z = relu y
  return z
}
"""
DEF = "x = input : f32[M,K]\n w = input : f32[K,N]\n p = matmul x, w\n y = relu p\n return y"


def test_a_library_is_called_in_five_lines() -> None:
    added = register("linear-relu", DEF, call="cublaslt when M >= 64")
    try:
        assert added.bodies[0]["library"] == "cublaslt"
        assert added.text.endswith("  call cublaslt when M >= 64\n")
        assert len(fits(LINEAR, "linear-relu", target="cuda:sm_90a")) == 1
        assert fits(LINEAR, "linear-relu") == [], "there is no cuBLASLt on a CPU"
        few = LINEAR.replace("X = input : f16[512", "X = input : f16[32")
        assert fits(few, "linear-relu", target="cuda:sm_90a") == []
        register("linear-relu", DEF, call="packed")
        assert len(fits(LINEAR.replace("f16", "f32"), "linear-relu")) == 1
    finally:
        unregister("linear-relu")
    with pytest.raises(BadInputError, match="no library 'sh'; there are cublaslt and cudnn"):
        register("shell", DEF, call="sh")
    with pytest.raises(BadInputError, match="no product or convolution"):
        register("sum", CENTRED, call="packed")
