"""Compressed files as streams, whatever they hold bounded in size, in ratio, in lines and in memory."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import BinaryIO, Literal, Protocol

import pyarrow as pa

from vocabtrim_core.corpora import limits
from vocabtrim_core.errors import CorpusError

Compression = Literal["gzip", "zstd", "bz2", "xz"]

# What the library says of a frame made with `--long` or `--ultra`, whose window it does not keep in memory.
_LONG_WINDOW = "requires too much memory"


class DamagedError(CorpusError):
    """A file whose content is not what its name says, or not fit to be read: reading it again would not help."""


class _Stream(Protocol):
    """Decompresses what it reads: empty bytes at the end. OSError, EOFError, zlib.error or LZMAError for damage."""

    def read(self, size: int, /) -> bytes: ...


class Decompressed:
    """A compressed stream (of one or more members), bounded. DamagedError where it is damaged, or is too much."""

    def __init__(self, raw: BinaryIO, compression: Compression, name: str) -> None:
        self._raw = raw
        self._name = name
        self._produced = 0
        self._lines = 0
        self._stream = _opened(raw, compression)

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise DamagedError(_damaged(self._name, str(error))) from None
        self._produced += len(data)
        self._lines += data.count(b"\n")
        stored = self._raw.tell()
        allowed = max(limits.FREE_BYTES, limits.MAX_COMPRESSION_RATIO * stored)
        if self._produced > min(allowed, limits.MAX_DECOMPRESSED_BYTES) or self._lines > limits.max_records(stored):
            raise DamagedError(bomb_sentence(self._name))
        return data


def bomb_sentence(name: str) -> str:
    """The sentence for a file that is not read because of what it decompresses to."""
    return (
        f"{name} decompresses to far more than a text of its size does, so it was not read further. Decompress it "
        "yourself if that is meant."
    )


class _Decoder(Protocol):
    """Decompresses one member, as the standard library's objects for bz2 and lzma do."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _GzipDecoder:
    """zlib's object with the interface of the other two."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not self._decoder.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)


class _Members:
    """The members of a file one after another; zero bytes between and after them are padding, as `gzip` has it."""

    def __init__(self, raw: BinaryIO, new_decoder: Callable[[], _Decoder]) -> None:
        self._raw = raw
        self._new_decoder = new_decoder
        self._decoder: _Decoder | None = None
        self._waiting = b""

    def read(self, size: int) -> bytes:
        while True:
            if self._decoder is None and not self._next_member():
                return b""
            assert self._decoder is not None
            more = self._waiting
            if self._decoder.needs_input and not more:
                more = self._raw.read(limits.CHUNK_BYTES)
            self._waiting = b""
            data = self._decoder.decompress(more, size)
            if self._decoder.eof:
                self._waiting, self._decoder = self._decoder.unused_data, None
            elif not data and not more and self._decoder.needs_input:
                raise EOFError("it is cut short")
            if data:
                return data

    def _next_member(self) -> bool:
        started = self._waiting.lstrip(b"\0")
        while not started:
            chunk = self._raw.read(limits.CHUNK_BYTES)
            if not chunk:
                return False
            started = chunk.lstrip(b"\0")
        self._waiting, self._decoder = started, self._new_decoder()
        return True


def _opened(raw: BinaryIO, compression: Compression) -> _Stream:
    match compression:
        case "gzip":
            return _Members(raw, _GzipDecoder)
        case "bz2":
            return _Members(raw, bz2.BZ2Decompressor)
        case "xz":
            return _Members(raw, lambda: lzma.LZMADecompressor(memlimit=limits.MAX_WINDOW_BYTES))
        case "zstd":
            return pa.CompressedInputStream(pa.PythonFile(raw, "r"), compression)


def _damaged(name: str, reason: str) -> str:
    if _LONG_WINDOW in reason or "Memory usage limit" in reason:
        return (
            f"{name} was compressed with a window larger than the {limits.MAX_WINDOW_BYTES >> 20} MiB that are kept "
            "here. Compress it again without --long or --ultra."
        )
    return f"{name} is damaged or not compressed as its name says: {reason.rstrip('.')}."
