"""Corpora written in every format that can be read."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

COMPRESSIONS = {"": "", "gzip": ".gz", "zstd": ".zst", "bz2": ".bz2", "xz": ".xz"}
RECORD_FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather")


def compressed(data: bytes, compression: str) -> bytes:
    """`data` compressed, or as it is."""
    if compression == "gzip":
        return gzip.compress(data)
    if compression == "bz2":
        return bz2.compress(data)
    if compression == "xz":
        return lzma.compress(data)
    if compression == "zstd":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        return sink.getvalue().to_pybytes()
    return data


def records_file(records: list[dict], suffix: str, row_group_size: int = 3) -> bytes:
    """The records, all with the same fields, in the format of `suffix`. `.arrow` is a stream, `.feather` a file."""
    if suffix in (".jsonl", ".ndjson"):
        return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    if suffix == ".json":
        return json.dumps(records, ensure_ascii=False, indent=1).encode()
    if suffix in (".csv", ".tsv"):
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, records[0], delimiter="\t" if suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue().encode()
    table = pa.Table.from_pylist(records)
    sink = io.BytesIO()
    if suffix == ".parquet":
        pq.write_table(table, sink, row_group_size=row_group_size)
    elif suffix == ".feather":
        pyarrow.feather.write_feather(table, sink, compression="zstd")
    else:
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=row_group_size)
    return sink.getvalue()
