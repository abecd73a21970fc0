"""Data that comes with the project: what fills the screen before anyone has uploaded anything."""

from __future__ import annotations

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
