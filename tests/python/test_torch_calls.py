"""`call torch` in patterns: operators of PyTorch as kernels of compiled programs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from tessera import _core, host_calls, torch_backend, torch_parts  # noqa: E402
from tessera.cli import main  # noqa: E402
from tessera.errors import BadInputError  # noqa: E402
from tessera.patterns import check_pattern, register, unregister  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

PATTERN = """pattern quickgelu
  def {
    x = input : f32[M,N]
    a = input : f32[]
    t = mul x, a
    s = sigmoid t
    y = mul x, s
    r = sum y {axes=[1], keepdims=true}
    return r
  }
  numbers a
  call torch ours.quickgelu(x, a=a)
"""


def quick(x: Any) -> Any:
    return (x * torch.sigmoid(1.702 * x)).sum(-1, keepdim=True)


class Operator:
    """ours::quickgelu, as a package would register it; `fails` for one that does not."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails = False
        self.library = torch.library.Library("ours", "FRAGMENT")
        self.library.define("quickgelu(Tensor x, *, float a) -> Tensor")
        self.library.impl("quickgelu", self, "CPU")

    def __call__(self, x: Any, *, a: float) -> Any:
        self.calls.append((torch.get_num_threads(), torch.is_grad_enabled(), a, type(x)))
        if self.fails:
            raise ValueError("no such luck\nmore of it")
        return (x * torch.sigmoid(a * x)).sum(-1, keepdim=True)


@pytest.fixture
def operator() -> Iterator[Operator]:
    found = Operator()
    host_calls.torch_call.cache_clear()
    yield found
    found.library._destroy()
    host_calls.torch_call.cache_clear()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder with the pattern, and a cache of its own; programs with calls win every race."""
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch_parts, "_seconds", lambda p, _: 2.0 - bool(calls_of(p)))
    path = tmp_path / ".tessera" / "patterns" / "quickgelu.pattern"
    path.parent.mkdir(parents=True)
    path.write_text(PATTERN)
    return path


def calls_of(program: Any) -> list[str]:
    return list(program.module.host_calls)


def compiled(x: Any, function: Any = quick) -> tuple[Any, str]:
    """What a new start of a process runs, and what is told of it."""
    torch._dynamo.reset()
    run = torch.compile(function, backend=torch_backend.tessera)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), function(x), rtol=1e-4, atol=1e-4)
    (part,) = torch_backend.REPORTS[-1].parts
    return part.programs[-1], torch_backend.explain(timed=False, patterns=False)


def test_an_operator_of_one_s_own_is_used_where_its_pattern_fits(
    project: Path, operator: Operator
) -> None:
    x = torch.randn(64, 256)
    program, told = compiled(x)
    assert calls_of(program) == []
    assert "has not been checked here" in told
    found = check_pattern(project)
    assert (found.holds, found.bodies[0].state, found.bodies[0].language) == (
        True, "checked", "torch",
    )  # fmt: skip
    before = torch.get_num_threads()
    for _ in range(2):  # the second start remembers
        operator.calls.clear()
        program, told = compiled(x)
        assert calls_of(program) == [
            '{"op": "ours.quickgelu", "args": [{"operand": 0}], "kwargs": {"a": 1.702}}'
        ]
        assert "own pattern used: pattern quickgelu at" in told
        threads = _core.default_threads()
        assert operator.calls[-1] == (threads, False, 1.702, torch.Tensor)
        assert torch.get_num_threads() == before
    # What watches or converts operators around the program does not reach into it.
    run = torch.compile(quick, backend=torch_backend.tessera)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(x).dtype == torch.float32


def test_what_an_operator_throws_becomes_an_error_and_leaves_the_process_well(
    project: Path, operator: Operator
) -> None:
    x = torch.randn(64, 256)
    check_pattern(project)
    program, _ = compiled(x)
    operator.fails = True
    with pytest.raises(BadInputError, match=r"ours.quickgelu failed: ValueError: no such luck$"):
        program([x])
    operator.fails = False
    torch.testing.assert_close(program([x])[0], quick(x), rtol=1e-4, atol=1e-4)


def test_without_the_operator_its_meaning_is_computed(project: Path, operator: Operator) -> None:
    x = torch.randn(64, 256)
    check_pattern(project)
    program, _ = compiled(x)
    text = str(program.graph)
    assert "written quickgelu" in text
    operator.library._destroy()  # as in a process that has not imported it
    host_calls.torch_call.cache_clear()
    module = _core.compile(_core.parse(text, "kept"))
    assert module.host_calls == []
    found = check_pattern(project)
    assert not found.holds
    assert "torch has no operator ours.quickgelu" in found.why


def test_operators_that_ship_with_pytorch_in_all_float_types(tmp_path: Path) -> None:
    norm = """
    x = input : f32[M,N]
    g = input : f32[N]
    eps = input : f32[]
    q = sqr x
    m = mean q {axes=[1], keepdims=true}
    e = add m, eps
    r = rsqrt e
    z = mul x, r
    y = mul z, g
    return y
"""
    pattern = register("n", norm, numbers=["eps"], call="torch aten.rms_norm(x, [N], g, eps=eps)")
    try:
        assert pattern.bodies[0]["language"] == "torch"
    finally:
        unregister("n")
    gelu = "x = input : f32[M]\ny = gelu_tanh x\nreturn y"
    for how, right in (('"tanh"', True), ('"none"', False)):
        arguments = {"call": f"torch aten.gelu(approximate={how})", "when": "dtype in f32"}
        if right:
            register("g", gelu, **arguments)  # type: ignore[arg-type]
            unregister("g")
        else:
            with pytest.raises(BadInputError, match="its result is not what the def says"):
                register("g", gelu, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("aten.no_such_thing", "torch has no operator aten.no_such_thing"),
        ("load_library.gelu", "torch has no operator"),
        ("aten.softmax", "has no overload .default.; say aten.softmax.int"),
        ("aten.relu_", "writes into its operands"),
        ("aten.rand_like", "draws random numbers"),
        ("aten.save(x, \"/tmp/x\")", "torch has no operator|not give just one tensor"),
        ("aten.max.dim(x, 0)", "does not give just one tensor"),
        ("aten.sum(x)", r"gives torch.float32\[\], not torch.float32\["),
        ("aten.to.dtype(x, 7)", "gives torch.float64"),
        ("aten.relu(x, 1)", "aten.relu failed: "),
    ],
)  # fmt: skip
def test_what_may_not_be_called(call: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "p.pattern"
    meaning = "x = input : f32[M,N]\ny = relu x\nreturn y"
    path.write_text(
        f"pattern p\n  def {{\n{meaning}\n}}\n  when dtype in f32\n  call torch {call}\n"
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        found = check_pattern(path)
    assert not found.holds
    assert __import__("re").search(why, found.why), found.why


def test_modules_that_register_operators_are_imported_on_request(
    project: Path, monkeypatch: Any, capsys: Any
) -> None:
    (project.parents[2] / "our_operators.py").write_text(
        "import torch\n"
        "@torch.library.custom_op('theirs::quickgelu', mutates_args=())\n"
        "def quickgelu(x: torch.Tensor, a: float) -> torch.Tensor:\n"
        "    return (x * torch.sigmoid(a * x)).sum(-1, keepdim=True)\n"
    )
    project.write_text(PATTERN.replace("ours.", "theirs."))
    assert main(["patterns", "check", str(project)]) == 1
    assert "--import MODULE" in capsys.readouterr().out
    assert main(["patterns", "check", str(project), "--import", "our_operators"]) == 0
    assert "torch checked" in capsys.readouterr().out
    assert main(["patterns", "check", str(project), "--import", "no.such.module"]) != 0
    x = torch.randn(64, 256)
    assert calls_of(compiled(x)[0])
