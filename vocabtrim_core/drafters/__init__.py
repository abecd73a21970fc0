"""Drafters: what proposes tokens. One module a kind; the engine knows only this protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from vocabtrim_core.sampling import SamplingSettings


@dataclass(frozen=True, eq=False)
class Draft:
    """A proposed chain of g tokens.

    `ids` int64[g] are target ids; `probs` float32[g] is the probability that the drafter gave each of them. With
    sampling, `laws` float32[g, k] are the distributions that they were drawn from, over the kept tokens in rank order,
    and `ranks` int64[g] are the drawn columns; greedy drafts have no laws. Seconds are those of the body and those of
    the head, the latter with everything that grows with k: softmax, filters, choosing.
    """

    ids: torch.Tensor
    probs: torch.Tensor
    ranks: torch.Tensor
    laws: torch.Tensor | None
    body_seconds: float
    head_seconds: float


class Drafter(Protocol):
    """Proposes tokens and follows what became of them.

    `kept` int64[k] are the target ids that it can propose, in rank order. `max_length` is the longest context it takes.
    """

    kept: torch.Tensor
    max_length: int

    def begin(self, prompt_ids: torch.Tensor, hidden: torch.Tensor) -> None:
        """Start on a prompt, int64[n], whose target states are `hidden` [n, H]."""
        ...

    def propose(self, gamma: int, sampling: SamplingSettings, generator: torch.Generator) -> Draft:
        """Draft `gamma` tokens after everything settled so far."""
        ...

    def settle(self, accepted: int, next_id: int, hidden: torch.Tensor) -> None:
        """The first `accepted` drafted tokens stand, then comes `next_id`. `hidden` [g + 1, H]: the target's states of
        the token before the draft and of the draft."""
        ...
