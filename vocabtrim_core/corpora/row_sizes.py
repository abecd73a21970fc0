"""How many bytes the rows of Arrow batches spell out to, before any is made a Python object.

A dictionary or a run can hold a value once for millions of rows, so the size of a batch in memory says nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

VALUE_BYTES = 16  # of any value, beside its text


def row_sizes(batch: pa.RecordBatch) -> np.ndarray:
    """int64[rows]: the bytes of the values in each row, those in lists and structs with it."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        total += _sizes(column)
    return total


def slices_of(sizes: np.ndarray, size: int, rows: int) -> Iterator[slice]:
    """Runs of at most `rows` rows that have at most `size` bytes together, or of a single one that has more."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = min(int(np.searchsorted(ends, before + size, side="right")), start + rows)
        yield slice(start, max(stop, start + 1))
        start = max(stop, start + 1)


def _sizes(array: pa.Array) -> np.ndarray:
    """int64[length]: the bytes of each value of an array of any type."""
    kind, length, is_ = array.type, len(array), pa.types
    if isinstance(array, pa.ExtensionArray):
        return _sizes(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return _taken(_sizes(array.dictionary), array.indices.fill_null(0).to_numpy(zero_copy_only=False))
    if isinstance(array, pa.RunEndEncodedArray):
        rows = np.arange(array.offset, array.offset + length)
        return _taken(_sizes(array.values), np.searchsorted(array.run_ends.to_numpy(), rows, side="right"))
    if is_.is_string_view(kind) or is_.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], dtype="<i4").reshape(-1, 4)
        return views[array.offset : array.offset + length, 0].astype(np.int64) + VALUE_BYTES
    if is_.is_string(kind) or is_.is_binary(kind) or is_.is_large_string(kind) or is_.is_large_binary(kind):
        return pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) + VALUE_BYTES
    if isinstance(array, pa.StructArray):
        return sum((_sizes(field) for field in array.flatten()), np.full(length, VALUE_BYTES, dtype=np.int64))
    if isinstance(array, pa.MapArray):
        return _between(_sizes(array.keys) + _sizes(array.items), array.offsets.to_numpy())
    if isinstance(array, (pa.ListArray, pa.LargeListArray)):
        return _between(_sizes(array.values), array.offsets.to_numpy())
    if isinstance(array, (pa.ListViewArray, pa.LargeListViewArray)):
        starts, counts = array.offsets.to_numpy(), array.sizes.to_numpy()
        ends = np.concatenate([[0], np.cumsum(_sizes(array.values))])
        return ends[starts + counts] - ends[starts] + VALUE_BYTES
    if isinstance(array, pa.FixedSizeListArray):
        return _between(_sizes(array.values), (array.offset + np.arange(length + 1)) * kind.list_size)
    if isinstance(array, pa.UnionArray):
        largest = max((_sizes(array.field(i)).max(initial=0) for i in range(kind.num_fields)), default=0)
        return np.full(length, largest + VALUE_BYTES, dtype=np.int64)
    return np.full(length, VALUE_BYTES, dtype=np.int64)


def _taken(sizes: np.ndarray, places: np.ndarray) -> np.ndarray:
    # A dictionary without values has nulls only.
    return sizes[places] if len(sizes) else np.full(len(places), VALUE_BYTES, dtype=np.int64)


def _between(sizes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """int64[n]: the sums of `sizes` between n + 1 offsets."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return ends[offsets[1:]] - ends[offsets[:-1]] + VALUE_BYTES
