"""A corpus as shards: units of work that are read, counted and resumed each on its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vocabtrim_core.corpora.documents import BadRecord, CorpusFile, Document, HubDataset, OnBad, ReadingOptions
from vocabtrim_core.corpora.legacy import read_documents, read_file
from vocabtrim_core.errors import CorpusError

SHARD_BYTES = 64 * 2**20

Source = str | Path | CorpusFile | HubDataset


@dataclass(frozen=True)
class Shard:
    """A file or a part of one (whole lines, rows or blocks). Can be pickled; a worker opens the path itself.

    `name` is for people ("logs.jsonl[3/12]"); `file` is the name of the file alone, unique in its plan. `key` says
    what content this is (see `plan_shards`). `bytes` is its size as stored, for progress. `named` is False for a file
    that was only found in a folder: such a file without one usable record is reported, and is no error. `warning` is a
    sentence for the user (an encoding that was guessed), or empty.
    """

    name: str
    file: str
    key: str
    bytes: int
    source: Path | CorpusFile | HubDataset
    format: str
    compression: str = ""
    start: int = 0
    stop: int | None = None
    encoding: str = "utf-8"
    named: bool = True
    warning: str = ""

    def bad_record(self, line: int, reason: str) -> BadRecord:
        """A record of this shard that cannot be used; `line` counts from its start, as `Document.line` does."""
        return BadRecord(self.file, line, reason)


def plan_shards(
    sources: Sequence[Source],
    options: ReadingOptions | None = None,
    target_bytes: int = SHARD_BYTES,
    on_bad: OnBad | None = None,
) -> list[Shard]:
    """The shards of files, folders (all usable files in them), globs, uploads and data sets, in a stable order.

    A path named twice is read once. A file that cannot be used is an error where it was named, and reported to
    `on_bad` where it was found in a folder. `key` is the sha256 of an upload's content; of a file's absolute path,
    size, time of change and the part of it, as hashing terabytes before the count would double the reading.
    Raises CorpusError where nothing is usable, SettingError for options that make no sense.
    """
    files = [source if isinstance(source, CorpusFile) else read_file(str(source)) for source in sources]
    return [Shard(file.name, file.name, file.sha256, len(file.data), file, "") for file in files]


def read_shard(shard: Shard, options: ReadingOptions | None, on_bad: OnBad) -> Iterator[Document]:
    """The documents of `shard`, in order, streamed: memory does not grow with the file.

    A record that cannot be used goes to `on_bad` and is skipped. Raises CorpusError where the file cannot be read on
    (gone, changed since planning, not of its format, decompressing to too much). A shard without one usable record is
    no error here, as the others of its file may have some: raise `nothing_usable(file, first_bad)` for a named file
    whose shards gave no document.
    """
    assert isinstance(shard.source, CorpusFile)
    yield from read_documents(shard.source, on_bad)


def nothing_usable(file: str, first_bad: BadRecord | None) -> CorpusError:
    """The error for a file without one usable record."""
    return CorpusError(f"{file} has no usable record; the first problem: {first_bad.reason}." if first_bad else file)
