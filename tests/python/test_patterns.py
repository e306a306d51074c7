"""Patterns from Python and the command line: listing, checking, adding, removing, and their use."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import options, patterns
from tessera.cli import main
from tessera.errors import BadInputError, NotFoundError
from tessera.options import users

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "patterns"
RMSNORM = """graph g {
  X = input : f32[64,96]
  G = input : f32[96]
  q = sqr X
  m = mean q {axes=[1], keepdims=true}
  eps = const {value=0.00001} : f32[]
  e = add m, eps
  r = rsqrt e
  n = mul X, r
  y = mul n, G
  return y
}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder and a working folder of our own."""
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, Any]:
    code = main([*args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_what_ships_is_listed_and_shown(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = as_json(capsys, "patterns", "list")
    names = {p["name"] for p in found["patterns"]}
    assert code == 0
    assert {"matmul", "attention", "layernorm", "rmsnorm", "gated-mlp", "lora"} <= names
    found = as_json(capsys, "patterns", "list", "reduce_max")[1]["patterns"]
    assert {p["name"] for p in found} == {
        "attention",
        "attention-transposed",
        "causal-attention",
        "decode-attention",
        "matmul-softmax",
    }
    assert main(["patterns", "show", "rmsnorm"]) == 0
    out = capsys.readouterr().out
    assert "loop1 [N, non-para, (reduceSum)]" in out
    assert main(["patterns", "show", "rmsnor"]) == NotFoundError("").exit_code
    assert "there is rmsnorm" in capsys.readouterr().err


def test_a_kernel_is_proved_compiled_and_run(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        (SHIPPED / "rmsnorm.pattern").read_text().partition("  code ")[0]
    )  # test_bodies has those
    right = own / "right.pattern"
    right.write_text(text)
    code, found = as_json(capsys, "patterns", "check", str(right),
                          "--sizes", "1", "--cuda", "cuda:sm_80")  # fmt: skip
    assert code == 0
    assert found["patterns"][0]["holds"]
    assert found["patterns"][0]["instances"] > 1
    assert found["patterns"][0]["ran"] == ["cpu", "cuda:sm_80 emulated"]
    wrong = own / "wrong.pattern"
    wrong.write_text(text.replace("e = add m, c", "e = mul m, c"))
    code, found = as_json(capsys, "patterns", "check", str(wrong))
    assert code == 1
    assert "is no finite number where the def gives" in found["patterns"][0]["why"]
    assert main(["patterns", "add", str(wrong)]) == 1
    assert not users("patterns").exists()


def test_what_is_added_is_used_until_it_is_removed(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / "none").mkdir()
    monkeypatch.setattr(options, "shipped", lambda name: own / "none")
    (own / "p.ug").write_text(RMSNORM)
    search = ("search", str(own / "p.ug"), "--engine", "patterns")
    assert as_json(capsys, *search)[1]["candidates"] == []
    assert main(["patterns", "add", str(SHIPPED / "rmsnorm.pattern"), "--unchecked"]) == 0
    capsys.readouterr()
    code, found = as_json(capsys, *search)
    assert code == 0
    assert "pattern rmsnorm at y" in found["candidates"][0]["derivation"]
    assert "epilogue mul" in found["candidates"][0]["derivation"]
    assert main(["patterns", "remove", "rmsnorm"]) == 0
    capsys.readouterr()
    assert as_json(capsys, *search)[1]["candidates"] == []
    # A project's own, found from its folder.
    path = str(SHIPPED / "rmsnorm.pattern")
    assert main(["patterns", "add", path, "--project", "--unchecked"]) == 0
    assert (own / ".tessera" / "patterns" / "rmsnorm.pattern").exists()
    capsys.readouterr()
    assert as_json(capsys, *search)[1]["candidates"]
    assert as_json(capsys, *search, "--disable", "patterns")[1]["candidates"] == []


def test_what_ships_stays(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patterns", "remove", "rmsnorm"]) == BadInputError("").exit_code
    assert "ships with Tessera" in capsys.readouterr().err
    assert (SHIPPED / "rmsnorm.pattern").exists()


def test_a_bad_file_says_where_and_hurts_nobody(
    own: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = own / ".tessera" / "patterns"
    folder.mkdir(parents=True)
    bad = folder / "bad.pattern"
    bad.write_text(
        "pattern bad\n  def {\n    x = input : f32[M]\n    y = nonsense x\n    return y\n  }\n"
    )
    with pytest.raises(BadInputError) as error:
        patterns.read_pattern(bad)
    assert "bad.pattern:4:9" in str(error.value)
    (own / "p.ug").write_text(RMSNORM)
    assert main(["search", str(own / "p.ug"), "--engine", "patterns", "--json"]) == 0
    assert "pattern left out" in capfd.readouterr().err


def test_broken_files_are_listed_and_the_rest_works(
    own: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own / ".tessera" / "patterns"
    folder.mkdir(parents=True)
    (folder / "binary.pattern").write_bytes(b"\xff\xfe")
    (folder / "empty.pattern").write_text("")
    (folder / "mine.pattern").write_text((SHIPPED / "rmsnorm.pattern").read_text())
    monkeypatch.setattr(options, "shipped", lambda name: own / "none")
    (own / "none").mkdir()
    assert main(["patterns", "list", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [p["name"] for p in found["patterns"]] == ["rmsnorm"]
    assert [Path(b["file"]).name for b in found["broken"]] == ["binary.pattern", "empty.pattern"]
    assert "not UTF-8" in found["broken"][0]["why"]
    assert main(["patterns", "list"]) == 0
    assert "empty.pattern:1:1: expected 'pattern'" in capfd.readouterr().out
    with pytest.warns(RuntimeWarning, match=r"left out \(and 1 more: .*binary.pattern") as warned:
        assert [p.name for p in patterns.load_patterns()] == ["rmsnorm"]
    assert len(warned) == 1
    monkeypatch.setattr("tessera.cli.patterns.check_pattern", lambda *a, **k: patterns.Checked(
        "rmsnorm", True, "", 1, ("cpu",)))  # fmt: skip
    assert main(["patterns", "check"]) == 1
    assert "binary: " in capfd.readouterr().out
    # Searches use what can be read, and say so in a line.
    (own / "p.ug").write_text(RMSNORM)
    assert main(["optimize", str(own / "p.ug"), "--budget", "3", "--disable", "mugraph"]) == 0
    shown = capfd.readouterr()
    assert shown.err.count("pattern left out (and 1 more") == 1
    for name in ("binary", "empty"):
        assert main(["patterns", "remove", name]) == 0
    assert patterns.read_patterns()[1] == []


def test_only_patterns_that_may_fit_outdate_a_result(own: Path) -> None:
    graph = ts.Graph.from_core(ts._core.parse(RMSNORM, "g.ug"))

    def remembered() -> bool:
        result = ts.superoptimize(graph, budget=10, disable=("mugraph", "learnt"))
        return bool(result.details["from_cache"])

    assert not remembered()
    assert remembered()
    folder = own / ".tessera" / "patterns"
    folder.mkdir(parents=True)
    text = (SHIPPED / "attention.pattern").read_text()
    (folder / "a.pattern").write_text(text.replace("pattern attention", "pattern another"))
    (folder / "broken.pattern").write_text("pattern")
    assert remembered(), "it has products and maxima, which the program has not"
    text = (SHIPPED / "rmsnorm.pattern").read_text()
    (folder / "b.pattern").write_text(text.replace("pattern rmsnorm", "pattern mine"))
    assert not remembered(), "it may fit"
    assert remembered()
    (folder / "b.pattern").unlink()
    assert remembered(), "as before"


def test_installed_packages_name_folders_and_are_not_imported(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = own / "kernels_of_ours"
    (package / "patterns").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    info = own / "kernels_of_ours-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels-of-ours\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[tessera.patterns]\nours = kernels_of_ours\nescape = kernels_of_ours:../..\n"
    )
    monkeypatch.syspath_prepend(str(own))
    assert options.installed_patterns() == [(package / "patterns").resolve()]


def test_what_a_search_found_is_listed_removed_and_forgotten(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "p.ug").write_text(RMSNORM)
    # Fused, it is one kernel, and there may be nothing to find.
    without = ("--budget", "20", "--disable", "patterns", "--disable", "plan:fuse")
    run = ("optimize", str(own / "p.ug"), *without)
    assert main([*run]) == 0
    capsys.readouterr()
    found = as_json(capsys, "patterns", "list", "learnt-")[1]
    name = found["patterns"][0]["name"]
    assert (found["learnt"]["patterns"], found["learnt"]["searches"]) == (1, 1)
    assert found["learnt"]["bytes"] > 0
    # Nothing is searched for another program of this meaning, but with --refresh.
    (own / "q.ug").write_text(RMSNORM.replace("sqr X", "mul X, X").replace("X", "Y"))
    again = ("optimize", str(own / "q.ug"), *without)
    assert as_json(capsys, *again)[1]["values"] == 0
    assert as_json(capsys, *again, "--refresh")[1]["values"] > 0
    (options.users("learnt") / "bad.pattern").write_text("pattern bad\n  nonsense")
    assert main(["patterns", "remove", name]) == 0
    assert main(["patterns", "list", "learnt-"]) == 0
    assert "bad.pattern:2:3: expected def" in capsys.readouterr().out
    assert as_json(capsys, *again, "--no-cache")[1]["values"] > 0
    assert main(["patterns", "forget"]) == 0
    assert list(options.users("learnt").iterdir()) == []


def test_optimize_uses_patterns(own: Path) -> None:
    graph = ts.Graph.from_core(ts._core.parse(RMSNORM, "g.ug"))
    result = ts.superoptimize(graph, budget=10, disable=("mugraph", "fold"))
    assert any(c.origin == "patterns" for c in result.candidates)
    x = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    g = np.linspace(0.5, 1.5, 96, dtype=np.float32)
    expected = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5) * g
    np.testing.assert_allclose(result(x, g), expected, rtol=1e-4, atol=1e-5)


def test_explain_tells_what_fits_and_what_nearly_does(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "p.ug").write_text(RMSNORM)
    places = as_json(capsys, "explain", str(own / "p.ug"), "--budget", "2")[1]["patterns"]
    assert any(line.startswith("pattern rmsnorm at y (") for line in places["fits"])
    # The epsilon behind the root: the loops fit, the meaning does not.
    outside = RMSNORM.replace("e = add m, eps", "t = sqrt m").replace(
        "r = rsqrt e", "e = add t, eps"
    )
    outside = outside.replace("n = mul X, r", "n = div X, e").replace("0.00001", "0.01")
    (own / "q.ug").write_text(outside)
    places = as_json(capsys, "explain", str(own / "q.ug"), "--budget", "2")[1]["patterns"]
    assert not any("rmsnorm at" in line for line in places["fits"])
    assert any("no values of it give the pattern's meaning" in line for line in places["nearly"])


def test_places_of_equal_layers_share_a_line(own: Path) -> None:
    body = RMSNORM.split("{", 1)[1].split("  return")[0]
    twin = re.sub(r"\b(X|G|q|m|eps|e|r|n|y)\b(?=[, ]|$)", r"\1_", body, flags=re.MULTILINE)
    text = "graph g {" + body + twin + "  return y, y_\n}\n"
    places = patterns.pattern_places(ts.Graph.from_core(ts._core.parse(text, "g.ug")))
    fits = [line for line in places.fits if line.startswith("pattern rmsnorm at")]
    assert len(fits) == 1
    assert fits[0].endswith("; 1 more places like it")
    off = ts.Options(disable=("patterns",))
    graph = ts.Graph.from_core(ts._core.parse(RMSNORM, "g.ug"))
    assert patterns.pattern_places(graph, off).lines() == []


if os.environ.get("TESSERA_TEST_WAREHOUSE") == "1":

    @pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.pattern")), ids=lambda p: p.stem)
    def test_every_pattern_holds_here_and_emulated(path: Path) -> None:
        checked = patterns.check_pattern(path, cuda="cuda:sm_80")
        assert checked.holds, checked.why
