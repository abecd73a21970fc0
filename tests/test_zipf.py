"""Rank-frequency curves, Zipf fits and coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vocabtrim_core.errors import SettingError
from vocabtrim_core.zipf import (
    coverage_curve,
    fit_zipf,
    fit_zipf_mandelbrot,
    k_for_coverage,
    log_spaced_ranks,
    rank_frequency,
    rarest_share,
)

histograms = arrays(np.int64, st.integers(1, 60), elements=st.integers(0, 1_000))


@given(histograms)
def test_rank_frequency(counts):
    """Bug: zeros kept, an occurrence lost, or the order wrong."""
    frequencies = rank_frequency(counts)
    assert frequencies.dtype == np.int64
    assert frequencies.tolist() == sorted((count for count in counts.tolist() if count), reverse=True)


@given(st.integers(0, 1_000_000), st.integers(2, 500))
def test_log_spaced_ranks(n, points):
    """Bug: rank 0 (minus infinity on a log axis), a repeated rank, no last rank, more points than asked for."""
    ranks = log_spaced_ranks(n, points)
    assert len(ranks) <= points
    assert (np.diff(ranks) > 0).all()
    if n:
        assert (ranks[0], ranks[-1]) == (1, n)
    else:
        assert not len(ranks)


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.2, 1.5])
def test_fit_recovers_the_exponent(exponent):
    """Bug: an estimate that is biased by the tail of rare tokens, as a regression over all ranks is."""
    probabilities = np.arange(1, 50_001.0) ** -exponent
    counts = np.random.default_rng(0).multinomial(1_000_000, probabilities / probabilities.sum())
    fit = fit_zipf(np.random.default_rng(1).permutation(counts))
    assert fit is not None
    assert fit.exponent == pytest.approx(exponent, abs=0.02)
    assert fit.distance < 0.01
    assert fit.counts(np.array([1]))[0] == pytest.approx(counts[0], rel=0.1)


def test_fit_tells_what_is_not_zipf():
    """Bug: the distance calls every fit good, or a flat histogram (exponent 0) fails."""
    flat = fit_zipf(np.full(1_000, 50))
    assert flat is not None and flat.exponent == pytest.approx(0, abs=1e-6) and flat.distance < 1e-6
    two_levels = fit_zipf(np.repeat([10_000, 10], 500))
    assert two_levels is not None and two_levels.distance > 0.1


@pytest.mark.parametrize(("exponent", "offset"), [(1.0, 2.7), (1.3, 20.0), (1.1, 0.0)])
def test_mandelbrot_recovers_both_parameters(exponent, offset):
    """Bug: a wrong gradient ends the search early; without an offset to find, the fit is not Zipf's."""
    probabilities = (np.arange(1, 30_001.0) + offset) ** -exponent
    counts = np.random.default_rng(0).multinomial(5_000_000, probabilities / probabilities.sum())
    fit, plain = fit_zipf_mandelbrot(counts), fit_zipf(counts)
    assert fit is not None and plain is not None
    assert fit.exponent == pytest.approx(exponent, abs=0.02) and fit.offset == pytest.approx(offset, rel=0.1, abs=0.1)
    assert fit.distance <= plain.distance + 1e-4 and plain.offset == 0
    assert fit.counts(np.array([1, 50])) == pytest.approx(counts[[0, 49]], rel=0.1)


def test_no_mandelbrot_fit_of_an_exponential():
    """Bug: the bounds where the search was stopped are shown as the exponent and offset of the text."""
    counts = (10_000 * np.exp(-np.arange(300) / 60)).round().astype(np.int64)
    assert fit_zipf(counts) is not None and fit_zipf_mandelbrot(counts) is None


def test_rarest_share():
    """Bug: the share of the commonest, or tokens that never occur left out of the vocabulary."""
    counts = np.array([70, 0, 20, 0, 0, 6, 0, 4])
    assert rarest_share(counts, 0.75) == pytest.approx(0.10)
    assert rarest_share(counts, 0.5) == 0 and rarest_share(counts, 1) == 1
    assert np.isnan(rarest_share(np.zeros(4, dtype=np.int64)))
    with pytest.raises(SettingError):
        rarest_share(counts, 1.5)


@pytest.mark.parametrize("fit_law", [fit_zipf, fit_zipf_mandelbrot])
@given(counts=histograms)
def test_fit_of_any_histogram(fit_law, counts):
    """Bug: a division by zero or a NaN for few or odd counts."""
    fit = fit_law(counts)
    if (counts >= 10).sum() < 10:
        assert fit is None
    elif fit is None:
        assert fit_law is fit_zipf_mandelbrot
    else:
        assert 0 <= fit.exponent <= 10 and 0 <= fit.distance <= 1 and fit.high == (counts >= 10).sum()
        assert np.isfinite(fit.counts(np.arange(1, fit.high + 1))).all()


@given(histograms, st.data())
def test_coverage_is_the_share_inside_the_first_k(counts, data):
    """Bug: off by one in k, or tokens outside the ranking left out of the total."""
    ranking = np.array(data.draw(st.permutations(range(len(counts)))), dtype=np.int64)
    ranking = ranking[: data.draw(st.integers(1, len(counts)))]
    curve = coverage_curve(ranking, counts)
    assert curve.shape == ranking.shape
    for k in range(1, len(ranking) + 1):
        if counts.sum():
            assert curve[k - 1] == pytest.approx(counts[ranking[:k]].sum() / counts.sum())
        else:
            assert np.isnan(curve[k - 1])


@given(histograms, st.floats(0.001, 1))
def test_k_for_coverage_is_the_smallest(counts, share):
    """Bug: the k before or after the one that reaches the share; a k where none reaches it."""
    curve = coverage_curve(np.argsort(-counts, kind="stable"), counts)
    k = k_for_coverage(curve, share)
    if not counts.sum():
        assert k is None
    else:
        assert curve[k - 1] >= share
        assert k == 1 or curve[k - 2] < share


def test_k_for_coverage_out_of_reach():
    """Bug: the last k is offered although part of the text lies outside the ranking."""
    curve = coverage_curve(np.array([0, 1]), np.array([5, 4, 1]))
    assert k_for_coverage(curve, 0.9) == 2
    assert k_for_coverage(curve, 0.95) is None
    assert k_for_coverage(np.empty(0), 0.5) is None
    for share in (0, 1.1, float("nan")):
        with pytest.raises(SettingError, match="coverage"):
            k_for_coverage(curve, share)
