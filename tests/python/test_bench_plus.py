"""The suite plus, as far as it goes without torch."""

from __future__ import annotations

import pytest

from bench import plus
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
