"""Real but tiny language models: random Llamas and their like, and a Markov chain whose law is a table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel

from vocabtrim_core.decoding.engine import Cycle, GenerationSettings, generate
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.drafters.independent import IndependentDrafter, IndependentModel
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.models import ModelPair
from vocabtrim_core.trees import TokenTree

NEVER = StopCondition(frozenset())

logging.getLogger("transformers").setLevel(logging.ERROR)


def llama_config(vocab_size: int = 32, layers: int = 2, context: int = 256) -> LlamaConfig:
    # Large initial weights: the answers vary instead of repeating one token.
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
    )


def causal_lm(seed: int, config: PreTrainedConfig | None = None, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model, always the same for a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(llama_config() if config is None else config)
    return model.eval().to(dtype).requires_grad_(False)


def disturbed(model: PreTrainedModel, noise: float, seed: int = 1) -> PreTrainedModel:
    """A copy with `noise` added to its weights, in units of their spread: a drafter that agrees now and then."""
    copy = deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for parameter in copy.parameters():
        if parameter.dim() > 1:
            spread = noise * float(parameter.std())
            parameter += spread * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return copy


def language_model(model: PreTrainedModel, name: str = "tiny", max_length: int | None = None) -> LanguageModel:
    """The model taken apart."""
    weight = model.get_output_embeddings().weight
    head = RankedHead(
        weight, torch.arange(len(weight)), soft_cap=getattr(model.config, "final_logit_softcapping", None)
    )
    return LanguageModel(name, model.base_model, head, (), max_length or model.config.max_position_embeddings)


def drafter_of(model: LanguageModel, ranking: Sequence[int] | torch.Tensor, k: int) -> IndependentDrafter:
    head = model.head.reordered(torch.as_tensor(ranking))
    return IndependentDrafter(model.new_backbone(), head, k, model.max_length)


def with_context(pair: ModelPair, max_length: int) -> ModelPair:
    """The pair with another context of its drafter."""
    drafter: Any = pair.drafter
    if isinstance(drafter, IndependentModel):
        return replace(pair, drafter=IndependentModel(replace(drafter.model, max_length=max_length)))
    return replace(pair, drafter=replace(drafter, max_length=max_length))


def decode(
    target: LanguageModel,
    drafter: IndependentDrafter | None,
    prompt_ids: Sequence[int],
    settings: GenerationSettings | None = None,
    stop: StopCondition = NEVER,
) -> list[Cycle]:
    """All cycles of a generation."""
    return list(generate(target, drafter, list(prompt_ids), settings or GenerationSettings(), stop))


def tokens(cycles: Sequence[Cycle]) -> list[int]:
    return [token for cycle in cycles for token in cycle.emitted_ids]


class MarkovBackbone:
    """The body of a language model whose next token depends on the last one only: hidden states are one-hot."""

    def __init__(self, vocab_size: int) -> None:
        self._states = torch.eye(vocab_size)
        self.length = 0

    def check(self, trees: bool) -> None:
        pass

    def run(self, ids: torch.Tensor, tree: TokenTree | None = None) -> torch.Tensor:
        self.length += len(ids)
        return self._states[ids]  # [n, V]

    def rewind(self, n: int) -> None:
        assert 0 <= n <= self.length
        self.length -= n

    def keep(self, n: int, path: torch.Tensor) -> None:
        assert 0 <= n <= self.length and path.tolist() == sorted(set(path.tolist()))
        self.length -= n - len(path)

    def reset(self) -> None:
        self.length = 0


class MarkovModel:
    """What the engine needs of a model; `table` [V, V]: row t holds the logits of what follows token t."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table
        self.head = RankedHead(table.T.contiguous(), torch.arange(len(table)))
        self.max_length = 10_000

    def new_backbone(self, taps: tuple[int, ...] = (), fixed_rows: int | None = None) -> MarkovBackbone:
        return MarkovBackbone(len(self.table))
