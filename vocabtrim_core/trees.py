"""Draft trees: their shape, how one grows from a drafter's laws, and the mask of its attention."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch

from vocabtrim_core.errors import SettingError
from vocabtrim_core.sampling import softmax

MAX_DEPTH = 32
MAX_BRANCHES = 64
MAX_NODES = 256


@dataclass(frozen=True)
class DraftShape:
    """How much to draft: a chain of `depth` tokens (gamma), or a tree so deep.

    A tree grows by `branches` children at each of the `branches` most probable nodes of a level, and the `nodes` most
    probable of all are drafted (all of them without `nodes`).
    """

    depth: int
    branches: int = 1
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= MAX_DEPTH:
            raise SettingError(f"The draft's depth is {self.depth}; choose one from 1 to {MAX_DEPTH}.")
        if not 1 <= self.branches <= MAX_BRANCHES:
            raise SettingError(
                f"A draft tree with {self.branches} branches; choose from 1 (a chain) to {MAX_BRANCHES}."
            )
        if self.nodes is not None and not 1 <= self.nodes <= MAX_NODES:
            raise SettingError(f"A draft tree of {self.nodes} nodes; choose from 1 to {MAX_NODES}.")

    @property
    def is_chain(self) -> bool:
        return self.branches == 1

    @property
    def most_nodes(self) -> int:
        """No draft of this shape has more tokens."""
        grown = self.branches + (self.depth - 1) * self.branches**2 if not self.is_chain else self.depth
        return grown if self.nodes is None else min(grown, self.nodes)

    def at_most(self, depth: int) -> DraftShape:
        """The same shape, no deeper than `depth` (at least 1)."""
        return self if self.depth <= depth else replace(self, depth=depth)


@dataclass(frozen=True, eq=False)
class TokenTree:
    """Which token follows which, of n tokens.

    `parents` int64[n]: the index of the token before each, or -1 where that is the last one before the tree. A parent
    comes before its children, and siblings come in the order in which they are tried. Siblings that were chosen, not
    drawn, are different tokens.
    """

    parents: torch.Tensor

    @staticmethod
    @lru_cache(maxsize=128)
    def chain(n: int) -> TokenTree:
        """n tokens, each after the one before."""
        return TokenTree(torch.arange(-1, n - 1))

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def is_chain(self) -> bool:
        return torch.equal(self.parents, torch.arange(-1, len(self) - 1))

    @cached_property
    def visible(self) -> torch.Tensor:
        """bool[n, n]: each token (row) attends to itself and to those that it follows."""
        n = len(self)
        # Index n stands for what is before the tree, and is its own parent.
        parents = np.append(np.where(self.parents.numpy() < 0, n, self.parents.numpy()), n)
        seen = np.zeros((n, n + 1), dtype=bool)
        rows = np.arange(n)
        ancestor = rows
        while n and ancestor.min() < n:
            seen[rows, ancestor] = True
            ancestor = parents[ancestor]
        return torch.from_numpy(seen[:, :n].copy())

    @cached_property
    def depths(self) -> torch.Tensor:
        """int64[n]: how many tokens of the tree come before each one on its path."""
        return self.visible.sum(-1) - 1

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each token, in order; those of the token before the tree come last, at index n or -1."""
        found: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents.tolist()):
            found[parent].append(node)
        return tuple(map(tuple, found))

    @cached_property
    def below(self) -> TokenTree:
        """The same tree with one more token at its top: token 0, which every token without a parent follows."""
        if self.is_chain:
            return TokenTree.chain(len(self) + 1)
        return TokenTree(torch.cat([self.parents.new_tensor([-1]), self.parents + 1]))

    def path_to(self, node: int) -> torch.Tensor:
        """int64[d]: the tokens from the top of the tree to `node`."""
        return self.visible[node].nonzero()[:, 0]


class GrowingTree:
    """A dynamic draft tree (EAGLE-2, Li et al. 2024, section 4), grown level by level.

    Every call of `grow` takes what may follow each token of the last frontier (at first the one token before the tree)
    and answers with the next frontier: the most probable of the new level by the product along their path. In the
    end, `finish` keeps the most probable of all.
    """

    def __init__(self, shape: DraftShape) -> None:
        self._shape = shape
        self._frontier = torch.full((1,), -1)  # nodes
        self._totals = torch.zeros(1)  # log-probabilities of their paths
        self._levels: list[tuple[torch.Tensor, ...]] = []
        self._size = 0

    @property
    def frontier(self) -> torch.Tensor:
        """int64[m]: the last frontier's nodes, numbered in the order in which they grew."""
        return self._frontier

    def grow(self, log_probs: torch.Tensor, ranks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a level. Row i of `log_probs` and `ranks` [m, b] holds the children of frontier token i, best first.

        Gives the new frontier: the ranks int64[f] of its tokens, and the row int64[f] of each one's parent in the last.
        """
        branches = log_probs.shape[1]
        log_probs = log_probs.float()
        totals = (self._totals[:, None] + log_probs).flatten()
        parents = self._frontier.repeat_interleave(branches)
        flat = ranks.flatten()
        self._levels.append((flat, parents, log_probs.flatten(), totals))
        chosen = _best(totals, self._shape.branches)
        self._frontier, self._totals = self._size + chosen, totals[chosen]
        self._size += len(flat)
        return flat[chosen], chosen // branches

    def finish(self) -> tuple[TokenTree, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The tree; the ranks int64[n] of its tokens; the probability float32[n] of each after the one before it; and
        which of the nodes that grew they are, int64[n], ascending."""
        ranks, parents, log_probs, totals = map(torch.cat, zip(*self._levels, strict=True))
        nodes = self._shape.nodes
        chosen = torch.arange(self._size) if nodes is None or nodes >= self._size else _best(totals, nodes)
        # A child's total is at most its parent's and comes later, so that parents of the chosen are chosen.
        place = torch.full((self._size + 1,), -1)
        place[chosen] = torch.arange(len(chosen))
        return TokenTree(place[parents[chosen]]), ranks[chosen], log_probs[chosen].exp(), chosen


def _best(totals: torch.Tensor, count: int) -> torch.Tensor:
    """int64: where the `count` largest are, ascending; among equals the first ones."""
    if count >= len(totals):
        return torch.arange(len(totals))
    # Of a few hundred at most, so that sorting costs nothing.
    return totals.argsort(descending=True, stable=True)[:count].sort().values


def top_children(logits: torch.Tensor, branches: int, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """The most probable next tokens: log-probabilities float32 [n, b] and ranks int64 [n, b], best first.

    `logits` [n, k] are taken at `temperature` (0, greedy, counts as 1). b is `branches`, or k if that is less.
    """
    probs, ranks = softmax(logits, temperature).topk(min(branches, logits.shape[-1]))
    return probs.log().clamp(max=0), ranks


def product_tree(probs: Sequence[Sequence[float]] | torch.Tensor, nodes: int) -> tuple[TokenTree, torch.Tensor]:
    """The static tree of Medusa (Cai et al. 2024, section 2.3.3): the `nodes` largest products along paths.

    `probs[d][c]` is how often the c-th best guess for depth d is right, descending in c. Gives the tree and the column
    c of each of its nodes, int64[n].
    """
    table = [[float(prob) for prob in row] for row in probs]
    parents: list[int] = []
    columns: list[int] = []
    waiting: list[tuple[float, int, float, int, int, int]] = []

    def add(above: float, parent: int, depth: int, column: int) -> None:
        if depth < len(table) and column < len(table[depth]):
            # Largest first; among equals the one that was reached first.
            product = above * table[depth][column]
            heapq.heappush(waiting, (-product, len(parents) + len(waiting), above, parent, depth, column))

    add(1.0, -1, 0, 0)
    while waiting and len(parents) < nodes:
        negative, _, above, parent, depth, column = heapq.heappop(waiting)
        parents.append(parent)
        columns.append(column)
        add(above, parent, depth, column + 1)
        add(-negative, len(parents) - 1, depth + 1, 0)
    return TokenTree(torch.tensor(parents)), torch.tensor(columns)
