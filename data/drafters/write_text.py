"""Let the target write the text that its drafters are trained on: answers to prompts, and prompts of its own.

    python data/drafters/write_text.py TARGET_FOLDER PROMPTS.jsonl OUT.jsonl.gz [--minutes 30]

PROMPTS.jsonl has `task` and `prompt` (training_prompts.py writes one). Every second place goes to a prompt that the
target writes itself: given the chat template up to where a user would speak, it goes on with a question (as in Magpie,
arXiv 2406.08464), which covers what it was tuned on better than any list of ours. Every prompt is rendered with the
template's system prompt, as the product renders prompts. Answers are drawn at a temperature of 0, 0.5 or 0.8 in turn.
Rows are `task, temperature, prompt_ids, answer_ids`.

Many chats are written at once, each in a slot of one cache; a slot whose chat has ended takes the next one, so that
every pass is full. The body is the target's, a Llama, written out with weights packed once for oneDNN: with
`transformers` the same takes several times as long.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from vocabtrim_core.layers import Linear
from vocabtrim_core.models import load_target
from vocabtrim_core.tokenization import Tokenizer

TEMPERATURES = (0.0, 0.5, 0.8)
OWN_TEMPERATURE = 0.9
OWN_PROMPT_TOKENS = 128
PLACEHOLDER = "PLACEHOLDER"


@dataclass
class Chat:
    """A chat in the making. `forced` are tokens that must come next; `prompt` is empty while the model writes it."""

    task: str
    temperature: float
    forced: list[int]
    prompt: list[int]
    written: list[int] = field(default_factory=list)


class Writer:
    """The target with `slots` caches of `context` tokens."""

    def __init__(self, model: Any, head: torch.Tensor, slots: int, context: int) -> None:
        config = model.config
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.width = config.hidden_size // self.heads
        self.eps, self.context = config.rms_norm_eps, context
        self.embeddings, self.norm = model.embed_tokens.weight, model.norm.weight
        self.layers = []
        for layer in model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            self.layers.append(
                (
                    layer.input_layernorm.weight,
                    Linear(torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])),
                    Linear(attention.o_proj.weight),
                    layer.post_attention_layernorm.weight,
                    Linear(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])),
                    Linear(mlp.down_proj.weight),
                )
            )
        self.head = Linear(head)
        cache = torch.zeros(len(self.layers), slots, self.groups, context, self.width, dtype=torch.bfloat16)
        # Keys lie transposed: multiplying queries with them would copy them otherwise.
        self.keys, self.values = cache.transpose(-1, -2).contiguous(), cache
        angles = torch.arange(context)[:, None] * model.rotary_emb.inv_freq[None].float()  # [L, d / 2]
        self.cos, self.sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [n, heads, d] at positions int64[n]."""
        half = self.width // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return (x * self.cos[positions, None] + turned * self.sin[positions, None]).bfloat16()

    def _project(self, x: torch.Tensor, layer: tuple, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries [n, heads, d], keys and values [n, groups, d] of x [n, H]."""
        mixed = layer[1](rms_norm(x, x.shape[-1:], layer[0], self.eps))
        queries, keys, values = mixed.unflatten(-1, (-1, self.width)).split([self.heads, self.groups, self.groups], 1)
        return self._rotated(queries, positions), self._rotated(keys, positions), values

    def _rest(self, x: torch.Tensor, attended: torch.Tensor, layer: tuple) -> torch.Tensor:
        x = x + layer[2](attended)
        gate, up = layer[4](rms_norm(x, x.shape[-1:], layer[3], self.eps)).chunk(2, -1)
        return x + layer[5](silu(gate) * up)

    def prefill(self, slot: int, ids: list[int]) -> None:
        """Start a slot with these ids."""
        x = self.embeddings[ids]  # [n, H]
        positions = torch.arange(len(ids))
        for number, layer in enumerate(self.layers):
            queries, keys, values = (part.transpose(0, 1) for part in self._project(x, layer, positions))
            self.keys[number, slot, :, :, : len(ids)] = keys.transpose(-1, -2)
            self.values[number, slot, :, : len(ids)] = values
            attended = scaled_dot_product_attention(
                queries[None], keys[None], values[None], is_causal=True, enable_gqa=True
            )
            x = self._rest(x, attended[0].transpose(0, 1).flatten(1), layer)

    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits float32 [B, V] after one token a slot, int64[B], at positions int64[B]."""
        x = self.embeddings[tokens]  # [B, H]
        slots, length = torch.arange(len(tokens)), int(positions.max()) + 1
        hidden = (torch.arange(length) > positions[:, None])[:, None, None]  # [B, 1, 1, L]
        share = self.heads // self.groups
        for number, layer in enumerate(self.layers):
            queries, keys, values = self._project(x, layer, positions)
            self.keys[number, slots, :, :, positions], self.values[number, slots, :, positions] = keys, values
            past = self.keys[number, ..., :length]  # [B, groups, d, L]
            scores = queries.unflatten(1, (self.groups, share)) @ past  # [B, groups, share, L]
            scores = (scores.float() * self.width**-0.5).masked_fill_(hidden, -torch.inf)
            attended = scores.softmax(-1).bfloat16() @ self.values[number, :, :, :length]
            x = self._rest(x, attended.flatten(1), layer)
        return self.head(rms_norm(x, x.shape[-1:], self.norm, self.eps)).float()


def drawn(logits: torch.Tensor, temperatures: torch.Tensor) -> list[int]:
    """One token a row; the argmax where the temperature is 0."""
    laws = (logits / temperatures.clamp(min=0.1)[:, None]).softmax(-1).cumsum(-1)
    sampled = torch.searchsorted(laws, torch.rand(len(laws), 1) * laws[:, -1:]).squeeze(1)
    return torch.where(temperatures > 0, sampled.clamp(max=logits.shape[1] - 1), logits.argmax(-1)).tolist()


def around_user(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The template's tokens before a user's words, and those after them up to the assistant's."""
    chat = tokenizer.encode_chat([{"role": "user", "content": PLACEHOLDER}], add_generation_prompt=True)
    inside = tokenizer.encode_texts([PLACEHOLDER])[0]
    at = next(i for i in range(len(chat)) if chat[i : i + len(inside)] == inside)
    return chat[:at], chat[at + len(inside) :]


def chats(prompts: list[tuple[str, list[int]]], before: list[int]) -> Iterator[Chat]:
    """Given prompts and own ones in turn, for ever; only own ones when the given ones have been used up."""
    number = 0
    left = list(prompts)
    while True:
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        if left:
            task, ids = left.pop()
            yield Chat(task, temperature, [ids[-1]], ids)
        yield Chat("own", temperature, [before[-1]], [])
        number += 1


def main(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    torch.set_grad_enabled(False)
    model, tokenizer = load_target(arguments.target, "bfloat16")
    before, after = around_user(tokenizer)
    prompts = []
    for line in arguments.prompts.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        ids = tokenizer.encode_prompt(record["prompt"])
        if len(ids) + arguments.answer_tokens <= arguments.context:
            prompts.append((record["task"], ids))
    random.Random(arguments.seed).shuffle(prompts)

    writer = Writer(model.body, model.head.weight, arguments.slots, arguments.context)
    queue = chats(prompts, before)
    running: list[Chat] = []
    positions = torch.zeros(arguments.slots, dtype=torch.int64)

    def start(slot: int) -> Chat:
        chat = next(queue)
        beginning = (chat.prompt or before)[:-1]
        writer.prefill(slot, beginning)
        positions[slot] = len(beginning)
        return chat

    running = [start(slot) for slot in range(arguments.slots)]
    began, written, finished, steps = time.time(), 0, 0, 0
    with gzip.open(arguments.out, "at", encoding="utf-8") as out:
        while time.time() - began < arguments.minutes * 60:
            fed = [chat.forced.pop(0) if chat.forced else chat.written[-1] for chat in running]
            logits = writer.step(torch.tensor(fed), positions)
            heat = torch.tensor([chat.temperature if chat.prompt else OWN_TEMPERATURE for chat in running])
            choices = drawn(logits, heat)
            positions += 1
            steps += 1
            for slot, (chat, token) in enumerate(zip(running, choices, strict=True)):
                if chat.forced:
                    continue
                chat.written.append(token)
                ended = token in model.eos_ids
                if not chat.prompt:
                    if ended and len(chat.written) > 4:
                        # The user's turn is whole: what follows it in the template comes next, then the answer.
                        chat.prompt = before + chat.written[:-1] + after
                        chat.forced, chat.written = list(after), []
                    elif ended or len(chat.written) >= OWN_PROMPT_TOKENS:
                        running[slot] = start(slot)
                    continue
                if ended or len(chat.written) >= arguments.answer_tokens:
                    row = {"task": chat.task, "temperature": chat.temperature}
                    row |= {"prompt_ids": chat.prompt, "answer_ids": chat.written}
                    out.write(json.dumps(row) + "\n")
                    written, finished = written + len(chat.written), finished + 1
                    running[slot] = start(slot)
            if steps % 100 == 0:
                spent = time.time() - began
                speed = f"{written / spent:.0f} tok/s, {spent / 60:.1f} min"
                print(f"{steps} steps, {finished} chats, {written:,} answer tokens, {speed}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--slots", type=int, default=96)
    parser.add_argument("--context", type=int, default=640, help="longest chat in tokens")
    parser.add_argument("--answer-tokens", type=int, default=288)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
