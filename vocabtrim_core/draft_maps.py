"""Which target ids a draft vocabulary has, in the ways that programs write it down.

EAGLE-3's `d2t` holds an offset for each row of the draft head (target id = row + d2t[row]), its `t2d` a mask over the
target's vocabulary; token maps hold the ids themselves. Files seldom say which of the first and the last a row of whole
numbers is, but only few rows can be both.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Reading = Literal["ids", "offsets"]
# Offsets of neighbouring ids are equal, so that among K^2 / V = 20 or more none equal is next to impossible.
_REPEATS_EXPECTED = 20


def ids_of_offsets(offsets: np.ndarray) -> np.ndarray:
    """int64[K]: the target ids of offsets int64[K]."""
    return np.arange(len(offsets)) + offsets


def readings(values: np.ndarray, vocab_size: int) -> frozenset[Reading]:
    """What `values` int64[K], K >= 1, can be for a vocabulary: ids, or offsets in ascending order of their ids or (with
    negative ones among them, as ModelOpt writes them) in any other. Either way each id is there once."""
    found: set[Reading] = set()
    if _are_ids(values, vocab_size):
        found.add("ids")
        if len(values) ** 2 >= _REPEATS_EXPECTED * vocab_size:
            return frozenset(found)
    ascending = bool((np.diff(values) >= 0).all())
    if (ascending or values.min() < 0) and _are_ids(ids_of_offsets(values), vocab_size):
        found.add("offsets")
    return frozenset(found)


def _are_ids(values: np.ndarray, vocab_size: int) -> bool:
    return bool(values.min() >= 0 and values.max() < vocab_size and len(np.unique(values)) == len(values))
