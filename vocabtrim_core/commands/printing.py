"""Text for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with control characters shown as U+FFFD, so that what a model wrote cannot steer the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
