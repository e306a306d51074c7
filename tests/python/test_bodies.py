"""Bodies that a person wrote: their states, registration with code, and use by the optimizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tessera import _core
from tessera.cli.app import run
from tessera.errors import BadInputError
from tessera.options import shipped, users
from tessera.patterns import body_states, check_pattern, read_pattern, register, unregister

NORM = """pattern t5norm
  def {
    x = input : f32[M,N]
    eps = input : f32[]
    q = sqr x
    m = mean q {axes=[1], keepdims=true}
    e = add m, eps
    r = rsqrt e
    y = mul x, r
    return y
  }
  numbers eps
  prologue x
  epilogue
  when dtype in f32
  code cpu for m = M {
    vec s = fill(0);
    for (long j = 0; j < N; j += lanes) s += vload(x, m, j) * vload(x, m, j);
    const float r = 1 / sqrt(add_lanes(s) / N + eps);
    for (long j = 0; j < N; j += lanes) vstore(y, m, j, vload(x, m, j) * r);
  }
"""
CENTRED = """
    x = input : f32[M,N]
    m = mean x {axes=[1], keepdims=true}
    y = sub x, m
    return y"""
CODE = """for m = M when dtype in f32 {
    float s = 0;
    for (long j = 0; j < N; j++) s += load(x, m, j);
    for (long j = 0; j < N; j++) store(y, m, j, load(x, m, j) - s / N);
  }"""
PROGRAM = """graph g {
  X = input : f32[24,40]
  m = mean X {axes=[1], keepdims=true}
  y = sub X, m
  z = relu y
  return z
}
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_screen_of_the_docs(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "patterns.md").read_text()
    example = text.split("```")[1].strip("\n") + "\n"
    (own / "t5norm.pattern").write_text(example)
    assert "pattern t5norm" in "\n".join(text.splitlines()[:8])
    assert run(["patterns", "check", "t5norm.pattern"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("t5norm: holds: proved ")
    assert "cpu checked (" in said
    # Lines of pattern and kernel, beside PluS's 18 and 129.
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 20


def test_states_are_told(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = own / "t5norm.pattern"
    path.write_text(NORM)
    assert [s.state for s in body_states(read_pattern(path))] == ["unchecked"]
    assert run(["patterns", "add", str(path), "--project"]) == 0
    capsys.readouterr()
    assert run(["patterns", "list", "t5norm", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["patterns"][0]
    assert (listed["code"][0]["state"], listed["code"][0]["language"]) == ("checked", "cpp")
    assert listed["code"][0]["runs"] > 10
    # Changed by one blank it is another text, which nobody has run.
    path.write_text(NORM.replace("fill(0)", "fill( 0)"))
    assert [s.state for s in body_states(read_pattern(path))] == ["unchecked"]
    path.write_text(NORM.replace("/ N + eps", "/ (N - 1) + eps"))
    found = check_pattern(path)
    assert not found.holds
    assert found.why.startswith("the body in line 16: its result is not what the def says: ")
    assert [s.state for s in body_states(read_pattern(path))] == ["refused"]
    assert run(["patterns", "check", str(path)]) == 1
    assert run(["patterns", "list"]) == 0


def test_what_ships_is_unchecked_until_it_is_checked(own: Path) -> None:
    folder = shipped("patterns")
    assert folder is not None
    path = folder / "rmsnorm.pattern"
    assert {s.state for s in body_states(read_pattern(path))} == {"unchecked"}
    assert check_pattern(path).holds
    assert {s.state for s in body_states(read_pattern(path))} == {"checked"}


def test_raw_cuda_is_never_more_than_compiled_without_a_gpu(own: Path) -> None:
    path = own / "raw.pattern"
    code = "{ store(y, m, 0, load(x, m, 0)); __syncthreads(); }"
    path.write_text(NORM + f"  code cuda raw for m = M threads 32 {code}\n")
    states = check_pattern(path).bodies
    assert states[0].state == "checked"
    assert states[1].state in ("unchecked", "compiled-only")


def test_a_meaning_with_code_is_used_and_says_how_far_it_is_proved() -> None:
    program = ts.Graph.from_core(_core.parse(PROGRAM, "g.ug"))
    with pytest.raises(BadInputError, match=r"pattern centred: the body in line \d+: .*loads x\["):
        register("centred", CENTRED, code={"cpu": CODE.replace("j < N; j++) s", "j <= N; j++) s")})
    with pytest.raises(BadInputError, match="code is for cpu, cuda or cuda raw"):
        register("centred", CENTRED, code={"gpu": CODE})
    register("centred", CENTRED, code={"cpu": CODE}, prologue=["x"], epilogue=True)
    try:
        fields = {**ts.Options().fields(), "engine": "patterns"}
        record: Any = _core.search(program.core, fields, None)
        texts = [str(c["graph"]) for c in record["candidates"]]
        assert any("written centred" in text for text in texts), record["report"]["refused"]
    finally:
        unregister("centred")
    assert any((users("patterns").parent / "bodies").iterdir())


def test_a_module_with_code() -> None:
    torch = pytest.importorskip("torch")

    class Centre(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x - x.mean(-1, keepdim=True)

    example = [torch.ones(6, 10)]
    sizes = {"M": 6, "N": 10}
    code = {"cpu": CODE.replace("store(y", "store(t1")}  # what the module's result is called
    text = register("centred", Centre(), example=example, sizes=sizes, code=code).text
    unregister("centred")
    assert "code cpu for m = M" in text
