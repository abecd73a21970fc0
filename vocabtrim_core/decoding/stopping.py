"""Where a generation ends: end-of-sequence tokens and stop strings, also in the middle of an accepted block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vocabtrim_core.errors import SettingError

Ending = Literal["eos", "stop string"]

# Tokens decoded beyond the longest stop string, so that pieces of one character are whole.
SLACK_TOKENS = 8


@dataclass(frozen=True)
class StopCondition:
    """Stops after any of `eos_ids`, and after the token that completes one of `stop_strings` (which need `decode`)."""

    eos_ids: frozenset[int]
    stop_strings: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def __post_init__(self) -> None:
        if "" in self.stop_strings:
            raise SettingError("A stop string is empty, so it would end every text at once. Leave it out.")

    def kept(self, before: Sequence[int], block: Sequence[int]) -> tuple[int, Ending | None]:
        """How many tokens of `block` belong to the output that so far is `before`, and why it ends, or None."""
        for count, token in enumerate(block, start=1):
            if token in self.eos_ids:
                return count, "eos"
            if self.stop_strings and self._ends_with_stop([*before, *block[:count]]):
                return count, "stop string"
        return len(block), None

    def trimmed(self, text: str) -> str:
        """`text` up to its first stop string."""
        found = [text.index(stop) for stop in self.stop_strings if stop in text]
        return text[: min(found)] if found else text

    def _ends_with_stop(self, ids: list[int]) -> bool:
        assert self.decode is not None, "stop strings need a decoder"
        # A token is at least one byte, so this tail holds any stop string that ends in the last token.
        longest = max(len(stop.encode()) for stop in self.stop_strings)
        tail = self.decode(ids[-(longest + SLACK_TOKENS) :])
        return any(stop in tail for stop in self.stop_strings)
