"""Plain text and source code: cut into blocks that do not depend on how the file was cut into shards."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import BinaryIO

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.documents import Document, ReadingOptions, Report
from vocabtrim_core.corpora.encodings import INVALID, MARK_INVALID, normalise_newlines
from vocabtrim_core.corpora.shards import Reader, Shard, open_shard

BLOCK_CHARACTERS = 2_000
# A file is cut at the first line end at or after each multiple of this, whatever the shards, which are whole pieces.
PIECE_BYTES = 2**20


def text_documents(shard: Shard, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """Blocks of about `BLOCK_CHARACTERS` (see `text_blocks`), without the lines that are not text."""
    line = 1
    with open_shard(shard) as reader:
        for piece in _pieces(reader, shard.start):
            if line == 1 and shard.start == 0:
                piece = piece.removeprefix(codecs.BOM_UTF8)
            for first, text in _usable(piece, line, shard.encoding, report):
                start = first
                for block in text_blocks(normalise_newlines(text) if options.newlines == "lf" else text):
                    yield Document(block, None, start)
                    start += block.count("\n")
            line += piece.count(b"\n")


def text_blocks(text: str, size: int = BLOCK_CHARACTERS) -> Iterator[str]:
    """`text` cut into blocks of at most `size` characters that, joined, are `text` again.

    A cut is made after the last blank line in the second half of the window, else after the last line end there,
    else before the last space there, else at `size`.
    """
    start = 0
    while len(text) - start > size:
        middle, end = start + size // 2, start + size
        for separator, offset in (("\n\n", 2), ("\n", 1), (" ", 0)):
            found = text.rfind(separator, middle, end)
            if found > start:
                end = found + offset
                break
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def cut_after(file: BinaryIO, offset: int) -> int:
    """Where a file is cut at or after `offset`, a multiple of `PIECE_BYTES`."""
    file.seek(offset - 1)
    return offset - 1 + _cut(file.read(PIECE_BYTES // 2))


def _pieces(reader: Reader, position: int) -> Iterator[bytes]:
    """The bytes of a reader that starts at `position` of its file, cut as `cut_after` says."""
    buffer = b""
    more = True
    while True:
        before = PIECE_BYTES - position % PIECE_BYTES - 1
        needed = before + PIECE_BYTES // 2
        chunks, size = [buffer], len(buffer)
        while more and size < needed:
            chunk = reader.read(limits.CHUNK_BYTES)
            more = bool(chunk)
            chunks.append(chunk)
            size += len(chunk)
        buffer = b"".join(chunks)
        if len(buffer) <= before + 1:
            break
        end = before + _cut(buffer[before:needed])
        yield buffer[:end]
        buffer = buffer[end:]
        position += end
    if buffer:
        yield buffer


def _usable(piece: bytes, line: int, encoding: str, report: Report) -> Iterator[tuple[int, str]]:
    """Runs of lines that are text, each with the number of its first; the others are reported."""
    text = piece.decode("utf-8", MARK_INVALID)
    if INVALID not in text and "\0" not in text:
        yield line, text
        return
    run: list[str] = []
    for number, one in enumerate(text.split("\n"), start=line):
        bad = INVALID in one or "\0" in one
        if bad:
            reason = f"bytes that are not valid {encoding.upper()}" if INVALID in one else "NUL bytes, as binary files"
            report(number, reason)
            if run:
                yield number - len(run), "".join(run)
            run = []
        else:
            run.append(one + "\n")
    # What follows the last line end is a line, which had none.
    if run and (last := "".join(run)[:-1]):
        yield number - len(run) + 1, last


def _cut(window: bytes) -> int:
    """Where to cut in half a piece of bytes that starts one byte before a multiple of `PIECE_BYTES`.

    After the first line end, else before the first whole character after that multiple.
    """
    newline = window.find(b"\n")
    if newline >= 0:
        return newline + 1
    end = 1
    while end < len(window) and window[end] & 0xC0 == 0x80:
        end += 1
    return end
