"""Corpora of every format, right, damaged and hostile, alone and in folders."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path

import numpy as np
from corpus_writers import COMPRESSIONS, RECORD_FORMATS, compressed, records_file
from fuzz import hostile
from fuzz.harness import Pantry, Run

KINDS = (*RECORD_FORMATS, ".txt", ".py", ".md", ".npy", ".bin", ".xyz")


def corpus(chance: random.Random) -> tuple[str, bytes]:
    """The ending and content of a file, damaged more often than not."""
    ending = chance.choice(KINDS)
    texts = [chance.choice(hostile.TEXTS).encode("utf-8", "replace").decode() for _ in range(chance.choice((1, 2, 9)))]
    if ending in RECORD_FORMATS:
        field = chance.choice(("text", "text", "content", "x"))
        try:
            data = records_file([{field: text, "n": 1} for text in texts], ending)
        except (ValueError, TypeError):
            data = b""
    elif ending == ".npy":
        buffer = io.BytesIO()
        ids = np.array([1, 2, 3, chance.choice((0, 70_000, -1))])
        np.save(buffer, ids.astype(chance.choice(("<u2", "<i8", "<f4"))))
        data = buffer.getvalue()
    elif ending == ".bin":
        data = np.arange(50, dtype=np.uint16).tobytes()
    else:
        data = "\n".join(texts).encode()
    if ending in (".json", ".jsonl") and chance.random() < 0.3:
        record = {"text": chance.choice(hostile.VALUES), "messages": chance.choice(hostile.VALUES)}
        data = json.dumps(record).encode("utf-8", "surrogatepass") + b"\n"
    if chance.random() < 0.6:
        data = hostile.damaged(data, chance)
    compression = chance.choice([*COMPRESSIONS, "", ""])
    data = compressed(data, compression)
    if compression and chance.random() < 0.4:
        data = hostile.damaged(data, chance)
    return ending + COMPRESSIONS[compression], data


def test_a_file(chance: random.Random, pantry: Pantry, run: Run) -> None:
    """Bug: a damaged file ends in a traceback, or is counted in silence without what it lacks."""
    ending, data = corpus(chance)
    Path(f"corpus{ending}").write_bytes(data)
    code, out, _ = run("count", f"corpus{ending}", "--tokenizer", pantry.target, "--out", "counts.npz", "--json")
    if code == 0:
        counted = json.loads(out)
        assert counted["tokens"] > 0 and counted["documents"] > 0
        run("coverage", "counts.npz", "--k", "100")
    else:
        assert not Path("counts.npz").exists()


def test_a_folder(chance: random.Random, pantry: Pantry, run: Run) -> None:
    """Bug: a folder with damaged files ends in a traceback, or a file of it is neither counted nor named."""
    folder = Path("folder")
    folder.mkdir()
    names = []
    for number in range(chance.choice((1, 2, 5))):
        ending, data = corpus(chance)
        if not ending.startswith((".bin", ".npy", ".xyz")):  # not looked for in folders
            names.append(f"{number}{ending}")
            (folder / names[-1]).write_bytes(data)
    code, out, err = run("count", "folder", "--tokenizer", pantry.target, "--json")
    if code != 2:
        result = json.loads(out)
        told = {file["name"] for file in result["files"]} | {each["file"] for each in result["left_out"]}
        assert told == {f"folder/{name}" for name in names}, err


def test_bombs(pantry: Pantry, run: Run) -> None:
    """Bug: a small file takes all memory, or hours."""
    Path("zeros.txt.gz").write_bytes(gzip.compress(b"\0" * 10**8))
    Path("deep.json").write_bytes(b"[" * 10**6)
    Path("deep.jsonl").write_bytes(b'{"text":' * 10**5 + b"\n")
    Path("digits.json").write_bytes(b'{"text": ' + b"9" * 10**6 + b"}")
    Path("line.txt").write_bytes(b"a" * 10**7)
    for name in ("zeros.txt.gz", "deep.json", "deep.jsonl", "digits.json"):
        assert run("count", name, "--tokenizer", pantry.target)[0] == 2
