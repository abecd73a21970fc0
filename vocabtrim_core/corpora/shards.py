"""A shard: a file or a part of one that is read, counted and resumed on its own; and the bytes in it."""

from __future__ import annotations

import codecs
import io
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import pyarrow as pa

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.decompression import Compression, DamagedError, Decompressed, bomb_sentence
from vocabtrim_core.corpora.documents import BadRecord, CorpusFile, HubDataset
from vocabtrim_core.corpora.encodings import MARK_INVALID
from vocabtrim_core.errors import CorpusError

Format = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "tokens", "dataset"]


@dataclass(frozen=True)
class Shard:
    """A file or a part of one (whole lines, rows or blocks). Can be pickled; a worker opens the path itself.

    `name` is for people ("logs.jsonl[3/12]"); `file` is the name of the file alone, unique in its plan. `key` says
    what content this is (see `plan_shards`). `bytes` is its size as stored, for progress; 0 where that is not known.
    `start` and `stop` (None: the end) are bytes of the decompressed file, row groups of a parquet file, or which of how
    many parts of a data set. `encoding` is that of text, or the dtype of tokens. `first_line` is the line of the file
    (or row, or block) where the shard starts; None where it is counted only when it is needed. `named` is False for a
    file that was only found in a folder or by a glob: without one usable record it is reported, and is no error.
    `warning` is a sentence for the user (an encoding that was guessed), or empty. `modified` is the whole file's time
    of change in nanoseconds and `stored` its size in bytes when it was planned, both 0 for what is no file.
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
    stored: int = 0

    def bad_record(self, line: int, reason: str) -> BadRecord:
        """A record of this shard that cannot be used; `line` counts from its start, as `Document.line` does."""
        if isinstance(self.source, HubDataset):
            return BadRecord(self.name, line, reason)
        first = self.first_line
        if first is None:
            assert isinstance(self.source, Path)
            try:
                first = 1 + _line_ends_before(self.source, self.start, self.modified)
            except OSError:
                # The file was deleted meanwhile, so that the line can only be told within the part.
                return BadRecord(self.name, line, reason)
        return BadRecord(self.file, first - 1 + line if line else 0, reason)


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

    Bytes that are not valid in another encoding come out as invalid UTF-8 too. Raises OSError; reading raises
    DamagedError where the data are damaged or decompress to too much.
    """
    assert not isinstance(shard.source, HubDataset)
    with ExitStack() as stack:
        raw = stack.enter_context(open_raw(shard.source))
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
            yield stack.enter_context(pa.OSFile(str(shard.source)))


def check_unchanged(shard: Shard) -> None:
    """CorpusError where a file is not the one that was planned: lines could be lost or counted twice.

    Called before it is opened and after it was read, so that no change in between goes unnoticed.
    """
    if not shard.modified or not isinstance(shard.source, Path):
        return
    try:
        stat = shard.source.stat()
    except FileNotFoundError:
        raise CorpusError(
            f"{shard.file} was deleted while the corpus was read, or lies where this machine cannot see it."
        ) from None
    if (stat.st_mtime_ns, stat.st_size) != (shard.modified, shard.stored):
        change = "cut shorter" if stat.st_size < shard.stored else "changed or replaced"
        raise CorpusError(
            f"{shard.file} was {change} while the corpus was read. Count it again when it no longer changes."
        )


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
