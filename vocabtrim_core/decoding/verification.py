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


def verify_sampled(
    law_of: Callable[[int], torch.Tensor], draft: Draft, kept: torch.Tensor, generator: torch.Generator
) -> Verdict:
    """Speculative sampling. `law_of` gives the target's law, float32 [V], of a row; `kept` int64[k] are the target ids
    of the columns of `draft.laws`."""
    path: list[int] = []
    node: int | None = -1
    while node is not None:
        siblings, left = draft.tree.children[node], law_of(node + 1)
        if draft.laws is None:
            node, left = _try_chosen(siblings, left, draft, generator)
        else:
            node, left = _try_drawn(siblings, left, draft, kept, generator)
        if node is not None:
            path.append(node)
    return Verdict(tuple(path), draw(left, generator))


def _try_drawn(
    siblings: tuple[int, ...], left: torch.Tensor, draft: Draft, kept: torch.Tensor, generator: torch.Generator
) -> tuple[int | None, torch.Tensor]:
    """The sibling that is accepted, if one is, and what is left of the target's law `left` [V] for another token."""
    assert draft.laws is not None
    for child in siblings:
        target_prob, draft_prob = float(left[draft.ids[child]]), float(draft.laws[child, draft.ranks[child]])
        if float(torch.rand((), generator=generator)) < acceptance_probability(target_prob, draft_prob):
            return child, left
        left = residual_law(left, draft.laws[child], kept)
    return None, left


def _try_chosen(
    siblings: tuple[int, ...], left: torch.Tensor, draft: Draft, generator: torch.Generator
) -> tuple[int | None, torch.Tensor]:
    """The same for siblings that were not drawn: the draft's law of each one is 1 at the token itself.

    So it is accepted with its probability in what is left, and what is left after a rejection is the rest without it.
    """
    if not siblings:
        return None, left
    ids = draft.ids[list(siblings)]
    chances = torch.rand(len(siblings), generator=generator).tolist()
    rest = 1.0
    for child, prob, chance in zip(siblings, left[ids].tolist(), chances, strict=True):
        if chance * rest < prob:
            return child, left
        rest -= prob
    without = left.index_fill(0, ids, 0.0)
    # Nothing left is rounding, as in `residual_law`; what is left need not sum to 1 to be drawn from.
    return None, without if bool(without.any()) else left
