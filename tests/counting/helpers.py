"""Small corpora, and counts compared bit for bit."""

from __future__ import annotations

import json

from vocabtrim_core.corpora import CorpusFile
from vocabtrim_core.counting import TokenCounts


def jsonl(name: str, texts: list[str]) -> CorpusFile:
    return CorpusFile(name, "\n".join(json.dumps({"text": text}) for text in texts).encode())


def chat(*contents: str, role: str = "user") -> str:
    return json.dumps({"messages": [{"role": role, "content": content} for content in contents]})


def same(left: TokenCounts, right: TokenCounts) -> bool:
    """All of it: every histogram and every provenance field."""
    return left.to_bytes() == right.to_bytes() and left.digest == right.digest
