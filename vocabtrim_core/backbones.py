"""Model bodies behind one small interface: run these ids, give their states; forget some; keep a path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DummyLayer, DynamicIndexedLayer, DynamicLayer, DynamicSlidingWindowLayer

from vocabtrim_core.trees import TokenTree

_CROPPED = (DynamicLayer, DynamicIndexedLayer, DummyLayer)  # layers of a cache that forget their last tokens exactly
NEVER = 2**62  # a length that no text reaches
# Tokens that are read again ahead of a pass. More of them get a pass of their own, which costs more than their rows.
_MOST_BEHIND = 8

Check = Callable[[bool], None]


class Backbone(Protocol):
    """A causal language model's body with a cache of the tokens that it has seen (`length` of them).

    A token's state, [S], is its final (normed) hidden state [H] and then, for each index i in the `taps` that the
    backbone was made with, the input of layer i.
    """

    length: int

    def check(self, trees: bool) -> None:
        """Raise `ModelError` where seen tokens cannot be forgotten or, with `trees`, a tree cannot be run.

        From then on, what makes it cheap to forget the last tokens is kept.
        """
        ...

    def run(self, ids: torch.Tensor, tree: TokenTree | None = None) -> torch.Tensor:
        """Append `ids` int64[n] after what is cached; their states [n, S].

        Without `tree` they are a chain. `tree` arranges the last tokens: `ids`, and before them as many cached ones as
        it has more nodes.
        """
        ...

    def rewind(self, n: int) -> None:
        """Forget the last n tokens."""
        ...

    def keep(self, n: int, path: torch.Tensor) -> None:
        """Of the last n tokens keep those at `path`, int64[m] ascending indices into the n: now they are a chain.

        What is kept stands: no later call takes it back.
        """
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...


def body_states(body: PreTrainedModel, ids: torch.Tensor, taps: Sequence[int] = (), **arguments: Any) -> torch.Tensor:
    """The states [n, S] of `ids` int64[n] in one pass of `body`, which also gets `arguments`."""
    if taps:
        arguments["output_hidden_states"] = list(taps)
    output = body(input_ids=ids[None], **arguments)
    states = [output.last_hidden_state, *(output.hidden_states[tap] for tap in taps)]  # each [1, n, H]
    return (torch.cat(states, dim=-1) if taps else states[0])[0]


def windows_of(body: PreTrainedModel) -> set[int | None]:
    """The windows of attention that its layers have; None for all of the text."""
    return {getattr(layer, "sliding_window", None) for layer in DynamicCache(config=body.config).layers}


def arrangement(
    body: PreTrainedModel, windows: set[int | None], sees: torch.Tensor, of_keys: torch.Tensor
) -> dict[str, Any]:
    """The arguments that tell `body` where the last n tokens are and what they attend to.

    `sees` bool[n, keys] says what they attend to, and `of_keys` int64[keys] the position of each key, of which the last
    n are the tokens' own.
    """
    positions = of_keys[-len(sees) :]
    found = {}
    for window in windows:
        seen = sees if window is None else sees & (positions[:, None] - of_keys < window)
        mask = torch.zeros(seen.shape, dtype=body.dtype)
        mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)
        found["full_attention" if window is None else "sliding_attention"] = mask[None, None]  # [1, 1, n, keys]
    # Bodies with both kinds of layers take a mask of each.
    return {"position_ids": positions[None], "attention_mask": found if len(found) > 1 else mask[None, None]}


@dataclass(frozen=True)
class _Copy:
    """The layers of a cache as they were after `length` tokens; None where cropping gives the same."""

    length: int
    layers: list[Any]


class TransformersBackbone:
    """Any `transformers` body (a causal LM without its head) that takes a `DynamicCache`.

    Keys and values are cropped. Whatever else a cache holds (recurrent and convolutional states, compressed keys)
    cannot be taken back, so it is copied before a pass: a rewind returns to the last copy, and the tokens since then
    are read again, ahead of the next pass. With `singly`, a cache that holds something is never given several tokens
    at once; with `told`, the body is told the positions, which some families otherwise count from 0 in every pass.
    `check` says what the body cannot do.
    """

    def __init__(
        self,
        body: PreTrainedModel,
        taps: tuple[int, ...] = (),
        singly: bool = False,
        told: bool = False,
        check: Check = lambda trees: None,
    ) -> None:
        self._body = body
        self._taps = taps
        self._singly = singly
        self._told = told
        self._check = check
        self._switch = rotation_switch(body)
        self._windows = windows_of(body)
        self._copies_passes = False
        self.reset()

    def reset(self) -> None:
        self.length = 0
        self._ids = torch.empty(0, dtype=torch.int64)  # all tokens
        self._empty()

    def _empty(self) -> None:
        """A cache that has read nothing."""
        self._cache = DynamicCache(config=self._body.config)
        # Windows drop what a rewind would bring back, also what a tree needs that is run level by level; the masks
        # keep the window.
        self._cache.layers = [
            DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer for layer in self._cache.layers
        ]
        self._crops = all(type(layer) in _CROPPED for layer in self._cache.layers)
        self._read = 0  # tokens that it holds
        self._copies: list[_Copy] = []

    def check(self, trees: bool) -> None:
        self._check(trees)
        self._copies_passes = not self._crops

    @torch.inference_mode()
    def run(self, ids: torch.Tensor, tree: TokenTree | None = None) -> torch.Tensor:
        start, switch = self.length, self._switch
        self._ids = torch.cat([self._ids, ids])
        self.length += len(ids)
        if tree is not None and not tree.is_chain:
            return self._pass(ids, **self._arrangement(len(ids), tree))
        if not 0 < start <= switch < self.length:
            return self._run(start, self.length)
        before = self._run(start, switch) if start < switch else None
        self._empty()
        after = self._run(switch, self.length)
        return after if before is None else torch.cat([before, after])

    def _run(self, start: int, end: int) -> torch.Tensor:
        """The states of the tokens from `start` to `end`, after those before that are not in the cache."""
        if self._read and start - self._read > _MOST_BEHIND:
            self._advance(start)
        return self._advance(end)[start - end :]

    def _advance(self, end: int) -> torch.Tensor:
        left = self._ids[self._read : end]
        parts = left.split(1) if self._singly and self._read else (left,)
        states = []
        for part in parts:
            is_first = not self._read
            if self._copies_passes and not is_first:
                self._copy()
            states.append(self._pass(part))
            # The prompt is often read once and continued many times.
            if is_first and not self._crops:
                self._copy()
        return torch.cat(states)

    def _pass(self, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
        if self._told:
            arguments.setdefault("position_ids", torch.arange(self._read, self._read + len(ids))[None])
        states = body_states(self._body, ids, self._taps, cache=self._cache, use_cache=True, **arguments)
        self._read += len(ids)
        return states

    def _arrangement(self, n: int, tree: TokenTree) -> dict[str, Any]:
        """Of the last n tokens of a tree."""
        before = self.length - len(tree)
        sees = torch.cat([torch.ones(n, before, dtype=torch.bool), tree.visible[-n:]], dim=-1)  # [n, keys]
        return arrangement(self._body, self._windows, sees, torch.cat([torch.arange(before), before + tree.depths]))

    def _copy(self) -> None:
        if self._copies and self._copies[-1].length == self._read:
            return
        layers = [None if type(layer) in _CROPPED else _copied(layer) for layer in self._cache.layers]
        self._copies.append(_Copy(self._read, layers))

    def rewind(self, n: int) -> None:
        if not 0 <= n <= self.length:
            raise ValueError(f"cannot rewind {n} of {self.length} tokens")
        self.length -= n
        self._ids = self._ids[: self.length]
        if self._read <= self.length:
            return
        if self._read > self._switch >= self.length:
            self._empty()
        elif self._crops:
            self._crop(self.length)
        else:
            self._return()

    def _return(self) -> None:
        """To the last copy of what stands."""
        self._copies = [one for one in self._copies if one.length <= self.length]
        if not self._copies:
            self._empty()
            return
        last = self._copies[-1]
        self._crop(last.length)
        self._cache.layers = [
            now if then is None else _copied(then) for now, then in zip(self._cache.layers, last.layers, strict=True)
        ]

    def _crop(self, length: int) -> None:
        layers: list[Any] = self._cache.layers
        for layer in layers:
            if type(layer) in _CROPPED:
                layer.crop(length - self._read)
        self._read = length

    @torch.inference_mode()
    def keep(self, n: int, path: torch.Tensor) -> None:
        kept = len(path)
        if kept and int(path[-1]) != kept - 1:
            self._ids[-n:][:kept] = self._ids[-n:][path]
            for layer in self._cache.layers:
                # Layers that use another one's keys have none.
                if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
                    for last in (layer.keys[..., -n:, :], layer.values[..., -n:, :]):  # [1, heads, n, D]
                        last[..., :kept, :] = last[..., path, :]
        self.rewind(n - kept)
        # The prompt's, and the last.
        self._copies = self._copies[:1] + self._copies[1:][-1:]


class RereadingBackbone:
    """A `transformers` body without a cache that can be used: every pass reads the whole text again."""

    def __init__(self, body: PreTrainedModel, taps: tuple[int, ...] = (), check: Check = lambda trees: None) -> None:
        self._body = body
        self._taps = taps
        self.check = check
        self.reset()

    def reset(self) -> None:
        self.length = 0
        self._ids = torch.empty(0, dtype=torch.int64)

    @torch.inference_mode()
    def run(self, ids: torch.Tensor, tree: TokenTree | None = None) -> torch.Tensor:
        assert tree is None or tree.is_chain, "no mask of a tree"
        self._ids = torch.cat([self._ids, ids])
        self.length = len(self._ids)
        return body_states(self._body, self._ids, self._taps, use_cache=False)[-len(ids) :]

    def rewind(self, n: int) -> None:
        if not 0 <= n <= self.length:
            raise ValueError(f"cannot rewind {n} of {self.length} tokens")
        self.length -= n
        self._ids = self._ids[: self.length]

    def keep(self, n: int, path: torch.Tensor) -> None:
        self.rewind(n - len(path))


def _copied(layer: Any) -> Any:
    """A layer of a cache as it is now. Its keys and values are only ever replaced; other states change in place."""
    same = copy(layer)
    for name, value in vars(layer).items():
        if name not in ("keys", "values"):
            setattr(same, name, deepcopy(value))
    return same


def rotation_switch(body: PreTrainedModel) -> int:
    """The length of text beyond which `body` rotates all its keys in another way ("longrope"), cached ones too."""
    config = body.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [one for one in (rope, *rope.values()) if isinstance(one, dict) and one.get("rope_type") == "longrope"]
    return min((one["original_max_position_embeddings"] for one in kinds), default=NEVER)
