"""Coverage of held-out text with its uncertainty, across domains, and the tokens that are missing most.

Text is bursty: a document repeats its words. So what varies from sample to sample is documents rather than tokens, and
intervals come from drawing documents again (bootstrap over documents). Documents are counted in groups
(`TokenCounts.held_out_groups`, int64[G, V], by content, so at random), and whole groups are drawn: a group of many
documents varies as its documents do, and no list of documents has to be kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vocabtrim_core.errors import TokenizerError
from vocabtrim_core.mixing import proportions
from vocabtrim_core.vocabulary import Ranking, check_k

LEVEL = 0.95
SAMPLES = 1_000
MIN_GROUPS = 5


@dataclass(frozen=True, eq=False)
class CoverageInterval:
    """Coverage at each of some k, with the bounds between which it lies with probability `LEVEL`.

    All float64[n]. The bounds are NaN where fewer than `MIN_GROUPS` groups have text, everything where none has.
    """

    ks: np.ndarray
    coverage: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, eq=False)
class DomainMatrix:
    """Coverage at one k of corpora (columns) by rankings made from corpora (rows): float64[rows, columns] each.

    NaN as in `CoverageInterval`.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    k: int
    coverage: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class MissingToken:
    """A token outside a draft vocabulary, how often a text has it, and the smallest k that keeps it.

    A banned token is kept only by the whole vocabulary.
    """

    token_id: int
    count: float
    share: float
    kept_from: int


def coverage_interval(
    ranking: Ranking, groups: Sequence[np.ndarray] | np.ndarray, ks: Sequence[int] | np.ndarray, seed: int = 0
) -> CoverageInterval:
    """Share of the text counted in `groups` (int64[G, V]) that the first k tokens of the ranking cover, for each k.

    The interval is the percentile interval of the bootstrap over groups (Efron and Tibshirani 1993, chapter 13).
    """
    return mixed_coverage_interval(ranking, [np.asarray(groups)], [1.0], ks, seed)


def mixed_coverage_interval(
    ranking: Ranking,
    corpora: Sequence[np.ndarray],
    weights: Sequence[float],
    ks: Sequence[int] | np.ndarray,
    seed: int = 0,
) -> CoverageInterval:
    """The same for text mixed from several corpora (int64[G, V] each): the weighted mean of their coverages."""
    sizes = np.asarray(ks, dtype=np.int64)
    shares = proportions(weights)
    rng = np.random.default_rng(seed)
    coverage, samples = np.zeros(len(sizes)), np.zeros((SAMPLES, len(sizes)))
    for groups, share in zip(corpora, shares, strict=True):
        if share:
            covered, totals = _covered(ranking, groups, sizes)
            with np.errstate(invalid="ignore"):
                coverage += share * covered.sum(axis=0) / totals.sum()
            samples += share * _resampled(covered, totals, rng)
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return CoverageInterval(sizes, coverage, low, high)


def domain_matrix(rankings: Sequence[Ranking], corpora: Mapping[str, np.ndarray], k: int) -> DomainMatrix:
    """How well each ranking's first k tokens cover each corpus's held-out text (its groups, int64[G, V])."""
    cells = [
        [coverage_interval(ranking, groups, [check_k(ranking, k)]) for groups in corpora.values()]
        for ranking in rankings
    ]
    shape = (len(rankings), len(corpora))
    coverage, low, high = (
        np.array([[getattr(cell, name)[0] for cell in row] for row in cells], dtype=np.float64).reshape(shape)
        for name in ("coverage", "low", "high")
    )
    return DomainMatrix(tuple(ranking.name for ranking in rankings), tuple(corpora), k, coverage, low, high)


def missing_tokens(ranking: Ranking, k: int, counts: np.ndarray, limit: int = 100) -> list[MissingToken]:
    """The tokens outside the first k that `counts` (int64[V] or float64[V]) has most of, at most `limit`."""
    outside = ranking.ids[check_k(ranking, k) :]
    _check_vocabulary(ranking, len(counts))
    outside_counts = counts[outside]
    order = np.argsort(-outside_counts, kind="stable")[:limit]
    kept_from = np.arange(k + 1, ranking.vocab_size + 1)
    kept_from[max(0, ranking.largest_k - k) :] = ranking.vocab_size
    total = counts.sum()
    return [
        MissingToken(int(outside[i]), outside_counts[i].item(), float(outside_counts[i] / total), int(kept_from[i]))
        for i in order
        if outside_counts[i]
    ]


def _covered(ranking: Ranking, groups: np.ndarray, ks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each group, int64: inside the first k of the ranking [G, n], and altogether [G]."""
    _check_vocabulary(ranking, groups.shape[1])
    order = np.argsort(ks, kind="stable")
    covered = np.zeros((len(groups), len(ks)), dtype=np.int64)
    before, sums = 0, np.zeros(len(groups), dtype=np.int64)
    for i in order:
        sums = sums + groups[:, ranking.ids[before : ks[i]]].sum(axis=1)
        covered[:, i], before = sums, ks[i]
    return covered, groups.sum(axis=1)


def _resampled(covered: np.ndarray, totals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """float64[SAMPLES, n]: coverage of as many groups drawn with replacement, each time anew; NaN for too few."""
    some = totals > 0
    covered, totals = covered[some], totals[some]
    if len(totals) < MIN_GROUPS:
        return np.full((SAMPLES, covered.shape[1]), np.nan)
    drawn = rng.multinomial(len(totals), np.full(len(totals), 1 / len(totals)), size=SAMPLES)  # [SAMPLES, G]
    return drawn @ covered / (drawn @ totals)[:, None]


def _check_vocabulary(ranking: Ranking, vocab_size: int) -> None:
    if ranking.vocab_size > vocab_size:
        raise TokenizerError(
            f"The ranking {ranking.name} has {ranking.vocab_size:,} tokens and the counts have {vocab_size:,}; make "
            "both with the same tokenizer."
        )
