"""Tables: CSV and TSV, parquet, Arrow and feather. A row is a record."""

from __future__ import annotations

import csv
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.arrow_bounds import check_arrow_stream
from vocabtrim_core.corpora.decompression import DamagedError, bomb_sentence
from vocabtrim_core.corpora.documents import Document, ReadingOptions, Report
from vocabtrim_core.corpora.encodings import MARK_INVALID
from vocabtrim_core.corpora.fields import parse_record, usable_columns
from vocabtrim_core.corpora.json_records import lines
from vocabtrim_core.corpora.row_sizes import row_sizes, slices_of
from vocabtrim_core.corpora.shards import Reader, Shard, open_seekable, open_shard

_ARROW_FILE_MARK = b"ARROW1"
_BATCH_ROWS = 128  # as fast as larger ones
_BATCH_BYTES = 16 * 2**20
_MAX_BATCH_BYTES = 256 * 2**20  # of plain values, before they are looked at
_DELIMITERS = ",;\t|"
# Excel's way to say what separates the cells.
_SEPARATOR = re.compile(r"\"?sep=([^\"\r\n])\"?\s*", re.IGNORECASE)
_MAX_ROW_LINES = 1_000_000
_MAX_LONG_ROWS = 3  # after which a file is given up, as each takes seconds to find
_AFTER_CR = re.compile(r"(?<=\r)(?!\n)")


def csv_documents(shard: Shard, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """The document of each row; the first row names the columns. CSV may be separated by `,`, `;`, `|` or tabs.

    A line `sep=;` before them, as Excel writes it, says what separates. A row is no longer than `MAX_RECORD_BYTES`.
    """
    # One setting for the whole process, which nothing else here reads; the default is far below a long text.
    csv.field_size_limit(min(limits.MAX_RECORD_BYTES, sys.maxsize))
    with open_shard(shard) as reader:
        source = _Lines(reader, report)
        first = next(source, "")
        if chosen := _SEPARATOR.fullmatch(first):
            delimiter, first = chosen[1], next(source, "")
        else:
            delimiter = "\t" if shard.format == "tsv" else max(_DELIMITERS, key=first.count)
        line = source.number
        rows = csv.reader(_chained(first, source), delimiter=delimiter, strict=True)
        header: list[str] | None = None
        too_long = 0
        while True:
            source.start_row()
            try:
                row = next(rows, None)
            except csv.Error as error:
                report(line, f"not valid CSV ({error})")
                row = []
            except _RowTooLongError:
                too_long += 1
                report(line, f"a row longer than {limits.MAX_RECORD_BYTES:,} bytes; a quote may be missing")
                if header is None or too_long == _MAX_LONG_ROWS:
                    raise DamagedError(f"{shard.file} has rows without an end; its rest was not read.") from None
                # The old one is still within the row.
                rows, row = csv.reader(source, delimiter=delimiter, strict=True), []
            if row is None:
                return
            if row and header is None:
                header = row
                try:
                    wanted = set(_columns(header, options))
                except ValueError as error:
                    report(line, str(error))
                    return
            elif row and header and len(row) != len(header):
                report(line, f"{len(row)} cells in a table of {len(header)} columns")
            elif row and header:
                record = {name: cell for name, cell in zip(header, row, strict=True) if name in wanted}
                yield from _row_document(record, line, options, report, check_unicode=True)
            line = source.number + 1


def _columns(names: list[str], options: ReadingOptions) -> list[str]:
    """The columns to read. ValueError where there is none, or two of one name, of which either could be meant."""
    columns = usable_columns(names, options)
    (name, count), *_ = Counter(columns).most_common(1)
    if count > 1:
        raise ValueError(f"{count} columns are called `{name}`; rename all but one")
    return columns


def parquet_documents(shard: Shard, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """The document of each row of the shard's row groups. Only the columns that may be needed are read."""
    with open_seekable(shard) as file, pq.ParquetFile(file) as table:
        try:
            columns = _columns(table.schema_arrow.names, options)
        except ValueError as error:
            report(0, str(error))
            return
        groups = parquet_row_groups(table.metadata)
        _Bounds(shard, file.size()).check(sum(rows for rows, _ in groups), sum(size for _, size in groups))
        bounds = _Bounds(shard, file.size())
        leaves = [table.schema.column(index).path for index in range(len(table.schema))]
        # Values that are stored once for many rows are kept so.
        compact = pq.ParquetFile(file, metadata=table.metadata, read_dictionary=leaves)
        row = 1
        for group in range(shard.start, len(groups) if shard.stop is None else shard.stop):
            _, size = groups[group]
            source = table if size * _BATCH_ROWS <= _MAX_BATCH_BYTES else compact
            if source is compact:
                largest = max(
                    (row_sizes(batch).max(initial=0) for batch in compact.iter_batches(_BATCH_ROWS, [group], columns)),
                    default=0,
                )
                # Python objects are made of plain values in a tenth of the time.
                source = table if largest * _BATCH_ROWS <= _MAX_BATCH_BYTES else compact
            for batch in source.iter_batches(_BATCH_ROWS, [group], columns):
                yield from _batch_documents(batch, row, bounds, options, report)
                row += batch.num_rows


def parquet_row_groups(metadata: pq.FileMetaData) -> list[tuple[int, int]]:
    """The rows, and the decompressed bytes, of each row group.

    What pyarrow knows of single columns is not asked for: on damaged metadata that ends the process.
    """
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return [(max(0, group.num_rows), max(0, group.total_byte_size)) for group in groups]


def arrow_documents(shard: Shard, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """The document of each row of an Arrow IPC stream, or file (feather 2), which is a stream within marks."""
    with open_seekable(shard) as file:
        start = 8 if file.read(len(_ARROW_FILE_MARK)) == _ARROW_FILE_MARK else 0
        file.seek(start)
        try:
            check_arrow_stream(shard.file, file)
        except struct.error:
            raise DamagedError(f"{shard.file} is a damaged Arrow file.") from None
        file.seek(start)
        with pa.ipc.open_stream(file) as table:
            try:
                columns = _columns(table.schema.names, options)
            except ValueError as error:
                report(0, str(error))
                return
            row, bounds = 1, _Bounds(shard, file.size())
            for batch in table:
                # Offsets in a damaged file may lead anywhere in memory.
                batch.validate(full=True)
                yield from _batch_documents(batch.select(columns), row, bounds, options, report)
                row += batch.num_rows


class _Bounds:
    """What the rows of a file of `stored` bytes may come to: a value that is stored once may be in every row."""

    def __init__(self, shard: Shard, stored: int) -> None:
        self._file = shard.file
        self._rows = limits.max_records(stored)
        self._bytes = max(limits.FREE_BYTES, limits.MAX_COMPRESSION_RATIO * stored)

    def check(self, rows: int, size: int) -> None:
        """Take so many rows and bytes from what is left. DamagedError where that is too little."""
        self._rows -= rows
        self._bytes -= size
        if self._rows < 0 or self._bytes < 0:
            raise DamagedError(bomb_sentence(self._file))


def _batch_documents(
    batch: pa.RecordBatch, first: int, bounds: _Bounds, options: ReadingOptions, report: Report
) -> Iterator[Document]:
    bounds.check(batch.num_rows, 0)
    sizes = row_sizes(batch)
    # A row beyond the limit is then a part by itself.
    for part in slices_of(sizes, min(_BATCH_BYTES, limits.MAX_RECORD_BYTES), _BATCH_ROWS):
        bounds.check(0, int(sizes[part].sum()))
        if sizes[part.start] > limits.MAX_RECORD_BYTES:
            report(first + part.start, f"longer than {limits.MAX_RECORD_BYTES:,} bytes")
        else:
            rows = batch.slice(part.start, part.stop - part.start)
            yield from _rows_documents(rows, first + part.start, options, report)


def _rows_documents(batch: pa.RecordBatch, first: int, options: ReadingOptions, report: Report) -> Iterator[Document]:
    try:
        records = batch.to_pylist()
    except (ValueError, OverflowError):
        # Strings that are not UTF-8 (parquet promises nothing), or dates that Python does not have.
        if batch.num_rows == 1:
            report(first, "a value that is not valid UTF-8, or outside the range of its type")
            return
        middle = batch.num_rows // 2
        yield from _rows_documents(batch.slice(0, middle), first, options, report)
        yield from _rows_documents(batch.slice(middle), first + middle, options, report)
        return
    for row, record in enumerate(records, start=first):
        yield from _row_document(record, row, options, report)


def _row_document(
    record: dict, row: int, options: ReadingOptions, report: Report, check_unicode: bool = False
) -> Iterator[Document]:
    try:
        document = parse_record(record, row, options, check_unicode)
    except ValueError as error:
        report(row, str(error))
    else:
        yield document


class _RowTooLongError(Exception):
    """The lines of the row that is being read are too many or too long."""


class _Lines:
    """The lines of a stream as text with their ends, and the `number` of the last one handed out.

    Raises _RowTooLongError for a line that makes the row since `start_row` too long.
    """

    def __init__(self, reader: Reader, report: Report) -> None:
        self.number = 0
        self._report = report
        self._parts: Iterator[str] = self._split(reader)
        self.start_row()

    def start_row(self) -> None:
        self._characters = limits.MAX_RECORD_BYTES
        self._lines = _MAX_ROW_LINES

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._parts)
        self._characters -= len(line)
        self._lines -= 1
        if self._characters < 0 or self._lines < 0:
            raise _RowTooLongError
        return line

    def _split(self, reader: Reader) -> Iterator[str]:
        for line in lines(reader):
            self.number += 1
            if line is None:
                self._report(self.number, f"longer than {limits.MAX_RECORD_BYTES:,} bytes")
                continue
            text = str(line, "utf-8", MARK_INVALID) + "\n"
            if "\r" in text[:-2]:
                # The csv module takes a lone CR for a line end.
                yield from _AFTER_CR.split(text)
            else:
                yield text


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    if first:
        yield first
    yield from rest
