"""Text that somebody else wrote (a file's name, a library's message), made fit for a line on a terminal or a page."""

from __future__ import annotations

from pickle import UnpicklingError


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


def first_line(error: Exception) -> str:
    """What an error of a library says, cut to its first line, as a sentence."""
    if isinstance(error, UnpicklingError):
        # PyTorch's own sentence advises to read the file with the check switched off.
        return "it holds something else than tensors, or is damaged."
    if isinstance(error, RecursionError):
        return "it goes on in circles, or is nested too deep."
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if text.endswith((".", "!", "?")) else f"{text}."
