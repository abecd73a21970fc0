"""What a body can do through `transformers`, found out by doing it: its states must be those of one pass over the text.

Families differ in what they keep of a text, in the positions and masks they heed, and in what a rewind leaves behind.
One that gets some of it wrong writes wrong text without a word, so nothing is taken on trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import product
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer, DynamicSlidingWindowLayer

from vocabtrim_core.backbones import (
    NEVER,
    Backbone,
    RereadingBackbone,
    TransformersBackbone,
    arrangement,
    body_states,
    rotation_switch,
    windows_of,
)
from vocabtrim_core.errors import ModelError
from vocabtrim_core.sentences import first_line
from vocabtrim_core.trees import TokenTree

# The mean difference of a token's state, of its mean size: above what rounding changes, below what a wrong mask,
# position or memory does.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
_TOKENS = 24
_HALF = 12
_PROMPT, _VANILLA = 8, 10  # where a prompt ends, and single tokens after it
# A mixture of experts sends a token elsewhere at a near tie, but not the same token of each of these texts.
_TEXTS = 3

_MASKED = ("sdpa", "eager")  # attention implementations that take any mask
_ATTENTION = ("full_attention", "sliding_attention")
_TREE = TokenTree(torch.tensor([-1, -1, 0, 0, 1, 3, 3]))
_FIRST_LEVELS = 4  # nodes of the tree
_PATH = torch.tensor([0, 3, 6])

# States of some tokens, and what they should be.
_Script = Callable[[torch.Tensor], Iterator[tuple[torch.Tensor, torch.Tensor]]]


class Proof:
    """What `body`, of the model `name`, can be used for. Raises `ModelError` where it cannot be decoded at all.

    `note` says what makes it slow here, if something does.
    """

    def __init__(self, name: str, body: PreTrainedModel) -> None:
        self.body = body
        self._title = f"{name} ({type(body).__name__})"
        self.note = ""
        self._no_chains: str | None = None
        self._new: Callable[[tuple[int, ...]], Backbone]
        self._choose()

    def new_backbone(self, taps: tuple[int, ...] = ()) -> Backbone:
        """The body with nothing read, run as it was proven."""
        return self._new(taps)

    def check(self, trees: bool) -> None:
        """Raise `ModelError` where drafts, or with `trees` draft trees, would not be lossless with it."""
        if self._no_chains is not None:
            raise ModelError(
                f"{self._title} cannot take part in speculative decoding: {self._no_chains}. Decode with it alone, "
                "without a drafter."
            )
        if trees and self._no_trees is not None:
            raise ModelError(f"{self._title} cannot read a draft tree: {self._no_trees}. Draft chains with it.")

    @cached_property
    def pads(self) -> bool:
        """Whether texts of several lengths can be read as one batch, padded on the left."""
        return self._fault(self._padded) is None

    def _choose(self) -> None:
        """Of the ways to run the body, the first that is right with chains, or else without."""
        first = None
        for singly, told in product((False, True), repeat=2):
            new = partial(TransformersBackbone, self.body, singly=singly, told=told, check=self.check)
            fault = self._fault(partial(self._chained, new))
            if fault is None:
                self._new = new
                self.note = "it reads a draft token by token, so that speculation cannot be faster" if singly else ""
                # Seen to part from its own text in chains that these short texts do not show.
                if any(isinstance(layer, DynamicIndexedLayer) for layer in self._layers):
                    self._no_chains = "its layers choose the tokens they attend to, and rounding can change the choice"
                return
            first = first or (new, *fault)
        assert first is not None
        self._new, right, reason = first
        if right < _HALF:
            raise ModelError(
                f"{self._title} cannot be decoded token by token: {reason or 'a token reads those after it'}. Choose a "
                "causal language model."
            )
        if right >= _HALF + _VANILLA:
            self._no_chains = reason or "tokens that were rejected leave a trace"
        else:
            self._new = partial(RereadingBackbone, self.body, check=self.check)
            self.note = "it keeps no cache that is right, so that every pass reads the whole text again"

    @property
    def _layers(self) -> list[Any]:
        """What its cache is made of."""
        return DynamicCache(config=self.body.config).layers

    @cached_property
    def _no_trees(self) -> str | None:
        if isinstance(self._new(()), RereadingBackbone):
            return "it keeps no cache"
        config = self.body.config.get_text_config()
        plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in self._layers)
        if not plain or not set(getattr(config, "layer_types", None) or ()) <= set(_ATTENTION):
            return "some of its layers read tokens in a row"
        if config._attn_implementation not in _MASKED:
            return f"its attention ({config._attn_implementation}) takes no mask"
        if rotation_switch(self.body) != NEVER:
            return "its positions change with the text's length (longrope)"
        for script, otherwise in (
            (self._shuffled, "it heeds the place of a token where it should heed position and mask"),
            (self._branched, "its states are not those of the paths"),
        ):
            fault = self._fault(script)
            if fault is not None:
                return fault[1] or otherwise
        return None

    @torch.inference_mode()
    def _fault(self, script: _Script) -> tuple[int, str | None] | None:
        """None if all is right; else the number of tokens that were before, and the error if it was one."""
        tolerance = _TOLERANCE.get(self.body.dtype, _TOLERANCE[torch.float32])
        right = torch.zeros(0, dtype=torch.bool)
        for seed in range(_TEXTS):
            errors, reason = self._errors(script(self._text(seed)))
            if reason is not None:
                return int((errors <= tolerance).cumprod(0).sum()), reason
            right = errors <= tolerance if not seed else right | (errors <= tolerance)
            if right.all():
                return None
        return int(right.cumprod(0).sum()), None

    def _errors(self, steps: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, str | None]:
        errors = [torch.zeros(0)]
        try:
            for found, expected in steps:
                found, expected = found.float(), expected.float()  # [n, H]
                errors.append((found - expected).abs().mean(-1) / expected.abs().mean(-1).clamp(min=1e-6))
        # Bodies raise errors of every kind for what they cannot do.
        except Exception as error:
            return torch.cat(errors), f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        return torch.cat(errors), None

    def _text(self, seed: int) -> torch.Tensor:
        """int64[_TOKENS], without padding: some families do not count that as a position."""
        config = self.body.config.get_text_config()
        ids = torch.randint(config.vocab_size, (_TOKENS,), generator=torch.Generator().manual_seed(seed))
        return torch.where(ids == (getattr(config, "pad_token_id", None) or 0), (ids + 1) % config.vocab_size, ids)

    def _whole(self, ids: torch.Tensor) -> torch.Tensor:
        return body_states(self.body, ids, use_cache=False)

    # Scripts

    def _chained(self, new: Callable[[], Backbone], ids: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Half of the text as a part of the whole; a prompt and single tokens, as vanilla decoding runs them; drafts of
        which tokens are rejected, as a target and as a drafter reads them."""
        expected = self._whole(ids)
        yield self._whole(ids[:_HALF]), expected[:_HALF]
        backbone = new()
        backbone.check(trees=False)
        yield backbone.run(ids[:_PROMPT]), expected[:_PROMPT]
        for i in range(_PROMPT, _VANILLA):
            yield backbone.run(ids[i : i + 1]), expected[i : i + 1]
        wrong = ids.flip(0)
        done = _VANILLA
        for right, rejected in ((4, 3), (0, 2)):
            states = backbone.run(torch.cat([ids[done : done + right], wrong[:rejected]]))
            yield states[:right], expected[done : done + right]
            backbone.keep(right + rejected, torch.arange(right))
            done += right
        for token in (ids[done], *wrong[:2]):
            backbone.run(token[None])
        backbone.keep(3, torch.arange(1))
        yield backbone.run(ids[done + 1 :]), expected[done + 1 :]

    def _shuffled(self, ids: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A text told last token first: whoever goes by places instead of positions, or masks on its own, errs. Windows
        too, which are longer than the other texts here."""
        backwards = torch.arange(len(ids)).flip(0)
        told = arrangement(self.body, windows_of(self.body), backwards[:, None] >= backwards, backwards)
        cache = DynamicCache(config=self.body.config)
        states = body_states(self.body, ids[backwards], cache=cache, use_cache=True, **told)
        yield states, self._whole(ids)[backwards]

    def _branched(self, ids: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A tree read level by level, of which a path is kept, and a chain after it."""
        nodes = len(_TREE)
        before, drafted, after = ids[:_PROMPT], ids[_PROMPT:][:nodes], ids[_PROMPT + nodes :]
        backbone = self._new(())
        yield backbone.run(before), self._whole(before)
        states = [
            backbone.run(drafted[:_FIRST_LEVELS], TokenTree(_TREE.parents[:_FIRST_LEVELS])),
            backbone.run(drafted[_FIRST_LEVELS:], _TREE),
        ]
        expected = [self._whole(torch.cat([before, drafted[_TREE.path_to(node)]]))[-1:] for node in range(nodes)]
        yield torch.cat(states), torch.cat(expected)
        backbone.keep(nodes, _PATH)
        text = torch.cat([before, drafted[_PATH], after])
        yield backbone.run(after), self._whole(text)[-len(after) :]

    def _padded(self, ids: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Two texts of different lengths as one batch, then a token of each."""
        texts = ids[:-1], ids[: len(ids) // 2]
        lengths = torch.tensor([len(text) for text in texts])
        batch = torch.stack([torch.cat([ids[:1].repeat(len(ids) - 1 - len(text)), text]) for text in texts])  # [2, n]
        mask = (torch.arange(-len(ids) + 1, 0) >= -lengths[:, None]).long()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.body.config)
        hidden = self.body(
            input_ids=batch, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True
        ).last_hidden_state  # [2, n, H]
        for row, text in zip(hidden, texts, strict=True):
            yield row[-len(text) :], self._whole(text)
        hidden = self.body(
            input_ids=ids[-1:].expand(2, 1),
            attention_mask=torch.cat([mask, mask.new_ones(2, 1)], dim=-1),
            position_ids=lengths[:, None],
            cache=cache,
            use_cache=True,
        ).last_hidden_state  # [2, 1, H]
        for row, text in zip(hidden, texts, strict=True):
            yield row, self._whole(torch.cat([text, ids[-1:]]))[-1:]
