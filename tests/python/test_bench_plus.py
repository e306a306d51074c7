"""The suite plus, as far as it goes without torch."""

from __future__ import annotations

import pytest

from tessera.bench import plus
from tessera.errors import UsageError
from tessera.options import Options


def test_a_model_that_there_is_not_names_those_that_are() -> None:
    rows = plus.run(Options(), "resnet", None, True, lambda text: None, 1.0)
    with pytest.raises(UsageError, match="'resnet' is not one of bert, albert, gpt2, t5, vit"):
        next(rows)


def test_models_of_the_paper_have_its_numbers() -> None:
    known = [numbers for numbers in plus.TABLE_1.values() if numbers]
    assert sum(ops for ops, _ in known) / sum(layers for _, layers in known) > 7  # Table 1
