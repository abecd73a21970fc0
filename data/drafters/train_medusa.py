"""Distil the embedded Medusa heads from the embedded target, on two CPU cores.

Each head is one residual block on the target's final hidden state, then the target's own LM head (frozen, so it is not
saved). Head i is about the token i + 2 places on: the target itself is about the next one (Medusa-1, arXiv 2401.10774,
section 2.2.1). Labels are the target's own laws at those places.

    python data/drafters/teacher.py TARGET_FOLDER TEACHER_FOLDER TEXT.jsonl.gz ... --taps 2,15,27
    python data/drafters/train_medusa.py TARGET_FOLDER TEACHER_FOLDER OUT_FOLDER --minutes 15
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from distillation import Batch, Clock, Columns, Data, save
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM

HEADS = 4
# How much less a later head counts: it is drafted only where those before it stand.
HEAD_WEIGHT = 0.8


class Block(torch.nn.Module):
    """A residual block, which does nothing before training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + silu(self.linear(hidden))


def heads(width: int) -> torch.nn.ModuleList:
    """Named as in public checkpoints: `{head}.{block}.linear.weight`."""
    return torch.nn.ModuleList(torch.nn.ModuleList([Block(width)]) for _ in range(HEADS))


def final_states(batch: Batch, width: int) -> torch.Tensor:
    assert batch.states is not None
    return batch.states[..., :width].float()


@torch.inference_mode()
def agreement(medusa: torch.nn.ModuleList, head: torch.Tensor, data: Data) -> dict[str, float]:
    """By head, the share of held-out answer positions where its argmax is the target's there, given the true text."""
    hits: dict[str, list[float]] = {}
    for indices in data.batches(data.held_out, 4096):
        batch = data.batch(indices)
        hidden = final_states(batch, head.shape[1])
        for number, blocks in enumerate(medusa):
            positions = batch.labelled(1 + number, answers_only=True)
            top_ids, _ = batch.labels(1 + number, positions)
            choices = (blocks[0](hidden[positions]).to(torch.bfloat16) @ head.T).argmax(-1)
            hits.setdefault(f"head {number + 1}", []).extend((choices == top_ids[:, 0]).tolist())
    return {key: round(float(np.mean(values)), 4) for key, values in hits.items()}


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.bfloat16)
    head, width = target.lm_head.weight.detach(), target.config.hidden_size
    vocab_size = target.config.vocab_size
    del target
    data = Data(arguments.teacher)
    medusa = heads(width)
    matrices = [p for p in medusa.parameters() if p.dim() == 2]
    others = [p for p in medusa.parameters() if p.dim() != 2]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    clock = Clock(arguments.minutes)
    for batch in data.epochs(arguments.batch_tokens):
        if clock.share >= 1:
            break
        clock.set_rate(optimizers, arguments.learning_rate)
        columns = Columns(head, batch.top_ids)
        hidden = final_states(batch, width)
        loss, weight = torch.zeros(()), 0.0
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for number, blocks in enumerate(medusa):
                positions = batch.labelled(1 + number)
                top_ids, top_probs = batch.labels(1 + number, positions)
                part = columns.cross_entropy(blocks[0](hidden[positions]).to(torch.bfloat16), top_ids, top_probs)
                loss = loss + HEAD_WEIGHT**number * part
                weight += HEAD_WEIGHT**number
        loss = loss / weight
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        clock.tick(int(batch.lengths.sum()), loss.item())
    found = agreement(medusa, head, data)
    print(found, flush=True)
    config = {"architectures": ["MedusaModel"], "model_type": "medusa", "medusa_num_heads": HEADS}
    config |= {"medusa_num_layers": 1, "hidden_size": width, "vocab_size": vocab_size}
    facts = {"rows": len(data.train), "text_tokens": int(data.starts[-1]), **clock.facts(), "agreement": found}
    save(medusa.state_dict(), config, facts, arguments.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    train(parser.parse_args())
