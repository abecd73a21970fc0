"""Counts and lists that other programs made, and prompts."""

from __future__ import annotations

import collections
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz import hostile
from fuzz.harness import Pantry, Run


def nested(levels: int, width: int) -> list:
    """A list that holds `width` ** `levels` others, though it is small."""
    value: list = [1]
    for _ in range(levels):
        value = [value] * width
    return value


def saved() -> list[tuple[Any, bool]]:
    """What `torch.save` writes, and whether it is a list or counts."""
    wrong = [
        torch.arange(50).to_sparse(),
        torch.zeros(1, dtype=torch.int64).expand(10**10),
        torch.zeros(1, dtype=torch.int64).expand(2 * 10**8),
        torch.zeros(3, 3),
        torch.tensor(5),
        torch.tensor([1.5, float("nan")]),
        torch.tensor([1j]),
        torch.empty(5, device="meta"),
        {torch.tensor(1): 1},
        {1: nested(30, 10)},
        {1: 10**18, 2: 10**18},
        nested(9, 10),
        [*range(40), nested(30, 10)],
        [10**30],
        [True, 2],
        "text",
        None,
        {},
        [],
    ]
    right = [
        torch.tensor([5, 3, 9]),
        {1: 5, 2: 3},
        {"1": 5, "2": 3},
        [1, 2, 3, 1],
        collections.OrderedDict({1: 2}),
        (1, 2),
    ]
    return [*((one, False) for one in wrong), *((one, True) for one in right)]


def list_file(chance: random.Random) -> tuple[str, bytes]:
    """The name and content of a list or of counts."""
    ending = chance.choice((".pt", ".json", ".npz"))
    buffer = io.BytesIO()
    if ending == ".pt":
        torch.save(chance.choice(saved())[0], buffer)
        data = buffer.getvalue()
    elif ending == ".json":
        keys = ["1", "2", "The", "9" * chance.choice((3, 19, 5000)), "\ud800", "", "Ġcat"]
        pairs = {chance.choice(keys): chance.choice((1, 5, *hostile.VALUES)) for _ in range(chance.choice((1, 3, 9)))}
        values = [chance.choice((1, 2, 3, *hostile.VALUES)) for _ in range(chance.choice((1, 3, 9)))]
        data = json.dumps(chance.choice((pairs, values, *hostile.VALUES))).encode()
    else:
        size = chance.choice((288, 0, 5, 10**6))
        np.savez(
            buffer,
            calibration=np.full(size, chance.choice((0, 1, 2**62, -1))),
            held_out_cells=np.arange(chance.choice((0, 3))),
            held_out_counts=np.full(3, 2**61),
            provenance=np.frombuffer(json.dumps(chance.choice(hostile.VALUES)).encode(), dtype=np.uint8),
        )
        data = buffer.getvalue()
    return f"list{ending}", hostile.damaged(data, chance) if chance.random() < 0.4 else data


def test_a_list(chance: random.Random, pantry: Pantry, run: Run) -> None:
    """Bug: a list ends in a traceback, or stands for more numbers than there is memory."""
    name, data = list_file(chance)
    Path(name).write_bytes(data)
    tokenizer = ["--tokenizer", pantry.target, "--k", "100"]
    run(*chance.choice((("coverage", name), ("coverage", pantry.counts, "--list", name))), *tokenizer)


@pytest.mark.parametrize("number", range(len(saved())))
def test_each_value(number: int, pantry: Pantry, run: Run) -> None:
    """Bug: as above, for each kind that `torch.save` knows."""
    value, is_right = saved()[number]
    torch.save(value, "list.pt")
    code, _, said = run("coverage", pantry.counts, "--list", "list.pt", "--tokenizer", pantry.target, "--k", "100")
    assert code == (0 if is_right else 2), said


@pytest.mark.parametrize("key", ["9" * 19, "9" * 5000, "\ud800"])
def test_counts_with_any_key(key: str, pantry: Pantry, run: Run) -> None:
    """Bug: a key of 5,000 digits, or half a surrogate pair, ends in a traceback."""
    Path("counts.json").write_text(json.dumps({key: 5, "1": 1}))
    run("coverage", "counts.json", "--tokenizer", pantry.target, "--k", "100")


def test_prompts(chance: random.Random, pantry: Pantry, run: Run) -> None:
    """Bug: a line of a file with prompts ends in a traceback."""
    record: dict[str, Any] = {"prompt": "The dog"}
    for _ in range(chance.choice((1, 2, 3))):
        record[chance.choice(("prompt", "turns", "messages", "task", "category"))] = chance.choice(hostile.VALUES)
    data = json.dumps(record).encode() + b"\n"
    Path("prompts.jsonl").write_bytes(hostile.damaged(data, chance) if chance.random() < 0.4 else data)
    out = ["--by", "target", "--out", "answers.jsonl", "--max-new-tokens", "2"]
    run("answer", "prompts.jsonl", "--target", pantry.target, *out)
