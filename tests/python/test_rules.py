"""Rules from Python and the command line: learning, keeping, checking, and files that are none."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tessera import rules
from tessera.cli import main
from tessera.errors import BadInputError
from tessera.options import shipped

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = """
import numpy as np

def trace(A: "f32[60,40]", B: "f32[40,60]"):
    return np.trace(A @ B)

def doubled(A: "f32[60,40]"):
    return np.exp(A) + np.exp(A)

def not_annotated(A):
    raise AssertionError("never called")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of our own, and rules that ship nowhere."""
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tessera.options.shipped", lambda name: None)
    return tmp_path


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    path = tmp_path / "programs.py"
    path.write_text(PROGRAMS)
    return path


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, Any]:
    code = main([*args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_what_is_learnt_is_kept_and_known_next_time(
    own: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = as_json(capsys, "rules", "learn", str(programs))
    assert code == 0
    assert found["file"] == str(own / "cache" / "rules" / "learnt.rules")
    equations = {f"{r['left']} = {r['right']}" for r in found["rules"]}
    assert any(e.startswith("sum(diagonal(A @ B)") for e in equations), equations
    assert all(r["learned"].startswith("from programs/") for r in found["rules"])
    names = [r["name"] for r in found["rules"]]
    code, listed = as_json(capsys, "rules", "list", "diagonal")
    assert code == 0
    assert [r["name"] for r in listed["rules"]] == [n for n in names if "diagonal" in n]
    assert main(["rules", "show", names[0]]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"rule {names[0]}\n")
    assert "learnt.rules:1" in shown
    code, again = as_json(capsys, "rules", "learn", str(programs))
    assert again["rules"] == []
    assert again["counts"]["derived"] > 0
    assert main(["rules", "check", "--instances", "8"]) == 0
    assert f"{len(names)} rules, {len(names)} hold" in capsys.readouterr().out


def test_optimize_learns_when_it_is_told_to(
    own: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"{programs}:trace"
    assert main(["optimize", source, "--emit", "numpy", "--budget", "2"]) == 0
    assert not (own / "cache" / "rules").exists()
    capsys.readouterr()
    assert main(["optimize", source, "--emit", "numpy", "--budget", "2", "--learn"]) == 0
    assert re.search(r"[1-9] new rules kept in ", capsys.readouterr().err.replace("\n", " "))
    assert rules.load_rules()


def test_searches_apply_rules(
    programs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    search = ["search", f"{programs}:trace", "--engine", "synth", "--json"]

    def derivations(*more: str) -> str:
        assert main([*search, *more]) == 0
        return "\n".join(c["derivation"] for c in json.loads(capfd.readouterr().out)["candidates"])

    assert "[rule diagonal-of-product" in derivations()
    assert "[rule " not in derivations("--disable", "rules")
    # A user's own file that is malformed is left out, and said so.
    own = tmp_path / "cache" / "rules" / "bad.rules"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("rule a\n  nonsense\n")
    assert main(search) == 0
    assert "bad.rules:2:11: expected '['" in capfd.readouterr().err


def test_stated_rules_are_generalised_and_wrong_ones_refused(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = own / "stated.rules"
    stated.write_text(
        "rule factor\n  A [m n], B [m n], C [m n]\n  A * C + B * C = (A + B) * C\n\n"
        "rule wrong\n  A [m n], B [m n]\n  A - B = B - A\n"
    )
    target = own / "general.rules"
    assert main(["rules", "learn", str(stated), "-o", str(target)]) == 0
    (rule,) = rules.read_rules(target)
    assert (rule.name, rule.learned) == ("factor", "as stated in textbooks")
    assert "  A [...], B [...], C [...]\n" in rule.text
    assert not (own / "cache").exists()
    capsys.readouterr()
    code, checked = as_json(capsys, "rules", "check", str(stated))
    assert code == 1
    assert [r["holds"] for r in checked["rules"]] == [True, False]
    assert "refuted" in checked["rules"][1]["why"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule a\n  A [m]\n  A + B = A\n", "bad.rules:3:7: error: 'B' is not declared"),
        ("rule a\n  A [m]\n  __import__('os') = A\n", "bad.rules:3:14: error: expected a variable"),
        ("import os\n", "bad.rules:1:1: error: expected 'rule', not 'import os'"),
        ("rule a\n  A [m]\n  A + A = " + "(" * 5000 + "\n", "nested more than 60 deep"),
    ],
)
def test_files_that_are_no_rules(
    own: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    bad = own / "bad.rules"
    bad.write_text(text)
    assert main(["rules", "check", str(bad)]) == 65
    assert message in re.sub(r"\s+", " ", capsys.readouterr().err)
    with pytest.raises(BadInputError):
        rules.read_rules(bad)


def test_wrong_use(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "learn"]) == 64
    assert "--exercises" in capsys.readouterr().err
    assert main(["rules", "learn", "--exercises", "1", "--instances", "0"]) == 64
    assert "from 1 to" in capsys.readouterr().err
    assert main(["rules", "show", "no-such-rule"]) == 65
    assert "tessera rules list" in capsys.readouterr().err
    plain = own / "plain.py"
    plain.write_text("def f(x):\n    return x\n")
    assert main(["rules", "learn", str(plain)]) == 65
    assert "write them as annotations" in capsys.readouterr().err
    assert main(["rules", "check"]) == 65
    assert "there are no rules" in capsys.readouterr().err


def test_a_solver_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    z3 = shutil.which("z3", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if z3 is None:
        pytest.skip("no Z3")
    file = str(ROOT / "rules" / "order.rules")
    code, found = as_json(capsys, "rules", "check", file, "--instances", "2", "--z3", z3)
    assert code == 0
    agreed = sum(r["agreed"] > 0 for r in found["rules"])
    assert agreed > 0.8 * len(found["rules"])


def test_the_rules_that_ship_are_found() -> None:
    known = rules.load_rules(sorted((ROOT / "rules").glob("*.rules")))
    assert shipped("rules") == ROOT / "rules"
    assert len(known) > 100
    assert len({r.name for r in known}) == len(known)
