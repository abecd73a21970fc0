"""A histogram while it is filled: every document's tokens in total, and once more by group where it is held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vocabtrim_core.counting.split import HELD_OUT_GROUPS, held_out_groups
from vocabtrim_core.fast_tokenization import FlatIds


@dataclass(frozen=True, eq=False)
class SparseHistogram:
    """Nonzero counts: `counts` int64[n] of `cells` int64[n], ascending. A cell is a token id, or group * V + id."""

    cells: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, dense: np.ndarray) -> SparseHistogram:
        """The same of a dense histogram of any shape, its cells numbered in C order."""
        cells = np.flatnonzero(dense)
        return cls(cells, dense.reshape(-1)[cells])

    def add_to(self, dense: np.ndarray) -> None:
        """Add to a dense int64 histogram, whose cells are numbered in C order."""
        # Its cells differ from each other, so that no addition is lost here.
        dense.reshape(-1)[self.cells] += self.counts


class Tally:
    """Token counts of documents that come in batches, over a vocabulary of `vocab_size` ids.

    `total` is int64[V], of all documents; `held_out` int64[32, V], by group, of those that are held out. `documents`
    are how many there were of (calibration, held-out). `content_sum` is the sum of all content hashes modulo 2**64: it
    says what was counted, whatever the order.
    """

    def __init__(self, vocab_size: int, holdout: float) -> None:
        self.holdout = holdout
        self.vocab_size = vocab_size
        self.total = np.zeros(vocab_size, dtype=np.int64)
        self.held_out = np.zeros((HELD_OUT_GROUPS, vocab_size), dtype=np.int64)
        self.documents = [0, 0]
        self.content_sum = 0

    @property
    def calibration(self) -> np.ndarray:
        """int64[V]: what is not held out."""
        return self.total - self.held_out.sum(axis=0)

    def add(self, flat: FlatIds, hashes: np.ndarray) -> None:
        """Count the documents in `flat`, whose content hashes are uint64[documents]. All ids must be below V."""
        self.total += np.bincount(flat.ids, minlength=self.vocab_size)
        groups = held_out_groups(hashes, self.holdout)
        (held,) = np.nonzero(groups >= 0)
        if len(held):
            rows = [flat.ids[flat.offsets[i] : flat.offsets[i + 1]] for i in held]
            cells = np.repeat(groups[held] * self.vocab_size, flat.lengths[held])
            cells += np.concatenate(rows, dtype=np.int64)
            np.add.at(self.held_out.reshape(-1), cells, 1)
        self.documents[0] += len(hashes) - len(held)
        self.documents[1] += len(held)
        self.content_sum = (self.content_sum + int(hashes.sum(dtype=np.uint64))) % 2**64
