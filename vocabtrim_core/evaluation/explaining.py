"""Which tokens outside a draft vocabulary cost the most acceptance: what keeping each of them would save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vocabtrim_core.evaluation.acceptance import Chances, acceptance, text_chances
from vocabtrim_core.evaluation.trace import Trace, TracedText
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.sampling import SamplingSettings, law

CONTEXT_TOKENS = 12
EXAMPLES = 3


@dataclass(frozen=True)
class CostlyToken:
    """A token that is not kept. `count` is how often the outputs have it; `lost` how many accepted tokens keeping it,
    too, would add in the texts that have it (expected: that many cycles fewer), in all and by task; `contexts` are ids
    before it and it.
    """

    token_id: int
    count: int
    lost: float
    by_task: tuple[tuple[str, float], ...]
    contexts: tuple[tuple[int, ...], ...]


@torch.inference_mode()
def costly_tokens(trace: Trace, heads: Sequence[RankedHead], k: int, gamma: int, limit: int = 200) -> list[CostlyToken]:
    """The tokens outside the first k ranks that cost most, the costliest first, of the `limit` most frequent ones.

    Every token is tried by itself: the kept tokens and it, at the same gamma. That is exact, its new rivalry with the
    kept tokens included; only with top-k, top-p or min-p the latter is left out, since there it takes a law for each.
    """
    rank_of = {token: rank for rank, token in enumerate(heads[0].ranking.tolist())}
    counts = Counter(token for text in trace.texts for token in text.output_ids.tolist())
    outside = [token for token, _ in counts.most_common() if k <= rank_of.get(token, -1)][:limit]
    saved: dict[int, dict[str, float]] = {token: {} for token in outside}
    contexts: dict[int, list[tuple[int, ...]]] = {token: [] for token in outside}
    for text in trace.texts:
        here = [token for token in outside if token in set(text.output_ids.tolist())]
        if not here:
            continue
        base = text_chances(text, heads, trace.sampling, [k])
        columns = _with_each(text, heads, trace.sampling, k, base, [rank_of[token] for token in here])
        walked = acceptance([Chances(columns, base.ranks, text.draftable)], [gamma], range(columns.shape[-1]))
        cycles = walked.cycles.sum(axis=(0, 1, 2))
        before = acceptance([base], [gamma], [k]).cycles.sum()
        for token, after in zip(here, cycles, strict=True):
            by_task = saved[token]
            by_task[text.prompt.task] = by_task.get(text.prompt.task, 0.0) + float(before - after)
            contexts[token] += _contexts(text, token)
    found = [
        CostlyToken(token, counts[token], sum(saved[token].values()), _largest(saved[token]), _few(contexts[token]))
        for token in outside
    ]
    return sorted(found, key=lambda one: (-one.lost, -one.count, one.token_id))


def _with_each(
    text: TracedText,
    heads: Sequence[RankedHead],
    sampling: SamplingSettings,
    k: int,
    base: Chances,
    ranks: Sequence[int],
) -> np.ndarray:
    """w [D, L, C] where each of C tokens outside, given by its rank, is kept as well (as pinned: before the others)."""
    own_rank = torch.from_numpy(base.ranks)
    vocab_size = heads[0].vocab_size
    known = own_rank < vocab_size
    added = torch.tensor(ranks)
    is_it = own_rank[:, None] == added  # [L, C]
    result = np.repeat(base.accepted, len(ranks), axis=-1)
    filtered = not sampling.greedy and (sampling.top_k or sampling.top_p < 1 or sampling.min_p)
    for depth, states in enumerate(text.states):
        logits = heads[min(depth, len(heads) - 1)].logits(states)  # [L, V]
        own = logits.gather(-1, own_rank.clamp(max=vocab_size - 1)[:, None]).float()  # [L, 1]
        theirs = logits[:, added].float()  # [L, C]
        if sampling.greedy:
            best = logits[:, :k].float().amax(-1, keepdim=True)  # [L, 1]
            # Its rank would be below all of theirs, so that it wins ties.
            gained = is_it & (own >= best)
            w = np.where(gained.numpy(), 1.0, result[depth] * (is_it | (own > theirs)).numpy())
        elif filtered:
            w = result[depth]
            for column, rank in enumerate(ranks):
                rows = is_it[:, column]
                chosen = torch.cat([logits[rows][:, rank : rank + 1], logits[rows][:, :k]], dim=-1)
                probs = law(chosen, sampling)[:, 0].double().numpy()
                w[rows.numpy(), column] = np.minimum(1.0, probs / text.target_probs[rows.numpy()])
        else:
            total = (logits[:, :k].float() / sampling.temperature).double().logsumexp(-1, keepdim=True)
            total = torch.logaddexp(total, (theirs / sampling.temperature).double())  # [L, C]
            inside = (own_rank < k)[:, None] | is_it
            drafted = ((own / sampling.temperature).double() - total).exp() * inside
            w = np.minimum(1.0, drafted.numpy() / text.target_probs[:, None])
        result[depth] = w * known[:, None].numpy()
    return result


def _contexts(text: TracedText, token: int) -> list[tuple[int, ...]]:
    ids = [*text.prompt.ids, *text.output_ids.tolist()]
    start = len(text.prompt.ids)
    return [
        tuple(ids[max(0, i + start - CONTEXT_TOKENS) : i + start + 1])
        for i in np.flatnonzero(text.output_ids == token).tolist()
    ]


def _largest(by_task: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(by_task.items(), key=lambda item: -item[1]))


def _few(contexts: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    return tuple(dict.fromkeys(contexts))[:EXAMPLES]
