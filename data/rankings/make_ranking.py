"""Make `smollm2-target-generated.npz`, the token counts behind the ranking that is used where no corpus is given.

    PYTHONPATH=. python data/rankings/make_ranking.py TOKENIZER_FOLDER

Counts the answers in `data/target_generated.jsonl.gz`, which are token ids already. About a tenth of the prompts is
held out; all answers to a prompt are on the same side.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np

from vocabtrim_core.counting import CountedFile, TokenCounts, is_held_out
from vocabtrim_core.tokenization import load_tokenizer

GENERATED = Path(__file__).parent.parent / "target_generated.jsonl.gz"
HOLDOUT = 0.1


def main(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    counts = np.zeros((2, tokenizer.vocab_size), dtype=np.int64)  # [calibration or held-out, V]
    documents = [0, 0]
    with gzip.open(GENERATED, "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            side = is_held_out(json.dumps(record["prompt_ids"]).encode(), HOLDOUT)
            counts[int(side)] += np.bincount(record["answer_ids"], minlength=tokenizer.vocab_size)
            documents[side] += 1
    sha256 = hashlib.sha256(GENERATED.read_bytes()).hexdigest()
    result = TokenCounts(
        calibration=counts[0],
        held_out=counts[1],
        calibration_documents=documents[0],
        held_out_documents=documents[1],
        files=(CountedFile(GENERATED.name, sha256, sum(documents), int(counts.sum())),),
        tokenizer_name="SmolLM2-135M-Instruct",
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        holdout=HOLDOUT,
    )
    result.save(Path(__file__).parent / "smollm2-target-generated.npz")
    print(f"{result.tokens:,} tokens, {result.distinct:,} distinct, {result.documents:,} answers")
    print(f"held out: {documents[1]:,} answers, {counts[1].sum():,} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer_folder", type=Path)
    main(parser.parse_args().tokenizer_folder)
