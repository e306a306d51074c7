"""Types of arguments that a script's own calls tell."""

import sys
from pathlib import Path

import pytest

from tessera.errors import BadInputError, UnsupportedError
from tessera.source import load_program

MODEL = """
import sys
import numpy as np
def model(x, w, scale=1.0, flip=False):
    y = np.tanh(x @ w) * scale
    return y[::-1] if flip else y
"""
SCRIPT = """
def run(n):
    try:
        for _ in range(n):
            model(np.ones((8, 32), "f4"), np.ones((32, 16), "f4"), scale=2.0)
            print("went on")
    finally:
        print("cleaned", sys.argv)
if __name__ == "__main__":
    run(5)
"""


def types(path: Path) -> dict[str, str]:
    graph = load_program(f"{path}:model", {}).graph
    return {n: f"{d.name}{list(shape)}" for n, (d, shape) in graph.input_types().items()}


def written(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_a_script_runs_until_it_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, MODEL + SCRIPT)
    before = sys.modules["__main__"], list(sys.argv), sys.gettrace()
    program = load_program(f"{path}:model", {})
    assert (sys.modules["__main__"], list(sys.argv), sys.gettrace()) == before
    assert types(path) == {"x": "float32[8, 32]", "w": "float32[32, 16]"}
    assert "2" in str(program.graph)  # the scale of that call, not the default
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "cleaned ['" + str(path) + "']" in printed.err
    assert "went on" not in printed.err


def test_calls_of_the_module_itself_count_and_are_made_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, MODEL + "print('once')\nmodel(np.ones((4, 5)), np.ones((5, 6)))\n")
    assert types(path) == {"x": "float64[4, 5]", "w": "float64[5, 6]"}
    assert capsys.readouterr().err == "once\n"


def test_traces_of_decorated_functions_are_no_calls(tmp_path: Path) -> None:
    text = MODEL.replace("def model", "import tessera\n@tessera.optimize\ndef model") + SCRIPT
    assert types(written(tmp_path, text)) == {"x": "float32[8, 32]", "w": "float32[32, 16]"}


def test_text_is_no_argument_but_by_default(tmp_path: Path) -> None:
    text = MODEL.replace("flip=False", "flip='no'") + SCRIPT
    assert set(types(written(tmp_path, text))) == {"x", "w"}
    path = written(tmp_path, text.replace("scale=2.0)", "2.0, 'yes')"))
    with pytest.raises(UnsupportedError, match="flip of model is text"):
        load_program(f"{path}:model", {})


def test_what_is_given_stands_above_what_is_called(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL + SCRIPT)
    given = {"x": "f64[3,4]", "w": "f64[4,2]"}
    graph = load_program(f"{path}:model", given).graph
    assert [list(shape) for _, shape in graph.input_types().values()] == [[3, 4], [4, 2]]
    graph = load_program(f"{path}:model", {"x": "f32[3,32]"}).graph
    assert [list(shape) for _, shape in graph.input_types().values()] == [[3, 32], [32, 16]]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("", "the file does not call it"),
        ("if __name__ == '__main__':\n    pass\n", "nor as a script without arguments"),
        ("if __name__ == '__main__':\n    sys.exit(2)\n", "as a script the file fails: .*Exit: 2"),
        ("if __name__ == '__main__':\n    model(w=sys.argv[1])\n", "fails: .*IndexError"),
    ],
)
def test_why_nothing_is_known(tmp_path: Path, more: str, reason: str) -> None:
    path = written(tmp_path, MODEL + more)
    with pytest.raises(BadInputError, match=f"type of argument x of model .*--shape x=.*{reason}"):
        load_program(f"{path}:model", {})
