"""The bound of decoding: a pass over few tokens cannot be faster than reading the weights once from memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.models import LanguageModel

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
    """A target pass against the memory limit: `seconds` to read `weight_bytes` at the best bandwidth measured.

    `efficiency` is that over the measured time of a pass, head included.
    """

    weight_bytes: int
    seconds: float
    measured_seconds: float

    @property
    def efficiency(self) -> float:
        return self.seconds / self.measured_seconds


def measure_bandwidth(device: torch.device | str = "cpu", repeats: int = 7) -> Bandwidth:
    """Read a buffer much larger than the caches with all of torch's threads, cold.

    It is read as float32 for weights of every dtype: bytes are bytes to the memory, and a sum of bfloat16 would be
    bound by its conversions instead.
    """
    buffer = torch.ones(_BUFFER_BYTES // 4, dtype=torch.float32, device=device)
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


@torch.inference_mode()
def measure_bound(model: LanguageModel, context: int = 128, repeats: int = 15) -> Bound:
    """Time one token's pass (the median, after `context` tokens) and set it against the bandwidth measured here."""
    bandwidth = measure_bandwidth(model.head.weight.device)
    backbone = model.new_backbone()
    ids = torch.arange(context + 1, device=model.head.weight.device).remainder(model.vocab_size)
    backbone.run(ids[:context])
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        float(model.head.logits(backbone.run(ids[context:]))[0, 0])
        times.append(time.perf_counter() - began)
        backbone.rewind(1)
    size = pass_bytes(model)
    return Bound(size, size / bandwidth.best, Spread.of(times).median)
