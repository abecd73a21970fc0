"""The LM head in the order of a ranking, so that trimming it is taking a view."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

import torch

from vocabtrim_core.huge_pages import use_huge_pages
from vocabtrim_core.layers import Linear, activations_of, copies

# Sizes of which a head keeps a packed copy: those of one comparison, and a few tried before.
_PACKED_SIZES = 4


@dataclass(frozen=True, eq=False)
class RankedHead:
    """An LM head whose row r scores the token `ranking[r]`: `logits(hidden, k)` is the head trimmed to k tokens.

    The first k rows are a view, so that every k can be asked for at once; a processor that reads packed weights faster
    gets a packed copy of those in use.

    `weight` [V, H], `bias` [V] or None, `ranking` int64[V]. Then, as the model has them: logits times `logit_scale`
    (Cohere, Granite), and `soft_cap * tanh(logits / soft_cap)` (Gemma).
    """

    weight: torch.Tensor
    ranking: torch.Tensor
    bias: torch.Tensor | None = None
    logit_scale: float = 1.0
    soft_cap: float | None = None
    _packed: OrderedDict[int, Linear] = field(default_factory=OrderedDict, init=False, repr=False)

    @property
    def vocab_size(self) -> int:
        return self.weight.shape[0]

    @property
    def activations(self) -> torch.dtype:
        """The dtype of the hidden states that it takes, and of its logits."""
        return activations_of(self.weight.dtype)

    @property
    def hidden_size(self) -> int:
        return self.weight.shape[1]

    def bytes_kept(self, k: int) -> int:
        """Bytes that one pass of the head over k tokens reads."""
        width = self.hidden_size + (0 if self.bias is None else 1)
        return k * width * self.weight.element_size()

    def reordered(self, ranking: torch.Tensor) -> RankedHead:
        """The same head with its rows in the order of `ranking`, int64[n <= V] target ids. Copies the rows once."""
        place = torch.empty(int(self.ranking.max()) + 1, dtype=torch.int64)
        place[self.ranking] = torch.arange(len(self.ranking))
        rows = place[ranking]
        bias = None if self.bias is None else self.bias[rows]
        return replace(self, weight=self.weight[rows], ranking=ranking, bias=bias)

    def logits(self, hidden: torch.Tensor, k: int | None = None, rows: int | None = None) -> torch.Tensor:
        """Scores of the first k ranks, [n, k] from hidden states [n, H]; all ranks without k.

        With `rows`, at least so many rows are computed, so that a row's bits do not depend on n (see `LeanBackbone`).
        """
        n = len(hidden)
        if rows is not None and n < rows:
            hidden = torch.cat([hidden, hidden[-1:].expand(rows - n, -1)])
        logits = self._linear(self.vocab_size if k is None else k)(hidden)[:n]  # [n, k]
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        return logits

    def _linear(self, k: int) -> Linear:
        """The first k rows: packed where that helps, which copies them once for a k, else a view."""
        weight, bias = self.weight[:k], None if self.bias is None else self.bias[:k]
        if not copies(weight):
            return Linear(weight, bias)
        packed = self._packed.pop(k, None)
        if packed is None:
            packed = Linear(weight, bias)
            use_huge_pages([packed.block])
        self._packed[k] = packed
        # Two threads may have taken turns.
        while len(self._packed) > _PACKED_SIZES:
            self._packed.popitem(last=False)
        return packed
