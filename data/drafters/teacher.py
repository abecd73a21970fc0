"""What the target says about every position of its own text: the soft labels a drafter is distilled from.

`python data/drafters/teacher.py TARGET_FOLDER TEXT.jsonl.gz OUT.npz` runs the target once over all rows
(prompt and answer, greedy or sampled) and keeps, for each position, the target's `TOP` most probable next
tokens with their probabilities (temperature 1).
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

TOP = 16
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Row:
    """One prompt with the target's answer; `ids` is int64[prompt + answer], the answer starts at `answer_start`."""

    ids: np.ndarray
    answer_start: int
    task: str


def read_rows(path: Path) -> list[Row]:
    """All rows of a gzip'd JSONL file with `prompt_ids`, `answer_ids` and `task`."""
    rows = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            ids = np.array(record["prompt_ids"] + record["answer_ids"], dtype=np.int64)
            rows.append(Row(ids, len(record["prompt_ids"]), record["task"]))
    return rows


def length_batches(rows: list[Row], tokens: int) -> list[list[int]]:
    """Row indices in batches of similar length, each at most `tokens` padded tokens."""
    batches: list[list[int]] = [[]]
    for index in sorted(range(len(rows)), key=lambda i: len(rows[i].ids)):
        if (len(batches[-1]) + 1) * len(rows[index].ids) > tokens:
            batches.append([])
        batches[-1].append(index)
    return [batch for batch in batches if batch]


def padded(rows: list[Row], batch: list[int]) -> torch.Tensor:
    """int64[B, longest row], padded on the right with 0 (causal attention never looks there)."""
    width = max(len(rows[i].ids) for i in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    for line, i in enumerate(batch):
        ids[line, : len(rows[i].ids)] = torch.from_numpy(rows[i].ids)
    return ids


def label(target_folder: Path, text: Path, out: Path) -> None:
    """Write `ids` uint16[tokens, TOP] and `probs` float16[tokens, TOP], the rows one after the other in file order."""
    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.bfloat16).eval()
    rows = read_rows(text)
    starts = np.cumsum([0] + [len(row.ids) for row in rows])
    top_ids = np.zeros((starts[-1], TOP), dtype=np.uint16)
    top_probs = np.zeros((starts[-1], TOP), dtype=np.float16)
    done, began = 0, time.time()
    with torch.inference_mode():
        for batch in length_batches(rows, BATCH_TOKENS):
            hidden = model.model(padded(rows, batch)).last_hidden_state  # [B, L, H]
            for line, i in enumerate(batch):
                n = len(rows[i].ids)
                logits = model.lm_head(hidden[line, :n]).float()  # [n, V]
                values, ids = logits.topk(TOP)
                probs = (values - logits.logsumexp(-1, keepdim=True)).exp()
                top_ids[starts[i] : starts[i] + n] = ids.numpy()
                top_probs[starts[i] : starts[i] + n] = probs.numpy()
                done += n
            print(f"{done:,} of {starts[-1]:,} tokens, {done / (time.time() - began):.0f} tok/s", flush=True)
    np.savez(out, ids=top_ids, probs=top_probs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    label(arguments.target, arguments.text, arguments.out)
