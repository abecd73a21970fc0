"""Data that comes with the project: what fills the screen before anyone has uploaded anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_DATA = Path(__file__).resolve().parent.parent / "data"


def shipped_counts_path() -> Path:
    """Token counts of text that the embedded target generated: the ranking where no corpus is given."""
    return _DATA / "rankings" / "smollm2-target-generated.npz"


def sample_corpus_path() -> Path:
    """A small corpus of chats."""
    return _DATA / "corpora" / "chat.jsonl"


def sample_corpora() -> dict[str, Path]:
    """Small corpora that differ in kind, by name (see the README beside them)."""
    return {name: _DATA / "corpora" / f"{name}.jsonl" for name in ("chat", "prose", "code", "chinese")}


def task_prompts_folder() -> Path:
    """Prompts for benchmarks: one file a task."""
    return _DATA / "tasks"


@dataclass(frozen=True)
class Tuning:
    """What decoded fastest with the shipped EAGLE drafter: the size `k` of its vocabulary, the length `gamma` of its
    chains, and the shape (depth, branches, nodes) of its trees, None where chains were faster."""

    k: int
    gamma: int
    tree: tuple[int, int, int] | None


@cache
def shipped_tuning(number_format: str) -> Tuning:
    """What to decode with where nothing is chosen, by the number format: float32's for one that was never measured.

    The file says for each on which machine it was measured, at which commit and with which command.
    """
    stored = json.loads((_DATA / "tunings.json").read_text(encoding="utf-8"))
    found = stored.get(number_format, stored["float32"])
    return Tuning(found["k"], found["gamma"], tuple(found["tree"]) if found["tree"] else None)
