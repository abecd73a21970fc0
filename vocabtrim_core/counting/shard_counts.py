"""The counts of one shard: what a worker hands back, and what is kept for a run that is resumed."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from vocabtrim_core.corpora import BadRecord, Document, ReadingOptions, Shard, read_shard
from vocabtrim_core.counting.batching import batches, read_ahead, share_out
from vocabtrim_core.counting.counts import MAX_BAD_RECORDS, read_npz, restored_histogram
from vocabtrim_core.counting.encoding import DocumentEncoder
from vocabtrim_core.counting.ledger import RECORDS, Ledger, kind_of
from vocabtrim_core.counting.split import HELD_OUT_GROUPS, content_hash, document_content
from vocabtrim_core.counting.tally import SparseHistogram, Tally
from vocabtrim_core.errors import CorpusError
from vocabtrim_core.fast_tokenization import Encoders

MAX_STATE_BYTES = 1024 * 1024 * 1024


@dataclass(frozen=True)
class Job:
    """What is counted of every shard, and how. Can be pickled."""

    encoders: Encoders
    options: ReadingOptions
    holdout: float

    @cached_property
    def document_encoder(self) -> DocumentEncoder:
        return DocumentEncoder(self.encoders, self.options.roles)

    def __reduce__(self) -> tuple:
        return Job, (self.encoders, self.options, self.holdout)


@dataclass(frozen=True, eq=False)
class ShardCounts:
    """The histograms of one shard: `total` over V cells, `held_out` over 32 * V (see `Tally`).

    `documents` are (calibration, held-out). `content_sum` is the sum of the content hashes modulo 2**64.
    `bad_records` are the first `MAX_BAD_RECORDS` of `bad_record_count`. `encoder` names what encoded the text.
    `failure` is a sentence on what ended the reading too early, empty where nothing did; the counts are of what came
    before. `ledger` are numbers by item and outcome, ascending.
    """

    total: SparseHistogram
    held_out: SparseHistogram
    documents: tuple[int, int]
    content_sum: int
    bad_records: tuple[BadRecord, ...]
    bad_record_count: int
    encoder: str
    failure: str = ""
    ledger: tuple[tuple[str, str, int], ...] = ()

    @classmethod
    def nothing(cls, failure: str) -> ShardCounts:
        """Those of a shard of which nothing was counted, because of `failure`."""
        empty = SparseHistogram.of(np.zeros(0, dtype=np.int64))
        return cls(empty, empty, (0, 0), 0, (), 0, "", failure)

    @property
    def tokens(self) -> int:
        return int(self.total.counts.sum())

    def to_bytes(self, key: str) -> bytes:
        """An npz file without pickle, with `key` in it."""
        rest = {
            "key": key,
            "documents": self.documents,
            "content_sum": self.content_sum,
            "bad_records": [asdict(bad) for bad in self.bad_records],
            "bad_record_count": self.bad_record_count,
            "ledger": self.ledger,
            "encoder": self.encoder,
            "failure": self.failure,
        }
        buffer = io.BytesIO()
        np.savez(
            buffer,
            total_cells=self.total.cells,
            total_counts=self.total.counts,
            held_out_cells=self.held_out.cells,
            held_out_counts=self.held_out.counts,
            rest=np.frombuffer(json.dumps(rest).encode(), dtype=np.uint8),
        )
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, key: str, vocab_size: int) -> ShardCounts:
        """What `to_bytes` wrote with the same key. ValueError for anything else."""
        try:
            arrays = read_npz(data, MAX_STATE_BYTES)
            rest = json.loads(arrays["rest"].tobytes())
            if rest["key"] != key:
                raise ValueError("another shard")
            calibration, held_out = rest["documents"]
            return cls(
                restored_histogram(arrays["total_cells"], arrays["total_counts"], vocab_size),
                restored_histogram(arrays["held_out_cells"], arrays["held_out_counts"], HELD_OUT_GROUPS * vocab_size),
                (int(calibration), int(held_out)),
                int(rest["content_sum"]),
                tuple(BadRecord(**bad) for bad in rest["bad_records"]),
                int(rest["bad_record_count"]),
                str(rest["encoder"]),
                str(rest["failure"]),
                tuple((str(item), str(outcome), int(number)) for item, outcome, number in rest["ledger"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError("not the counts of a shard") from error


def count_shard(
    shard: Shard, job: Job, on_batch: Callable[[int, int], None] | None = None, threads: int = 1
) -> ShardCounts:
    """Count the documents of `shard` with so many threads, while one more reads the next ones.

    `on_batch(characters, tokens)` is called after each batch, in any of the threads; what it raises ends the count.
    Where the shard cannot be read to its end, what came before is counted, and `failure` says why.
    """
    tally = Tally(job.encoders.tokenizer.vocab_size, job.holdout)
    unread, refused = _BadRecords(), _BadRecords()
    ledger: Ledger = Counter()
    adding = threading.Lock()

    def count(batch: list[Document], characters: int) -> None:
        bad: list[tuple[Document, str]] = []
        entries: Ledger = Counter()
        kept, flat = job.document_encoder.encode(
            batch, lambda document, reason: bad.append((document, reason)), entries
        )
        hashes = np.array([content_hash(document_content(document)) for document in kept], dtype=np.uint64)
        with adding:
            tally.add(flat, hashes)
            ledger.update(entries)
            for document, reason in bad:
                refused.add(shard.bad_record(document.line, reason))
        if on_batch is not None:
            on_batch(characters, len(flat.ids))

    failure = ""

    def documents() -> Iterator[Document]:
        nonlocal failure
        try:
            yield from read_shard(shard, job.options, unread.add)
        except CorpusError as error:
            failure = str(error)

    with closing(read_ahead(batches(documents(), job.encoders.batch_characters))) as ahead:
        share_out(ahead, lambda batch: count(*batch), threads)
    for reason, number in (unread.reasons + refused.reasons).items():
        ledger[RECORDS, reason] += number
    return ShardCounts(
        total=SparseHistogram.of(tally.total),
        held_out=tally.held_out,
        documents=(tally.documents[0], tally.documents[1]),
        content_sum=tally.content_sum,
        bad_records=tuple(sorted(unread.records + refused.records)[:MAX_BAD_RECORDS]),
        bad_record_count=unread.count + refused.count,
        encoder=job.encoders.names,
        failure=failure,
        ledger=tuple((*entry, number) for entry, number in sorted(ledger.items()) if number),
    )


class _BadRecords:
    """How many records were bad, how many for each kind of reason, and the first of them (a file may have millions)."""

    def __init__(self) -> None:
        self.count = 0
        self.records: list[BadRecord] = []
        self.reasons: Counter[str] = Counter()

    def add(self, bad: BadRecord) -> None:
        self.count += 1
        self.reasons[kind_of(bad.reason)] += 1
        if len(self.records) < MAX_BAD_RECORDS or bad < self.records[-1]:
            self.records = sorted([*self.records, bad])[:MAX_BAD_RECORDS]
