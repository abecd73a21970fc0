"""Several sequences decoded at once: in a round, all draft together and then share the target's pass.

Each accepts, forgets and ends on its own; where one has ended, the next begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from vocabtrim_core.decoding.engine import Cycle, Decoding
from vocabtrim_core.passes import together


@dataclass(frozen=True)
class Round:
    """One cycle of each sequence that was running, by its number, and the seconds that all took together.

    The prompts' passes are not part of them.
    """

    cycles: dict[int, Cycle]
    seconds: float


def decode_together(decodings: Iterable[Decoding], size: int) -> Iterator[Round]:
    """Decode all, `size` at a time. They are numbered in order and made (where the iterable is lazy) as they begin."""
    waiting = iter(enumerate(decodings))
    running: dict[int, Decoding] = {}
    while True:
        # Not across the yield: inference mode would leak to the caller.
        with torch.inference_mode():
            for number, decoding in islice(waiting, size - len(running)):
                decoding.begin()
                running[number] = decoding
            if not running:
                return
            began = time.perf_counter()
            drafts = together([decoding.draft() for decoding in running.values()])
            steps = [decoding.verify(draft) for decoding, draft in zip(running.values(), drafts, strict=True)]
            cycles = dict(zip(running, together(steps), strict=True))
            seconds = time.perf_counter() - began
        yield Round(cycles, seconds)
        running = {number: decoding for number, decoding in running.items() if decoding.finish is None}
