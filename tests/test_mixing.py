"""Mixtures of corpora and smoothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vocabtrim_core.counting import HELD_OUT_GROUPS, TokenCounts
from vocabtrim_core.errors import SettingError, TokenizerError
from vocabtrim_core.mixing import mixed_shares, smoothed_shares
from vocabtrim_core.vocabulary import rank_tokens

histograms = arrays(np.int64, 12, elements=st.integers(0, 1_000))


def counts_of(calibration: np.ndarray, fingerprint: str = "f") -> TokenCounts:
    groups = np.zeros((HELD_OUT_GROUPS, len(calibration)), dtype=np.int64)
    return TokenCounts(calibration, groups, 1, 0, (), "t", fingerprint, len(calibration), 0.1)


@given(histograms, histograms, st.floats(0, 1), st.integers(2, 50))
def test_a_corpus_counts_by_its_weight_not_its_size(one, other, weight, times):
    """Bug: the larger sample drowns the smaller; weights in percent rank otherwise than weights in shares."""
    assume(one.any() and other.any())
    mixed = mixed_shares([counts_of(one), counts_of(other)], [weight, 1 - weight])
    assert mixed.sum() == pytest.approx(1)
    np.testing.assert_allclose(mixed, weight * one / one.sum() + (1 - weight) * other / other.sum(), atol=1e-12)
    larger = mixed_shares([counts_of(one * times), counts_of(other)], [100 * weight, 100 * (1 - weight)])
    np.testing.assert_allclose(larger, mixed, atol=1e-12)


@given(histograms)
def test_one_corpus_ranks_as_its_counts_do(counts):
    """Bug: rounding in the shares breaks ties otherwise, so the slider at 100 % is not the corpus itself."""
    assume(counts.any())
    for corpora, weights in (([counts], [3.0]), ([counts, counts[::-1].copy()], [0.7, 0.0])):
        mixed = mixed_shares([counts_of(corpus) for corpus in corpora], weights)
        assert rank_tokens(mixed, [3], "m").ids.tolist() == rank_tokens(counts, [3], "c").ids.tolist()


@given(histograms, histograms)
def test_smoothing_leaves_thick_text_and_orders_the_rest_by_the_prior(counts, prior):
    """Bug: shares that do not sum to 1; unseen tokens by id although the prior knows better."""
    assume(counts.any() and prior.any())
    smoothed = smoothed_shares(counts, prior)
    assert smoothed.sum() == pytest.approx(1)
    once = np.count_nonzero(counts == 1)
    if not once:
        np.testing.assert_array_equal(smoothed, counts / counts.sum())
    else:
        unseen = np.flatnonzero(counts == 0)
        assert (np.argsort(-smoothed[unseen], kind="stable") == np.argsort(-prior[unseen], kind="stable")).all()


def test_observed_counts_what_the_prior_saw() -> None:
    """Bug: filler from the prior is called filler by id."""
    mixed = mixed_shares([counts_of(np.array([5, 1, 0, 0]))], [1.0], counts_of(np.array([0, 0, 0, 2])))
    ranking = rank_tokens(mixed, [], "m")
    assert ranking.ids.tolist()[:3] == [0, 1, 3] or ranking.ids.tolist()[:3] == [0, 3, 1]
    assert ranking.observed == 3


@pytest.mark.parametrize("weights", [[], [1.0], [0.0, 0.0], [-1.0, 2.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_weights_that_mean_nothing(weights: list[float]) -> None:
    """Bug: NaN shares, which rank by id and look like a result."""
    with pytest.raises(SettingError, match="mixture"):
        mixed_shares([counts_of(np.ones(4, dtype=np.int64))] * 2, weights)


def test_corpora_that_do_not_fit() -> None:
    """Bug: ids of two tokenizers are added up; an empty corpus takes its weight and gives nothing."""
    some, none = counts_of(np.ones(4, dtype=np.int64)), counts_of(np.zeros(4, dtype=np.int64))
    with pytest.raises(TokenizerError, match="two different tokenizers"):
        mixed_shares([some, counts_of(np.ones(4, dtype=np.int64), "other")], [1, 1])
    with pytest.raises(TokenizerError, match="two different tokenizers"):
        mixed_shares([some], [1], counts_of(np.ones(4, dtype=np.int64), "other"))
    with pytest.raises(SettingError, match="no calibration text"):
        mixed_shares([some, none], [1, 1])
    assert mixed_shares([some, none], [1, 0]).sum() == 1
