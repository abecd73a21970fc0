"""Documents of shards and of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.decompression import DamagedError, bomb_sentence
from vocabtrim_core.corpora.documents import BadRecord, CorpusFile, Document, OnBad, ReadingOptions, Report
from vocabtrim_core.corpora.hub_datasets import dataset_documents
from vocabtrim_core.corpora.json_records import json_documents, jsonl_documents
from vocabtrim_core.corpora.planning import plan_shards
from vocabtrim_core.corpora.shards import Format, Shard, check_unchanged
from vocabtrim_core.corpora.tables import arrow_documents, csv_documents, parquet_documents
from vocabtrim_core.corpora.text import text_documents
from vocabtrim_core.corpora.token_files import token_documents
from vocabtrim_core.errors import CorpusError
from vocabtrim_core.paths import expanded, read_bounded

_READERS: dict[Format, Callable[[Shard, ReadingOptions, Report], Iterator[Document]]] = {
    "text": text_documents,
    "jsonl": jsonl_documents,
    "json": json_documents,
    "csv": csv_documents,
    "tsv": csv_documents,
    "parquet": parquet_documents,
    "arrow": arrow_documents,
    "tokens": token_documents,
    "dataset": dataset_documents,
}


def read_shard(shard: Shard, options: ReadingOptions | None, on_bad: OnBad) -> Iterator[Document]:
    """The documents of `shard`, in order, streamed: memory does not grow with the file.

    A record that cannot be used goes to `on_bad` and is skipped. Raises CorpusError, after the documents before it,
    where a file cannot be read (any more), was changed since planning, is not of its format, decompresses to far too
    much or is nearly all unusable. A shard without one usable record is no error here, as the others of its file may
    have some: see `nothing_usable`.
    """
    documents = bad = 0
    most = limits.max_records(shard.stored or shard.bytes or limits.MAX_DECOMPRESSED_BYTES)

    def check_number() -> None:
        if documents + bad > most:
            raise DamagedError(bomb_sentence(shard.file))

    def report(line: int, reason: str) -> None:
        nonlocal bad
        bad += 1
        check_number()
        if bad > limits.MAX_BAD_RECORDS and bad > limits.MOSTLY_BAD * (bad + documents):
            raise DamagedError(f"{shard.file} has {bad:,} unusable records, nearly all it has; the rest was not read.")
        on_bad(shard.bad_record(line, reason))

    try:
        check_unchanged(shard)
        for document in _READERS[shard.format](shard, options or ReadingOptions(), report):
            documents += 1
            check_number()
            yield document
        check_unchanged(shard)
    except (DamagedError, OSError, pa.ArrowException, UnicodeError, MemoryError) as error:
        # A file that was changed under the reader's hands looks damaged.
        check_unchanged(shard)
        if isinstance(error, DamagedError):
            raise
        raise CorpusError(f"{shard.file} cannot be read: {str(error).rstrip('.') or type(error).__name__}.") from None


def read_documents(file: CorpusFile, on_bad: OnBad, options: ReadingOptions | None = None) -> Iterator[Document]:
    """The documents of one upload, in order. `on_bad` is called for each record that is skipped.

    Raises CorpusError for a file that is empty, too large, binary, of an unknown kind, or without one usable record.
    """
    first: BadRecord | None = None

    def keep(bad: BadRecord) -> None:
        nonlocal first
        first = first or bad
        on_bad(bad)

    found = False
    for shard in plan_shards([file], options):
        for document in read_shard(shard, options, keep):
            found = True
            yield document
    if not found:
        raise nothing_usable(file.name, first)


def nothing_usable(file: str, first_bad: BadRecord | None) -> CorpusError:
    """The error for a file without one usable record; `first_bad` is the first that was reported, if any."""
    if first_bad is None:
        return CorpusError(f"{file} is empty; choose a file with text in it.")
    where = f"in line {first_bad.line}: " if first_bad.line else ""
    return CorpusError(f"{file} has no usable record; the first problem is {where}{first_bad.reason}.")


def read_file(path: str | Path) -> CorpusFile:
    """The file at `path`, whole. CorpusError where it is missing, not a file, unreadable or too large."""
    path = expanded(path)
    return CorpusFile(path.name, read_bounded(path, limits.MAX_FILE_BYTES))
