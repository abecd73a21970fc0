"""An independent drafter: a small language model with its own cache and a trimmed head (VocabTrim section 3)."""

from __future__ import annotations

import time

import torch

from vocabtrim_core.backbones import Backbone
from vocabtrim_core.drafters import Draft
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.sampling import SamplingSettings, draw, law, probability_of


class IndependentDrafter:
    """Drafts with `backbone` and the first `k` ranks of `head`."""

    def __init__(self, backbone: Backbone, head: RankedHead, k: int, max_length: int) -> None:
        self.kept = head.ranking[:k]
        self.max_length = max_length
        self._backbone = backbone
        self._head = head
        self._k = k
        self._pending = torch.empty(0, dtype=torch.int64)  # tokens that stand and are not in the cache
        self._drafted = self._pending

    def begin(self, prompt_ids: torch.Tensor, hidden: torch.Tensor) -> None:
        self._backbone.reset()
        if len(prompt_ids) > 1:
            self._backbone.run(prompt_ids[:-1])
        self._pending = prompt_ids[-1:]

    def propose(self, gamma: int, sampling: SamplingSettings, generator: torch.Generator) -> Draft:
        feed = self._pending
        ranks, probs, laws = [], [], []
        body_seconds = head_seconds = 0.0
        for _ in range(gamma):
            began = time.perf_counter()
            hidden = self._backbone.run(feed)[-1:]  # [1, H]
            computed = time.perf_counter()
            logits = self._head.logits(hidden, self._k)  # [1, k]
            if sampling.greedy:
                rank = logits.argmax(-1)
                probs.append(probability_of(logits, rank))
            else:
                laws.append(law(logits, sampling))
                rank = torch.tensor([draw(laws[-1][0], generator)])
                probs.append(laws[-1][:, rank[0]])
            ranks.append(rank)
            feed = self.kept[rank]  # [1]
            body_seconds += computed - began
            head_seconds += time.perf_counter() - computed
        drafted_ranks = torch.cat(ranks)
        self._drafted = self.kept[drafted_ranks]
        return Draft(
            self._drafted,
            torch.cat(probs),
            drafted_ranks,
            torch.cat(laws) if laws else None,
            body_seconds,
            head_seconds,
        )

    def settle(self, accepted: int, next_id: int, hidden: torch.Tensor) -> None:
        following = torch.tensor([next_id])
        if accepted == len(self._drafted):
            # The last drafted token was never fed, so it is not in the cache yet.
            self._pending = torch.cat([self._drafted[-1:], following])
        else:
            self._backbone.rewind(len(self._drafted) - 1 - accepted)
            self._pending = following
