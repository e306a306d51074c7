"""Programs that differ at inputs or sizes that few draws meet: none of them is called equal."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera.graph import Graph
from tessera.verification import Verdict

POOLED = """graph pooled {{
  x = input : i8[1,1,7]
{0}
  return y
}}"""
BORDER = "  y = pool_max x {size=[3], strides=[2], low=[1], high=[1]}"
PADDED = """  q = pad x {low=[0,0,1], high=[0,0,1], value=-100}
  y = pool_max q {size=[3], strides=[2]}"""
CHOSEN = """graph chosen {{
  x = input : f32[10]
  i = input : i64[4]
{0}
  return r
}}"""
ONE_HOT = """  f = iota {axis=0} : i64[10]
  u = unsqueeze i {axes=[1]}
  e = eq u, f
  c = cast e {dtype=f32}
  m = mul c, x
  r = sum m {axes=[1]}"""
GATHER = "  r = gather x, i {axis=0}"
CLIPPED = """  z = const {value=0} : i64[]
  j = max i, z
  r = gather x, j {axis=0}"""


def verdict(template: str, before: str, after: str, **how: object) -> Verdict:
    programs = (Graph.parse(template.format(body)) for body in (before, after))
    return ts.verify(*programs, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_tested_programs_have_met_what_lies_beyond_a_border(seed: int) -> None:
    assert not verdict(POOLED, BORDER, PADDED, accept="tested", seed=seed).equal
    assert not verdict(CHOSEN, ONE_HOT, GATHER, accept="tested", seed=seed).equal
    assert not verdict(CHOSEN, GATHER, CLIPPED, accept="tested", seed=seed).equal


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("dtype", "count"), [("f16", 4100), ("bf16", 300)])
def test_counts_that_few_bits_do_not_tell(dtype: str, count: int, seed: int) -> None:
    def total(kind: str) -> Graph:
        g = Graph("count")
        b = g.input("b", (count,), "bool")
        g.output(b.astype(kind).sum().astype("f32"))
        return g

    assert not ts.verify(total("f32"), total(dtype), seed=seed).equal


def test_bits_of_what_is_out_of_range() -> None:
    assert verdict(CHOSEN, CLIPPED, GATHER, level="bitwise").name == "refuted"
    assert not verdict(CHOSEN, GATHER, CLIPPED, level="bitwise").equal


def test_extents_beyond_a_programs_numbers_are_tried() -> None:
    template = "graph long {{\n  x = input : f32[N]\n{0}\n  return r\n}}"
    whole = "  z = const {value=0} : f32[]\n  r = add x, z"
    first = """  i = iota {axis=0} : i64[N]
  n = const {value=60} : i64[]
  z = const {value=0} : f32[]
  c = lt i, n
  r = where c, x, z"""
    assert verdict(template, whole, first).name == "refuted"
    assert np.all(Graph.parse(template.format(first)).bind(N=61).run(np.ones(61, "f4"))[0][:60])
