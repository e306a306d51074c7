"""Programs, rules, patterns and models that were written to harm: read, or refused with a place."""

from __future__ import annotations

import math
import random
import resource
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import tessera as ts
from bench.trust.work import Tally, child, scratch
from tessera.errors import Error
from tessera.patterns import read_pattern
from tessera.rules import read_rules

Made = TypeVar("Made", str, bytes)
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60  # for one file; the budget of a search is half a second
MEMORY = 12 << 30  # of address space
SMALL = 1 << 16  # elements of all of a program's tensors, for it to be run
DEEP, MANY = 100_000, 1_000_000
CODE = [
    '"); system("touch executed"); //', "$(touch executed)", "`touch executed`",
    "__import__('os').system('touch executed')", "x; touch executed", "*/ } int main() { /*",
    "\\\"; int z; //", "%n%n%s", "../../executed", "a\\nb", "{{7*7}}", "\u202e\u0000x", "for",
    "int", "float", "import", "lambda", "NULL", "__attribute__", "main", "k0", "errno", "I",
    "alignas",
]  # fmt: skip
EXTENTS = [0, -1, 1, 2**31 - 1, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 10**400]


def one(rng: random.Random, ways: list[Callable[[], Made]]) -> Made:
    """What one of these makes."""
    return rng.choice(ways)()


def ug(body: str, inputs: str = "x = input : f32[4,4]", result: str = "y") -> str:
    return f"graph g {{\n  {inputs}\n  {body}\n  return {result}\n}}\n"


def ug_files(rng: random.Random) -> str:
    """A program."""
    n, m = rng.choice(EXTENTS), rng.choice(EXTENTS)
    code = rng.choice(CODE)
    depth = rng.choice([10, 1000, DEEP])
    return one(rng, [
        lambda: ug("y = exp x", f"x = input : f32[{n},{m}]"),
        lambda: ug("y = matmul x, w", f"x = input : f32[{n},4]\n  w = input : f32[4,{m}]"),
        lambda: ug(f"y = reshape x {{shape=[{n},{m}]}}"),
        lambda: ug(f"y = broadcast x {{shape=[{n},{m},4,4]}}"),
        lambda: ug(f"y = transpose x {{perm=[{n},{m}]}}"),
        lambda: ug(f"y = slice x {{starts=[{n},0], stops=[{m},4], steps=[1,{n}]}}"),
        lambda: ug(f"y = reduce_sum x {{axes=[{n},{m}], keepdims=true}}"),
        lambda: ug(f"c = const {{value={n}}} : f32[{m}]\n  y = mul x, c"),
        lambda: ug(f"c = const {{value={'9' * depth}}}\n  y = mul x, c"),
        lambda: ug(f"y = iota {{axis={n}}} : i64[{m}]"),
        lambda: ug("y = " + "(" * depth + "x" + ")" * depth),
        lambda: ug("y = exp x", f"x = input : f32[{'(' * depth}N{')' * depth}]"),
        lambda: ug("y = exp x", f"x = input : f32[{'*'.join(['N'] * depth)}]"),
        lambda: ug("y = exp x", f"x = input : f32[{','.join(['2'] * min(depth, 3000))}]"),
        lambda: ug(f"y = exp x {{a={'[' * depth}{']' * depth}}}"),
        lambda: "graph g {" * depth,
        lambda: ug("y = kernel x {" * depth),
        lambda: ug("t0 = exp x\n" + "\n".join(f"t{i} = neg t{i - 1}" for i in range(1, depth)),
                   result=f"t{depth - 1}"),
        lambda: ug("t0 = exp x\n" + "\n".join(f"t{i} = add t{i - 1}, t{i - 1}"
                   for i in range(1, min(depth, 2000))), result=f"t{min(depth, 2000) - 1}"),
        lambda: ug(f"y = exp {'x' * depth}"),
        lambda: ug("y = exp x", f"{code} = input : f32[4,4]"),
        lambda: f"graph {code} {{\n  x = input : f32[4,4]\n  y = exp x\n  return y\n}}\n",
        lambda: ug("y = exp x", f"x = input {{name=\"{code}\"}} : f32[4,4]"),
        lambda: ug(f"{code} = exp x", result=code),
        lambda: ug(f"y = {code} x"),
        lambda: ug(f"y = exp x {{{code}=1}}"),
        lambda: ug(f"y = exp x {{a=\"{code}\"}}"),
        lambda: ug("y = exp x", f"x = input : f32[{code}]"),
        lambda: "\0" * depth,
        lambda: "#" * depth + "\n" * depth + ug("y = exp x"),
    ])  # fmt: skip


def huge_ug(_: random.Random) -> str:
    """A million operators."""
    return ug("t0 = exp x\n" + "\n".join(f"t{i} = neg t{i - 1}" for i in range(1, MANY)),
              result=f"t{MANY - 1}")  # fmt: skip


def rules_files(rng: random.Random) -> str:
    """A file of rules."""
    depth, code, n = rng.choice([10, 1000, DEEP]), rng.choice(CODE), rng.choice(EXTENTS)
    return one(rng, [
        lambda: f"rule {code}\n  A [...]\n  A * 2 = A + A\n  holds for real\n",
        lambda: f"rule a\n  {code} [...]\n  A * 2 = A + A\n  holds for real\n",
        lambda: f"rule a\n  A [...]\n  {'(' * depth}A{')' * depth} = A\n  holds for real\n",
        lambda: f"rule a\n  A [...]\n  {'-' * depth}A = A\n  holds for real\n",
        lambda: f"rule a\n  A [...]\n  {' + '.join(['A'] * depth)} = A\n  holds for real\n",
        lambda: f"rule a\n  A [...]\n  {'exp(' * depth}A{')' * depth} = A\n  holds for real\n",
        lambda: f"rule a\n  A [{n} m]\n  A * {n} = A ** {n}\n  holds for real\n",
        lambda: f"rule a\n  A [{' '.join('m' * min(depth, 5000))}]\n  A = A\n  holds for real\n",
        lambda: f"rule a\n  A [...]\n  {code}(A) = A\n  holds for {code}\n",
        lambda: f"rule a\n  A [...]\n  A = broadcast_to({n}, shape=[{n} {n}])\n  holds for real\n",
        lambda: f"rule a\n  A [...]\n  A = A\n  assumes {'not ' * depth}A != 0\n  holds for real\n",
        lambda: "rule a\n" * depth,
    ])  # fmt: skip


def pattern_files(rng: random.Random) -> str:
    """A pattern."""
    depth, code, n = rng.choice([10, 1000, DEEP]), rng.choice(CODE), rng.choice(EXTENTS)
    body = "def {\n    x = input : f32[M,N]\n    y = exp x\n    return y\n  }\n"
    kernel = ("kernel grid[x=M/BM] {\n    t = iter x {imap={x:0}}\n    o = exp t\n"
              "    y = save o {omap={x:0}} : f32[M,N]\n    return y\n  }\n")  # fmt: skip
    return one(rng, [
        lambda: f"pattern {code}\n  {body}  {kernel}",
        lambda: f"pattern a\n  {body}  tune {code} = 1 2\n  {kernel}",
        lambda: f"pattern a\n  {body}  tune BM = {n} {n}\n  {kernel}",
        lambda: f"pattern a\n  {body}  when {'(' * depth}M{')' * depth} < {n}\n  {kernel}",
        lambda: f"pattern a\n  {body}  when {' + '.join(['M'] * depth)} < {n}\n  {kernel}",
        lambda: f"pattern a\n  {body}  body c++ {code} {{ system(\"touch executed\"); }}\n",
        lambda: f"pattern a\n  {body}  call torch {code}(x)\n",
        lambda: f"pattern a\n  {body}  call torch os.system('touch executed')\n",
        lambda: "pattern a\n  " + "def {" * depth,
        lambda: f"pattern a\n  {body}  " + kernel.replace("{", "{" * depth, 1),
        lambda: f"pattern a\n  {body.replace('f32[M,N]', f'f32[{n},N]')}  {kernel}",
    ])  # fmt: skip


# --- ONNX, its protobuf written by hand -----------------------------------------------------------


def field(number: int, value: int | bytes | str) -> bytes:
    """A field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out, value = b"", value & (1 << 64) - 1
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def dims(extents: list[int]) -> bytes:
    return b"".join(field(1, d) for d in extents)


def value_info(name: str, extents: list[int]) -> bytes:
    shape = b"".join(field(1, field(1, d)) for d in extents)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))


def node(op: str, inputs: list[str], outputs: list[str], *attributes: bytes) -> bytes:
    return (b"".join(field(1, i) for i in inputs) + b"".join(field(2, o) for o in outputs)
            + field(4, op) + b"".join(field(5, a) for a in attributes))  # fmt: skip


def ints(name: str, values: list[int]) -> bytes:
    return field(1, name) + b"".join(field(8, v) for v in values) + field(20, 7)


def onnx_model(nodes: list[bytes], shape: list[int], tensors: list[bytes] | None = None) -> bytes:
    graph = (b"".join(field(1, n) for n in nodes) + field(2, "g")
             + b"".join(field(5, t) for t in tensors or [])
             + field(11, value_info("x", shape)) + field(12, value_info("y", shape)))  # fmt: skip
    return field(1, 8) + field(7, graph) + field(8, field(2, 17))


def external(location: str, offset: int = 0, length: int = 64) -> bytes:
    pairs = [("location", location), ("offset", str(offset)), ("length", str(length))]
    entries = b"".join(field(13, field(1, k) + field(2, v)) for k, v in pairs)
    return dims([4, 4]) + field(2, 1) + field(8, "w") + entries + field(14, 1)


def onnx_files(rng: random.Random) -> bytes:
    """A model; `secret` and `link` lie beside and above its folder."""
    n, m, code = rng.choice(EXTENTS), rng.choice(EXTENTS), rng.choice(CODE)
    depth = rng.choice([10, 1000, DEEP])
    add = [node("Add", ["x", "w"], ["y"])]

    def nested(inner: int) -> bytes:
        graph = field(2, "g")
        for _ in range(inner):
            graph = field(2, "g") + field(1, node("If", ["x"], ["y"], field(1, "then_branch")
                                          + field(6, graph) + field(20, 5)))  # fmt: skip
        return field(1, 8) + field(7, graph) + field(8, field(2, 17))

    return one(rng, [
        lambda: onnx_model([node("Exp", ["x"], ["y"])], [n, m]),
        lambda: onnx_model([node("Transpose", ["x"], ["y"], ints("perm", [n, m]))], [4, 4]),
        lambda: onnx_model(add, [4, 4], [dims([n, m]) + field(2, 1) + field(8, "w")]),
        lambda: onnx_model(add, [4, 4], [external(rng.choice([
            "../secret", "/etc/passwd", "link", "linkdir/secret", "./../secret", "/proc/self/mem",
            "pipe", "/dev/zero", "", ".", "..", "a/../../secret", "\\..\\secret", "~/secret", code,
            "x" * 5000, "hostile.onnx"]),
            rng.choice([0, -1, 2**62]), rng.choice([64, -64, 2**62]))]),
        lambda: onnx_model([node("ConstantOfShape", ["s"], ["t"]), node("ReduceSum", ["t"], ["y"])],
                           [4, 4], [dims([2]) + field(2, 7) + field(8, "s")
                                    + field(9, struct.pack("<QQ", n % 2**64, m % 2**64))]),
        lambda: onnx_model([node("Tile", ["x", "s"], ["y"])], [4, 4],
                           [dims([2]) + field(2, 7) + field(8, "s")
                            + field(9, struct.pack("<QQ", n % 2**64, m % 2**64))]),
        lambda: onnx_model([node("Expand", ["x", "s"], ["y"])], [4, 4],
                           [dims([2]) + field(2, 7) + field(8, "s")
                            + field(9, struct.pack("<QQ", n % 2**64, 4))]),
        lambda: onnx_model([node("Range", ["a", "b", "c"], ["y"])], [4], [
            field(2, 7) + field(8, name) + field(9, struct.pack("<q", v))
            for name, v in (("a", 0), ("b", 2**62), ("c", rng.choice([1, 0, -1])))]),
        lambda: onnx_model([node("Neg", [f"t{i}" if i else "x"], [f"t{i + 1}"])
                            for i in range(min(depth, 20_000))], [4]),
        lambda: onnx_model([node(code, ["x"], ["y"])], [4]),
        lambda: onnx_model([node("Exp", [code], [code + "y"])], [4]),
        lambda: onnx_model([node("Exp", ["x"], ["y"])], [4]).replace(b"\x01x", b"\x01\xff"),
        lambda: nested(min(depth, 3000)),
        lambda: zlib.compress(bytes(10**8)),
        lambda: onnx_model([node("AveragePool", ["x"], ["y"], ints("kernel_shape", [n, m]),
                                 ints("pads", [n, n, m, m]), ints("strides", [0, 0]))],
                           [1, 1, 4, 4]),
        lambda: onnx_model([node("Slice", ["x", "s", "s", "s", "s"], ["y"])], [4, 4],
                           [dims([2]) + field(2, 7) + field(8, "s")
                            + field(9, struct.pack("<QQ", n % 2**64, m % 2**64))]),
    ])  # fmt: skip


# --- what is done with them -----------------------------------------------------------------------


def changed(data: bytes, rng: random.Random) -> bytes:
    """A good file with a few bytes or lines changed, doubled, swapped or gone."""
    made = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at, to = sorted(rng.randrange(len(made) + 1) for _ in range(2))
        way = rng.randrange(5)
        if way == 0 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            del made[at : min(to, at + 20)]
        elif way == 2:
            made[at:at] = made[at : min(to, at + 400)]
        elif way == 3:
            made[at:at] = rng.choice([str(rng.choice(EXTENTS)), rng.choice(CODE)]).encode()
        else:
            made[at:at] = rng.choice([b"-", b"{", b"}", b"[", b"]", b",", b"=", b"\n", b'"', b"0"])
    return bytes(made)


def run_program(graph: ts.Graph) -> None:
    """Compares what it computes with what it means, where it is small."""
    if not all(isinstance(d, int) for _, shape in graph.input_types().values() for d in shape):
        return
    size = sum(math.prod(shape) for _, shape in graph.input_types().values())
    if size > SMALL or len(graph.ops) > 200:
        return
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.5, 1.5, shape).astype(dtype) for name, (dtype, shape)
              in graph.input_types().items() if name not in graph.weights]  # fmt: skip
    want = graph.run(*arrays)
    got = ts.superoptimize(graph, budget=0.5, cache=False)(*arrays)
    got, want = ([v] if isinstance(v, np.ndarray) else [*v] for v in (got, want))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-2)


def read_program(path: Path) -> ts.Graph:
    graph = ts.load(path)
    assert str(graph)
    return graph


KINDS: dict[
    str, tuple[Callable[[Path], Any], Callable[[random.Random], str | bytes], list[str]]
] = {
    "ug": (read_program, ug_files, ["tests/corpus/*.ug", "examples/*.ug"]),
    "rules": (read_rules, rules_files, ["rules/*.rules"]),
    "pattern": (read_pattern, pattern_files, ["patterns/*.pattern"]),
    "onnx": (read_program, onnx_files, []),
}


def reading(path: Path, read: Callable[[Path], Any]) -> None:
    """Reads a file; errors of ours have to say which."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        made = read(path)
    except Error as error:
        if path.name not in str(error):
            raise AssertionError(f"no place is named: {error}") from None
        raise
    if isinstance(made, ts.Graph):
        run_program(made)


def attempt(folder: Path, kind: str, content: bytes) -> str:
    """What comes of one file."""
    inside = folder / "model"
    inside.mkdir(parents=True)
    (folder / "cache").mkdir(mode=0o700)
    (folder / "secret").write_bytes(bytes(1000))
    (inside / "link").symlink_to(folder / "secret")
    (inside / "linkdir").symlink_to(folder)
    path = inside / f"hostile.{kind}"
    path.write_bytes(content)
    read = KINDS[kind][0]
    came = child(lambda: reading(path, read), folder, SECONDS)
    if any(p.name == "executed" for p in folder.rglob("*")):
        return "code was executed"
    return came


def run(count: int, seed: int) -> dict[str, Any]:
    """`count` files of each kind, written or changed; a million operators once."""
    rng, tally = random.Random(seed), Tally(refusals=True)
    with scratch() as parent:
        for kind, (_, make, globs) in KINDS.items():
            good = [p.read_bytes() for g in globs for p in sorted(ROOT.glob(g))]
            for number in range(count):
                state = rng.randrange(2**32)
                own = random.Random(state)
                written = (
                    make(own) if number % 3 == 0 or not good else changed(own.choice(good), own)
                )
                content = (
                    written.encode("utf-8", "surrogatepass")
                    if isinstance(written, str)
                    else written
                )
                came = attempt(parent / f"{kind}{number}", kind, content)
                tally.add(kind, f"{state} {content[:60]!r}", came)
        came = attempt(parent / "many", "ug", huge_ug(rng).encode())
        tally.add("ug", "a million operators", came)
    return tally.row()
