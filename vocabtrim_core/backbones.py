"""Model bodies behind one small interface: run these ids, give their states; forget some; keep a path."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from vocabtrim_core.errors import ModelError
from vocabtrim_core.trees import TokenTree

_MASKED = ("sdpa", "eager")  # attention implementations that take any mask
_ATTENTION = ("full_attention", "sliding_attention")


class Backbone(Protocol):
    """A causal language model's body with a cache of the tokens that it has seen (`length` of them).

    A token's state, [S], is its final (normed) hidden state [H] and then, for each index i in the `taps` that the
    backbone was made with, the input of layer i.
    """

    length: int

    def check(self, trees: bool) -> None:
        """Raise `ModelError` where seen tokens cannot be forgotten or, with `trees`, a tree cannot be run."""
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
        """Of the last n tokens keep those at `path`, int64[m] ascending indices into the n: now they are a chain."""
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...


class TransformersBackbone:
    """Any `transformers` body (a causal LM without its head) with a croppable cache."""

    def __init__(self, body: PreTrainedModel, taps: tuple[int, ...] = ()) -> None:
        self._body = body
        self._taps = taps
        self._windows: set[int | None] = set()
        self.reset()

    def reset(self) -> None:
        self._cache = DynamicCache(config=self._body.config)
        # Convolutions otherwise drop what a rewind would bring back.
        self._cache.activate_past_recording()
        # So do sliding-window layers, also what a tree needs that is run level by level; the masks keep the window.
        windows = [getattr(layer, "sliding_window", None) for layer in self._cache.layers]
        self._cache.layers = [
            DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer for layer in self._cache.layers
        ]
        self._windows = set(windows)
        self.length = 0

    def check(self, trees: bool) -> None:
        if not self._can_rewind():
            raise ModelError(
                f"{type(self._body).__name__} keeps a state that cannot be rewound (a recurrent or compressed "
                "cache), so it cannot take part in speculative decoding."
            )
        config = self._body.config.get_text_config()
        plain = all(type(layer) is DynamicLayer for layer in self._cache.layers)
        kinds = getattr(config, "layer_types", None) or ()
        if trees and not (plain and set(kinds) <= set(_ATTENTION) and config._attn_implementation in _MASKED):
            raise ModelError(
                f"{type(self._body).__name__} cannot read a draft tree: its layers or its attention "
                f"({config._attn_implementation}) take no mask of one. Draft chains with it."
            )

    def _can_rewind(self) -> bool:
        if self._cache.is_croppable or self.length:
            return self._cache.is_croppable
        # Layers with a convolution tell only after they have run.
        trial = TransformersBackbone(self._body)
        trial.run(torch.zeros(1, dtype=torch.int64))
        return trial._cache.is_croppable

    @torch.inference_mode()
    def run(self, ids: torch.Tensor, tree: TokenTree | None = None) -> torch.Tensor:
        arguments: dict[str, Any] = {}
        if self._taps:
            arguments["output_hidden_states"] = list(self._taps)
        if tree is not None and not tree.is_chain:
            arguments |= self._arrangement(len(ids), tree)
        output = self._body(input_ids=ids[None], cache=self._cache, use_cache=True, **arguments)
        self.length += len(ids)
        states = [output.last_hidden_state, *(output.hidden_states[tap] for tap in self._taps)]  # each [1, n, H]
        return (torch.cat(states, dim=-1) if self._taps else states[0])[0]

    def _arrangement(self, n: int, tree: TokenTree) -> dict[str, Any]:
        """Positions and attention masks [1, 1, n, keys] of the last n tokens of a tree."""
        before = self.length + n - len(tree)
        positions = before + tree.depths  # of the whole tree
        mine = positions[-n:]
        sees = torch.cat([torch.ones(n, before, dtype=torch.bool), tree.visible[-n:]], dim=-1)  # [n, keys]
        masks = {}
        for window in self._windows:
            seen = sees
            if window is not None:
                seen = seen & (mine[:, None] - torch.cat([torch.arange(before), positions]) < window)
            mask = torch.zeros(seen.shape, dtype=self._body.dtype)
            mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)
            masks["full_attention" if window is None else "sliding_attention"] = mask[None, None]
        # Bodies with both kinds of layers take a mask of each.
        either = masks if len(masks) > 1 else mask[None, None]
        return {"position_ids": mine[None], "attention_mask": either}

    def rewind(self, n: int) -> None:
        if not 0 <= n <= self.length:
            raise ValueError(f"cannot rewind {n} of {self.length} tokens")
        # crop(0) would crop to nothing.
        if n:
            self._cache.crop(-n)
            self.length -= n

    @torch.inference_mode()
    def keep(self, n: int, path: torch.Tensor) -> None:
        kept = len(path)
        if kept and int(path[-1]) != kept - 1:
            for layer in self._cache.layers:
                # Layers that use another one's keys have none.
                if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
                    for last in (layer.keys[..., -n:, :], layer.values[..., -n:, :]):  # [1, heads, n, D]
                        last[..., :kept, :] = last[..., path, :]
        self.rewind(n - kept)
