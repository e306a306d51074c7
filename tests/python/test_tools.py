"""The house-keeping tools fail when they should."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tools import check_layers, op_footprint, size


@pytest.mark.parametrize(
    ("source", "included"),
    [
        ("ir/graph.h", "base/error.h"),
        ("ir/graph.h", "ir/types.h"),
        ("verify/funnel.h", "eval/eval.h"),
        ("search/engine.h", "cost/model.h"),
        ("search/mugraph/engine.cpp", "search/engine.h"),
        ("search/mugraph/engine.cpp", "search/mugraph/value.h"),
        ("search/rules/rule.h", "search/synth/node.h"),
        ("backend/registry.cpp", "backend/cpu/emit.h"),
        ("driver/optimize.cpp", "backend/cpu/emit.h"),
        ("driver/api.cpp", "tessera/tessera.h"),
    ],
)
def test_layers_allow_what_stands_to_the_left(source: str, included: str) -> None:
    assert check_layers.offence(Path(source), included, quoted=True) is None


@pytest.mark.parametrize(
    ("source", "included", "reason"),
    [
        ("ir/graph.h", "eval/eval.h", "stands above"),
        ("verify/funnel.h", "cost/model.h", "siblings"),
        ("search/engine.h", "plan/layout.h", "siblings"),
        ("search/engine.h", "search/mugraph/value.h", "closed"),
        ("search/mugraph/x.h", "search/synth/y.h", "closed"),
        ("search/rules/x.h", "search/mugraph/y.h", "closed"),
        ("backend/cpu/emit.h", "backend/cuda/emit.h", "siblings"),
        ("ir/graph.h", "types.h", "full path"),
        ("ir/graph.h", "../base/error.h", "full path"),
        ("ir/graph.h", "tensor/graph.h", "not a folder"),
        ("backend/measure.h", "tessera/tessera.h", "public header"),
    ],
)
def test_layers_refuse_the_rest(source: str, included: str, reason: str) -> None:
    found = check_layers.offence(Path(source), included, quoted=True)
    assert found is not None
    assert reason in found


def test_public_headers_need_nothing_that_is_not_installed(tmp_path: Path) -> None:
    folder = tmp_path / "tessera"
    folder.mkdir()
    (folder / "a.h").write_text("#include <vector>\n")
    (folder / "b.h").write_text('#include <map>\n#include "tessera/a.h"\n')
    assert list(check_layers.public_offences(tmp_path)) == []
    (folder / "a.h").write_text('#include "base/error.h"\n')
    (folder / "b.h").write_text("#include <string>\n#include <nanobind/nanobind.h>\n")
    first, second = check_layers.public_offences(tmp_path)
    assert "a.h:1:" in first
    assert "b.h:2:" in second


def test_layers_read_real_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ir"
    folder.mkdir()
    (folder / "a.h").write_text('#include <vector>\n#include "base/error.h"\n')
    assert check_layers.main(["", str(tmp_path), str(tmp_path / "tessera")]) == 0
    (folder / "b.cpp").write_text('#pragma once\n  # include "driver/optimize.h"\n')
    assert check_layers.main(["", str(tmp_path), str(tmp_path / "tessera")]) == 1
    assert "b.cpp:2:" in capsys.readouterr().out


def test_one_name_for_one_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ir").mkdir()
    type_in = "namespace {} {{\nclass View {{\n}};\n}}  // {}\n"
    (tmp_path / "ir" / "a.h").write_text(type_in.format("tessera", "namespace tessera"))
    (tmp_path / "ir" / "b.h").write_text(type_in.format("tessera::more", "namespace"))
    own = type_in.format("", "namespace").replace("namespace  {", "namespace {")
    (tmp_path / "ir" / "c.cpp").write_text("namespace tessera {\n" + own + "}  // namespace\n")
    assert check_layers.main(["", str(tmp_path), str(tmp_path / "tessera")]) == 0
    (tmp_path / "ir" / "d.h").write_text(type_in.format("tessera", "namespace tessera"))
    assert check_layers.main(["", str(tmp_path), str(tmp_path / "tessera")]) == 1
    assert "d.h:2: there is a tessera::View in" in capsys.readouterr().out


def _package(folder: Path, **modules: str) -> Path:
    """A package of these modules; `a__b` is a.b."""
    package = folder / "tessera"
    for name, text in modules.items():
        path = (package / name.replace("__", "/")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


@pytest.mark.parametrize(
    ("modules", "offence"),
    [
        ({"tensor": "from tessera.errors import Error"}, ""),
        ({"ops__index": "from tessera.ops.shape import pad", "ops__shape": ""}, ""),
        ({"errors": "from tessera import tensor", "tensor": ""}, "'tensor' stands above 'errors'"),
        ({"ops__x": "import tessera.cli.app", "cli__app": ""}, "'cli.app' stands above 'ops.x'"),
        ({"onto": "import tessera.errors"}, "'onto' has no layer"),
        ({"files": "from tessera.clock import a", "clock": "import tessera.files"}, "a circle"),
        ({"emit__x": "from tessera.emit import y", "emit__y": "import tessera.emit.x"}, "emit.y"),
    ],
)  # fmt: skip
def test_layers_of_python(
    tmp_path: Path, modules: dict[str, str], offence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "src").mkdir()
    package = _package(tmp_path, **modules)
    code = check_layers.main(["", str(tmp_path / "src"), str(package)])
    assert code == (1 if offence else 0)
    assert offence in capsys.readouterr().out


def test_type_checkers_may_see_circles(tmp_path: Path) -> None:
    unseen = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tessera.files import f\n"
    )
    package = _package(tmp_path, clock=unseen, files="from tessera.clock import s")
    assert not list(check_layers.python_offences(package))


def test_imports_in_functions_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "def f():\n    from tessera.files import a, b\n    import json\n"
    package = _package(tmp_path, store=body, files="")
    assert not list(check_layers.python_offences(package))
    monkeypatch.setattr(check_layers, "MOST_IMPORTS_IN_FUNCTIONS", 0)
    (found,) = check_layers.python_offences(package)
    assert "store.py:2: inside a function" in found


def test_size_refuses_a_long_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "a.cpp"
    file.write_text("int x;\n" * (size.SOFT + 1))
    assert size.main(["", str(tmp_path)]) == 0
    assert "soft" in capsys.readouterr().out
    file.write_text("int x;\n" * (size.HARD + 1))
    assert size.main(["", str(tmp_path)]) == 1


def test_size_refuses_a_blown_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cpp").write_text("int x;\n" * 11)
    monkeypatch.setattr(size, "BUDGET", 10)
    assert size.main(["", str(tmp_path)]) == 1


def test_footprint_counts_files_naming_an_op(tmp_path: Path) -> None:
    for folder in ("src/ir", "src/eval", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/ir/ops.def").write_text("OP(Exp, unary)\nOP(ExpTwo, unary)\n")
    (tmp_path / "src/eval/eval.h").write_text("case OpKind::ExpTwo: break;")
    (tmp_path / "tests/x.cpp").write_text("OpKind::Exp")
    found = op_footprint.footprints(tmp_path)
    assert [len(found["Exp"]), len(found["ExpTwo"])] == [1, 2]


def test_few_files_name_an_operator() -> None:
    counts = [len(files) for files in op_footprint.footprints().values()]
    # Falls as lists of operators become properties in ops.def.
    assert sum(counts) / len(counts) <= 14
    assert max(counts) <= 40
