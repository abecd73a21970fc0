"""How much the buffers of an Arrow stream decompress to, read from its messages before anything is decompressed."""

from __future__ import annotations

import struct

import pyarrow as pa

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.decompression import DamagedError, bomb_sentence

# Places of fields in the tables of Arrow's Message.fbs.
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_DICTIONARY_DATA = 1
_BUFFERS, _COMPRESSION = 2, 3


def check_arrow_stream(name: str, file: pa.NativeFile) -> None:
    """Read through the messages from where `file` is. DamagedError for a batch that would be far too large."""
    for message in pa.ipc.MessageReader.open_stream(file):
        body = message.body
        if body is not None:
            size = _decompressed_bytes(message.metadata.to_pybytes(), body)
            if size > max(limits.FREE_BYTES, limits.MAX_COMPRESSION_RATIO * body.size):
                raise DamagedError(bomb_sentence(name))


def _decompressed_bytes(metadata: bytes, body: pa.Buffer) -> int:
    """The sum of the lengths that stand before the compressed buffers of a message; 0 where nothing is compressed."""
    (root,) = struct.unpack_from("<I", metadata)
    kind_at, batch = _field(metadata, root, _HEADER_TYPE), _followed(metadata, root, _HEADER)
    kind = metadata[kind_at] if kind_at else 0
    if kind == _DICTIONARY_BATCH:
        batch = _followed(metadata, batch, _DICTIONARY_DATA)
    elif kind != _RECORD_BATCH:
        return 0
    if not _field(metadata, batch, _COMPRESSION):
        return 0
    buffers = _followed(metadata, batch, _BUFFERS)
    (count,) = struct.unpack_from("<I", metadata, buffers)
    total = 0
    for index in range(count):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * index)
        if length >= 8 and 0 <= offset <= body.size - 8:
            # -1 for a buffer that is stored as it is.
            (size,) = struct.unpack("<q", body.slice(offset, 8).to_pybytes())
            total += max(size, 0)
    return total


def _field(data: bytes, table: int, index: int) -> int:
    """Where a field of a flatbuffers table is, 0 if it is not set."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (vtable_bytes,) = struct.unpack_from("<H", data, vtable)
    place = 4 + 2 * index
    if place >= vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + place)
    return table + offset if offset else 0


def _followed(data: bytes, table: int, index: int) -> int:
    """Where the table or vector is that a field refers to."""
    field = _field(data, table, index)
    return int(field + struct.unpack_from("<I", data, field)[0])
