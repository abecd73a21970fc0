"""Rank-frequency curves, the exponent of Zipf's law, and coverage: the share of text inside the first k ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vocabtrim_core.errors import SettingError

MIN_FITTED_COUNT = 10
MIN_FITTED_RANKS = 10
MAX_EXPONENT = 10.0


@dataclass(frozen=True)
class ZipfFit:
    """A power law, count(rank) = scale * rank**-exponent, fitted to the ranks `low`..`high` (from 1, both included).

    `distance` is the largest gap between the counted and the fitted cumulative share over those ranks
    (Kolmogorov-Smirnov): 0 for a perfect power law; above about 0.1 the straight line is a poor summary.
    """

    exponent: float
    scale: float
    low: int
    high: int
    distance: float

    def counts(self, ranks: np.ndarray) -> np.ndarray:
        """float64[n]: the fitted count at each rank (from 1)."""
        return self.scale * np.asarray(ranks, dtype=np.float64) ** -self.exponent


def rank_frequency(counts: np.ndarray) -> np.ndarray:
    """int64[distinct]: the counts that are not zero, largest first. Entry r - 1 is the count at rank r."""
    return -np.sort(-counts[counts > 0])


def log_spaced_ranks(n: int, points: int = 400) -> np.ndarray:
    """int64, at most `points`: ascending ranks of 1..n, evenly spaced on a log axis, without repeats."""
    if n < 1:
        return np.empty(0, dtype=np.int64)
    return np.unique(np.geomspace(1, n, points).round().astype(np.int64))


def fit_zipf(counts: np.ndarray) -> ZipfFit | None:
    """Fit Zipf's law to a histogram (int64[V], any order) by maximum likelihood; None where it is too small to fit.

    The tokens at ranks low..high are taken as draws from P(rank) = rank**-s / sum of rank**-s over low..high. The
    likelihood has its one maximum where the mean of log(rank) under P equals the counted mean (the discrete form of
    Clauset, Shalizi and Newman 2009, appendix B); bisection finds it. `low` is 1. `high` is the last rank with a count
    of at least `MIN_FITTED_COUNT`: rarer tokens are ranked by chance rather than by frequency, and text falls off the
    line there. At least `MIN_FITTED_RANKS` such ranks are needed.
    """
    frequencies = rank_frequency(counts)
    frequencies = frequencies[frequencies >= MIN_FITTED_COUNT].astype(np.float64)
    high = len(frequencies)
    if high < MIN_FITTED_RANKS:
        return None
    log_ranks = np.log(np.arange(1, high + 1))
    mean = frequencies @ log_ranks / frequencies.sum()
    below, above = 0.0, MAX_EXPONENT
    for _ in range(40):
        exponent = (below + above) / 2
        weights = np.exp(-exponent * log_ranks)
        if weights @ log_ranks / weights.sum() > mean:
            below = exponent
        else:
            above = exponent
    gap = np.cumsum(weights) / weights.sum() - np.cumsum(frequencies) / frequencies.sum()
    scale = float(frequencies.sum() / weights.sum())
    return ZipfFit(exponent, scale, 1, high, float(np.abs(gap).max()))


def coverage_curve(ranking_ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """float64[n]: entry k - 1 is the share of the counted tokens (int64[V]) that the first k of `ranking_ids` cover.

    Tokens outside the ranking stay in the total, so that the last entry may be below 1. NaN where nothing was counted.
    """
    total = counts.sum()
    if total == 0:
        return np.full(len(ranking_ids), np.nan)
    return np.cumsum(counts[ranking_ids]) / total


def k_for_coverage(curve: np.ndarray, share: float) -> int | None:
    """The smallest k whose coverage reaches `share` (0 < share <= 1), or None where no k does."""
    if not 0 < share <= 1:
        raise SettingError(f"A coverage of {share:g} cannot be reached; it must be more than 0 and at most 1.")
    if not len(curve) or not curve[-1] >= share:
        return None
    return int(np.searchsorted(curve, share)) + 1
