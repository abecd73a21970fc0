"""Text that somebody else wrote (a file's name, a library's message), made fit for a line on a terminal or a page."""

from __future__ import annotations


def visible(text: str, keep: str = "") -> str:
    """`text` with every character that cannot be seen, but those in `keep`, as its escape: `\\x1b`, `\\u202e`, `\\n`.

    Control characters steer a terminal, bidirectional marks reverse what is around them, half a surrogate pair cannot
    be encoded. None of them reaches a reader raw.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def shortened(text: str, longest: int = 200) -> str:
    """`text` with its middle left out where it is longer than `longest`."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"
