"""A shard: a file or a part of one that is read, counted and resumed on its own; and the bytes in it."""

from __future__ import annotations

import codecs
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import pyarrow as pa

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.documents import BadRecord, CorpusFile, HubDataset
from vocabtrim_core.corpora.encodings import MARK_INVALID
from vocabtrim_core.errors import CorpusError

Format = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "tokens", "dataset"]
Compression = Literal["gzip", "zstd"]


@dataclass(frozen=True)
class Shard:
    """A file or a part of one (whole lines, rows or blocks). Can be pickled; a worker opens the path itself.

    `name` is for people ("logs.jsonl[3/12]"); `file` is the name of the file alone, unique in its plan. `key` says
    what content this is (see `plan_shards`). `bytes` is its size as stored, for progress; 0 where that is not known.
    `start` and `stop` (None: the end) are bytes of the decompressed file, row groups of a parquet file, or which of how
    many parts of a data set. `encoding` is that of text, or the dtype of tokens. `first_line` is the line of the file
    (or row, or block) where the shard starts; None where it is counted only when it is needed. `named` is False for a
    file that was only found in a folder or by a glob: without one usable record it is reported, and is no error.
    `warning` is a sentence for the user (an encoding that was guessed), or empty.
    """

    name: str
    file: str
    key: str
    bytes: int
    source: Path | CorpusFile | HubDataset
    format: Format
    compression: Compression | None = None
    start: int = 0
    stop: int | None = None
    encoding: str = "utf-8"
    first_line: int | None = 1
    named: bool = True
    warning: str = ""
    modified: int = 0

    def bad_record(self, line: int, reason: str) -> BadRecord:
        """A record of this shard that cannot be used; `line` counts from its start, as `Document.line` does."""
        if isinstance(self.source, HubDataset):
            return BadRecord(self.name, line, reason)
        first = self.first_line
        if first is None:
            assert isinstance(self.source, Path)
            first = 1 + _line_ends_before(self.source, self.start, self.modified)
        return BadRecord(self.file, first - 1 + line if line else 0, reason)


class DamagedError(CorpusError):
    """A file whose content is not what its name says, or not fit to be read: reading it again would not help."""


class Reader(Protocol):
    """What streams of bytes are read through: empty bytes at the end, else a chunk of about `size`."""

    def read(self, size: int, /) -> bytes: ...


@contextmanager
def open_raw(source: Path | CorpusFile) -> Iterator[BinaryIO]:
    """The stored bytes. OSError where a path cannot be opened."""
    if isinstance(source, CorpusFile):
        yield io.BytesIO(source.data)
    else:
        with source.open("rb") as file:
            yield file


@contextmanager
def open_shard(shard: Shard) -> Iterator[Reader]:
    """The bytes of a shard, decompressed within bounds; those of text as UTF-8.

    Bytes that are not valid in another encoding come out as invalid UTF-8 too. Raises OSError, CorpusError for a file
    that changed since planning; reading raises DamagedError where the data are damaged or decompress to too much.
    """
    assert not isinstance(shard.source, HubDataset)
    with ExitStack() as stack:
        raw = stack.enter_context(open_raw(shard.source))
        if isinstance(shard.source, Path):
            check_unchanged(shard, raw)
        reader: Reader = raw
        if shard.compression:
            reader = Decompressed(raw, shard.compression, shard.file)
            _skip(reader, shard.start)
        elif shard.start:
            raw.seek(shard.start)
        if shard.stop is not None:
            reader = _Limited(reader, shard.stop - shard.start)
        if shard.format in ("parquet", "arrow", "tokens"):
            yield reader
        else:
            if shard.encoding != "utf-8":
                reader = _Transcoded(reader, shard.encoding)
            # Text keeps its mark, as its cuts are counted from the very start of the file.
            yield _Unmarked(reader) if shard.start == 0 and shard.format != "text" else reader


@contextmanager
def open_seekable(shard: Shard) -> Iterator[pa.NativeFile]:
    """A file that can be read at any place, as parquet needs: compressed ones are decompressed to a temporary file."""
    assert not isinstance(shard.source, HubDataset)
    with ExitStack() as stack:
        if shard.compression:
            reader = stack.enter_context(open_shard(shard))
            spooled = stack.enter_context(tempfile.TemporaryFile())
            while chunk := reader.read(limits.CHUNK_BYTES):
                spooled.write(chunk)
                if spooled.tell() > limits.MAX_SPOOLED_BYTES:
                    raise DamagedError(bomb_sentence(shard.file))
            spooled.seek(0)
            yield stack.enter_context(pa.PythonFile(spooled, "r"))
        elif isinstance(shard.source, CorpusFile):
            yield stack.enter_context(pa.BufferReader(shard.source.data))
        else:
            raw = stack.enter_context(open_raw(shard.source))
            check_unchanged(shard, raw)
            yield stack.enter_context(pa.OSFile(str(shard.source)))


def check_unchanged(shard: Shard, raw: BinaryIO) -> None:
    """CorpusError where an open file is not the one that was planned: lines could be lost or counted twice."""
    if shard.modified and os.fstat(raw.fileno()).st_mtime_ns != shard.modified:
        raise CorpusError(f"{shard.file} was changed while it was read. Count it again when it no longer changes.")


class Decompressed:
    """A gzip or zstd stream (of one or more members), bounded in size and in ratio. CorpusError where it is damaged."""

    def __init__(self, raw: BinaryIO, compression: Compression, name: str) -> None:
        self._raw = raw
        self._name = name
        self._produced = 0
        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), compression)

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except OSError as error:
            if error.errno:
                raise
            raise DamagedError(f"{self._name} is damaged or not compressed as its name says: {error}.") from None
        self._produced += len(data)
        allowed = max(limits.FREE_BYTES, limits.MAX_COMPRESSION_RATIO * self._raw.tell())
        if self._produced > min(allowed, limits.MAX_DECOMPRESSED_BYTES):
            raise DamagedError(bomb_sentence(self._name))
        return data


class _Limited:
    """The next `left` bytes of a stream."""

    def __init__(self, reader: Reader, left: int) -> None:
        self._reader = reader
        self._left = left

    def read(self, size: int) -> bytes:
        data = self._reader.read(min(size, self._left))
        self._left -= len(data)
        return data


class _Transcoded:
    """Text of another encoding as UTF-8; what is not valid comes out as invalid UTF-8."""

    def __init__(self, reader: Reader, encoding: str) -> None:
        self._reader = reader
        self._decoder = codecs.getincrementaldecoder(encoding)(MARK_INVALID)

    def read(self, size: int) -> bytes:
        while True:
            data = self._reader.read(size)
            text = self._decoder.decode(data, final=not data)
            if text or not data:
                return text.encode("utf-8", "surrogatepass")


class _Unmarked:
    """UTF-8 without the byte order mark that may start it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._started = False

    def read(self, size: int) -> bytes:
        data = self._reader.read(size)
        if self._started:
            return data
        self._started = True
        while len(data) < len(codecs.BOM_UTF8) and (more := self._reader.read(size)):
            data += more
        unmarked = data.removeprefix(codecs.BOM_UTF8)
        return unmarked or self._reader.read(size)


def _skip(reader: Reader, count: int) -> None:
    while count and (data := reader.read(min(count, limits.CHUNK_BYTES))):
        count -= len(data)


# One bad record is rarely alone. The time of change is part of the key only.
@lru_cache(maxsize=64)
def _line_ends_before(path: Path, stop: int, _modified: int) -> int:
    count = 0
    with path.open("rb") as file:
        while stop and (data := file.read(min(stop, limits.CHUNK_BYTES))):
            count += data.count(b"\n")
            stop -= len(data)
    return count


def bomb_sentence(name: str) -> str:
    """The sentence for a file that is not read because of what it decompresses to."""
    return (
        f"{name} decompresses to far more than a text of its size does, so it was not read further. Decompress it "
        "yourself if that is meant."
    )
