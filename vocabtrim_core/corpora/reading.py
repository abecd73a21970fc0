"""Documents of shards and of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.documents import BadRecord, CorpusFile, Document, OnBad, ReadingOptions, Report
from vocabtrim_core.corpora.hub_datasets import dataset_documents
from vocabtrim_core.corpora.json_records import json_documents, jsonl_documents
from vocabtrim_core.corpora.planning import plan_shards
from vocabtrim_core.corpora.shards import DamagedError, Format, Shard
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

    A record that cannot be used goes to `on_bad` and is skipped, and so does the rest of a file that is damaged if it
    was only found in a folder. Raises CorpusError where a file cannot be read (any more), was changed since planning,
    is not of its format or decompresses to far too much. A shard without one usable record is no error here, as the
    others of its file may have some: raise `nothing_usable(file, first_bad)` for a named file whose shards together
    gave no document.
    """

    def report(line: int, reason: str) -> None:
        on_bad(shard.bad_record(line, reason))

    try:
        yield from _READERS[shard.format](shard, options or ReadingOptions(), report)
    except DamagedError as error:
        if shard.named:
            raise
        report(0, str(error))
    except (OSError, pa.ArrowException, UnicodeError, MemoryError) as error:
        sentence = f"{shard.file} cannot be read: {str(error).rstrip('.') or type(error).__name__}."
        # What pyarrow says of damaged data is an OSError too, but none of the system's.
        if shard.named or (isinstance(error, OSError) and error.errno):
            raise CorpusError(sentence) from None
        report(0, sentence)


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
