"""Bounds on what is read, so that no file, however made, exhausts memory or disk. Looked up at each use."""

MAX_FILE_BYTES = 200 * 2**20  # An upload, or a file read whole.
MAX_RECORD_BYTES = 10_000_000  # A line, or a value of a JSON array.
CHUNK_BYTES = 2**18  # Read at a time.

# Real text compresses 3 to 20 times, monotonous logs 200 times. A small file may do as it likes.
MAX_COMPRESSION_RATIO = 500
FREE_BYTES = 64 * 2**20
MAX_DECOMPRESSED_BYTES = 256 * 2**30
MAX_SPOOLED_BYTES = 8 * 2**30  # A compressed parquet or Arrow file, which must lie on disk to be read.
MAX_WINDOW_BYTES = 128 * 2**20  # Of what a decompressor remembers: zstd's own limit.

# Records that hardly take room when they are compressed take time all the same.
FREE_RECORDS = 1_000_000
MAX_RECORDS_A_BYTE = 10
# Of a shard's bad records, after which it is given up where nearly all are bad.
MAX_BAD_RECORDS = 500_000
MOSTLY_BAD = 0.9


def max_records(stored: int) -> int:
    """How many lines, rows or values a file of `stored` bytes may have."""
    return max(FREE_RECORDS, MAX_RECORDS_A_BYTE * stored)
