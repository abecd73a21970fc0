"""Whether draws follow a law: the probability that draws from it look at least this unlike it."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import chi2


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Pearson's test of `counts` against `law`, both of the same shape; cells that expect under five draws are joined.

    A draw that the law gives no probability is 0 at once.
    """
    counts, expected = counts.ravel(), law.ravel() * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    order = np.argsort(expected)
    counts, expected = counts[order], expected[order]
    rare = int((expected < 5).sum())
    # One joint cell, large enough itself.
    while 0 < rare < len(expected) and expected[:rare].sum() < 5:
        rare += 1
    if rare:
        counts = np.append(counts[rare:], counts[:rare].sum())
        expected = np.append(expected[rare:], expected[:rare].sum())
    used = expected > 0
    statistic = float(((counts[used] - expected[used]) ** 2 / expected[used]).sum())
    return float(chi2.sf(statistic, int(used.sum()) - 1))


def pair_counts(pairs: torch.Tensor, vocab_size: int) -> np.ndarray:
    """How often each (first, second) occurs, int64 [V, V], of int64 [n, 2]."""
    flat = (pairs[:, 0] * vocab_size + pairs[:, 1]).numpy()
    return np.bincount(flat, minlength=vocab_size**2).reshape(vocab_size, vocab_size)
