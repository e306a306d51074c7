"""The suites models and plus, as far as they go without torch; models are built where it is."""

from __future__ import annotations

import pytest

from bench import models, plus
from bench.model_zoo import SUBGRAPHS, ZOO, build, result_of
from tessera.errors import UsageError
from tessera.options import Options


def test_a_model_that_there_is_not_names_those_that_are() -> None:
    rows = plus.run(Options(), "resnet", None, True, lambda text: None, 1.0)
    with pytest.raises(UsageError, match="'resnet' is not one of bert, albert, gpt2, t5, vit"):
        next(rows)


def test_models_of_the_paper_have_its_numbers() -> None:
    known = [numbers for numbers in plus.TABLE_1.values() if numbers]
    assert sum(ops for ops, _ in known) / sum(layers for _, layers in known) > 7  # Table 1


def test_known_cases_are_not_measured_again() -> None:
    known = [{"suite": "plus", "case": "authoring", "batch": 1, "threads": 2}]
    options = Options(threads=2)
    assert list(plus.run(options, "authoring", None, False, print, 1.0, known)) == []
    (row,) = plus.run(options, "authoring", None, False, print, 1.0)
    assert row["lines"]["t5layernorm"] < row["paper"]["t5layernorm"] / 4
    assert (row["lines"]["t5layernorm"] < row["lines"]["t5layernorm_with_bodies"]
            < row["paper"]["t5layernorm"] / 3)  # fmt: skip
    assert plus.key(row) == plus.key(known[0])


def test_summaries_are_geometric_means_of_what_was_raced() -> None:
    rows = [{"speedup_vs_inductor": a, "speedup_vs_best": b} for a, b in ((1.0, 0.5), (4.0, 2.0))]
    (mean,) = plus.summaries([*rows, {"case": "authoring"}])
    assert (mean["speedup_vs_inductor"], mean["least_vs_best"], mean["count"]) == (2.0, 0.5, 2)


def test_cases_are_models_steps_and_papers() -> None:
    assert models.cases("llama3@decode", None, False) == [("llama3", "decode", 1),
                                                          ("llama3", "decode", 16)]  # fmt: skip
    assert {n for n, _, _ in models.cases("mirage", 1, False)} == {
        "llama3", "llama_lora", "chameleon", "ngpt"}  # fmt: skip
    assert len(models.cases(None, 1, False)) == len(ZOO) + 4 - len(SUBGRAPHS)
    assert models.cases("table2", 1, False) == [(n, "prompt", 1) for n in SUBGRAPHS]
    assert models.cases(None, None, True) == [("llama3", "prompt", 1), ("llama3", "decode", 1)]
    for name in ("resnet", "bert@decode", "llama3@later"):
        with pytest.raises(UsageError, match="is not one of llama3, llama_lora"):
            models.cases(name, None, False)


def test_rows_tell_what_engines_add_and_are_summed_up_by_paper() -> None:
    times = {"tessera": [2.0, 2.0], "tessera:search": [3.0, 3.0], "eager": [4.0, 4.0],
             "inductor": [8.0, 8.0], "inductor_max": [3.0, 3.0]}  # fmt: skip
    facts = {"tessera": {"max_rel_err": 1e-6, "memory_mb": 5.0, "compile_s": 1.0}}
    row = models.described(times, facts, {"compile_s": 9.0})
    assert (row["speedup_vs_best"], row["speedup_vs_inductor"]) == (1.5, 4.0)
    assert (row["engines"], row["speedup_vs_compiled"]) == ({"search": 1.5}, 1.5)
    assert (row["compile_s"], row["compile_cached_s"], row["errors"]) == (
        9.0,
        1.0,
        {"tessera": 1e-6},
    )
    known = {"suite": "models", "phase": "prompt", "paper": "pet"} | row
    every, pet = models.summaries([known, known | {"speedup_vs_best": 6.0}])
    assert (every["paper"], pet["paper"], pet["count"]) == (None, "pet", 2)
    assert (pet["speedup_vs_best"], pet["least_vs_best"]) == (pytest.approx(3.0), 1.5)
    assert pet["engines"] == {"search": pytest.approx(1.5)}


def test_what_does_not_run_is_told() -> None:
    row = models.described({"eager": [1.0]}, {}, {})
    assert (row["ours_us"], row["speedup_vs_best"], row["engines"]) == (None, None, {})


@pytest.mark.parametrize("name", list(SUBGRAPHS))
def test_subgraphs_take_what_they_are_given(name: str) -> None:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        result = build(name)(**ZOO[name].inputs(2, 4))
    assert result.shape[:2] == (2, 4)
    assert torch.isfinite(result).all()


@pytest.mark.parametrize("name", ["llama3", "llama_lora", "chameleon", "ngpt"])
def test_a_step_continues_its_prompt(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token's logits with the caches of those before it are those of all at once."""
    torch = pytest.importorskip("torch")
    from bench import model_zoo

    for attribute, value in (("WIDTH", 64), ("HEAD", 16), ("HEADS", 4), ("INNER", 96),
                             ("WORDS", 50)):  # fmt: skip
        monkeypatch.setattr(model_zoo, attribute, value)
    model = build(name)
    caches: list[list[object]] = [[], []]
    attend = torch.nn.functional.scaled_dot_product_attention

    def keeping(q: object, k: object, v: object, **more: object) -> object:
        for cache, kept in zip(caches, (k, v), strict=True):
            cache.append(kept)
        return attend(q, k, v, **more)

    tokens = torch.arange(6)[None] * 7 % 50
    with torch.no_grad():
        whole = result_of(model(tokens))
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", keeping)
        model(tokens[:, :5])
        keys, values = (torch.stack(c) for c in caches)
        step = result_of(model(tokens[:, 5:], keys, values))
    assert torch.isfinite(step).all()
    torch.testing.assert_close(step[:, 0], whole[:, 5], rtol=1e-4, atol=1e-5)
