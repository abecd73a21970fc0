"""Files of token ids: bare little-endian uint16 or uint32 (nanoGPT's, with or without llm.c's header), and `.npy`."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.decompression import DamagedError
from vocabtrim_core.corpora.documents import Document, ReadingOptions, Report
from vocabtrim_core.corpora.shards import Shard, open_shard
from vocabtrim_core.errors import CorpusError

BLOCK_TOKENS = 2_048

# llm.c: int32[256] with a magic number that says the dtype, a version and the number of tokens.
_HEADER_BYTES = 1_024
_HEADERS = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
# No vocabulary is larger, and uint16 ids read in pairs give numbers far above it.
_LARGEST_ID = 2**20
_NPY_MARK = b"\x93NUMPY"
# Zip (PyTorch), pickle, GGUF, ELF.
_OTHER_MARKS = (b"PK\x03\x04", b"\x80\x02c", b"\x80\x02}", b"GGUF", b"\x7fELF")


def token_layout(name: str, sample: bytes, options: ReadingOptions) -> tuple[str, int, int | None]:
    """The dtype of a file's ids and the bytes where they start and end (None: with the file), from its first bytes.

    CorpusError where it has none.
    """
    if not sample:
        raise CorpusError(f"{name} is empty; choose a file with tokens in it.")
    if sample.startswith(_NPY_MARK):
        return _npy_layout(name, sample)
    if sample.startswith(_OTHER_MARKS):
        raise CorpusError(f"{name} is not a file of token ids, but a program, an archive or a model's weights.")
    if len(sample) >= _HEADER_BYTES:
        magic, version, count = np.frombuffer(sample, dtype="<i4", count=3).tolist()
        if (magic, version) in _HEADERS:
            dtype = _HEADERS[magic, version]
            return dtype, _HEADER_BYTES, _HEADER_BYTES + max(0, count) * np.dtype(dtype).itemsize
    if options.token_dtype:
        return np.dtype(options.token_dtype).newbyteorder("<").str, 0, None
    whole = sample[: len(sample) // 4 * 4]
    if len(sample) % 4 == 0 and np.frombuffer(whole, dtype="<u4").max() < _LARGEST_ID:
        return "<u4", 0, None
    return "<u2", 0, None


def token_documents(shard: Shard, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """Blocks of `BLOCK_TOKENS` ids, so that a share of them can be held out.

    Raises DamagedError, after the blocks, where the file has fewer ids than its header says, or more.
    """
    dtype = np.dtype(shard.encoding)
    block_bytes = BLOCK_TOKENS * dtype.itemsize
    number = read = 0
    promised = None if shard.stop is None else shard.stop - shard.start
    # To its end, to see what follows where the header says that it ends; a part of a plain file has something after it.
    with open_shard(replace(shard, stop=None) if shard.compression else shard) as reader:
        buffer = b""
        while chunk := reader.read(limits.CHUNK_BYTES):
            if promised is not None:
                read, chunk = read + len(chunk), chunk[: max(0, promised - read)]
            buffer += chunk
            whole = len(buffer) // block_bytes * block_bytes
            for start in range(0, whole, block_bytes):
                number += 1
                yield from _block(buffer[start : start + block_bytes], dtype, number, report)
            buffer = buffer[whole:]
    rest = len(buffer) % dtype.itemsize
    if len(buffer) > rest:
        number += 1
        yield from _block(buffer[: len(buffer) - rest], dtype, number, report)
    if rest:
        report(number + 1, f"the last {rest} bytes are not a whole {dtype.name} id")
    if promised is not None and read != promised:
        raise DamagedError(not_as_promised(shard.file, read, promised))


def not_as_promised(name: str, found: int, promised: int) -> str:
    """The sentence for a file with another number of bytes of ids than its header says."""
    if found < promised:
        return f"{name} is cut short: its header promises {promised:,} bytes of ids, and it has {found:,}."
    return f"{name} has bytes after the {promised:,} bytes of ids of its header: save each array in a file of its own."


def _block(data: bytes, dtype: np.dtype, number: int, report: Report) -> Iterator[Document]:
    ids = np.frombuffer(data, dtype=dtype)
    if ids.min() < 0:
        report(number, f"{ids.min():,} is no token id")
    else:
        yield Document(None, None, number, ids.astype(dtype.newbyteorder("="), copy=False))


def _npy_layout(name: str, sample: bytes) -> tuple[str, int, int]:
    header = io.BytesIO(sample)
    try:
        version = np.lib.format.read_magic(header)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read(header)
    # The header is a Python literal, and numpy raises what its parser does.
    except Exception as error:
        raise CorpusError(f"{name} is not a .npy file that can be read: {error}.") from None
    if dtype.kind not in "iu" or (fortran_order and len(shape) > 1):
        raise CorpusError(f"{name} holds {dtype.name} values in {len(shape)} dimensions, not token ids.")
    return dtype.str, header.tell(), header.tell() + math.prod(shape) * dtype.itemsize
