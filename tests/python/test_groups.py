"""PET, §8.3.2: groups of a convolution become fewer, with zeros between them."""

from pathlib import Path

import tessera as ts

GROUPS = Path(__file__).parents[2] / "bench/corpus/pet/groups.ug"


def test_groups_of_few_channels_become_a_dense_convolution() -> None:
    result = ts.superoptimize(ts.load(GROUPS), budget=10, cache=False)
    assert result.improved
    assert "groups=8" not in str(result.graph)
    assert result.certificate is not None
