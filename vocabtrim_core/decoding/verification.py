"""The accept rule of drafted chains and trees, which keeps the output exactly the target's.

Both are walked from the top. Greedily, to the child that is the target's argmax. With sampling, the children are tried
in order against what is left of the target's law (Leviathan et al. 2023; Miao et al. 2024, SpecInfer, algorithm 2).
A row is a place where the target says what comes next: row 0 before the draft, row i + 1 after its token i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vocabtrim_core.drafters import Draft
from vocabtrim_core.sampling import draw
from vocabtrim_core.trees import TokenTree


@dataclass(frozen=True)
class Verdict:
    """The drafted tokens at `path`, from the top, stand; `next_id` is the target's own token after them."""

    path: tuple[int, ...]
    next_id: int


def verify_greedy(choice: Callable[[int], int], ids: list[int], tree: TokenTree) -> Verdict:
    """Accept while a child is the target's argmax: `choice` of a row. `ids` are the drafted target ids."""
    path: list[int] = []
    node: int | None = -1
    while node is not None:
        next_id = choice(node + 1)
        node = next((child for child in tree.children[node] if ids[child] == next_id), None)
        if node is not None:
            path.append(node)
    return Verdict(tuple(path), next_id)


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


# What a chosen token's draft law gives it: it was not drawn.
_CERTAIN = torch.ones(1)


def verify_sampled(
    law_of: Callable[[int], torch.Tensor], draft: Draft, kept: torch.Tensor, generator: torch.Generator
) -> Verdict:
    """Speculative sampling. `law_of` gives the target's law, float32 [V], of a row; `kept` int64[k] are the target ids
    of the columns of `draft.laws`."""
    ids, ranks, children = draft.ids.tolist(), draft.ranks.tolist(), draft.tree.children
    path: list[int] = []
    node: int | None = -1
    while node is not None:
        left = law_of(node + 1)
        siblings, node = children[node], None
        for child in siblings:
            draft_prob = 1.0 if draft.laws is None else float(draft.laws[child, ranks[child]])
            probability = acceptance_probability(float(left[ids[child]]), draft_prob)
            if float(torch.rand((), generator=generator)) < probability:
                path.append(child)
                node = child
                break
            if draft.laws is None:
                left = residual_law(left, _CERTAIN, draft.ids[child : child + 1])
            else:
                left = residual_law(left, draft.laws[child], kept)
    return Verdict(tuple(path), draw(left, generator))
