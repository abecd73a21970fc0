"""Figures that the papers published, to set beside one's own; 32k in them is 32,768."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Published:
    """A table of a paper: acceptance length by k, and where given tokens per second and speedup; `full` is the whole
    vocabulary's size."""

    source: str
    setting: str
    full: int
    tau: Mapping[int, float]
    tokens_per_second: Mapping[int, float] = field(default_factory=dict)
    speedup: Mapping[int, float] = field(default_factory=dict)

    def retained(self, k: float) -> float:
        """Share of the full acceptance length that k keeps: straight lines over log k, as far as the table goes."""
        sizes = sorted(self.tau)
        shares = [self.tau[size] / self.tau[self.full] for size in sizes]
        return float(np.interp(np.log(k), np.log(sizes), shares))


LLAMA3 = 128_256
PUBLISHED = (
    Published(
        "FR-Spec (arXiv 2502.14856)",
        "Llama-3-8B, EAGLE-2, A100, temperature 0; vanilla 89.1 tok/s",
        LLAMA3,
        {LLAMA3: 3.89, 65_536: 3.80, 32_768: 3.63, 16_384: 3.40, 8_192: 3.13},
        {LLAMA3: 181.0, 65_536: 196.9, 32_768: 201.9, 16_384: 196.7, 8_192: 186.0},
        {LLAMA3: 2.03, 65_536: 2.21, 32_768: 2.27, 16_384: 2.21, 8_192: 2.09},
    ),
    Published(
        "VocabTrim (arXiv 2506.22694)",
        "Llama-3.2-3B, EAGLE, coding; block efficiency",
        LLAMA3,
        {LLAMA3: 3.63, 65_536: 3.54, 32_768: 3.43, 16_384: 3.25},
    ),
)
