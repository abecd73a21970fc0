"""What a sequence asks a model to compute, told apart from the asking: passes of several sequences can run as one.

Whatever decodes is written as steps of a single sequence: a generator that yields a pass, is sent its tensor, and in
the end returns its result. Run alone or `together` with others, its own logic is the same.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar, cast

import torch

from vocabtrim_core.backbones import Backbone
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.lean import LeanBackbone, run_together
from vocabtrim_core.trees import TokenTree

T = TypeVar("T")


class Pass(Protocol):
    """One pass of one model for one sequence."""

    @property
    def group(self) -> Hashable:
        """Equal for passes that can run as one, such as those that read the same weights."""
        ...

    @classmethod
    def run(cls, passes: Sequence[Self]) -> list[torch.Tensor]:
        """Run passes of one group; what each sequence is to get."""
        ...


Steps = Generator[Pass, torch.Tensor, T]


@dataclass(frozen=True, eq=False)
class BodyPass:
    """`Backbone.run`: states [n, S] of `ids` int64[n], in the shape of `tree`."""

    backbone: Backbone
    ids: torch.Tensor
    tree: TokenTree | None = None

    @property
    def group(self) -> Hashable:
        backbone = self.backbone
        # Other backbones run one by one.
        return (BodyPass, backbone.body, backbone.taps) if isinstance(backbone, LeanBackbone) else id(backbone)

    @classmethod
    def run(cls, passes: Sequence[Self]) -> list[torch.Tensor]:
        if len(passes) == 1:
            (one,) = passes
            return [one.backbone.run(one.ids, one.tree)]
        backbones = [cast(LeanBackbone, one.backbone) for one in passes]
        return run_together(backbones, [one.ids for one in passes], [one.tree for one in passes])


@dataclass(frozen=True, eq=False)
class HeadPass:
    """`RankedHead.logits`: [n, k] of `hidden` [n, H]."""

    head: RankedHead
    hidden: torch.Tensor
    k: int | None = None
    rows: int | None = None

    @property
    def group(self) -> Hashable:
        return HeadPass, self.head, self.k

    @classmethod
    def run(cls, passes: Sequence[Self]) -> list[torch.Tensor]:
        first = passes[0]
        if len(passes) == 1:
            return [first.head.logits(first.hidden, first.k, first.rows)]
        logits = first.head.logits(torch.cat([one.hidden for one in passes]), first.k)
        return list(logits.split([len(one.hidden) for one in passes]))


def alone(steps: Steps[T]) -> T:
    """The result of one sequence's steps."""
    return together([steps])[0]


def together(every: Sequence[Steps[T]]) -> list[T]:
    """The results of several sequences' steps, taken at the same time: where they ask alike, one pass answers all."""
    results: dict[int, T] = {}
    answers: dict[int, torch.Tensor | None] = dict.fromkeys(range(len(every)))
    while answers:
        asked: dict[Hashable, dict[int, Pass]] = {}
        for number, answer in answers.items():
            try:
                # A generator is started by sending None.
                one = every[number].send(cast(torch.Tensor, answer))
            except StopIteration as end:
                results[number] = end.value
            else:
                asked.setdefault(one.group, {})[number] = one
        answers = {}
        for passes in asked.values():
            listed = list(passes.values())
            answers |= zip(passes, type(listed[0]).run(listed), strict=True)
    return [results[number] for number in range(len(every))]
