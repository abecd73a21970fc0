"""From acceptance and latency to speed, with its uncertainty, and to one recommendation.

speedup(k, gamma) = time of vanilla / time of the expected cycles, the end of each text included. Intervals are
bootstrap intervals (Efron and Tibshirani 1993, chapter 13; see `spread.interval`) over prompts and timing rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vocabtrim_core.evaluation.acceptance import Acceptance, acceptance, acceptance_chances
from vocabtrim_core.evaluation.comparison import Contest
from vocabtrim_core.evaluation.profile import LatencyProfile, kept_profile
from vocabtrim_core.evaluation.spread import Spread, interval, resampled
from vocabtrim_core.evaluation.teacher_forcing import heads_by_depth, kind_of
from vocabtrim_core.evaluation.trace import Trace
from vocabtrim_core.models import ModelPair
from vocabtrim_core.progress import Progress
from vocabtrim_core.vocabulary import Ranking

PLATEAU = 0.01  # within this share of the best
GRID = 64
FEW_PROMPTS, FEW_TOKENS = 10, 500  # evidence is thin below either
THIN_SHARE = 1 / 32  # of the vocabulary: on thin evidence, no smaller k
_UNSEEN = 3.0  # "rule of three": what was never seen may still have been due so often, with 95 % confidence


@dataclass(frozen=True, eq=False)
class Prediction:
    """Speed at G gammas and K sizes, the largest of them the whole vocabulary.

    `tau`, `speedup` (against vanilla), `low`, `high` and `mbsu` are float64[G, K]; `samples` float64[B, G, K] are the
    bootstrap's speedups, drawn jointly, so that their ratios are paired. `mbsu` is modelled from parameters alone. All
    that is from `prompts` prompts with `tokens` tokens of output.
    """

    gammas: tuple[int, ...]
    ks: tuple[int, ...]
    tau: np.ndarray
    speedup: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mbsu: np.ndarray
    out_of_vocabulary_share: np.ndarray
    samples: np.ndarray
    prompts: int
    tokens: int

    @property
    def retained(self) -> np.ndarray:
        """Acceptance length as a share of the whole vocabulary's at the same gamma, float64[G, K]."""
        return self.tau / self.tau[:, -1:]

    def at(self, k: int, gamma: int) -> tuple[int, int]:
        """Row and column of a point that was predicted."""
        return self.gammas.index(gamma), self.ks.index(k)

    def interval(self, k: int, gamma: int) -> Spread:
        """Speedup against vanilla."""
        place = self.at(k, gamma)
        return Spread(float(self.speedup[place]), float(self.low[place]), float(self.high[place]))

    def over(self, k: int, gamma: int, other_k: int, other_gamma: int) -> Spread:
        """Speed at one point over that at another, with the interval of paired samples."""
        one, other = self.at(k, gamma), self.at(other_k, other_gamma)
        ratios = self.samples[:, *one] / self.samples[:, *other]
        low, high = interval(ratios, self.prompts)
        return Spread(float(self.speedup[one] / self.speedup[other]), float(low), float(high))

    def allowance(self, k: int, gamma: int, best_k: int) -> float:
        """How much slower than `best_k` k may come out at `gamma` and still be as good, a share of the speed.

        `PLATEAU`, one standard error of the paired difference, or the cost of `_UNSEEN` more cycles, whichever is most.
        """
        row, column = self.at(k, gamma)
        best = self.at(best_k, gamma)
        count = self.prompts
        error = float((self.samples[:, row, column] / self.samples[:, *best]).std())
        error = error * float(np.sqrt(count / (count - 1))) if count > 1 else np.inf
        return max(PLATEAU, error, _UNSEEN * float(self.tau[best]) / self.tokens)


@dataclass(frozen=True)
class Recommendation:
    """What to ship (see `recommend`): k and gamma, the speedup against vanilla and `over_untrimmed`, against the whole
    vocabulary at its own best gamma; from which to which k the speed is within `PLATEAU` of it; and the share of
    acceptance length that it keeps.

    `trim` says that the gain of trimming is beyond doubt (its interval lies above 1); if not, k is the whole
    vocabulary. `speculate` says that the speedup against vanilla is above 1, `thin` that so little text was traced
    that more would be wise.
    """

    k: int
    gamma: int
    speedup: Spread
    tau: float
    trim: bool
    speculate: bool
    over_untrimmed: Spread
    best_trimmed_k: int
    plateau: tuple[int, int]
    retained: float
    thin: bool


def sizes(ranking: Ranking, also: Sequence[int] = (), count: int = GRID) -> list[int]:
    """Draft vocabulary sizes for a curve: evenly spaced on a log axis from the smallest to the whole vocabulary."""
    low = max(1, ranking.forced)
    start = min(max(low, 64), ranking.largest_k)
    grid = np.geomspace(start, ranking.largest_k, count).round().astype(int).tolist()
    return sorted({*grid, low, *also, ranking.vocab_size})


def timed_sizes(ranking: Ranking, count: int = 6) -> list[int]:
    """The few of them at which the head is timed."""
    low = min(max(1, ranking.forced, 512), ranking.vocab_size)
    return np.unique(np.geomspace(low, ranking.vocab_size, count).round().astype(int)).tolist()


def predict(
    found: Acceptance,
    trace: Trace,
    profile: LatencyProfile,
    ratio: Callable[[int], float],
    seed: int = 0,
) -> Prediction:
    """Speed at every point of `found`, which is of the trace's texts. `ratio(k)` is c of MBSU = tau / (c gamma + 1),
    the drafter's parameters over the target's (VocabTrim section 4)."""
    gammas, ks = np.array(found.gammas), np.array(found.ks)
    drafts = np.arange(found.cycles.shape[2])
    context = _mean_context(trace, found)
    cost = profile.cycle_seconds(drafts.tolist(), found.ks, context)  # [R, J, K]
    rng = np.random.default_rng(seed)
    count = len(found.tokens)
    texts = resampled(count, rng)  # [B, N]
    rounds = resampled(profile.rounds, rng) / profile.rounds  # [B, R]
    # The first row is the estimate itself.
    texts = np.concatenate([np.ones((1, texts.shape[1])), texts])
    rounds = np.concatenate([np.full((1, profile.rounds), 1 / profile.rounds), rounds])

    vanilla = texts @ (found.tokens - 1.0) * (rounds @ cost[:, 0, 0])  # [B]
    vanilla += texts.sum(axis=1) * (rounds @ profile.first_cycle_seconds(0, [found.ks[0]], context)[:, 0])
    samples = np.empty((len(texts), len(gammas), len(ks)))
    for row in range(len(gammas)):
        cycles = np.tensordot(texts, found.cycles[:, row], axes=1)  # [B, J, K]
        seconds = np.einsum("bjk,br,rjk->bk", cycles, rounds, cost, optimize=True)
        for draft in np.unique(found.first_draft[:, row]):
            first = profile.first_cycle_seconds(int(draft), found.ks, context) - cost[:, draft]  # [R, K]
            seconds += (texts @ (found.first_draft[:, row] == draft))[:, None] * (rounds @ first)
        samples[:, row] = vanilla[:, None] / seconds
    low, high = interval(samples[1:], count)
    rejections = found.rejections.sum(axis=0)
    shares = np.divide(
        found.out_of_vocabulary.sum(axis=0), rejections, out=np.zeros_like(rejections), where=rejections > 0
    )
    c = np.array([ratio(k) for k in found.ks])
    return Prediction(
        gammas=found.gammas,
        ks=found.ks,
        tau=found.tau,
        speedup=samples[0],
        low=low,
        high=high,
        mbsu=found.tau / (c * gammas[:, None] + 1),
        out_of_vocabulary_share=shares,
        samples=samples[1:],
        prompts=count,
        tokens=int(found.tokens.sum()),
    )


def parameter_ratio(pair: ModelPair) -> Callable[[int], float]:
    """c of MBSU at k: parameters that a pass reads, the drafter's over the target's, heads included."""
    head = pair.drafter.head
    assert head is not None, "only a drafter with a head is trimmed"
    target = pair.target.parameters + pair.target.head.weight.numel()
    width = head.hidden_size + (head.bias is not None)
    return lambda k: (pair.drafter.parameters + k * width) / target


def recommend(prediction: Prediction) -> Recommendation:
    """The largest k that is as good as the fastest, at the fastest's gamma; the whole vocabulary where trimming is not
    faster beyond doubt.

    The fastest of many points on few texts is partly luck, and the luck is with small k: tokens that the texts happen
    not to have cost nothing there. So this is the one-standard-error rule (Breiman et al. 1984, Classification and
    Regression Trees, section 3.4.3) with k as the size of the model: the safest k whose loss against the fastest is
    not beyond its own uncertainty. The curve is not fitted to the texts, so that cross-validation over prompts would
    give the same figures. The bootstrap cannot see a rejection that never occurred, so what is allowed is at least
    the cost of three of them (Hanley and Lippman-Hand 1983). Both vanish as texts are added; 1 % is always given for
    the larger k. From one prompt nothing is beyond doubt. On thin evidence no k below `THIN_SHARE` of the vocabulary is
    considered: half of the smallest share that was published (FR-Spec, 1/16).
    """
    full = prediction.ks[-1]
    full_gamma = prediction.gammas[int(np.argmax(prediction.speedup[:, -1]))]
    thin = prediction.prompts < FEW_PROMPTS or prediction.tokens < FEW_TOKENS
    allowed = np.array(prediction.ks[:-1]) >= (THIN_SHARE * full if thin else 0)
    trimmed = np.where(allowed, prediction.speedup[:, :-1], -np.inf)
    if allowed.any():
        row, column = (int(i) for i in np.unravel_index(np.argmax(trimmed), trimmed.shape))
        column = _safest(prediction, row, column)
    else:
        row, column = prediction.at(full, full_gamma)
    best_trimmed = prediction.ks[column]
    over = prediction.over(best_trimmed, prediction.gammas[row], full, full_gamma)
    trim = over.low > 1 and prediction.prompts > 1
    if not trim:
        row, column = prediction.at(full, full_gamma)
    k, gamma = prediction.ks[column], prediction.gammas[row]
    return Recommendation(
        k=k,
        gamma=gamma,
        speedup=prediction.interval(k, gamma),
        tau=float(prediction.tau[row, column]),
        trim=trim,
        speculate=bool(prediction.speedup[row, column] > 1),
        over_untrimmed=over,
        best_trimmed_k=best_trimmed,
        plateau=_plateau(prediction, row, column, np.append(allowed, True)),
        retained=float(prediction.retained[row, column]),
        thin=thin,
    )


def _safest(prediction: Prediction, row: int, column: int) -> int:
    """The column of the largest trimmed k that is as good as the one in `column`."""
    gamma, ks = prediction.gammas[row], prediction.ks
    for larger in range(len(ks) - 2, column, -1):
        loss = 1 - prediction.speedup[row, larger] / prediction.speedup[row, column]
        if loss <= prediction.allowance(ks[larger], gamma, ks[column]):
            return larger
    return column


def _plateau(prediction: Prediction, row: int, column: int, allowed: np.ndarray) -> tuple[int, int]:
    """The `allowed` k, bool[K], around a point, without a gap, whose speed is within `PLATEAU` of it."""
    within = allowed & (prediction.speedup[row] >= (1 - PLATEAU) * prediction.speedup[row, column])
    low = high = column
    while low > 0 and within[low - 1]:
        low -= 1
    while high + 1 < len(within) and within[high + 1]:
        high += 1
    return prediction.ks[low], prediction.ks[high]


def _mean_context(trace: Trace, found: Acceptance) -> float:
    """The mean length of the text before a token."""
    prompts = np.array([len(text.prompt.ids) for text in trace.texts], dtype=np.float64)
    return float((found.tokens * (prompts + found.tokens / 2)).sum() / found.tokens.sum())


@dataclass(frozen=True, eq=False)
class Tuned:
    """Everything that one trace gave. `seconds` is what it took beyond the target's plain decoding."""

    trace: Trace
    acceptance: Acceptance
    profile: LatencyProfile
    prediction: Prediction
    recommendation: Recommendation
    seconds: float


def tune(
    contest: Contest,
    ranking: Ranking,
    trace: Trace,
    gammas: Sequence[int],
    also: Sequence[int],
    dtype: str,
    on_progress: Progress,
    keep: Path | None = None,
    profile: LatencyProfile | None = None,
) -> Tuned:
    """From a trace to a recommendation, at the k of `sizes` and `also`.

    Where no profile is given it is the one that the folder `keep` has, and else the machine is timed.
    """
    kind_of(contest.pair)  # refuses one without a head
    assert contest.ranked_head is not None
    began = time.perf_counter()
    on_progress(0.0, "Working out the acceptance at every k")
    ks = sizes(ranking, also)
    found = acceptance(acceptance_chances(trace, heads_by_depth(contest.pair, contest.ranked_head), ks), gammas, ks)
    if profile is None:
        profile = kept_profile(keep, contest, trace, gammas, timed_sizes(ranking), dtype, on_progress)
    prediction = predict(found, trace, profile, parameter_ratio(contest.pair))
    seconds = time.perf_counter() - began + trace.drafter_seconds
    return Tuned(trace, found, profile, prediction, recommend(prediction), seconds)
