"""An independent drafter: a small language model with its own cache and a trimmed head (VocabTrim section 3)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import torch

from vocabtrim_core.backbones import Backbone
from vocabtrim_core.drafters import Draft
from vocabtrim_core.engines import EngineNote
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.passes import BodyPass, HeadPass, Steps
from vocabtrim_core.sampling import SamplingSettings, draw, law, probability_of
from vocabtrim_core.trees import DraftShape, GrowingTree, TokenTree, top_children


@dataclass(frozen=True, eq=False)
class IndependentModel:
    """A language model as a drafter."""

    kind: ClassVar[str] = "independent"
    taps: ClassVar[tuple[int, ...]] = ()
    model: LanguageModel

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def engine(self) -> EngineNote:
        return self.model.engine

    @property
    def head(self) -> RankedHead:
        return self.model.head

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def parameters(self) -> int:
        return self.model.parameters

    @property
    def max_length(self) -> int:
        return self.model.max_length

    def new_drafter(self, head: RankedHead | None = None, k: int | None = None) -> IndependentDrafter:
        head = head or self.head
        return IndependentDrafter(self.model.new_backbone(), head, k or head.vocab_size, self.max_length)


class IndependentDrafter:
    """Drafts with `backbone` and the first `k` ranks of `head`."""

    taps: tuple[int, ...] = ()

    def __init__(self, backbone: Backbone, head: RankedHead, k: int, max_length: int) -> None:
        self.kept = head.ranking[:k]
        self.max_length = max_length
        self._backbone = backbone
        self._head = head
        self._k = k
        self._pending = torch.empty(0, dtype=torch.int64)  # tokens that stand and are not in the cache
        self._drafted = self._pending
        # Where each drafted token is among the `_run` tokens that the cache holds of this draft, or -1.
        self._places = self._pending
        self._run = 0

    def check(self, shape: DraftShape) -> None:
        self._backbone.check(trees=not shape.is_chain)

    def begin(self, prompt_ids: torch.Tensor, states: torch.Tensor) -> None:
        self._backbone.reset()
        if len(prompt_ids) > 1:
            self._backbone.run(prompt_ids[:-1])
        self._pending = prompt_ids[-1:]

    def propose(self, shape: DraftShape, sampling: SamplingSettings, generator: torch.Generator) -> Steps[Draft]:
        steps = self._chain(shape.depth, sampling, generator) if shape.is_chain else self._tree(shape, sampling)
        draft = yield from steps
        self._drafted = draft.ids
        return draft

    def _chain(self, gamma: int, sampling: SamplingSettings, generator: torch.Generator) -> Steps[Draft]:
        feed = self._pending
        ranks, probs, laws = [], [], []
        body_seconds = head_seconds = 0.0
        for _ in range(gamma):
            began = time.perf_counter()
            hidden = (yield BodyPass(self._backbone, feed))[-1:]  # [1, H]
            computed = time.perf_counter()
            logits = yield HeadPass(self._head, hidden, self._k)  # [1, k]
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
        drafted = torch.cat(ranks)
        self._places = torch.arange(gamma)
        self._places[-1] = -1  # the last token is never fed
        self._run = gamma - 1
        return Draft(
            self.kept[drafted],
            TokenTree.chain(gamma),
            torch.cat(probs),
            drafted,
            torch.cat(laws) if laws else None,
            body_seconds,
            head_seconds,
        )

    def _tree(self, shape: DraftShape, sampling: SamplingSettings) -> Steps[Draft]:
        growing = GrowingTree(shape)
        feed, arrangement = self._pending, None
        parents = torch.empty(0, dtype=torch.int64)  # of the tokens run, among themselves
        nodes = parents  # which nodes they are
        body_seconds = head_seconds = 0.0
        for depth in range(shape.depth):
            began = time.perf_counter()
            hidden = yield BodyPass(self._backbone, feed, arrangement)  # [m, H]
            computed = time.perf_counter()
            logits = yield HeadPass(self._head, hidden if depth else hidden[-1:], self._k)  # [m, k]
            ranks, rows = growing.grow(*top_children(logits, shape.branches, sampling.temperature))
            body_seconds += computed - began
            head_seconds += time.perf_counter() - computed
            if depth + 1 < shape.depth:
                feed = self.kept[ranks]
                nodes = torch.cat([nodes, growing.frontier])
                # The last frontier was run last; before the first one there is no token of the tree.
                above = rows + len(parents) - len(hidden) if depth else torch.full_like(rows, -1)
                parents = torch.cat([parents, above])
                arrangement = TokenTree(parents)
        tree, drafted, probs, chosen = growing.finish()
        places = torch.full((int(chosen[-1]) + 1,), -1)
        inside = nodes <= chosen[-1]
        places[nodes[inside]] = torch.arange(len(nodes))[inside]
        self._places = places[chosen]
        self._run = len(nodes)
        return Draft(self.kept[drafted], tree, probs, drafted, None, body_seconds, head_seconds)

    def settle(self, path: torch.Tensor, next_id: int, states: torch.Tensor) -> None:
        places = self._places[path]
        cached = places[places >= 0]
        self._backbone.keep(self._run, cached)
        # At most the last token that stands has never been fed.
        self._pending = torch.cat([self._drafted[path[len(cached) :]], torch.tensor([next_id])])
