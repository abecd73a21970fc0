"""Prompt lookup: copies what followed the last tokens when they came before. No model, and so nothing to trim."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import torch

from vocabtrim_core.drafters import Draft
from vocabtrim_core.engines import EngineNote
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.passes import Steps
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape, TokenTree

LONGEST_MATCH = 3  # tokens


@dataclass(frozen=True, eq=False)
class LookupModel:
    """Prompt lookup for a target with `vocab_size` tokens."""

    kind: ClassVar[str] = "lookup"
    engine: ClassVar[EngineNote] = EngineNote("own code", "there is no model to run")
    name: ClassVar[str] = "prompt lookup"
    head: ClassVar[None] = None
    parameters: ClassVar[int] = 0
    max_length: ClassVar[int] = sys.maxsize
    taps: ClassVar[tuple[int, ...]] = ()
    vocab_size: int

    def new_drafter(self, head: RankedHead | None = None, k: int | None = None) -> LookupDrafter:
        return LookupDrafter(self.vocab_size)


class LookupDrafter:
    """Finds the latest place where the last tokens (three of them, else two, else one) came before.

    The copy may run into what it writes itself, so that a repeating text goes on repeating. It is a chain in any shape.
    """

    taps: tuple[int, ...] = ()
    max_length = sys.maxsize

    def __init__(self, vocab_size: int) -> None:
        self.kept = torch.arange(vocab_size)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # where the text went on after these tokens, the last time
        self._drafted: list[int] = []

    def check(self, shape: DraftShape) -> None:
        """Every shape has room for a chain."""

    def begin(self, prompt_ids: torch.Tensor, states: torch.Tensor) -> None:
        self._text, self._after, self._drafted = [], {}, []
        self._append(prompt_ids.tolist())

    def propose(self, shape: DraftShape, sampling: SamplingSettings, generator: torch.Generator) -> Steps[Draft]:
        yield from ()  # no model runs
        began = time.perf_counter()
        text = self._text
        for length in range(min(LONGEST_MATCH, len(text)), 0, -1):
            place = self._after.get(tuple(text[-length:]))
            if place is not None:
                period = len(text) - place
                self._drafted = [text[place + i % period] for i in range(shape.depth)]
                break
        else:
            self._drafted = []
        ids = torch.tensor(self._drafted, dtype=torch.int64)
        sure = torch.ones(len(ids))
        return Draft(ids, TokenTree.chain(len(ids)), sure, ids, None, time.perf_counter() - began, 0.0)

    def settle(self, path: torch.Tensor, next_id: int, states: torch.Tensor) -> None:
        self._append([*(self._drafted[node] for node in path.tolist()), next_id])
        self._drafted = []

    def _append(self, ids: list[int]) -> None:
        for token in ids:
            end = len(self._text)
            for length in range(1, min(LONGEST_MATCH, end) + 1):
                self._after[tuple(self._text[end - length :])] = end
            self._text.append(token)


def load(target: LanguageModel) -> LookupModel:
    """Prompt lookup beside `target`."""
    return LookupModel(target.vocab_size)
