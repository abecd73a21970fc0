"""What a row of whole numbers is: token ids, or offsets from the row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabtrim_core.draft_maps import ids_of_offsets, readings


def kept_ids(vocab_size: int, k: int, seed: int, common: float) -> np.ndarray:
    """k ids, ascending; with `common` 1.0 the smaller ones are kept more often, as in a vocabulary made by merging."""
    rng = np.random.default_rng(seed)
    weights = (np.arange(vocab_size) + 100.0) ** -common
    return np.sort(rng.choice(vocab_size, k, replace=False, p=weights / weights.sum()))


SIZES = st.sampled_from([(1024, 32000), (4096, 49152), (32000, 128256), (32768, 151936), (500, 1024)])


@given(sizes=SIZES, seed=st.integers(0, 2**32), common=st.sampled_from([0.0, 1.0]), by_frequency=st.booleans())
def test_what_is_written_is_what_is_read(sizes: tuple[int, int], seed: int, common: float, by_frequency: bool) -> None:
    """Bug: offsets pass for ids or ids for offsets, in either order that programs write them in."""
    k, vocab_size = sizes
    ids = kept_ids(vocab_size, k, seed, common)
    if by_frequency:
        ids = np.random.default_rng(seed).permutation(ids)
    assert readings(ids, vocab_size) == {"ids"}
    offsets = ids - np.arange(k)
    assert readings(offsets, vocab_size) == {"offsets"}
    assert (ids_of_offsets(offsets) == ids).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0, 0, 0], {"offsets"}),
        ([0, 1, 2, 3], {"ids", "offsets"}),
        ([0, 1, 2, 90], {"ids"}),
        ([5, 5, 9, 9], {"offsets"}),
        ([9, 3, 5], {"ids"}),
        ([9, -1, 5], {"offsets"}),
        ([9, 9, 3], set()),
        ([-5, 0], set()),
        ([0, 200], set()),
    ],
)
def test_small_rows(values: list[int], expected: set[str]) -> None:
    """Bug: a doubtful row is read as one of the two without a word, or a clear one passes for doubtful."""
    assert readings(np.array(values), 91) == expected
