"""Tables: CSV and TSV, parquet, Arrow and feather. A row is a record."""

from __future__ import annotations

import csv
import re
import struct
import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.arrow_bounds import check_arrow_stream
from vocabtrim_core.corpora.documents import Document, ReadingOptions, Report
from vocabtrim_core.corpora.encodings import MARK_INVALID
from vocabtrim_core.corpora.fields import parse_record, usable_columns
from vocabtrim_core.corpora.json_records import lines
from vocabtrim_core.corpora.shards import DamagedError, Reader, Shard, bomb_sentence, open_seekable, open_shard

_ARROW_FILE_MARK = b"ARROW1"
_BATCH_ROWS = 1024
_BATCH_BYTES = 16 * 2**20
_DELIMITERS = ",;\t|"
_AFTER_CR = re.compile(r"(?<=\r)(?!\n)")


def csv_documents(shard: Shard, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """The document of each row; the first row names the columns. CSV may be separated by `,`, `;`, `|` or tabs."""
    # One setting for the whole process, which nothing else here reads; the default is far below a long text.
    csv.field_size_limit(min(limits.MAX_RECORD_BYTES, sys.maxsize))
    with open_shard(shard) as reader:
        source = _Lines(reader, report)
        first = next(source, "")
        delimiter = "\t" if shard.format == "tsv" else max(_DELIMITERS, key=first.count)
        rows = csv.reader(_chained(first, source), delimiter=delimiter, strict=True)
        header: list[str] | None = None
        while True:
            line = source.number + 1 if header is not None else 1
            try:
                row = next(rows, None)
            except csv.Error as error:
                report(line, f"not valid CSV ({error})")
                continue
            if row is None:
                return
            if header is None:
                header = row
                try:
                    wanted = set(usable_columns(header, options))
                except ValueError as error:
                    report(line, str(error))
                    return
            elif row and len(row) != len(header):
                report(line, f"{len(row)} cells in a table of {len(header)} columns")
            elif row:
                record = {name: cell for name, cell in zip(header, row, strict=True) if name in wanted}
                yield from _row_document(record, line, options, report, check_unicode=True)


def parquet_documents(shard: Shard, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """The document of each row of the shard's row groups. Only the columns that may be needed are read."""
    with open_seekable(shard) as file, pq.ParquetFile(file) as table:
        try:
            columns = usable_columns(table.schema_arrow.names, options)
        except ValueError as error:
            report(0, str(error))
            return
        groups = parquet_row_groups(table.metadata)
        decompressed = sum(size for _, size in groups)
        if decompressed > max(limits.FREE_BYTES, limits.MAX_COMPRESSION_RATIO * file.size()):
            raise DamagedError(bomb_sentence(shard.file))
        row = 1
        for group in range(shard.start, len(groups) if shard.stop is None else shard.stop):
            rows, size = groups[group]
            batch_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(1, size)))
            for batch in table.iter_batches(batch_rows, row_groups=[group], columns=columns):
                yield from _batch_documents(batch, row, options, report)
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
                columns = usable_columns(table.schema.names, options)
            except ValueError as error:
                report(0, str(error))
                return
            row = 1
            for batch in table:
                # Offsets in a damaged file may lead anywhere in memory.
                batch.validate(full=True)
                wanted = batch.select(columns)
                for first in range(0, batch.num_rows, _BATCH_ROWS):
                    yield from _batch_documents(wanted.slice(first, _BATCH_ROWS), row + first, options, report)
                row += batch.num_rows


def _batch_documents(batch: pa.RecordBatch, first: int, options: ReadingOptions, report: Report) -> Iterator[Document]:
    try:
        records = batch.to_pylist()
    except (ValueError, OverflowError):
        # Strings that are not UTF-8 (parquet promises nothing), or dates that Python does not have.
        if batch.num_rows == 1:
            report(first, "a value that is not valid UTF-8, or outside the range of its type")
            return
        middle = batch.num_rows // 2
        yield from _batch_documents(batch.slice(0, middle), first, options, report)
        yield from _batch_documents(batch.slice(middle), first + middle, options, report)
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


class _Lines:
    """The lines of a stream as text with their ends, and the `number` of the last one handed out."""

    def __init__(self, reader: Reader, report: Report) -> None:
        self.number = 0
        self._report = report
        self._parts: Iterator[str] = self._split(reader)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        return next(self._parts)

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
