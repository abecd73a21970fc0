"""Figures that vary: measured several times, or over the prompts that happened to be asked."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats

LEVEL = 0.95
SAMPLES = 400


@dataclass(frozen=True)
class Spread:
    """The median of repeated measurements with the smallest and the largest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


def resampled(count: int, rng: np.random.Generator) -> np.ndarray:
    """The bootstrap: how often each of `count` is drawn, float64[SAMPLES, count]."""
    return rng.multinomial(count, np.full(count, 1 / count), size=SAMPLES).astype(np.float64)


def interval(samples: np.ndarray, count: int) -> np.ndarray:
    """The low and the high end [2, ...] of the interval of `LEVEL`, from bootstrap samples [B, ...] of `count` things.

    It is the expanded percentile interval (Hesterberg 2015, What teachers should know about the bootstrap, section
    5.3): with few things a plain percentile interval is too narrow, by sqrt((n - 1) / n) and by z for t.
    """
    outside = 0.0
    if count > 1:
        t = scipy.stats.t.ppf((1 - LEVEL) / 2, count - 1)
        outside = float(scipy.stats.norm.cdf(t * np.sqrt(count / (count - 1))))
    ends: np.ndarray = np.quantile(samples, [outside, 1 - outside], axis=0)
    return ends
