"""What the trainings of all drafters share: rows with the target's labels, the loss, the clock, checkpoints."""

from __future__ import annotations

import json
import math
import random
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from teacher import Row, length_batches, padded, read_rows

HELD_OUT_SHARE = 0.05
LABELS = 8
RANDOM_COLUMNS = 2048


def split_by_prompt(rows: list[Row]) -> tuple[list[int], list[int]]:
    """(training, held-out) row indices; rows with the same prompt stay on the same side, whatever text they are in, so
    that a training can go on with more text."""
    sides: tuple[list[int], list[int]] = ([], [])
    for i, row in enumerate(rows):
        digest = zlib.crc32(row.ids[: row.answer_start].tobytes())
        sides[digest < HELD_OUT_SHARE * 2**32].append(i)
    return sides


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded rows: `ids` int64[B, L], `lengths` int64[B], `answer_starts` int64[B], the target's most probable next
    tokens `top_ids` int64[B, L, LABELS] with `top_probs` float32 (0 where padded), its `states` bfloat16[B, L, S]."""

    ids: torch.Tensor
    lengths: torch.Tensor
    answer_starts: torch.Tensor
    top_ids: torch.Tensor
    top_probs: torch.Tensor
    states: torch.Tensor | None

    def labelled(self, ahead: int, answers_only: bool = False) -> torch.Tensor:
        """bool[B, L]: the positions i whose label at i + `ahead` is inside the row, or inside its answer."""
        place = torch.arange(self.ids.shape[1]) + ahead  # [L]
        inside = place < self.lengths[:, None] - 1
        # A position is labelled with what follows it, so an answer's labels start one position early.
        return inside & (place >= self.answer_starts[:, None] - 1) if answers_only else inside

    def labels(self, ahead: int, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The labels [N, LABELS] at i + `ahead` of the positions i in bool[B, L]: ids and probabilities."""
        shifted = torch.zeros_like(positions)
        shifted[:, ahead:] = positions[:, : positions.shape[1] - ahead]
        return self.top_ids[shifted], self.top_probs[shifted]


class Data:
    """The folder that teacher.py wrote; batches come out padded."""

    def __init__(self, folder: Path) -> None:
        self.rows = read_rows(folder / "text.jsonl.gz")
        self.starts = np.cumsum([0] + [len(row.ids) for row in self.rows])
        self.top_ids = np.load(folder / "top_ids.npy", mmap_mode="r")
        self.top_probs = np.load(folder / "top_probs.npy", mmap_mode="r")
        states = folder / "states.npy"
        self.states = np.load(states, mmap_mode="r") if states.exists() else None
        self.train, self.held_out = split_by_prompt(self.rows)

    def batches(self, indices: list[int], tokens: int) -> list[list[int]]:
        subset = [self.rows[i] for i in indices]
        return [[indices[j] for j in batch] for batch in length_batches(subset, tokens)]

    def epochs(self, tokens: int) -> Iterator[Batch]:
        """Batches of training rows of similar length, in a new order each time round, for ever."""
        shuffler = random.Random(0)
        while True:
            batches = self.batches(shuffler.sample(self.train, len(self.train)), tokens)
            shuffler.shuffle(batches)
            yield from map(self.batch, batches)

    def sample(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids int64[n] and the target's states float32[n, S] at them, of training rows drawn at random."""
        assert self.states is not None
        chosen = random.Random(0).sample(self.train, min(rows, len(self.train)))
        ids = np.concatenate([self.rows[i].ids for i in chosen])
        bits = np.concatenate([self.states[self.starts[i] : self.starts[i + 1]] for i in chosen])
        return torch.from_numpy(ids), torch.from_numpy(bits).view(torch.bfloat16).float()

    def batch(self, indices: list[int]) -> Batch:
        ids = padded(self.rows, indices)
        rows = [self.rows[i] for i in indices]
        top_ids = torch.zeros(*ids.shape, LABELS, dtype=torch.int64)
        top_probs = torch.zeros(*ids.shape, LABELS)
        states = None
        if self.states is not None:
            states = torch.zeros(*ids.shape, self.states.shape[1], dtype=torch.bfloat16)
        for line, (i, row) in enumerate(zip(indices, rows, strict=True)):
            n, here = len(row.ids), slice(self.starts[i], self.starts[i + 1])
            top_ids[line, :n] = torch.from_numpy(self.top_ids[here, :LABELS].astype(np.int64))
            top_probs[line, :n] = torch.from_numpy(self.top_probs[here, :LABELS].astype(np.float32))
            if states is not None:
                states[line, :n] = torch.from_numpy(np.array(self.states[here])).view(torch.bfloat16)
        lengths = torch.tensor([len(row.ids) for row in rows])
        answer_starts = torch.tensor([row.answer_start for row in rows])
        return Batch(ids, lengths, answer_starts, top_ids, top_probs, states)


class Columns:
    """A sampled softmax of `head` [V, H]: every token that the batch's labels name, plus random others with logits
    raised by -log(their share) so that the normaliser stays unbiased (Bengio and Senecal, 2008)."""

    def __init__(self, head: torch.Tensor, named: torch.Tensor) -> None:
        vocab_size = head.shape[0]
        named = named.unique()
        others = torch.ones(vocab_size, dtype=torch.bool)
        others[named] = False
        candidates = others.nonzero().squeeze(1)
        share = min(1.0, RANDOM_COLUMNS / len(candidates))
        drawn = candidates[torch.randperm(len(candidates))[: round(share * len(candidates))]]
        self._weight = head[torch.cat([named, drawn])]
        self._place = torch.zeros(vocab_size, dtype=torch.int64)
        self._place[named] = torch.arange(len(named))
        self._named, self._raise = len(named), -math.log(share)

    def cross_entropy(self, hidden: torch.Tensor, top_ids: torch.Tensor, top_probs: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of `hidden` [N, H] with the labels [N, LABELS]."""
        logits = (hidden @ self._weight.T).float()  # [N, C]
        logits = torch.cat([logits[:, : self._named], logits[:, self._named :] + self._raise], dim=1)
        picked = logits.gather(1, self._place[top_ids])  # [N, LABELS]
        weights = top_probs / top_probs.sum(-1, keepdim=True)
        return (logits.logsumexp(-1) - (weights * picked).sum(-1)).mean()


@dataclass
class Clock:
    """A training that ends when it was told to, on any machine: the learning rate follows the clock, not the step."""

    minutes: float
    began: float = field(default_factory=time.time)
    step: int = 0
    seen: int = 0
    losses: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        """How much of the time has passed."""
        return (time.time() - self.began) / (60 * self.minutes)

    def set_rate(self, optimizers: Iterable[torch.optim.Optimizer], rate: float) -> None:
        """A short warm-up, then a cosine down to a hundredth of `rate`."""
        shape = min(1.0, (self.step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, self.share)))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * max(shape, 0.01)

    def tick(self, tokens: int, loss: float) -> None:
        self.step, self.seen = self.step + 1, self.seen + tokens
        self.losses.append(loss)
        if self.step % 20 == 0:
            spent = time.time() - self.began
            recent = np.mean(self.losses[-20:])
            print(f"step {self.step} loss {recent:.3f} {self.seen / spent:.0f} tok/s {spent / 60:.1f} min", flush=True)

    def facts(self) -> dict[str, object]:
        return {
            "steps": self.step,
            "tokens": self.seen,
            "minutes": round((time.time() - self.began) / 60, 1),
            "loss": round(float(np.mean(self.losses[-50:])), 4),
        }


def save(weights: dict[str, torch.Tensor], config: dict[str, object], facts: dict[str, object], out: Path) -> None:
    """Weights in bf16; a run that is killed leaves the last whole checkpoint."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(weights, out / "model.safetensors.part", {"format": "pt"})
    (out / "model.safetensors.part").replace(out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")
    (out / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
