"""The bound of decoding: a pass over few tokens cannot be faster than reading the weights once from memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.huge_pages import use_huge_pages
from vocabtrim_core.language_model import LanguageModel

# Several times the last-level cache of the machines that this runs on.
_BUFFER_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Bandwidth:
    """Bytes a second at which memory can be read, over repeated readings; the best of them is `best`."""

    spread: Spread

    @property
    def best(self) -> float:
        return self.spread.high


@dataclass(frozen=True)
class Bound:
    """A target pass against the memory limit: its `weight_bytes`, read at `bandwidth` bytes a second.

    `measured_seconds` are those of a pass over one token, head included.
    """

    weight_bytes: int
    bandwidth: float
    measured_seconds: float

    @property
    def seconds(self) -> float:
        """What a pass takes at least."""
        return self.weight_bytes / self.bandwidth

    @property
    def efficiency(self) -> float:
        """How near to the bound the pass is: 1 at it."""
        return self.seconds / self.measured_seconds


def measure_bandwidth(device: torch.device | str = "cpu", repeats: int = 7) -> Bandwidth:
    """Read a buffer much larger than the caches with all of torch's threads, cold, in huge pages as weights are.

    It is read as float32 for weights of every dtype: bytes are bytes to the memory, and a sum of bfloat16 would be
    bound by its conversions instead.
    """
    buffer = torch.empty(_BUFFER_BYTES // 4, dtype=torch.float32, device=device)
    if buffer.device.type == "cpu":
        use_huge_pages([(buffer.data_ptr(), buffer.nbytes)])
    buffer.fill_(1)
    speeds = []
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        buffer.sum().item()  # the number is needed, so a GPU has finished
        if repeat:  # the first reading maps the pages
            speeds.append(buffer.nbytes / (time.perf_counter() - began))
    return Bandwidth(Spread.of(speeds))


def pass_bytes(model: LanguageModel) -> int:
    """Bytes of weights that a pass over one token reads: the body without its embeddings, and the head."""
    return model.parameters * model.dtype.itemsize + model.head.bytes_kept(model.head.vocab_size)


def bound_of(model: LanguageModel, bandwidth: Bandwidth, measured_seconds: float) -> Bound:
    """The bound of `model`, at the best bandwidth measured, with what its passes took."""
    return Bound(pass_bytes(model), bandwidth.best, measured_seconds)
