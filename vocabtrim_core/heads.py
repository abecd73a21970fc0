"""The LM head in the order of a ranking, so that trimming it is taking a view."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, eq=False)
class RankedHead:
    """An LM head whose row r scores the token `ranking[r]`: `logits(hidden, k)` is the head trimmed to k tokens.

    `weight` [V, H], `bias` [V] or None, `ranking` int64[V]. Then, as the model has them: logits times `logit_scale`
    (Cohere, Granite), and `soft_cap * tanh(logits / soft_cap)` (Gemma).
    """

    weight: torch.Tensor
    ranking: torch.Tensor
    bias: torch.Tensor | None = None
    logit_scale: float = 1.0
    soft_cap: float | None = None

    @property
    def vocab_size(self) -> int:
        return self.weight.shape[0]

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

    def logits(self, hidden: torch.Tensor, k: int | None = None) -> torch.Tensor:
        """Scores of the first k ranks, [n, k] from hidden states [n, H]; all ranks without k."""
        bias = None if self.bias is None else self.bias[:k]
        logits = torch.nn.functional.linear(hidden, self.weight[:k], bias)  # [n, k]
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        return logits
