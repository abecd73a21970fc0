"""Held-out coverage with intervals, the domain matrix, and missing tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vocabtrim_core.coverage import (
    MIN_GROUPS,
    coverage_interval,
    domain_matrix,
    missing_tokens,
    mixed_coverage_interval,
)
from vocabtrim_core.errors import SettingError, TokenizerError
from vocabtrim_core.vocabulary import rank_tokens
from vocabtrim_core.zipf import coverage_curve

grouped = arrays(np.int64, (8, 20), elements=st.integers(0, 50))


def bursty_documents(rng: np.random.Generator, documents: int) -> np.ndarray:
    """int64[documents, 50]: each document says one of 50 words over and over, and others now and then."""
    probabilities = 1 / np.arange(1, 51)
    topics = rng.choice(50, size=documents, p=probabilities / probabilities.sum())
    return rng.poisson(0.5, (documents, 50)) + 40 * np.eye(50, dtype=np.int64)[topics]


@given(grouped, st.lists(st.integers(1, 20), min_size=1))
def test_coverage_is_that_of_the_curve(groups, ks):
    """Bug: k in another order than asked for, groups averaged instead of their tokens, bounds that leave it out."""
    ranking = rank_tokens(groups[0], [], "t")
    interval = coverage_interval(ranking, groups, ks)
    curve = coverage_curve(ranking.ids, groups.sum(axis=0))
    np.testing.assert_allclose(interval.coverage, curve[np.array(ks) - 1])
    if np.count_nonzero(groups.any(axis=1)) < MIN_GROUPS:
        assert np.isnan(interval.low).all() and np.isnan(interval.high).all()
    else:
        assert (interval.low <= interval.high).all() and (interval.low >= 0).all() and (interval.high <= 1).all()


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Bug: tokens drawn instead of documents, which makes intervals several times too narrow for bursty text."""
    rng = np.random.default_rng(0)
    ranking = rank_tokens(np.arange(50, 0, -1), [], "t")
    everything = bursty_documents(rng, 50_000).sum(axis=0)
    truth = coverage_curve(ranking.ids, everything)[9]
    hits, widths = 0, []
    for seed in range(200):
        documents = bursty_documents(rng, 320)
        groups = np.stack([documents[i::32].sum(axis=0) for i in range(32)])
        interval = coverage_interval(ranking, groups, [10], seed)
        hits += bool(interval.low[0] <= truth <= interval.high[0])
        widths.append(interval.high[0] - interval.low[0])
    assert 180 <= hits <= 199
    tokens = everything.sum() / 50_000 * 320
    assert np.mean(widths) > 3 * 2 * 1.96 * np.sqrt(truth * (1 - truth) / tokens)


def test_few_documents_give_no_interval() -> None:
    """Bug: one held-out document gives an interval of no width, which looks like certainty."""
    groups = np.zeros((32, 5), dtype=np.int64)
    groups[7] = 3
    interval = coverage_interval(rank_tokens(np.ones(5, dtype=np.int64), [], "t"), groups, [2])
    assert interval.coverage == pytest.approx(0.4) and np.isnan(interval.low[0])
    empty = coverage_interval(rank_tokens(np.ones(5, dtype=np.int64), [], "t"), np.zeros_like(groups), [2])
    assert np.isnan(empty.coverage[0])


@given(grouped, grouped, st.floats(0, 1))
def test_a_mixture_is_the_mean_of_its_corpora(one, other, weight):
    """Bug: the corpus with more held-out text counts for more than its weight."""
    one[:, 0] += 1
    other[:, 1] += 1
    ranking = rank_tokens(one[0] + other[0], [], "t")
    mixed = mixed_coverage_interval(ranking, [one, other], [weight, 1 - weight], [5])
    apart = [coverage_interval(ranking, groups, [5]).coverage[0] for groups in (one, other)]
    assert mixed.coverage[0] == pytest.approx(weight * apart[0] + (1 - weight) * apart[1])


def test_the_domain_matrix_is_rankings_by_texts() -> None:
    """Bug: transposed, so that it tells which text to count instead of which text fails."""
    words, digits = np.zeros((32, 10), dtype=np.int64), np.zeros((32, 10), dtype=np.int64)
    words[:, :5], digits[:, 5:] = 2, 3
    digits[:, 0] = 1
    rankings = [rank_tokens(words.sum(axis=0), [], "words"), rank_tokens(digits.sum(axis=0), [], "digits")]
    matrix = domain_matrix(rankings, {"words": words, "digits": digits, "nothing": np.zeros_like(words)}, 5)
    assert matrix.rows == ("words", "digits") and matrix.columns == ("words", "digits", "nothing")
    np.testing.assert_allclose(matrix.coverage, [[1, 1 / 16, np.nan], [0, 15 / 16, np.nan]])
    np.testing.assert_allclose(matrix.low, matrix.coverage)
    with pytest.raises(SettingError):
        domain_matrix(rankings, {"words": words}, 11)


@given(st.data())
def test_missing_tokens_are_what_coverage_lacks(data):
    """Bug: kept tokens among them, the rare ones first, or a `kept_from` that does not keep the token."""
    counts = data.draw(arrays(np.int64, 12, elements=st.integers(0, 30)))
    ranking = rank_tokens(counts[::-1].copy(), [2], "t", banned=[7])
    k = data.draw(st.integers(1, 11))
    missing = missing_tokens(ranking, k, counts)
    if counts.any():
        assert sum(one.share for one in missing) == pytest.approx(1 - coverage_curve(ranking.ids, counts)[k - 1])
    assert [one.count for one in missing] == sorted((one.count for one in missing), reverse=True)
    for one in missing:
        assert one.count == counts[one.token_id] > 0
        assert one.token_id not in ranking.ids[: one.kept_from - 1] or one.token_id == 7
        assert one.token_id in ranking.ids[: one.kept_from]
        assert one.kept_from == 12 or one.token_id != 7
    assert missing_tokens(ranking, k, counts, limit=2) == missing[:2]


def test_counts_of_another_vocabulary_are_refused() -> None:
    """Bug: an IndexError where counts of a smaller tokenizer meet a ranking."""
    ranking = rank_tokens(np.ones(9, dtype=np.int64), [], "t")
    with pytest.raises(TokenizerError, match="same tokenizer"):
        coverage_interval(ranking, np.ones((32, 5), dtype=np.int64), [3])
    with pytest.raises(TokenizerError, match="same tokenizer"):
        missing_tokens(ranking, 3, np.ones(5, dtype=np.int64))
