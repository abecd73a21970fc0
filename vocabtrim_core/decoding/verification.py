"""The accept rule of a drafted chain, which keeps the output exactly the target's (Leviathan et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vocabtrim_core.sampling import draw


@dataclass(frozen=True)
class Verdict:
    """`accepted` drafted tokens stand; `next_id` is the target's own token after them (correction or bonus)."""

    accepted: int
    next_id: int


def verify_greedy(target_choices: torch.Tensor, drafted: torch.Tensor) -> Verdict:
    """Accept while the draft is the target's argmax. `target_choices` int64[g + 1], `drafted` int64[g], target ids."""
    agrees = (target_choices[:-1] == drafted).long()
    accepted = int(agrees.cumprod(0).sum())
    return Verdict(accepted, int(target_choices[accepted]))


def acceptance_probability(target_prob: float, draft_prob: float) -> float:
    """min(1, target_prob / draft_prob), both of the drafted token under the laws actually sampled from."""
    return min(1.0, target_prob / draft_prob)


def residual_law(target_probs: torch.Tensor, draft_probs: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """norm(max(0, target_probs - draft_probs)) over the full vocabulary, float32 [V].

    `target_probs` [V]; `draft_probs` [k] over `kept` int64[k] target ids, zero elsewhere.
    """
    left = target_probs.clone()
    left[kept] -= draft_probs
    left.clamp_(min=0)
    total = left.sum()
    # A rejection with nothing left is rounding: the two laws are equal.
    return left / total if total > 0 else target_probs


def verify_sampled(
    target_laws: torch.Tensor,
    drafted: torch.Tensor,
    ranks: torch.Tensor,
    draft_laws: torch.Tensor,
    kept: torch.Tensor,
    generator: torch.Generator,
) -> Verdict:
    """Speculative sampling, position by position.

    `target_laws` float32[g + 1, V]; `drafted` int64[g] target ids, drawn as columns `ranks` int64[g] of `draft_laws`
    float32[g, k], whose columns are the target ids `kept` int64[k].
    """
    for position, (token, rank) in enumerate(zip(drafted.tolist(), ranks.tolist(), strict=True)):
        target_prob, draft_prob = float(target_laws[position, token]), float(draft_laws[position, rank])
        if float(torch.rand((), generator=generator)) >= acceptance_probability(target_prob, draft_prob):
            return Verdict(position, draw(residual_law(target_laws[position], draft_laws[position], kept), generator))
    return Verdict(len(drafted), draw(target_laws[len(drafted)], generator))
