"""Several prompts answered at once by one model, without a drafter: for text in bulk, where no cycle is looked at.

Prompts are padded on the left, behind an attention mask; a sequence that has ended leaves the batch. A model that
padding would disturb (recurrent layers, positions of its own) answers them one after the other. Each sequence
draws from a source of chance of its own, so what it says does not depend on which others run beside it (up to
near-ties: a row's logits can differ in their last bits with the size of the batch).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import cast

import torch
from transformers import DynamicCache

from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.sampling import SamplingSettings, law


@torch.inference_mode()
def decode_batch(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    chances: Sequence[random.Random],
    sampling: SamplingSettings,
    max_new_tokens: int,
    vocab_size: int,
    on_step: Callable[[int], None],
) -> list[list[int]]:
    """The ids that `model` writes after each of `prompts` (non-empty, shorter than its context), end token included.

    An answer ends with one of the model's `eos_ids`, after `max_new_tokens` or where the context is full. Only ids
    below `vocab_size` are written: rows that pad the head beyond the tokenizer spell nothing. `chances` holds a source
    of chance for each prompt; `sampling.seed` is not used. `on_step` gets the number of tokens each step adds.
    """
    limits = [min(max_new_tokens, model.max_length - len(prompt)) for prompt in prompts]
    if not model.pads:
        each = zip(prompts, chances, limits, strict=True)
        return [_decode(model, *one, sampling, vocab_size, on_step) for one in each]
    device = model.head.weight.device
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)  # [B, L]
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    eos_ids = frozenset(model.eos_ids)
    answers: list[list[int]] = [[] for _ in prompts]
    running = list(range(len(prompts)))
    cache = DynamicCache(config=model.body.config)
    while True:
        hidden = model.body(
            input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True
        ).last_hidden_state  # [B, L, H], then [b, 1, H]
        logits = model.head.logits(hidden[:, -1], vocab_size)  # [b, V]
        tokens = _next_tokens(logits, sampling, [chances[i] for i in running])  # [b]
        for i, token in zip(running, tokens.tolist(), strict=True):
            answers[i].append(token)
        on_step(len(running))
        stays = [row for row, i in enumerate(running) if answers[i][-1] not in eos_ids and len(answers[i]) < limits[i]]
        if not stays:
            return answers
        if len(stays) < len(running):
            rows = torch.tensor(stays, device=device)
            cache.reorder_cache(cast(torch.LongTensor, rows))
            tokens, mask, positions = tokens[rows], mask[rows], positions[rows]
            running = [running[row] for row in stays]
        ids = tokens[:, None]  # [b, 1]
        mask = torch.cat([mask, mask.new_ones(len(running), 1)], dim=-1)
        positions = positions[:, -1:] + 1


def _decode(
    model: LanguageModel,
    prompt: Sequence[int],
    chance: random.Random,
    limit: int,
    sampling: SamplingSettings,
    vocab_size: int,
    on_step: Callable[[int], None],
) -> list[int]:
    backbone = model.new_backbone()
    ids = torch.tensor(prompt)
    answer: list[int] = []
    while not answer or (answer[-1] not in model.eos_ids and len(answer) < limit):
        hidden = backbone.run(ids)[-1:]  # [1, H]
        ids = _next_tokens(model.head.logits(hidden, vocab_size), sampling, [chance])
        answer.append(int(ids))
        on_step(1)
    return answer


def _next_tokens(logits: torch.Tensor, sampling: SamplingSettings, chances: Sequence[random.Random]) -> torch.Tensor:
    """One token for each row of `logits` [b, V], int64[b]: the law's inverse at one number of the row's own chance."""
    if sampling.greedy:
        return logits.argmax(-1)
    # In float64, since a float32 sum over a whole vocabulary is off by more than its rare tokens' probabilities.
    cumulative = law(logits, sampling).double().cumsum(-1)  # [b, V]
    uniform = torch.tensor([[chance.random()] for chance in chances], dtype=torch.float64, device=logits.device)
    # The first entry above the number: one of probability 0 is never first.
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
