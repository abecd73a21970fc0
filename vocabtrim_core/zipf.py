"""Rank-frequency curves, the exponent of Zipf's law, and coverage: the share of text inside the first k ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.optimize

from vocabtrim_core.errors import SettingError

MIN_FITTED_COUNT = 10
MIN_FITTED_RANKS = 10
MAX_EXPONENT = 10.0
MAX_OFFSET = 10_000.0
_SHORT_OF = 0.99  # Of these bounds is an end of the search; closer to them it was stopped.


@dataclass(frozen=True)
class ZipfFit:
    """A power law, count(rank) = scale * (rank + offset)**-exponent, fitted to the ranks `low`..`high` (from 1, both
    included). The offset is 0 in Zipf's law; Mandelbrot added it, because the commonest words are less common than the
    straight line has it.

    `distance` says how good the fit is: the largest gap between the counted and the fitted cumulative share over those
    ranks (Kolmogorov-Smirnov), 0 for a perfect one; above about 0.1 the law is a poor summary. It is no significance
    test: with this many tokens any test refuses any simple law.
    """

    exponent: float
    scale: float
    low: int
    high: int
    distance: float
    offset: float = 0.0

    def counts(self, ranks: np.ndarray) -> np.ndarray:
        """float64[n]: the fitted count at each rank (from 1)."""
        return self.scale * (np.asarray(ranks, dtype=np.float64) + self.offset) ** -self.exponent


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

    The tokens at ranks low..high are taken as draws from P(rank) = rank**-s / sum of rank**-s over low..high (the
    discrete, truncated form of Clauset, Shalizi and Newman 2009, appendix B). `low` is 1. `high` is the last rank with
    a count of at least `MIN_FITTED_COUNT`: rarer tokens are ranked by chance rather than by frequency, and text falls
    off the line there. At least `MIN_FITTED_RANKS` such ranks are needed.
    """
    return _fit(counts, has_offset=False)


def fit_zipf_mandelbrot(counts: np.ndarray) -> ZipfFit | None:
    """The same for the law of Zipf and Mandelbrot, P(rank) in proportion to (rank + offset)**-s, offset >= 0.

    None also where no such law fits: text that falls off like an exponential makes exponent and offset grow together
    without end, and where they are stopped says nothing about the text.
    """
    fit = _fit(counts, has_offset=True)
    ended = fit is not None and fit.exponent < _SHORT_OF * MAX_EXPONENT and fit.offset < _SHORT_OF * MAX_OFFSET
    return fit if ended else None


def _fit(counts: np.ndarray, has_offset: bool) -> ZipfFit | None:
    frequencies = rank_frequency(counts)
    frequencies = frequencies[frequencies >= MIN_FITTED_COUNT].astype(np.float64)
    high = len(frequencies)
    if high < MIN_FITTED_RANKS:
        return None
    ranks, shares = np.arange(1, high + 1), frequencies / frequencies.sum()

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Mean negative log-likelihood of a token, and its gradient; of (exponent, log(1 + offset))."""
        exponent, offset = parameters[0], np.expm1(parameters[1])
        log_ranks = np.log(ranks + offset)
        probabilities = _normalised(-exponent * log_ranks)
        excess = shares - probabilities
        inner = 1 / (ranks + offset)
        value = -shares @ np.log(probabilities)
        return value, np.array([excess @ log_ranks, exponent * (1 + offset) * (excess @ inner)])

    bounds = [(0.0, MAX_EXPONENT), (0.0, math.log1p(MAX_OFFSET) if has_offset else 0.0)]
    start = [1.0, 1.0 if has_offset else 0.0]
    found = scipy.optimize.minimize(loss, start, jac=True, bounds=bounds, options={"ftol": 1e-12, "gtol": 1e-8}).x
    exponent, offset = float(found[0]), float(np.expm1(found[1]))
    probabilities = _normalised(-exponent * np.log(ranks + offset))
    distance = float(np.abs(np.cumsum(probabilities) - np.cumsum(shares)).max())
    scale = float(frequencies.sum() * probabilities[0] * (1 + offset) ** exponent)
    return ZipfFit(exponent, scale, 1, high, distance, offset)


def _normalised(logs: np.ndarray) -> np.ndarray:
    """float64[n]: exp(logs), brought to sum to 1."""
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def rarest_share(counts: np.ndarray, share: float = 0.75) -> float:
    """The share of the text that the rarest `share` of the vocabulary makes up (FR-Spec section 3.1: 75 %, some 5 %).

    `counts` is int64[V], so tokens that never occur are among the rarest (in a small corpus, all of them). Give it the
    `rank_frequency` for the share among the tokens that occur. NaN where nothing was counted.
    """
    if not 0 <= share <= 1:
        raise SettingError(f"A share of {share:g} of the vocabulary is not possible; it must be from 0 to 1.")
    total = counts.sum()
    rarest = np.sort(counts)[: int(share * len(counts))]
    return float(rarest.sum() / total) if total else math.nan


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
