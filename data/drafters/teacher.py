"""What the target says about every position of a text: the soft labels, and the states, that drafters are trained on.

    python data/drafters/teacher.py TARGET_FOLDER OUT_FOLDER TEXT.jsonl.gz [TEXT.jsonl.gz ...] [--taps 2,15,27]

The target runs once over all rows (prompt and answer) of all texts, one after the other. OUT_FOLDER gets, a row for
each token, its `TOP` most probable next tokens and their probabilities (temperature 1): `top_ids.npy` uint16[n, TOP],
`top_probs.npy` float16[n, TOP]; and `text.jsonl.gz`, the rows themselves. With `--taps`, also `states.npy`, the bits of
bfloat16[n, H * (1 + taps)]: the final hidden state, then the inputs of the tapped layers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
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
    greedy: bool


def read_rows(path: Path) -> list[Row]:
    """All rows of a gzip'd JSONL file with `prompt_ids`, `answer_ids`, `task` and `temperature`."""
    rows = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            ids = np.array(record["prompt_ids"] + record["answer_ids"], dtype=np.int64)
            rows.append(Row(ids, len(record["prompt_ids"]), record["task"], record["temperature"] == 0))
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


@torch.inference_mode()
def label(target_folder: Path, out: Path, texts: list[Path], taps: list[int]) -> None:
    """Write labels and states, the rows one after the other in the order of the texts."""
    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.bfloat16).eval()
    out.mkdir(parents=True, exist_ok=True)
    with gzip.open(out / "text.jsonl.gz", "wb") as joined:
        for path in texts:
            with gzip.open(path) as text:
                shutil.copyfileobj(text, joined)
    rows = read_rows(out / "text.jsonl.gz")
    starts = np.cumsum([0] + [len(row.ids) for row in rows])
    total = int(starts[-1])
    new = np.lib.format.open_memmap
    top_ids = new(out / "top_ids.npy", "w+", np.uint16, (total, TOP))
    top_probs = new(out / "top_probs.npy", "w+", np.float16, (total, TOP))
    width = model.config.hidden_size * (1 + len(taps))
    states = new(out / "states.npy", "w+", np.uint16, (total, width)) if taps else None
    batches = length_batches(rows, BATCH_TOKENS)
    random.Random(0).shuffle(batches)
    done, began = 0, time.time()
    for batch in batches:
        output = model.model(padded(rows, batch), output_hidden_states=bool(taps), use_cache=False)
        hidden = output.last_hidden_state  # [B, L, H]
        if taps:
            tapped = torch.cat([hidden, *(output.hidden_states[tap] for tap in taps)], dim=-1)  # [B, L, S]
        for line, i in enumerate(batch):
            n, here = len(rows[i].ids), slice(starts[i], starts[i + 1])
            probs = model.lm_head(hidden[line, :n]).float().softmax(-1)  # [n, V]
            values, ids = probs.topk(TOP)
            top_ids[here] = ids.numpy()
            top_probs[here] = values.numpy()
            if states is not None:
                states[here] = tapped[line, :n].contiguous().view(torch.uint16).numpy()
            done += n
        print(f"{done:,} of {total:,} tokens, {done / (time.time() - began):.0f} tok/s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--taps", default="", help="layers whose inputs are kept, for draft heads: 2,15,27")
    arguments = parser.parse_args()
    taps = [int(tap) for tap in arguments.taps.split(",") if tap]
    label(arguments.target, arguments.out, arguments.texts, taps)
