"""Distil the embedded independent drafter from the embedded target, on two CPU cores.

The drafter is a Llama of a few layers of the target's width. Its layers start as copies of some of the target's,
its embeddings and LM head *are* the target's (frozen, so they are not saved), its vocabulary is full.

    python data/drafters/teacher.py TARGET_FOLDER TEACHER_FOLDER data/target_generated.jsonl.gz
    python data/drafters/train_independent.py TARGET_FOLDER TEACHER_FOLDER OUT_FOLDER

The loss is the cross-entropy with the target's eight most probable tokens (distillation.py).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from distillation import Clock, Columns, Data, save
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaModel


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


@torch.inference_mode()
def agreement(body: LlamaModel, head: torch.Tensor, data: Data, rows: int | None = None) -> dict[str, float]:
    """Share of held-out answer positions where the drafter's argmax is the target's, over all and by task.

    Each position is drafted with the target's own text before it, so this is the greedy acceptance of a first drafted
    token. `rows` limits it to that many rows.
    """
    hits: dict[str, list[bool]] = {}
    body.eval()
    for i in data.held_out[:rows]:
        batch = data.batch([i])
        positions = batch.labelled(0, answers_only=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = body(batch.ids, use_cache=False).last_hidden_state[positions]  # [N, H]
            right = (hidden @ head.T).argmax(-1) == batch.top_ids[positions][:, 0]
        for key in ("all", data.rows[i].task):
            hits.setdefault(key, []).extend(right.tolist())
    body.train()
    return {key: float(np.mean(hits[key])) for key in sorted(hits)}


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
    data = Data(arguments.teacher)
    trained = [p for p in body.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.05)
    clock = Clock(arguments.minutes)
    next_report = arguments.report_every

    def checkpoint(rows: int | None) -> None:
        found = agreement(body, head, data, rows)
        print(json.dumps(found), flush=True)
        weights = {name: tensor for name, tensor in body.state_dict().items() if not name.startswith("embed_tokens")}
        config = body.config.to_dict()
        for key in ("_name_or_path", "_model_name_or_path", "quantization_config"):
            config.pop(key, None)
        save(weights, config, {"layers": layers, **clock.facts(), "agreement": found}, arguments.out)

    for batch in data.epochs(arguments.batch_tokens):
        if clock.share >= 1:
            break
        clock.set_rate([optimizer], arguments.learning_rate)
        positions = batch.labelled(0)
        columns = Columns(head, batch.top_ids)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = body(batch.ids, use_cache=False).last_hidden_state[positions]  # [N, H]
            loss = columns.cross_entropy(hidden.to(torch.bfloat16), *batch.labels(0, positions))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        clock.tick(int(positions.sum()), loss.item())
        if clock.share * clock.minutes > next_report:
            next_report += arguments.report_every
            checkpoint(rows=60)
    checkpoint(rows=None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", default="0,1,29", help="which of the target's layers to start from")
    parser.add_argument("--minutes", type=float, default=75)
    parser.add_argument("--report-every", type=float, default=10, help="minutes between evaluations and checkpoints")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--resume", action="store_true", help="start from OUT_FOLDER's weights instead of the target's")
    train(parser.parse_args())
