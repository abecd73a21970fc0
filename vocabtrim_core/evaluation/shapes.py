"""Drafter shapes without their weights: the head's time against k on this machine, and what trimming might give.

The head's time is measured, with random weights. Everything else is an estimate: the drafter's layers and the target
are taken to run at the rate (bytes a second) at which the whole head was measured, since all of them read their weights
once a pass, and acceptance is a paper's table for another pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import torch

from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.latency import HeadTiming, time_head
from vocabtrim_core.evaluation.papers import Published
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.layers import has_room

MAX_HIDDEN, MAX_VOCAB = 32_768, 1_000_000
_TILE = 256


@dataclass(frozen=True)
class Shape:
    """A drafter's head, hidden size x vocabulary, with the parameters of the drafter's body and of the target."""

    name: str
    hidden: int
    vocab: int
    body_parameters: int
    target_parameters: int

    def __post_init__(self) -> None:
        if not 8 <= self.hidden <= MAX_HIDDEN or not 64 <= self.vocab <= MAX_VOCAB:
            raise SettingError(
                f"A head of {self.hidden:,} x {self.vocab:,} is outside what can be measured: hidden sizes up to "
                f"{MAX_HIDDEN:,}, vocabularies from 64 to {MAX_VOCAB:,}."
            )

    @property
    def head_bytes(self) -> int:
        """In bfloat16."""
        return 2 * self.hidden * self.vocab


# Parameters of the bodies: EAGLE's layer and the fusing of its inputs; the layers of a small language model.
SHAPES = (
    Shape("Llama-3-8B with EAGLE", 4096, 128_256, 252_000_000, 8_030_000_000),
    Shape("Llama-3.2-1B as drafter of Llama-3-8B", 2048, 128_256, 973_000_000, 8_030_000_000),
    Shape("Qwen2-7B with EAGLE", 3584, 152_064, 259_000_000, 7_620_000_000),
    Shape("Gemma-3-1B as drafter of Gemma-3-12B", 1152, 262_144, 698_000_000, 11_800_000_000),
)


@dataclass(frozen=True, eq=False)
class ShapeEstimate:
    """`timings` are measured. Estimated: seconds of the drafter's body and of a target pass, and by k the speedup
    against vanilla and against the whole vocabulary, with the acceptance length taken from `table`."""

    shape: Shape
    timings: tuple[HeadTiming, ...]
    table: Published
    gamma: int
    body_seconds: float
    target_seconds: float
    tau: tuple[float, ...]
    speedup: tuple[float, ...]

    @property
    def ks(self) -> tuple[int, ...]:
        return tuple(timing.k for timing in self.timings)

    @property
    def over_untrimmed(self) -> tuple[float, ...]:
        return tuple(one / self.speedup[-1] for one in self.speedup)


def random_head(shape: Shape) -> RankedHead:
    """A bfloat16 head of this shape. SettingError where it would take more than half of the memory that is free."""
    if not has_room(shape.head_bytes):
        free = psutil.virtual_memory().available
        raise SettingError(
            f"A head of {shape.hidden:,} x {shape.vocab:,} takes {shape.head_bytes / 1e9:.1f} GB, more than half of "
            f"the {free / 1e9:.1f} GB of memory that are free. Choose a smaller shape."
        )
    generator = torch.Generator().manual_seed(0)
    tile = torch.randn(_TILE, shape.hidden, generator=generator).to(torch.bfloat16)
    weight = torch.empty(shape.vocab, shape.hidden, dtype=torch.bfloat16)
    for start in range(0, shape.vocab, _TILE):
        weight[start : start + _TILE] = tile[: shape.vocab - start]
    return RankedHead(weight, torch.arange(shape.vocab))


def measure_shape(shape: Shape, table: Published, gamma: int = 5, repeats: int = 3) -> ShapeEstimate:
    """Time the head of a shape at eight k up to its vocabulary, and estimate the rest."""
    ks = sorted({*np.geomspace(min(4096, shape.vocab), shape.vocab, 8).round().astype(int).tolist()})
    return estimate(shape, time_head(random_head(shape), ks, repeats), table, gamma)


def estimate(shape: Shape, timings: Sequence[HeadTiming], table: Published, gamma: int) -> ShapeEstimate:
    """What trimming might give, from the measured times of the head; the largest k is the whole vocabulary.

    A published k counts by its share of the vocabulary that it was published for.
    """
    seconds_a_byte = timings[-1].cold.median / shape.head_bytes
    body = 2 * shape.body_parameters * seconds_a_byte
    target = 2 * shape.target_parameters * seconds_a_byte
    full = table.tau[table.full]
    taus = [full * table.retained(timing.k * table.full / shape.vocab) for timing in timings]
    speedups = [
        tau * target / (target + gamma * (body + timing.cold.median)) for tau, timing in zip(taus, timings, strict=True)
    ]
    return ShapeEstimate(shape, tuple(timings), table, gamma, body, target, tuple(taus), tuple(speedups))
