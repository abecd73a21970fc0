"""Medusa heads (arXiv 2401.10774): each guesses one token further ahead, all from the target's last state.

Head i reads the state of a token and guesses the token i + 2 places after it: the one after that is known, or is the
target's own to say.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch.nn.functional import linear, silu

from vocabtrim_core.drafters import Draft
from vocabtrim_core.drafters.checkpoints import Checkpoint, as_weight, listed
from vocabtrim_core.drafters.choosing import chain_draft, choose, no_draft
from vocabtrim_core.engines import EngineNote
from vocabtrim_core.errors import ModelError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.passes import HeadPass, Steps
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape, TokenTree, product_tree, top_children

_TENSOR = re.compile(r"(?:medusa_head\.)?(\d{1,3})\.(\d{1,3})\.(linear\.weight|linear\.bias|weight)")


@dataclass(frozen=True, eq=False)
class Block:
    """One residual block of every head, x + SiLU(Wx + b): `weight` [heads, H, H], `bias` [heads, H]."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """States [heads, H], or [1, H] for all heads alike, to states [n, H] of the first n heads."""
        heads, width, _ = self.weight.shape
        if len(states) == 1:
            projected = linear(states, self.weight.view(-1, width), self.bias.view(-1)).view(heads, width)
        else:
            projected = torch.baddbmm(self.bias[:, None], states[:, None], self.weight.mT)[:, 0]
        return states + silu(projected)

    def first(self, heads: int) -> Block:
        """The block of the first heads only; views."""
        return Block(self.weight[:heads], self.bias[:heads])


@dataclass(eq=False)
class MedusaModel:
    """Loaded Medusa heads. `own_heads` are their LM heads in id order, where they do not share the target's.

    `head` is the target's, or the first of their own: what is counted and timed.
    """

    kind: ClassVar[str] = "medusa"
    engine: ClassVar[EngineNote] = EngineNote("own code", "Medusa heads are none of transformers' models")
    taps: ClassVar[tuple[int, ...]] = ()
    name: str
    blocks: tuple[Block, ...]
    heads: int
    head: RankedHead
    own_heads: tuple[RankedHead, ...]
    max_length: int
    _ordered: tuple[torch.Tensor, tuple[RankedHead, ...]] | None = None  # a ranking, and the own heads in its order

    @property
    def vocab_size(self) -> int:
        return self.head.vocab_size

    @property
    def parameters(self) -> int:
        """Parameters of the residual blocks, without LM heads."""
        return sum(block.weight.numel() + block.bias.numel() for block in self.blocks)

    def new_drafter(self, head: RankedHead | None = None, k: int | None = None) -> MedusaDrafter:
        head = head or self.head
        heads = self._in_order(head.ranking) if self.own_heads else (head,) * self.heads
        return MedusaDrafter(self, heads, k or head.vocab_size)

    def _in_order(self, ranking: torch.Tensor) -> tuple[RankedHead, ...]:
        """The own heads in the order of a ranking, the last of which is kept: a head's rows are copied once."""
        if ranking is self.head.ranking:
            return self.own_heads
        if self._ordered is None or self._ordered[0] is not ranking:
            self._ordered = ranking, tuple(head.reordered(ranking) for head in self.own_heads)
        return self._ordered[1]


class MedusaDrafter:
    """Drafts with the blocks of `model` and the first `k` ranks of each of `heads`, all in the same order."""

    taps: tuple[int, ...] = ()

    def __init__(self, model: MedusaModel, heads: Sequence[RankedHead], k: int) -> None:
        self.kept = heads[0].ranking[:k]
        self.max_length = model.max_length
        self._blocks, self._heads, self._k = model.blocks, tuple(heads), k
        self._shared = all(head is heads[0] for head in heads)
        self._state: torch.Tensor | None = None  # [1, H], of the token before the last one that stands

    def check(self, shape: DraftShape) -> None:
        """Chains and trees alike."""

    def begin(self, prompt_ids: torch.Tensor, states: torch.Tensor) -> None:
        self._state = states[-2:-1] if len(states) > 1 else None

    def propose(self, shape: DraftShape, sampling: SamplingSettings, generator: torch.Generator) -> Steps[Draft]:
        if self._state is None:  # a prompt of one token
            return no_draft()
        began = time.perf_counter()
        depth = min(shape.depth, len(self._heads))
        hidden = self._state
        for block in self._blocks:
            hidden = block.first(depth)(hidden)  # [depth, H]
        hidden = hidden.expand(depth, -1)
        computed = time.perf_counter()
        logits = yield from self._logits(hidden)  # [depth, k]
        if shape.is_chain:
            choice = choose(logits, sampling, generator)
            return chain_draft([choice], self.kept, computed - began, time.perf_counter() - computed)
        log_probs, best = top_children(logits, shape.branches, sampling.temperature)  # [depth, b]
        tree, columns = static_tree(depth, best.shape[1], shape.nodes)
        ranks = best[tree.depths, columns]
        probs = log_probs.exp()[tree.depths, columns]
        return Draft(self.kept[ranks], tree, probs, ranks, None, computed - began, time.perf_counter() - computed)

    def settle(self, path: torch.Tensor, next_id: int, states: torch.Tensor) -> None:
        self._state = states[-1:]

    def _logits(self, hidden: torch.Tensor) -> Steps[torch.Tensor]:
        """Row i is head i's."""
        if self._shared:
            return (yield HeadPass(self._heads[0], hidden, self._k))
        rows = []
        for head, row in zip(self._heads[: len(hidden)], hidden, strict=True):
            rows.append((yield HeadPass(head, row[None], self._k)))
        return torch.cat(rows)


@lru_cache(maxsize=32)
def static_tree(depth: int, branches: int, nodes: int | None) -> tuple[TokenTree, torch.Tensor]:
    """Medusa's static tree (section 2.3.3) and, int64[n], which guess of its head each token is.

    The paper measures how often each guess of each head is right; here one typical fall-off stands for all: a head's
    n-th guess is right with 0.6 * 0.4^n, and every head is right 0.8 times as often as the one before.
    """
    rates = [[0.6 * 0.8**level * 0.4**guess for guess in range(branches)] for level in range(depth)]
    return product_tree(rates, nodes or branches + (depth - 1) * branches**2)


def recognises(names: Collection[str]) -> bool:
    """Whether tensors of these names are Medusa heads."""
    return bool(names) and all(_TENSOR.fullmatch(name) for name in names)


def load(checkpoint: Checkpoint, target: LanguageModel) -> MedusaModel:
    """The heads of a checkpoint, for `target` and in its dtype. Raises `ModelError` where the two do not fit."""
    name, width = checkpoint.name, target.hidden_size
    computed = target.head.activations  # The blocks are small.
    found: dict[tuple[int, int, str], torch.Tensor] = {}
    for key, tensor in checkpoint.tensors.items():
        match = _TENSOR.fullmatch(key)
        if match is None:
            raise ModelError(f"The drafter {name} has parts that are not supported: {listed([key])}.")
        found[int(match[1]), int(match[2]), match[3]] = tensor
    heads = 1 + max(i for i, _, _ in found)
    depth = 1 + max((j for _, j, part in found if part.startswith("linear")), default=-1)
    wanted: dict[tuple[int, int, str], tuple[int, ...]] = {}
    for i in range(heads):
        for j in range(depth):
            wanted |= {(i, j, "linear.weight"): (width, width), (i, j, "linear.bias"): (width,)}
        if (0, depth, "weight") in found:
            wanted[i, depth, "weight"] = (target.vocab_size, width)
    for place, shape in wanted.items():
        if place not in found:
            raise ModelError(f"The drafter {name} is incomplete: it lacks {_key(place)}.")
        if tuple(found[place].shape) != shape:
            raise ModelError(
                f"The drafter {name} was made for another target: {_key(place)} is {tuple(found[place].shape)}, and "
                f"this target asks for {shape}. Choose the target that it was trained with."
            )
    if found.keys() != wanted.keys():
        raise ModelError(
            f"The drafter {name} has parts that are not supported: {listed(map(_key, found.keys() - wanted.keys()))}."
        )

    def every(j: int, part: str) -> torch.Tensor:
        return torch.stack([as_weight(found[i, j, part], computed, name) for i in range(heads)])

    lm_heads = [(i, depth, "weight") for i in range(heads) if (i, depth, "weight") in found]
    own = [as_weight(found[one], target.dtype, f"The drafter {name} ({_key(one)})") for one in lm_heads]
    own_heads = tuple(RankedHead(weight, torch.arange(len(weight))) for weight in own)
    return MedusaModel(
        name=name,
        blocks=tuple(Block(every(j, "linear.weight"), every(j, "linear.bias")) for j in range(depth)),
        heads=heads,
        head=own_heads[0] if own_heads else target.head,
        own_heads=own_heads,
        max_length=target.max_length,
    )


def _key(place: tuple[int, int, str]) -> str:
    i, j, part = place
    return f"{i}.{j}.{part}"
