"""How long the LM head takes on this machine, for one token, at several k."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.progress import Progress

# More than the last-level cache of the machines that this runs on.
EVICTION_BYTES = 96 * 2**20


@dataclass(frozen=True)
class HeadTiming:
    """Seconds of one head call on one token, with its weights `warm` (called in a loop, so they stay in the CPU's cache
    where they fit) and `cold` (cache filled with other data before each call, as a target pass does)."""

    k: int
    warm: Spread
    cold: Spread


def time_head(
    head: RankedHead, ks: Sequence[int], repeats: int = 9, on_progress: Progress | None = None
) -> list[HeadTiming]:
    """Time `head` trimmed to each k, the sizes interleaved; medians and extremes over `repeats` rounds."""
    hidden = torch.randn(1, head.hidden_size, dtype=head.activations)
    others = torch.ones(EVICTION_BYTES // 4, dtype=torch.float32)
    warm: dict[int, list[float]] = {k: [] for k in ks}
    cold: dict[int, list[float]] = {k: [] for k in ks}
    with torch.inference_mode():
        for round_number in range(repeats + 1):
            if on_progress:
                on_progress(round_number / (repeats + 1), f"Timing the head, round {round_number} of {repeats}")
            for k in ks:
                others.add_(1.0)
                first, second, third = (_seconds(head, hidden, k) for _ in range(3))
                # The first round pays for what is set up once.
                if round_number:
                    cold[k].append(first)
                    warm[k].append(min(second, third))
    return [HeadTiming(k, Spread.of(warm[k]), Spread.of(cold[k])) for k in ks]


def _seconds(head: RankedHead, hidden: torch.Tensor, k: int) -> float:
    began = time.perf_counter()
    head.logits(hidden, k)
    return time.perf_counter() - began
