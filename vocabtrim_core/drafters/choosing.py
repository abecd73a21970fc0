"""From a drafter's logits to the tokens of a chain: the most probable ones, or drawn ones with their laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vocabtrim_core.drafters import Draft
from vocabtrim_core.sampling import SamplingSettings, law, softmax
from vocabtrim_core.trees import TokenTree


@dataclass(frozen=True, eq=False)
class Choice:
    """`ranks` int64[n] that were chosen, their `probs` float32[n], and the `laws` float32[n, k] if they were drawn."""

    ranks: torch.Tensor
    probs: torch.Tensor
    laws: torch.Tensor | None


def choose(logits: torch.Tensor, sampling: SamplingSettings, generator: torch.Generator) -> Choice:
    """One rank for each row of `logits` [n, k]: the argmax when greedy, else drawn."""
    if sampling.greedy:
        ranks = logits.float().argmax(-1)  # in half precision it is slow
        return Choice(ranks, softmax(logits, 0).gather(-1, ranks[:, None])[:, 0], None)
    laws = law(logits, sampling)
    ranks = torch.multinomial(laws, 1, generator=generator)  # [n, 1]
    return Choice(ranks[:, 0], laws.gather(-1, ranks)[:, 0], laws)


def chain_draft(choices: Sequence[Choice], kept: torch.Tensor, body_seconds: float, head_seconds: float) -> Draft:
    """The chain of these choices, one after the other; `kept` int64[k] are the target ids of the ranks."""
    ranks = torch.cat([choice.ranks for choice in choices])
    laws = [choice.laws for choice in choices if choice.laws is not None]
    return Draft(
        ids=kept[ranks],
        tree=TokenTree.chain(len(ranks)),
        probs=torch.cat([choice.probs for choice in choices]),
        ranks=ranks,
        laws=torch.cat(laws) if laws else None,
        body_seconds=body_seconds,
        head_seconds=head_seconds,
    )


def no_draft() -> Draft:
    """Nothing proposed, as where there is nothing to go by yet."""
    none = torch.empty(0, dtype=torch.int64)
    return Draft(none, TokenTree.chain(0), torch.empty(0), none, None, 0.0, 0.0)
