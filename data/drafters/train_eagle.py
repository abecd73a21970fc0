"""Distil the embedded EAGLE-3 drafter from the embedded target, on two CPU cores.

One decoder layer over three of the target's states and the next token's embedding; embeddings and LM head are the
target's (frozen, so they are not saved), the vocabulary is full.

    python data/drafters/teacher.py TARGET_FOLDER TEACHER_FOLDER TEXT.jsonl.gz ... --taps 2,15,27
    python data/drafters/train_eagle.py TARGET_FOLDER TEACHER_FOLDER OUT_FOLDER --minutes 60

The layer starts as the target's last one, with a group of heads that copy (copy_heads.py); so does a folder given with
`--start` that lacks them.

Training-time test as in EAGLE-3 (arXiv 2503.01840, section 3): at depth 0 every slot sees the target's features, at
depth d its own outputs of depth d - 1 in place of the last d of them, just as when drafting. Depth 0 alone comes first,
since all others start from it. The loss is the cross-entropy with the target's most probable tokens.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import numpy as np
import torch
from copy_heads import with_copy_heads
from distillation import Batch, Clock, Columns, Data, save
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from vocabtrim_core.drafters.eagle_network import EagleNetwork

DEPTHS = 4
# How much less a deeper token counts: it is drafted only where those before it stand.
DEPTH_WEIGHT = 0.8
# The share of the time at depth 0 only.
FIRST_SHARE = 0.3
# Rows of text that the copy heads are fitted to.
SAMPLE_ROWS = 250


class Unrolled:
    """Keys and values of all depths so far: of depth 0 one block of `length` slots, of each later depth one of those
    from `begin` on. A slot sees of the first block everything up to itself, of the others itself only."""

    def __init__(self, length: int, begin: int) -> None:
        self.length = 0
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        self._masks = [causal, causal[begin:]]
        self._own = torch.eye(length - begin, dtype=torch.bool)
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def extend(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._keys.append(keys)
        self._values.append(values)
        self.length += keys.shape[2]
        return torch.cat(self._keys, dim=2), torch.cat(self._values, dim=2)

    def mask(self) -> torch.Tensor:
        """bool[slots, slots of all blocks] for the next pass."""
        depth = len(self._keys)
        return torch.cat([self._masks[min(depth, 1)], *[self._own] * depth], dim=1)


def features_by_depth(
    network: EagleNetwork, embeddings: torch.nn.Embedding, batch: Batch, taps: int, depths: int, begin: int = 0
) -> list[torch.Tensor]:
    """What the head takes at each depth: [B, L, H] at depth 0, and after it only of the slots from `begin` on,
    [B, L - `begin`, H]. Slot i at depth d is about the token after i + 1 + d."""
    assert batch.states is not None
    width = embeddings.embedding_dim
    length = batch.ids.shape[1]
    features = network.fuse(batch.states[..., -taps * width :])  # [B, L, H]
    past, outputs = Unrolled(length, begin), []
    for depth in range(depths):
        if depth == 1:
            features = features[:, begin:]
        first = begin if depth else 0
        following = torch.zeros(len(batch.ids), length - first, dtype=torch.int64)
        following[:, : max(length - 1 - depth - first, 0)] = batch.ids[:, first + 1 + depth :]
        positions = torch.arange(first, length) + depth
        features = network(embeddings(following), features, positions, past.mask(), past)
        outputs.append(network.predict(features))
    return outputs


def drafted_positions(batch: Batch, depth: int) -> torch.Tensor:
    """bool[B, L]: the slots whose token at `depth` is learnt from; after depth 0 none that only a prompt would have."""
    positions = batch.labelled(1 + depth)
    if depth:
        positions &= torch.arange(positions.shape[1]) >= batch.answer_starts[:, None] - 2
    return positions


@torch.inference_mode()
def agreement(network: EagleNetwork, target_parts: tuple, data: Data, taps: int, rows: int | None) -> dict[str, object]:
    """On held-out answers: by depth, the share of positions where the drafter's argmax is the target's, each drafted
    after the true text (the first by task, too); tokens a pass on greedy answers at gamma 4 (`tau`), exact since
    the drafter's own tokens are the text's for as long as they are accepted."""
    embeddings, head = target_parts
    network.eval()
    hits: dict[str, list[float]] = {}
    emitted = passes = 0
    for indices in data.batches(data.held_out[:rows], 4096):
        batch = data.batch(indices)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = features_by_depth(network, embeddings, batch, taps, DEPTHS)
            choices = [(hidden @ head.T).argmax(-1) for hidden in outputs]  # [B, L] each
        for line, i in enumerate(indices):
            row, n = data.rows[i], len(data.rows[i].ids)
            first = max(row.answer_start - 2, 0)
            right = np.zeros((DEPTHS, n), dtype=bool)
            for depth in range(DEPTHS):
                wanted = batch.top_ids[line, 1 + depth : n - 1, 0]
                right[depth, : len(wanted)] = (choices[depth][line, : len(wanted)] == wanted).numpy()
                inside = right[depth, first : len(wanted)]
                hits.setdefault(f"depth {depth + 1}", []).extend(inside.tolist())
                if depth == 0:
                    hits.setdefault(row.task, []).extend(inside.tolist())
            if row.greedy:
                at = first
                while at < n - 2:
                    accepted = next((d for d in range(DEPTHS) if not right[d, at]), DEPTHS)
                    emitted, passes, at = emitted + accepted + 1, passes + 1, at + accepted + 1
    network.train()
    found: dict[str, object] = {key: round(float(np.mean(values)), 4) for key, values in sorted(hits.items())}
    return {**found, "tau": round(emitted / max(passes, 1), 3)}


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    taps = [int(tap) for tap in arguments.taps.split(",")]
    data = Data(arguments.teacher)
    width = target.config.hidden_size
    config = widened(target.config)
    network = EagleNetwork(config, fused=len(taps) * width)
    if arguments.start:
        weights = {name: part.float() for name, part in load_file(arguments.start / "model.safetensors").items()}
    else:
        weights = start(target, taps)
    embeddings = target.model.embed_tokens.requires_grad_(False)
    if weights["midlayer.self_attn.q_proj.weight"].shape != network.midlayer.self_attn.q_proj.weight.shape:
        ids, states = data.sample(SAMPLE_ROWS)
        states = states[:, -len(taps) * width :]
        weights = with_copy_heads(weights, states, embeddings.weight, ids, config.head_dim // 2)
    network.load_state_dict(weights)
    head = target.lm_head.weight.detach().to(torch.bfloat16)
    del target
    matrices = [p for p in network.parameters() if p.dim() == 2]
    others = [p for p in network.parameters() if p.dim() != 2]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    chooser = random.Random(0)
    clock = Clock(arguments.minutes)
    next_report = arguments.report_every
    about = {"taps": taps, "rows": len(data.train), "text_tokens": int(data.starts[-1])}

    def checkpoint(rows: int | None) -> None:
        found = agreement(network, (embeddings, head), data, len(taps), rows)
        print(found, flush=True)
        settings = {**config.to_dict(), "architectures": ["LlamaForCausalLMEagle3"]}
        settings |= {"draft_vocab_size": config.vocab_size, "target_hidden_size": config.hidden_size}
        settings |= {"eagle_aux_hidden_state_layer_ids": taps, "norm_before_residual": False}
        for key in ("_name_or_path", "_model_name_or_path", "quantization_config", "transformers_version"):
            settings.pop(key, None)
        save(network.state_dict(), settings, {**about, **clock.facts(), "agreement": found}, arguments.out)

    for batch in data.epochs(arguments.batch_tokens):
        share = clock.share
        if share >= 1:
            break
        clock.set_rate(optimizers, arguments.learning_rate)
        depths = 1 if share < FIRST_SHARE else chooser.choice(range(2, DEPTHS + 1))
        columns = Columns(head, batch.top_ids)
        loss, weight = torch.zeros(()), 0.0
        # Nothing is drafted inside a prompt, which is most of a long row: there, depth 0 is enough to learn from.
        begin = max(int(batch.answer_starts.min()) - 2, 0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for depth, hidden in enumerate(features_by_depth(network, embeddings, batch, len(taps), depths, begin)):
                positions = drafted_positions(batch, depth)
                if not positions.any():
                    continue
                top_ids, top_probs = batch.labels(1 + depth, positions)
                chosen = hidden[positions[:, -hidden.shape[1] :]].to(torch.bfloat16)
                loss = loss + DEPTH_WEIGHT**depth * columns.cross_entropy(chosen, top_ids, top_probs)
                weight += DEPTH_WEIGHT**depth
        loss = loss / weight
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        clock.tick(int(batch.lengths.sum()), loss.item())
        if clock.share * clock.minutes > next_report:
            next_report += arguments.report_every
            checkpoint(rows=60)
    checkpoint(rows=None)


def widened(target: LlamaConfig) -> LlamaConfig:
    """The drafter's configuration: one layer, with room for copy heads."""
    one = {**target.to_dict(), "num_hidden_layers": 1}
    share = target.num_attention_heads // target.num_key_value_heads
    one["head_dim"] = 2 * target.hidden_size // target.num_attention_heads
    one["num_attention_heads"] = target.num_attention_heads + share
    one["num_key_value_heads"] = target.num_key_value_heads + 1
    one["rope_parameters"] = {**target.rope_parameters, "rope_theta": target.rope_parameters["rope_theta"] ** 2}
    return LlamaConfig.from_dict(one)


@torch.no_grad()
def start(target: torch.nn.Module, taps: list[int]) -> dict[str, torch.Tensor]:
    """Weights of a layer like the target's last one, which reads the feature; the feature is the last tapped state."""
    width = target.config.hidden_size
    last = target.model.layers[-1]
    weights = {
        "fc.weight": 0.01 * torch.randn(width, len(taps) * width),
        "norm.weight": target.model.norm.weight,
        "midlayer.input_layernorm.weight": torch.ones(width),
        "midlayer.hidden_norm.weight": last.input_layernorm.weight,
        "midlayer.post_attention_layernorm.weight": last.post_attention_layernorm.weight,
        "midlayer.self_attn.o_proj.weight": last.self_attn.o_proj.weight,
    }
    weights["fc.weight"][:, -width:] += torch.eye(width)
    for name in ("q_proj", "k_proj", "v_proj"):
        known = getattr(last.self_attn, name).weight
        weights[f"midlayer.self_attn.{name}.weight"] = torch.cat([0.02 * torch.randn_like(known), known], dim=1)
    for name in ("gate_proj", "up_proj", "down_proj"):
        weights[f"midlayer.mlp.{name}.weight"] = getattr(last.mlp, name).weight
    return {name: weight.detach().clone() for name, weight in weights.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--taps", default="2,15,27")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--start", type=Path, help="a folder written before, to go on from instead of the target")
    parser.add_argument("--report-every", type=float, default=10, help="minutes between evaluations and checkpoints")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    train(parser.parse_args())
