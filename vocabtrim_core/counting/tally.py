"""A histogram while it is filled: every document's tokens in total, and once more by group where it is held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vocabtrim_core.counting.split import held_out_groups
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

    @classmethod
    def of_ids(cls, ids: np.ndarray, vocab_size: int) -> SparseHistogram:
        """How often each of `ids` occurs, all below `vocab_size`."""
        # Sorting takes less time than passing over a dense array that is nearly empty.
        if len(ids) > vocab_size // 4:
            return cls.of(np.bincount(ids, minlength=vocab_size))
        cells, counts = np.unique(ids, return_counts=True)
        return cls(cells.astype(np.int64), counts.astype(np.int64))

    def moved(self, by: int) -> SparseHistogram:
        """The same with `by` added to every cell."""
        return SparseHistogram(self.cells + by, self.counts)

    def plus(self, other: SparseHistogram) -> SparseHistogram:
        """Both together."""
        if not len(self.cells):
            return other
        cells, places = np.unique(np.concatenate([self.cells, other.cells]), return_inverse=True)
        counts = np.zeros(len(cells), dtype=np.int64)
        np.add.at(counts, places, np.concatenate([self.counts, other.counts]))
        return SparseHistogram(cells, counts)

    def add_to(self, dense: np.ndarray) -> None:
        """Add to a dense int64 histogram, whose cells are numbered in C order."""
        # Its cells differ from each other, so that no addition is lost here.
        dense.reshape(-1)[self.cells] += self.counts


class Tally:
    """Token counts of documents that come in batches, over a vocabulary of `vocab_size` ids.

    `total` is int64[V], of all documents. `documents` are how many there were of (calibration, held-out).
    `content_sum` is the sum of all content hashes modulo 2**64: it says what was counted, whatever the order.
    """

    # A dense array of the 32 groups would be 34 MB for 128k tokens, most of it zero: too much for every shard. So
    # held-out ids are kept by group, and summed up when there are so many.
    MAX_KEPT = 2_000_000

    def __init__(self, vocab_size: int, holdout: float) -> None:
        self.holdout = holdout
        self.vocab_size = vocab_size
        self.total = np.zeros(vocab_size, dtype=np.int64)
        self.documents = [0, 0]
        self.content_sum = 0
        self._kept: dict[int, list[np.ndarray]] = {}
        self._kept_ids = 0
        self._held_out = SparseHistogram.of(np.zeros(0, dtype=np.int64))

    def add(self, flat: FlatIds, hashes: np.ndarray) -> None:
        """Count the documents in `flat`, whose content hashes are uint64[documents]. All ids must be below V."""
        self.total += np.bincount(flat.ids, minlength=self.vocab_size)
        groups = held_out_groups(hashes, self.holdout)
        (held,) = np.nonzero(groups >= 0)
        for i, group in zip(held.tolist(), groups[held].tolist(), strict=True):
            # Copies, so that the rest of the batch can go.
            ids = flat.ids[flat.offsets[i] : flat.offsets[i + 1]].copy()
            self._kept.setdefault(group, []).append(ids)
            self._kept_ids += len(ids)
        if self._kept_ids > self.MAX_KEPT:
            self._sum_up()
        self.documents[0] += len(hashes) - len(held)
        self.documents[1] += len(held)
        self.content_sum = (self.content_sum + int(hashes.sum(dtype=np.uint64))) % 2**64

    @property
    def held_out(self) -> SparseHistogram:
        """The held-out documents, by group: over 32 * V cells, cell group * V + id."""
        self._sum_up()
        return self._held_out

    def _sum_up(self) -> None:
        if not self._kept:
            return
        parts = [
            SparseHistogram.of_ids(np.concatenate(rows), self.vocab_size).moved(group * self.vocab_size)
            for group, rows in sorted(self._kept.items())
        ]
        cells = np.concatenate([part.cells for part in parts])
        counts = np.concatenate([part.counts for part in parts])
        self._held_out = self._held_out.plus(SparseHistogram(cells, counts))
        self._kept, self._kept_ids = {}, 0
