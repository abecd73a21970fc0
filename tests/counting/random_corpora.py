"""Random corpora on disk: texts and chats with control-token text, in every format."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import numpy as np

from tests.corpus_writers import COMPRESSIONS, compressed, records_file
from vocabtrim_core.fast_tokenization import AWKWARD
from vocabtrim_core.tokenization import Tokenizer

FORMATS = (".txt", ".jsonl", ".json", ".csv", ".parquet", ".arrow", ".npy")


def write_random_corpora(folder: Path, tokenizer: Tokenizer, number: int, seed: int = 0) -> list[Path]:
    """So many files; each is a corpus of up to a dozen documents."""
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    paths = []
    for index in range(number):
        suffix, (compression, ending) = rng.choice(FORMATS), rng.choice(list(COMPRESSIONS.items()))
        path = folder / f"{index:04}{suffix}{ending}"
        path.write_bytes(compressed(_content(suffix, tokenizer, rng), compression))
        paths.append(path)
    return paths


def _content(suffix: str, tokenizer: Tokenizer, rng: random.Random) -> bytes:
    if suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, np.array(rng.choices(range(tokenizer.vocab_size), k=rng.randrange(1, 5_000)), dtype="<u4"))
        return buffer.getvalue()
    number = rng.randrange(1, 12)
    if suffix == ".txt":
        return "\n\n".join(_text(tokenizer, rng) for _ in range(number)).encode()
    if rng.random() < 0.5 or not tokenizer.has_chat_template:
        return records_file([{"id": i, "text": _text(tokenizer, rng)} for i in range(number)], suffix)
    chats = [_chat(tokenizer, rng) for _ in range(number)]
    return records_file([{"messages": json.dumps(chat) if suffix == ".csv" else chat} for chat in chats], suffix)


def _chat(tokenizer: Tokenizer, rng: random.Random) -> list[dict[str, str]]:
    return [
        {"role": role, "content": _text(tokenizer, rng)}
        for _ in range(rng.randrange(1, 4))
        for role in ("user", "assistant")
    ]


def _text(tokenizer: Tokenizer, rng: random.Random) -> str:
    words = ["The cat sat on the mat", "\n", "\n\n", " ", "  ", "é😀世界", "12345", "don't", "x = f(y)\n\treturn"]
    pieces = [*words, rng.choice(AWKWARD).replace("\0", ""), *rng.choices(tokenizer.control_texts, k=2)]
    return "x" + "".join(rng.choices(pieces, k=rng.randrange(1, 60)))
