"""The held-out split: which documents are held out, and in which of 32 groups, by a hash of their content.

The content alone decides, so that a document is on the same side and in the same group in every file, order and run,
and text that occurs twice never sits on both sides. The groups serve intervals: what differs between them is chance.
"""

from __future__ import annotations

import math

import numpy as np
import xxhash

from vocabtrim_core.corpora import Document
from vocabtrim_core.corpora.messages import calls_json
from vocabtrim_core.errors import SettingError

HELD_OUT_GROUPS = 32


def check_holdout(holdout: float) -> float:
    """`holdout` as a float; SettingError outside 0 <= holdout < 1."""
    if not 0 <= holdout < 1:
        raise SettingError(f"The held-out share is {holdout:g}; it must be at least 0 and less than 1.")
    return float(holdout)


def content_hash(content: bytes) -> int:
    """64 bits of a hash (XXH3: ten times as fast as a cryptographic one, of which nothing here has need)."""
    return xxhash.xxh3_64_intdigest(content)


def document_content(document: Document) -> bytes:
    """What the side of a document depends on: its text, its messages or its token ids."""
    if document.text is not None:
        return document.text.encode()
    if document.messages is not None:
        parts = [part for message in document.messages for part in (message["role"], message["content"])]
        if document.tools or any(len(message) > 2 for message in document.messages):
            rest = [{key: message[key] for key in message if key != "content"} for message in document.messages]
            parts.append(calls_json([rest, document.tools]))
        return "\0".join(parts).encode()
    assert document.ids is not None
    return np.asarray(document.ids, dtype="<u4").tobytes()


def held_out_groups(hashes: np.ndarray, holdout: float) -> np.ndarray:
    """For content hashes uint64[n]: the group (int64[n], 0 to 31) of what is held out, -1 for calibration.

    Held out is what has a hash below `holdout` of the largest; the last five bits, which are independent of that, are
    the group.
    """
    held_out = hashes < np.uint64(math.ceil(holdout * 2**64))
    return np.where(held_out, (hashes % np.uint64(HELD_OUT_GROUPS)).astype(np.int64), -1)


def is_held_out(content: bytes, holdout: float) -> bool:
    """Whether a document with this content is held out."""
    return bool(held_out_groups(np.array([content_hash(content)], dtype=np.uint64), holdout)[0] >= 0)
