"""Tallies: batches add up to what a loop over every document and token would count."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vocabtrim_core.counting.split import HELD_OUT_GROUPS, held_out_groups
from vocabtrim_core.counting.tally import SparseHistogram, Tally
from vocabtrim_core.fast_tokenization import FlatIds

V = 7
DOCUMENTS = st.lists(st.tuples(st.lists(st.integers(0, V - 1)), st.integers(0, 2**64 - 1)), max_size=12)


@given(
    batches=st.lists(DOCUMENTS, max_size=4),
    holdout=st.sampled_from([0, 0.3, 0.9]),
    unsigned=st.booleans(),
    max_kept=st.sampled_from([0, 9, 10**6]),
)
def test_batches_add_up(batches: list, holdout: float, unsigned: bool, max_kept: int) -> None:
    """Bug: a token of one document lands on another's side or group; repeated cells of a batch are added once."""
    tally = Tally(V, holdout)
    tally.MAX_KEPT = max_kept
    total = np.zeros(V, dtype=np.int64)
    held_out = np.zeros((HELD_OUT_GROUPS, V), dtype=np.int64)
    documents = [0, 0]
    for batch in batches:
        flat = FlatIds.of([row for row, _ in batch])
        if unsigned:
            flat = FlatIds(flat.ids.astype(np.uint32), flat.offsets)
        hashes = np.array([value for _, value in batch], dtype=np.uint64)
        tally.add(flat, hashes)
        for (row, _), group in zip(batch, held_out_groups(hashes, holdout), strict=True):
            documents[int(group >= 0)] += 1
            for token in row:
                total[token] += 1
                if group >= 0:
                    held_out[group, token] += 1
    found = np.zeros_like(held_out)
    tally.held_out.add_to(found)
    assert tally.total.tolist() == total.tolist() and np.array_equal(found, held_out)
    assert (np.diff(tally.held_out.cells) > 0).all() and (tally.held_out.counts > 0).all()
    assert tally.documents == documents
    assert tally.content_sum == sum(value for batch in batches for _, value in batch) % 2**64


@given(st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_sparse_histograms_are_the_dense_ones(values: list[int]) -> None:
    """Bug: a group's cells are numbered in another order on the way out than on the way in."""
    dense = np.array(values, dtype=np.int64).reshape(2, 3)
    back = np.ones((2, 3), dtype=np.int64)
    SparseHistogram.of(dense).add_to(back)
    assert np.array_equal(back, dense + 1)
