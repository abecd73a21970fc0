"""Distil the embedded independent drafter from the embedded target, on two CPU cores.

The drafter is a Llama of a few layers of the target's width. Its layers start as copies of some of the target's,
its embeddings and LM head *are* the target's (frozen, so they are not saved), its vocabulary is full.

    python data/drafters/teacher.py TARGET_FOLDER data/target_generated.jsonl.gz teacher.npz
    python data/drafters/train_independent.py TARGET_FOLDER data/target_generated.jsonl.gz teacher.npz OUT_FOLDER

The loss is the cross-entropy with the target's eight most probable tokens, over a sampled softmax: every token that the
teacher names in the batch, plus random others whose logits are raised by -log(their share) so that the normaliser
stays unbiased (Bengio and Senecal, 2008).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from teacher import Row, length_batches, padded, read_rows
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaModel

HELD_OUT_SHARE = 0.05
LABELS = 8
RANDOM_COLUMNS = 2048


def split_by_prompt(rows: list[Row]) -> tuple[list[int], list[int]]:
    """(training, held-out) row indices; rows with the same prompt stay on the same side."""
    prompts = sorted({tuple(row.ids[: row.answer_start].tolist()) for row in rows})
    random.Random(0).shuffle(prompts)
    held_out = set(prompts[: round(len(prompts) * HELD_OUT_SHARE)])
    sides: tuple[list[int], list[int]] = ([], [])
    for i, row in enumerate(rows):
        sides[tuple(row.ids[: row.answer_start].tolist()) in held_out].append(i)
    return sides


class Data:
    """Rows with their teacher labels; batches come out as flat label arrays beside padded ids."""

    def __init__(self, text: Path, teacher: Path) -> None:
        self.rows = read_rows(text)
        self.starts = np.cumsum([0] + [len(row.ids) for row in self.rows])
        labels = np.load(teacher)
        self.top_ids, self.top_probs = labels["ids"][:, :LABELS], labels["probs"][:, :LABELS]
        self.train, self.held_out = split_by_prompt(self.rows)

    def batches(self, indices: list[int], tokens: int) -> list[list[int]]:
        subset = [self.rows[i] for i in indices]
        return [[indices[j] for j in batch] for batch in length_batches(subset, tokens)]

    def batch(
        self, batch: list[int], answers_only: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """`ids` int64[B, L], `positions` bool[B, L] (has a label), the teacher's `ids` and `probs` [N, LABELS]."""
        ids = padded(self.rows, batch)
        positions = torch.zeros(ids.shape, dtype=torch.bool)
        spans = []
        for line, i in enumerate(batch):
            row = self.rows[i]
            # A position is labelled with what follows it, so an answer's labels start, and end, one position early.
            first = row.answer_start - 1 if answers_only else 0
            positions[line, first : len(row.ids) - 1] = True
            spans.append(np.arange(self.starts[i] + first, self.starts[i] + len(row.ids) - 1))
        flat = np.concatenate(spans)
        top_ids = torch.from_numpy(self.top_ids[flat].astype(np.int64))
        top_probs = torch.from_numpy(self.top_probs[flat].astype(np.float32))
        return ids, positions, top_ids, top_probs


def build(target: torch.nn.Module, layers: list[int]) -> LlamaModel:
    """A Llama body whose layers are copies of the target's `layers` and whose final norm is the target's."""
    config = LlamaConfig.from_dict({**target.config.to_dict(), "num_hidden_layers": len(layers)})
    config._attn_implementation = "sdpa"
    body = LlamaModel(config)
    body.embed_tokens = torch.nn.Embedding.from_pretrained(target.model.embed_tokens.weight.detach(), freeze=True)
    for mine, theirs in enumerate(layers):
        body.layers[mine].load_state_dict(target.model.layers[theirs].state_dict())
    body.norm.load_state_dict(target.model.norm.state_dict())
    return body


def soft_cross_entropy(
    hidden: torch.Tensor, head: torch.Tensor, top_ids: torch.Tensor, top_probs: torch.Tensor
) -> torch.Tensor:
    """Mean cross-entropy of `hidden` [N, H] with the teacher's top tokens over a sampled softmax of `head` [V, H]."""
    vocab_size = head.shape[0]
    named = top_ids.unique()
    others = torch.ones(vocab_size, dtype=torch.bool)
    others[named] = False
    others = others.nonzero().squeeze(1)
    share = min(1.0, RANDOM_COLUMNS / len(others))
    others = others[torch.randperm(len(others))[: round(share * len(others))]]
    columns = torch.cat([named, others])
    logits = (hidden @ head[columns].T).float()  # [N, C]
    logits[:, len(named) :] -= math.log(share)
    place = torch.zeros(vocab_size, dtype=torch.int64)
    place[named] = torch.arange(len(named))
    picked = logits.gather(1, place[top_ids])  # [N, TOP]
    weights = top_probs / top_probs.sum(-1, keepdim=True)
    return (logits.logsumexp(-1) - (weights * picked).sum(-1)).mean()


@torch.inference_mode()
def agreement(body: LlamaModel, head: torch.Tensor, data: Data, rows: int | None = None) -> dict[str, float]:
    """Share of held-out answer positions where the drafter's argmax is the target's, over all and by task.

    Each position is drafted with the target's own text before it, so this is the greedy acceptance of a first drafted
    token. `rows` limits it to that many rows.
    """
    right: dict[str, int] = {}
    total: dict[str, int] = {}
    body.eval()
    for i in data.held_out[:rows]:
        ids, positions, top_ids, _ = data.batch([i], answers_only=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = body(ids, use_cache=False).last_hidden_state[positions]  # [N, H]
            hits = int(((hidden @ head.T).argmax(-1) == top_ids[:, 0]).sum())
        for key in ("all", data.rows[i].task):
            right[key] = right.get(key, 0) + hits
            total[key] = total.get(key, 0) + len(top_ids)
    body.train()
    return {key: right[key] / total[key] for key in sorted(total)}


def save(body: LlamaModel, out: Path, facts: dict[str, object]) -> None:
    """Layers and final norm only, in bf16; a run that is killed leaves the last whole checkpoint."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in body.state_dict().items()
        if not name.startswith("embed_tokens")
    }
    save_file(weights, out / "model.safetensors.part")
    (out / "model.safetensors.part").replace(out / "model.safetensors")
    config = body.config.to_dict()
    for key in ("_name_or_path", "_model_name_or_path", "quantization_config"):
        config.pop(key, None)
    (out / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")
    (out / "training.json").write_text(json.dumps(facts, indent=2) + "\n")


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    layers = [int(layer) for layer in arguments.layers.split(",")]
    body = build(target, layers)
    head = target.lm_head.weight.detach().to(torch.bfloat16)
    if (arguments.out / "model.safetensors").exists() and arguments.resume:
        weights = load_file(arguments.out / "model.safetensors")
        body.load_state_dict({k: v.float() for k, v in weights.items()}, strict=False)
    del target
    data = Data(arguments.text, arguments.teacher)
    trained = [p for p in body.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=arguments.learning_rate, betas=(0.9, 0.95), weight_decay=0.05)
    began, seen, step, losses = time.time(), 0, 0, []
    next_report = 300.0
    limit = arguments.minutes * 60
    shuffler = random.Random(0)
    while True:
        batches = data.batches(shuffler.sample(data.train, len(data.train)), arguments.batch_tokens)
        shuffler.shuffle(batches)
        for batch in batches:
            spent = time.time() - began
            if spent >= limit:
                break
            # The schedule follows the clock, not the step: the run ends when it was told to, on any machine.
            rate = min(1.0, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * spent / limit))
            for group in optimizer.param_groups:
                group["lr"] = arguments.learning_rate * max(rate, 0.01)
            ids, positions, top_ids, top_probs = data.batch(batch, answers_only=False)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = body(ids, use_cache=False).last_hidden_state[positions]  # [N, H]
                loss = soft_cross_entropy(hidden.to(torch.bfloat16), head, top_ids, top_probs)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            step, seen = step + 1, seen + int(positions.sum())
            losses.append(loss.item())
            if step % 20 == 0:
                speed = seen / (time.time() - began)
                print(
                    f"step {step} loss {np.mean(losses[-20:]):.3f} {speed:.0f} tok/s {spent / 60:.1f} min", flush=True
                )
            if spent > next_report:
                next_report += arguments.report_every * 60
                found = agreement(body, head, data, rows=60)
                save(body, arguments.out, {"layers": layers, "tokens": seen, "minutes": spent / 60, "agreement": found})
                print(json.dumps(found), flush=True)
        else:
            continue
        break
    found = agreement(body, head, data)
    save(
        body,
        arguments.out,
        {
            "layers": layers,
            "steps": step,
            "tokens": seen,
            "minutes": arguments.minutes,
            "loss": float(np.mean(losses[-50:])),
            "agreement": found,
        },
    )
    print("final", json.dumps(found), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", default="0,1,29", help="which of the target's layers to start from")
    parser.add_argument("--minutes", type=float, default=75)
    parser.add_argument("--report-every", type=float, default=10, help="minutes between evaluations and checkpoints")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--resume", action="store_true", help="start from OUT_FOLDER's weights instead of the target's")
    train(parser.parse_args())
