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
from dataclasses import replace
from pathlib import Path

import numpy as np

from vocabtrim_core.counting import CountedFile, Tally, TokenCounts, content_hash
from vocabtrim_core.fast_tokenization import FlatIds
from vocabtrim_core.tokenization import load_tokenizer

GENERATED = Path(__file__).parent.parent / "target_generated.jsonl.gz"
HOLDOUT = 0.1


def main(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    rows, prompts = [], []
    with gzip.open(GENERATED, "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            rows.append(record["answer_ids"])
            prompts.append(content_hash(json.dumps(record["prompt_ids"]).encode()))
    tally = Tally(tokenizer.vocab_size, HOLDOUT)
    tally.add(FlatIds.of(rows), np.array(prompts, dtype=np.uint64))
    sha256 = hashlib.sha256(GENERATED.read_bytes()).hexdigest()
    file = CountedFile(GENERATED.name, sha256, len(rows), int(tally.total.sum()))
    result = replace(TokenCounts.of(tally, tokenizer, [file]), tokenizer_name="SmolLM2-135M-Instruct")
    result.save(Path(__file__).parent / "smollm2-target-generated.npz")
    print(f"{result.tokens:,} tokens, {result.distinct:,} distinct, {result.documents:,} answers")
    print(f"held out: {result.held_out_documents:,} answers, {result.held_out.sum():,} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer_folder", type=Path)
    main(parser.parse_args().tokenizer_folder)
