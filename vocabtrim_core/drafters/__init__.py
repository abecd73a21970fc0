"""Drafters: what proposes tokens. One module a kind; the engine knows only this protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from vocabtrim_core.engines import EngineNote
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.passes import Steps
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape, TokenTree


@dataclass(frozen=True, eq=False)
class Draft:
    """Proposed tokens, n of them (or none), as a chain or a tree.

    `ids` int64[n] are target ids, and `ranks` int64[n] their columns among the kept tokens. `probs` float32[n] is the
    probability that the drafter gave each of them after its parent. `laws` float32[n, k] are the distributions that
    they were drawn from, over the kept tokens; without laws they were chosen, not drawn (greedy, and trees), so that
    each one's law is all on itself. Seconds are those of the body and those of the head, the latter with everything
    that grows with k: softmax, filters, choosing.
    """

    ids: torch.Tensor
    tree: TokenTree
    probs: torch.Tensor
    ranks: torch.Tensor
    laws: torch.Tensor | None
    body_seconds: float
    head_seconds: float

    @classmethod
    def empty(cls) -> Draft:
        """Nothing proposed."""
        none = torch.empty(0, dtype=torch.int64)
        return cls(none, TokenTree.chain(0), torch.empty(0), none, None, 0.0, 0.0)


class Drafter(Protocol):
    """Proposes tokens and follows what became of them.

    `kept` int64[k] are the target ids that it can propose, in rank order. `max_length` is the longest context it
    takes: it is asked for no token beyond, and not begun with a prompt that fills it.
    `taps` are the layers whose inputs it wants in the target's states (see `Backbone`).
    """

    kept: torch.Tensor
    max_length: int
    taps: tuple[int, ...]

    def check(self, shape: DraftShape) -> None:
        """Raise `ModelError` where it cannot draft in this shape."""
        ...

    def begin(self, prompt_ids: torch.Tensor, states: torch.Tensor) -> None:
        """Start on a prompt, int64[n], whose target states are `states` [n, S]."""
        ...

    def propose(self, shape: DraftShape, sampling: SamplingSettings, generator: torch.Generator) -> Steps[Draft]:
        """Draft after everything settled so far, no deeper than `shape` says; less where there is less to say.

        Several sequences may draft at once, each in steps of its own (`passes.together`).
        """
        ...

    def settle(self, path: torch.Tensor, next_id: int, states: torch.Tensor) -> None:
        """The drafted tokens at `path`, int64[a] from the top, stand, then comes `next_id`.

        `states` [a + 1, S] are the target's, of the token before the draft and of those that stand. This only takes
        note: whatever runs a model belongs to `propose`, where its time is told.
        """
        ...


class DrafterModel(Protocol):
    """A loaded drafter of any `kind`, from which a `Drafter` is made for each text.

    `head` is its LM head in its own order, whose ranking is what it can propose; None where it has none to trim.
    `vocab_size` counts the ids that it takes, `parameters` those of its body, without embeddings and head. `engine`
    says what runs it.
    """

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def engine(self) -> EngineNote: ...

    @property
    def head(self) -> RankedHead | None: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def parameters(self) -> int: ...

    @property
    def max_length(self) -> int: ...

    @property
    def taps(self) -> tuple[int, ...]: ...

    def new_drafter(self, head: RankedHead | None = None, k: int | None = None) -> Drafter:
        """A drafter with the first k ranks of `head`: the model's own in another order, or without it as it is."""
        ...
