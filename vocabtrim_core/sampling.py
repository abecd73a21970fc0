"""From logits to the law that is sampled from: temperature, top-k, top-p and min-p."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vocabtrim_core.errors import SettingError


@dataclass(frozen=True)
class SamplingSettings:
    """How a next token is chosen. Temperature 0 is greedy: the argmax, whatever the other settings say.

    `top_k` 0, `top_p` 1 and `min_p` 0 switch each filter off. Filters apply in the order temperature, top-k, top-p,
    min-p, each to what the one before it left, as in `transformers`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        # Far below 0.01 the scaled logits overflow.
        if self.temperature != 0 and not 0.01 <= self.temperature <= 10:
            raise SettingError(f"The temperature is {self.temperature}; choose 0 (greedy) or one from 0.01 to 10.")
        if self.top_k < 0:
            raise SettingError(f"top-k is {self.top_k}; choose 0 (off) or a positive number of tokens.")
        if not 0 < self.top_p <= 1:
            raise SettingError(f"top-p is {self.top_p}; choose a share above 0, up to 1 (off).")
        if not 0 <= self.min_p < 1:
            raise SettingError(f"min-p is {self.min_p}; choose a share from 0 (off) to below 1.")
        if not 0 <= self.seed < 2**63:
            raise SettingError(f"The seed is {self.seed}; choose a whole number from 0 to 2^63 - 1.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def law(logits: torch.Tensor, sampling: SamplingSettings) -> torch.Tensor:
    """The distribution that is sampled from, float32 [n, V], of `logits` [n, V] (or over the kept set, [n, k])."""
    scores = logits.float() / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        threshold = scores.topk(sampling.top_k).values[..., -1:]
        scores = scores.masked_fill(scores < threshold, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        # A token is kept while the mass before it is below top_p: the one that crosses the line stays.
        dropped = probs.cumsum(-1) - probs >= sampling.top_p
        scores = scores.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)
    if sampling.min_p > 0:
        probs = scores.softmax(-1)
        scores = scores.masked_fill(probs < sampling.min_p * probs.amax(-1, keepdim=True), -torch.inf)
    return scores.softmax(-1)


def draw(probs: torch.Tensor, generator: torch.Generator) -> int:
    """One index drawn from `probs` [V]."""
    return int(torch.multinomial(probs, 1, generator=generator))


def probability_of(logits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Softmax probability, float32 [n], of one index a row: `logits` [n, V], `indices` int64[n]."""
    scores = logits.float()
    return (scores.gather(-1, indices[:, None])[:, 0] - scores.logsumexp(-1)).exp()


def probability_at(logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    """Softmax probability, float32 [n], of `ids` int64[n], each in its row of `logits` [m, V]: `rows` int64[n].

    At a `temperature`, of which 0 (greedy) counts as 1.
    """
    used, place = rows.unique(return_inverse=True)
    return softmax(logits[used], temperature)[place, ids]


def softmax(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """float32 probabilities of `logits` [n, V] at a `temperature`, of which 0 (greedy) counts as 1."""
    if temperature not in (0, 1):
        logits = logits.float() / temperature
    # Fused, unlike logsumexp, which takes twice as long.
    return torch.softmax(logits, dim=-1, dtype=torch.float32)
