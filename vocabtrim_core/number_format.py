"""The number format of the weights: what `auto` is here, and what a format costs that the processor has no kernels for.

`auto` is the format whose matrix products are fastest here, of those that PyTorch has kernels for on this processor. A
timing of about a second says which. It is kept in the cache folder, for this processor, its threads and this PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from vocabtrim_core.embedded import cache_root
from vocabtrim_core.errors import SettingError
from vocabtrim_core.files import write_atomically
from vocabtrim_core.layers import Linear, activations_of, has_kernels
from vocabtrim_core.processor import BFLOAT16_UNITS, processor_features, processor_name

AUTO = "auto"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}

_VERSION = 1  # raise when what is timed changes
# Matrices of a small model's feed-forward layers, more of them than caches hold.
_SHAPES = ((3072, 576), (576, 1536))
_LAYERS = 16
_ROWS = (1, 4)  # vanilla decoding's, and a short draft's
_ROUNDS = 7
# By how much a format has to be faster than the one before it in the order of preference.
_MARGIN = 1.1


@dataclass(frozen=True)
class NumberFormat:
    """A format's `name` among `DTYPES`, and one `note`: why `auto` is that format, or what asking for it costs.

    The note is empty where a format was asked for that the processor has kernels for.
    """

    name: str
    note: str


def number_format(asked: str) -> NumberFormat:
    """The format of that name, or what `auto` is here. SettingError for one that is not offered."""
    if asked == AUTO:
        return _fastest()
    if asked not in DTYPES:
        raise SettingError(f"The number format {asked} is not offered. Choose one of: {', '.join((AUTO, *DTYPES))}.")
    if has_kernels(DTYPES[asked]):
        return NumberFormat(asked, "")
    costs = {
        "bfloat16": "a pass over several tokens takes as long as several passes, so that speculation cannot pay",
        "float16": "it computes with float32 copies of the weights, at float32's speed",
    }
    cost = costs.get(asked, "it is slower than it could be")
    return NumberFormat(asked, f"{asked} has no fast kernels on this processor ({_features()}): {cost}.")


@cache
def _fastest() -> NumberFormat:
    timings = _kept_timings()
    name = fastest(timings, bool(BFLOAT16_UNITS.intersection(processor_features())))
    others = ", ".join(f"{timings[other] * 1e3:.0f} ms in {other}" for other in timings if other != name)
    lacking = [other for other in DTYPES if other not in timings]
    without = f"; for {' and '.join(lacking)} this processor has no kernels" if lacking else ""
    measured = f" (matrix products of a short timing took {timings[name] * 1e3:.0f} ms, {others})" if others else ""
    here = f"{processor_name()} ({_features()})"
    return NumberFormat(name, f"auto is {name} on {here}, the fastest here{measured}{without}.")


def fastest(timings: Mapping[str, float], bfloat16_units: bool) -> str:
    """The format to use, from seconds by format. One that other work is cheaper in, or that is more exact, wins a tie:
    bfloat16 on a processor with units for it, else float16, then float32."""
    preferred = sorted(timings, key=lambda name: (name != "bfloat16" or not bfloat16_units, list(DTYPES).index(name)))
    best = preferred[0]
    for name in preferred[1:]:
        if timings[name] * _MARGIN < timings[best]:
            best = name
    return best


def _features() -> str:
    return ", ".join(processor_features()) or "no vector units known"


def _kept_timings() -> dict[str, float]:
    """Seconds by format: those kept for this machine, else measured now and kept."""
    facts = [_VERSION, processor_name(), *processor_features(), torch.get_num_threads(), torch.__version__]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    path = cache_root() / f"number-formats-{key}.json"
    try:
        kept = {str(name): float(seconds) for name, seconds in json.loads(path.read_text())["seconds"].items()}
        if set(kept) == set(_offered()):
            return kept
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # None there, or a damaged one: it is made anew.
    timings = time_formats()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"machine": facts, "seconds": timings}).encode())
    except OSError:
        pass  # A cache that cannot be written to costs a timing per process.
    return timings


def _offered() -> list[str]:
    """The formats that the processor has kernels for; float32 always."""
    return [name for name, dtype in DTYPES.items() if dtype == torch.float32 or has_kernels(dtype)]


@torch.inference_mode()
def time_formats() -> dict[str, float]:
    """Seconds by format of matrix products over one row and over a few, the formats interleaved, the best of some."""
    stacks: dict[str, list[Linear]] = {}
    inputs: dict[tuple[str, int, int], torch.Tensor] = {}
    for name in _offered():
        dtype = DTYPES[name]
        stacks[name] = [Linear(torch.full(shape, 0.01, dtype=dtype)) for _ in range(_LAYERS) for shape in _SHAPES]
        inputs |= {
            (name, rows, shape[1]): torch.ones(rows, shape[1], dtype=activations_of(dtype))
            for rows in _ROWS
            for shape in _SHAPES
        }
    best: dict[tuple[str, int], float] = {}
    widths = [width for _ in range(_LAYERS) for _, width in _SHAPES]
    for _ in range(_ROUNDS):
        for name, layers in stacks.items():
            for rows in _ROWS:
                began = time.perf_counter()
                for layer, width in zip(layers, widths, strict=True):
                    layer(inputs[name, rows, width])
                seconds = time.perf_counter() - began
                best[name, rows] = min(seconds, best.get((name, rows), seconds))
    return {name: sum(best[name, rows] for rows in _ROWS) for name in stacks}
