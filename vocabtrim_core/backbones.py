"""Model bodies behind one small interface: run these ids, give their hidden states; rewind n."""

from __future__ import annotations

from typing import Protocol

import torch
from transformers import DynamicCache, PreTrainedModel

from vocabtrim_core.errors import ModelError


class Backbone(Protocol):
    """A causal language model's body with a cache of the tokens that it has seen (`length` of them)."""

    length: int

    def run(self, ids: torch.Tensor) -> torch.Tensor:
        """Append `ids` int64[n] after what is cached; their final hidden states [n, H]."""
        ...

    def rewind(self, n: int) -> None:
        """Forget the last n tokens."""
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...


class TransformersBackbone:
    """Any `transformers` body (a causal LM without its head) with a croppable cache."""

    def __init__(self, body: PreTrainedModel) -> None:
        self._body = body
        self.reset()

    def reset(self) -> None:
        self._cache = DynamicCache(config=self._body.config)
        # Sliding-window layers otherwise drop what a rewind would bring back.
        self._cache.activate_past_recording()
        self.length = 0

    @torch.inference_mode()
    def run(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self._body(input_ids=ids[None], cache=self._cache, use_cache=True).last_hidden_state  # [1, n, H]
        self.length += len(ids)
        return hidden[0]

    def rewind(self, n: int) -> None:
        if not 0 <= n <= self.length:
            raise ValueError(f"cannot rewind {n} of {self.length} tokens")
        # crop(0) would crop to nothing.
        if n:
            if not self._cache.is_croppable:
                raise ModelError(
                    f"{type(self._body).__name__} keeps a state that cannot be rewound (a recurrent or compressed "
                    "cache), so it cannot take part in speculative decoding."
                )
            self._cache.crop(-n)
            self.length -= n
