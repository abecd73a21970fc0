"""A causal language model taken apart into a body and a head, and what runs it here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import PreTrainedModel

from vocabtrim_core.backbones import Backbone
from vocabtrim_core.engines import Engine, choose_engine
from vocabtrim_core.errors import ModelError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.lean import COVERED


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model taken apart: a `body` (ids to hidden states [1, n, H]) and its LM `head` in id order.

    In float16 the head has its weights in it, and what runs the body packs them so; the body itself and all activations
    are float32, with the matrices' values rounded to float16. `format_note` is a sentence on the choice of the number
    format, or empty (see `NumberFormat`).

    `eos_ids` end a text, ascending; `max_length` is the longest text in tokens, prompt included.
    """

    name: str
    body: PreTrainedModel
    head: RankedHead
    eos_ids: tuple[int, ...]
    max_length: int
    format_note: str = ""

    @property
    def vocab_size(self) -> int:
        """Rows of the head: the tokenizer's entries and what padding the model has beyond them."""
        return self.head.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.head.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights as they are read."""
        return self.head.weight.dtype

    @property
    def number_format(self) -> str:
        """The name of that dtype."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def parameters(self) -> int:
        """Parameters of the body without the input embeddings, of which a pass reads only a row a token."""
        return sum(parameter.numel() for parameter in self.body.parameters()) - input_embeddings(self.body).numel()

    @cached_property
    def engine(self) -> Engine:
        """What runs the body here. Chosen once, on first use: that lays out its weights and checks what it computes.

        Raises `ModelError` for a body that nothing here decodes rightly.
        """
        return choose_engine(self.name, self.body, self.head)

    @property
    def pads(self) -> bool:
        """Whether the body can run texts of several lengths as one batch, padded on the left."""
        return type(self.body) in COVERED or self.engine.pads

    def new_backbone(self, taps: tuple[int, ...] = (), fixed_rows: int | None = None) -> Backbone:
        """The body with an empty cache of its own; its states hold the inputs of the layers `taps` as well."""
        return self.engine.new_backbone(taps, fixed_rows)


def input_embeddings(model: PreTrainedModel) -> torch.Tensor:
    """The weight of a model's input embeddings, [V, H]."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight


def check_ids(ids: Sequence[int], model: LanguageModel) -> None:
    """ModelError where the tokenizer made an id that the model has no embedding for."""
    rows = model.head.vocab_size
    if max(ids, default=0) >= rows:
        raise ModelError(
            f"The tokenizer gives the token id {max(ids):,}, but {model.name} has embeddings of {rows:,} "
            "tokens. Give the model with the tokenizer that it was trained with."
        )
