"""From a trace to the expected acceptance at any k and gamma, exactly (nothing is decoded again).

Given the target's output y, the drafter accepts position t with a probability w[t] that does not depend on the other
positions. Greedy, w is 0 or 1: y[t] is drafted exactly where its rank r < k and no token before rank k beats its logit
(an equal logit at a lower rank does), so for r < k <= b with b the lowest rank that beats it. Sampling (Leviathan et
al. 2023, section 2.3), the drafted token is accepted *and is y[t]* with probability min(1, draft_prob_k(y) /
target_prob(y)). A walk over the output then gives the expected number of cycles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vocabtrim_core.evaluation.trace import Trace, TracedText
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.sampling import SamplingSettings, law

ROWS = 128  # of the full head at a time, to bound memory


@dataclass(frozen=True, eq=False)
class Chances:
    """Of one text: `accepted` float64[D, L, K] is w by depth, position and k (D = 1: the same at every depth); `ranks`
    int64[L] is the rank of each output token, the head's size where it has none; `draftable` as in the trace."""

    accepted: np.ndarray
    ranks: np.ndarray
    draftable: int


@dataclass(frozen=True, eq=False)
class Acceptance:
    """What speculative decoding of N texts does, expected, for G gammas and K sizes.

    `tokens` int64[N] are the outputs' lengths. `cycles` float64[N, G, J, K] are the cycles that draft 0..J - 1 tokens
    (near the limit of length and the end of the drafter's context a cycle drafts less than gamma); `rejections` and, of
    them, `out_of_vocabulary` are float64[N, G, K]; `first_draft` int64[N, G] is the length of the first cycle's draft.
    """

    gammas: tuple[int, ...]
    ks: tuple[int, ...]
    tokens: np.ndarray
    cycles: np.ndarray
    rejections: np.ndarray
    out_of_vocabulary: np.ndarray
    first_draft: np.ndarray

    @property
    def tau(self) -> np.ndarray:
        """Acceptance length, tokens per target pass over all texts, float64[G, K]."""
        return self.tokens.sum() / self.cycles.sum(axis=(0, 2))

    def chosen(self, texts: Sequence[int]) -> Acceptance:
        """The same for some of the texts."""
        rows = list(texts)
        return Acceptance(
            self.gammas,
            self.ks,
            *(
                array[rows]
                for array in (self.tokens, self.cycles, self.rejections, self.out_of_vocabulary, self.first_draft)
            ),
        )


def acceptance(chances: Sequence[Chances], gammas: Sequence[int], ks: Sequence[int]) -> Acceptance:
    """Walk over every text. `ks` are those that the chances were made for."""
    walked = [_walk(one, np.asarray(gammas), np.asarray(ks)) for one in chances]
    cycles, rejections, outside = (np.stack(part) for part in zip(*walked, strict=True))
    first = np.array([[min(gamma, one.draftable) for gamma in gammas] for one in chances], dtype=np.int64)
    tokens = np.array([len(one.ranks) for one in chances], dtype=np.int64)
    return Acceptance(tuple(gammas), tuple(ks), tokens, cycles, rejections, outside, first)


def acceptance_chances(trace: Trace, heads: Sequence[RankedHead], ks: Sequence[int]) -> list[Chances]:
    """w for every text of the trace at each k. `heads` are in rank order, one a depth or one for all."""
    return [text_chances(text, heads, trace.sampling, ks) for text in trace.texts]


@torch.inference_mode()
def text_chances(
    text: TracedText, heads: Sequence[RankedHead], sampling: SamplingSettings, ks: Sequence[int]
) -> Chances:
    """w of one text at each k: one pass of the full head over the drafter's states."""
    head = heads[0]
    ranks = _ranks(head, text.output_ids)  # [L]
    depths, length, _ = text.states.shape
    accepted = np.zeros((depths, length, len(ks)))
    for depth, start, logits in _logits(text, heads):
        rows = slice(start, start + len(logits))
        probs = torch.from_numpy(text.target_probs[rows])
        rank = torch.from_numpy(ranks[rows])
        known = rank < head.vocab_size
        if not known.any():
            continue
        if sampling.greedy:
            found = _greedy(logits[known], rank[known], ks)
        elif sampling.top_k or sampling.top_p < 1 or sampling.min_p:
            found = _filtered(logits[known], rank[known], probs[known], sampling, ks)
        else:
            found = _sampled(logits[known], rank[known], probs[known], sampling, ks)
        accepted[depth, rows][known.numpy()] = found.numpy()
    return Chances(accepted, ranks, text.draftable)


def _ranks(head: RankedHead, ids: np.ndarray) -> np.ndarray:
    """The rank of each id, the head's size for one that it does not have."""
    size = max(int(head.ranking.max()), int(ids.max(initial=0))) + 1
    rank_of = np.full(size, head.vocab_size, dtype=np.int64)
    rank_of[head.ranking.numpy()] = np.arange(head.vocab_size)
    return rank_of[ids]


def _logits(text: TracedText, heads: Sequence[RankedHead]) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Depth, first position and logits [n, V] of the rank-ordered head, a few rows at a time."""
    for depth, states in enumerate(text.states[:, : text.draftable]):
        for start in range(0, len(states), ROWS):
            yield depth, start, heads[min(depth, len(heads) - 1)].logits(states[start : start + ROWS])


def _greedy(logits: torch.Tensor, ranks: torch.Tensor, ks: Sequence[int]) -> torch.Tensor:
    """bool[n, K]: r < k <= b."""
    own = logits.gather(-1, ranks[:, None])  # [n, 1]
    beats = logits > own
    beats |= (logits == own) & (torch.arange(logits.shape[-1]) < ranks[:, None])
    first = torch.where(beats.any(-1), beats.to(torch.uint8).argmax(-1), logits.shape[-1])  # [n]
    sizes = torch.tensor(ks)
    return (ranks[:, None] < sizes) & (sizes <= first[:, None])


def _sampled(
    logits: torch.Tensor, ranks: torch.Tensor, target_probs: torch.Tensor, sampling: SamplingSettings, ks: Sequence[int]
) -> torch.Tensor:
    """float64[n, K]; one cumulative sum gives the law's normaliser at every k."""
    scores = (logits.float() / sampling.temperature).double()
    own = scores.gather(-1, ranks[:, None])  # [n, 1]
    ends = sorted(set(ks))
    blocks = [scores[:, start:end].logsumexp(-1) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    total = torch.stack(blocks, dim=-1).logcumsumexp(-1)  # [n, distinct k]
    total = total[:, [ends.index(k) for k in ks]]
    inside = ranks[:, None] < torch.tensor(ks)
    return ((own - total).exp() / target_probs[:, None]).clamp(max=1.0) * inside


def _filtered(
    logits: torch.Tensor, ranks: torch.Tensor, target_probs: torch.Tensor, sampling: SamplingSettings, ks: Sequence[int]
) -> torch.Tensor:
    """float64[n, K]; a filter acts on the law over k tokens, so that law is made at every k."""
    found = torch.zeros(len(ranks), len(ks), dtype=torch.float64)
    for column, k in enumerate(ks):
        inside = ranks < k
        if inside.any():
            probs = law(logits[inside, :k], sampling).gather(-1, ranks[inside][:, None])[:, 0].double()
            found[inside, column] = (probs / target_probs[inside]).clamp(max=1.0)
    return found


def _walk(chances: Chances, gammas: np.ndarray, ks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cycles by draft length [G, J, K], rejections and out-of-vocabulary rejections [G, K] of one text.

    `reached[g, j, k]` is the probability that the text's next position is j tokens into a cycle. The cycle has drafted
    that position where j < gamma and it is among those that can be drafted.
    """
    longest = int(gammas.max())
    steps = np.arange(longest + 1)
    drafts = (steps < gammas[:, None])[:, :, None].astype(np.float64)  # [G, J, 1]
    depths = np.minimum(steps, len(chances.accepted) - 1)
    reached = np.zeros((len(gammas), longest + 1, len(ks)))
    reached[:, 0] = 1.0
    cycles = np.zeros_like(reached)
    rejections, outside = np.zeros((2, len(gammas), len(ks)))
    every = np.arange(len(gammas))
    for position, rank in enumerate(chances.ranks):
        left = max(0, chances.draftable - position)
        cycles[every, np.minimum(gammas, left)] += reached[:, 0]
        drafted = reached * drafts if left else 0.0 * reached
        accepted = drafted * chances.accepted[depths, position]  # [G, J, K]
        rejected = (drafted - accepted).sum(axis=1)  # [G, K]
        rejections += rejected
        outside += rejected * (ks <= rank)
        starts = (reached - accepted).sum(axis=1)
        reached[:, 1:] = accepted[:, :-1]
        reached[:, 0] = starts
    return cycles, rejections, outside
