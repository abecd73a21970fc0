"""Every format, compressed in every way, gives back the records that were written; damage is a clear sentence."""

import gzip
import io
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.corpus_writers import COMPRESSIONS, RECORD_FORMATS, compressed, records_file
from vocabtrim_core.corpora import (
    BadRecord,
    CorpusFile,
    Document,
    ReadingOptions,
    limits,
    plan_shards,
    read_documents,
    read_shard,
)
from vocabtrim_core.corpora.formats import SUFFIXES, format_of
from vocabtrim_core.errors import CorpusError

KEPT = ReadingOptions(newlines="keep")


def read(name: str, data: bytes, options: ReadingOptions | None = None) -> tuple[list[Document], list[BadRecord]]:
    bad: list[BadRecord] = []
    return list(read_documents(CorpusFile(name, data), bad.append, options)), bad


def texts_of(documents: list[Document]) -> list[str | None]:
    return [document.text for document in documents]


def error_of(name: str, data: bytes, options: ReadingOptions | None = None) -> str:
    with pytest.raises(CorpusError) as caught:
        for _ in read_documents(CorpusFile(name, data), lambda bad: None, options):
            pass
    return str(caught.value)


@contextmanager
def peak_memory_below(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


written_texts = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60).filter(str.strip),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150)
@given(written_texts, st.sampled_from(RECORD_FORMATS), st.sampled_from(list(COMPRESSIONS)))
@example(["a\r\nb", "c\rd", 'e "quoted", f\n\n', "\u2028x\x85"], ".csv", "")
def test_records_come_back(texts: list[str], suffix: str, compression: str) -> None:
    """Bug: a record lost, doubled, cut or mangled by the quoting, the line ends or the batches of a format."""
    records = [{"id": number, "text": text} for number, text in enumerate(texts)]
    name = f"file{suffix}{COMPRESSIONS[compression]}"
    documents, bad = read(name, compressed(records_file(records, suffix), compression), KEPT)
    assert texts_of(documents) == texts and not bad


@settings(max_examples=60)
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6_000).map(
        lambda text: text + "x"
    ),
    st.sampled_from([".txt", ".py", ".C", ".sql", ".html"]),
    st.sampled_from(list(COMPRESSIONS)),
)
def test_texts_come_back(text: str, suffix: str, compression: str) -> None:
    """Bug: plain text or source code that loses characters between blocks, or its line ends against the choice."""
    text = text.removeprefix("\ufeff")
    documents, bad = read(f"file{suffix}{COMPRESSIONS[compression]}", compressed(text.encode(), compression), KEPT)
    assert "".join(document.text or "" for document in documents) == text and not bad


@given(st.sampled_from(RECORD_FORMATS), st.sampled_from(list(COMPRESSIONS)))
def test_chats_come_back(suffix: str, compression: str) -> None:
    """Bug: a chat in a nested column, or in a CSV cell as JSON, is counted as text or refused."""
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, “you”"}]
    cell = json.dumps(chat) if suffix in (".csv", ".tsv") else chat
    data = records_file([{"id": 1, "messages": cell}] * 5, suffix)
    documents, bad = read(f"chats{suffix}{COMPRESSIONS[compression]}", compressed(data, compression))
    assert [document.messages for document in documents] == [tuple(chat)] * 5 and not bad


@pytest.mark.parametrize("suffix", RECORD_FORMATS)
def test_bad_rows_are_reported_with_their_place(suffix: str) -> None:
    """Bug: a wrong line or row in the report, or one bad row that loses those after it."""
    texts = ["one", " ", "three", "four", " ", "six", "seven"]
    documents, bad = read("a" + suffix, records_file([{"text": text} for text in texts], suffix))
    assert texts_of(documents) == ["one", "three", "four", "six", "seven"]
    # A record of the indented JSON takes three lines after the first; CSV has a header.
    expected = {".json": [5, 14], ".csv": [3, 6], ".tsv": [3, 6]}.get(suffix, [2, 5])
    assert [(record.file, record.line) for record in bad] == [("a" + suffix, line) for line in expected]
    assert all("`text` is empty" in record.reason for record in bad)


# JSON


@pytest.mark.parametrize(
    "content",
    [
        '[{"text": "a"}, {"text": "b"}]',
        '{"text": "a"}\n{"text": "b"}\n',
        '{"text": "a"} {"text": "b"}',
        '{"version": 1, "tags": ["x"], "data": [{"text": "a"}, {"text": "b"}], "more": [{"text": "no"}]}',
        '["a", "b"]',
        '[\n{"text": "a", "score": NaN, "big": 1e999},\r\n{"text": "b"}]',
        '[[], {"a": [1, [2]]}, {"text": "a"}, {"text": "b"}]',
        '{"data": [{"body": "a"}, {"body": "b"}], "text_count": 2}',
    ],
)
def test_json_shapes(content: str) -> None:
    """Bug: only one of the usual ways to write records in one JSON file is known."""
    assert texts_of(read("a.json", content.encode())[0]) == ["a", "b"]


def test_json_is_one_record() -> None:
    """Bug: the messages of a single chat are taken for a list of records."""
    chat = {"messages": [{"role": "user", "content": "text"}], "data": [{"text": "no"}]}
    documents, bad = read("a.json", json.dumps(chat).encode())
    assert documents == [Document(None, ({"role": "user", "content": "text"},), 1)] and not bad


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_json_in_small_chunks(monkeypatch, chunk: int) -> None:
    """Bug: a number, string or multi-byte character that is cut by the end of a chunk is misread."""
    monkeypatch.setattr(limits, "CHUNK_BYTES", chunk)
    records = [{"n": 123456, "text": f'grün 😀 {number} \\ " end', "x": [True, None, -1.5e3]} for number in range(9)]
    for data in (records, {"meta": {"n": 12345}, "rows": records}):
        documents, bad = read("a.json", json.dumps(data, ensure_ascii=False).encode())
        assert texts_of(documents) == [record["text"] for record in records] and not bad


@pytest.mark.parametrize(
    "content, good, line, reason",
    [
        ('[{"text": "a"},\n{"text": "b"', 1, 2, "not valid JSON"),
        ('[{"text": "a"}\n{"text": "b"}]', 1, 2, "“{” where “,”"),
        ('[{"text": "a"},\n {"text": ' + "[" * 100_000, 1, 2, "brackets too deep"),
        ('[{"text": "a"},\n {"text": ' + "9" * 5_000 + "}]", 1, 2, "a number is too long"),
        ('[{"text": "a"},\n 5, {"text": "b"}]', 2, 2, "not a JSON object"),
        ('[{"text": "a"},\n {"text": "\\ud800"}]', 1, 2, "half a surrogate pair"),
    ],
)
def test_bad_json(content: str, good: int, line: int, reason: str) -> None:
    """Bug: damage in a JSON file raises something else, or ends the reading without a word."""
    documents, bad = read("a.json", content.encode())
    assert len(documents) == good
    assert [record.line for record in bad] == [line] and reason in bad[0].reason


def test_fast_and_slow_json_agree() -> None:
    """Bug: what the fast parser refuses (NaN, numbers beyond 64 bits, half a surrogate pair in a field that is not
    used) loses a record whose text is fine, or doubled keys are read in two ways."""
    tails = ['"n": NaN', '"n": 1e999', '"n": ' + "9" * 400, r'"n": "\ud83d"', '"n": 1', '"n": ' + "[" * 900 + "]" * 900]
    data = "\n".join(f'{{"text": "first", "text": "ok", {tail}}}' for tail in tails).encode()
    documents, bad = read("a.jsonl", data)
    assert texts_of(documents) == ["ok"] * len(tails) and not bad


# CSV


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_dialects(delimiter: str, end: str) -> None:
    """Bug: a table saved by a spreadsheet of another country, or on another system, is one column or one row."""
    rows = [["id", "Text"], ["1", '"one, two; three|four"'], ["2", '"five\nsix"']]
    data = end.join(delimiter.join(row) for row in rows).encode("utf-8-sig")
    documents, bad = read("a.csv", data)
    assert texts_of(documents) == ["one, two; three|four", "five\nsix"] and not bad


def test_bad_csv_rows() -> None:
    """Bug: a row with an unquoted separator in its text is counted cut short; later rows have wrong lines."""
    data = b'id,text\n1,"two\nlines"\n2,a,b\n\n3,"ok"\n4,"bad"x\n5,"fine"\n6,"open\n'
    documents, bad = read("a.csv", data)
    assert texts_of(documents) == ["two\nlines", "ok", "fine"]
    assert [(document.line) for document in documents] == [2, 6, 8]
    assert [record.line for record in bad] == [4, 7, 9]
    assert "3 cells in a table of 2 columns" in bad[0].reason and "not valid CSV" in bad[1].reason


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow", ".feather"])
def test_tables_without_a_known_column(suffix: str) -> None:
    """Bug: an empty result, or a guess, where the user has to choose a column; the choice does not help."""
    data = records_file([{"title": "a", "review": "fine"}], suffix)
    message = error_of("a" + suffix, data)
    assert "`title`, `review`" in message and "choose" in message
    assert texts_of(read("a" + suffix, data, ReadingOptions(field="review"))[0]) == ["fine"]
    assert "no field `rating`" in error_of("a" + suffix, data, ReadingOptions(field="rating"))


# Parquet and Arrow


def test_parquet_strings_that_are_not_utf8() -> None:
    """Bug: parquet does not check its strings, so one bad one loses its whole batch."""
    column = pa.array([b"good", b"\xff\xfe", "größer".encode()], pa.binary()).view(pa.string())
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": column}), sink)
    documents, bad = read("a.parquet", sink.getvalue())
    assert texts_of(documents) == ["good", "größer"]
    assert [record.line for record in bad] == [2] and "UTF-8" in bad[0].reason


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.binary(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_arrow_string_types(kind: pa.DataType) -> None:
    """Bug: texts in one of Arrow's other string types are refused."""
    column = pa.array(["one", "two", "one"], pa.string())
    column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, pa.schema([("text", column.type)])) as file:
        file.write_batch(pa.record_batch({"text": column}))
    assert texts_of(read("a.arrow", sink.getvalue())[0]) == ["one", "two", "one"]


@settings(max_examples=150)
@given(st.data())
def test_damaged_tables(data) -> None:
    """Bug: a damaged parquet or Arrow file crashes the process or raises another exception."""
    suffix = data.draw(st.sampled_from([".parquet", ".arrow", ".feather"]))
    content = bytearray(records_file([{"text": f"text {n}" * 20} for n in range(9)], suffix))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(1, len(content)))
    try:
        documents, _ = read("a" + suffix, bytes(content[:end]))
    except CorpusError:
        return
    assert all(document.text for document in documents)


# Compression


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".json", ".csv", ".parquet", ".bin"])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_bombs_are_refused(monkeypatch, suffix: str, compression: str) -> None:
    """Bug: a small file that decompresses to gigabytes is read to its end, or into memory."""
    monkeypatch.setattr(limits, "FREE_BYTES", 2**20)
    bomb = compressed(b'text\n"' + b"a" * 60_000_000, compression)
    assert len(bomb) < 60_000
    with peak_memory_below(2**25):
        message = error_of(f"bomb{suffix}{COMPRESSIONS[compression]}", bomb)
    # As JSON it may be given up even before: it is one value without an end.
    assert "decompresses to far more" in message or "a value is longer than" in message


def test_absolute_bounds(monkeypatch, tmp_path) -> None:
    """Bug: a file that compresses well but honestly fills the disk, as only the ratio is checked."""
    monkeypatch.setattr(limits, "MAX_SPOOLED_BYTES", 1_000)
    data = compressed(records_file([{"text": str(n)} for n in range(500)], ".parquet"), "gzip")
    assert "decompresses to far more" in error_of("a.parquet.gz", data)
    monkeypatch.setattr(limits, "MAX_DECOMPRESSED_BYTES", 1_000)
    assert "decompresses to far more" in error_of("a.txt.gz", compressed(bytes(range(32, 120)) * 100, "gzip"))


def test_parquet_bombs(monkeypatch) -> None:
    """Bug: the pages inside a parquet file are a bomb of their own."""
    monkeypatch.setattr(limits, "FREE_BYTES", 2**20)
    sink = io.BytesIO()
    table = pa.table({"text": ["a" * 50_000_000]})
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    assert len(sink.getvalue()) < 100_000
    assert "decompresses to far more" in error_of("a.parquet", sink.getvalue())


@pytest.mark.parametrize("as_stream", [True, False])
@pytest.mark.parametrize("as_dictionary", [True, False])
def test_arrow_bombs(monkeypatch, as_stream: bool, as_dictionary: bool) -> None:
    """Bug: the buffers inside an Arrow file are a bomb of their own, which pyarrow decompresses at once."""
    monkeypatch.setattr(limits, "FREE_BYTES", 2**20)
    column = pa.array(["a" * 50_000_000], pa.large_string())
    batch = pa.record_batch({"text": column.dictionary_encode() if as_dictionary else column})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    new = pa.ipc.new_stream if as_stream else pa.ipc.new_file
    with new(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    assert len(sink.getvalue()) < 100_000
    before = pa.total_allocated_bytes()
    assert "decompresses to far more" in error_of("a.arrow", sink.getvalue())
    assert pa.total_allocated_bytes() - before < 2**20


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_damaged_compression(compression: str) -> None:
    """Bug: a download that was cut counts as a whole file; a file that is not compressed at all is a traceback."""
    data = compressed("".join(f"{n} {n * n}\n" for n in range(40_000)).encode(), compression)
    name = "a.txt" + COMPRESSIONS[compression]
    assert "damaged" in error_of(name, data[: len(data) // 2])
    assert "damaged" in error_of(name, b"plain text")
    assert "".join(document.text or "" for document in read(name, data + data)[0]).count("\n") == 80_000


# Memory


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".json", ".csv"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, suffix: str) -> None:
    """Bug: a file is read whole, or a long line or element is held, so that a large corpus exhausts the memory."""
    path = tmp_path / f"big{suffix}.gz"
    record = {"text": "word " * 2_000}
    text = {".txt": "word " * 4_000 + "\n", ".csv": "word " * 2_000 + "\n"}.get(suffix, json.dumps(record) + "\n")
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write({".csv": "text\n", ".json": '{"rows": [\n'}.get(suffix, ""))
        for number in range(4_000):
            file.write("," * (number > 0 and suffix == ".json") + text)
        file.write("]}" if suffix == ".json" else "")
    (shard,) = plan_shards([path])
    # A JSON object is looked at as one record first, up to the limit of that.
    with peak_memory_below(10 * limits.MAX_RECORD_BYTES if suffix == ".json" else 2**24):
        assert sum(1 for _ in read_shard(shard, None, print)) >= 4_000


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".json"])
def test_endless_lines(monkeypatch, suffix: str) -> None:
    """Bug: a line without an end is collected until the memory is full."""
    monkeypatch.setattr(limits, "MAX_RECORD_BYTES", 2**16)
    data = (b"text\n" if suffix == ".csv" else b"") + b'["' + b"x" * 2**24
    with peak_memory_below(2**23):
        if suffix == ".txt":
            documents = read_documents(CorpusFile("a.txt", data), print)
            assert sum(len(document.text or "") for document in documents) == len(data)
        else:
            assert "longer than" in error_of("a" + suffix, data)


# Anything

names = st.sampled_from([suffix for suffix in SUFFIXES if format_of("a" + suffix)[0]]).flatmap(
    lambda suffix: st.sampled_from([f"a{suffix}{compression}" for compression in COMPRESSIONS.values()])
)
structured = st.text(alphabet='{}[]":, \n\rtextdata\\u0é\t0123456789.', max_size=120).map(str.encode)


@settings(max_examples=400)
@given(
    names,
    st.binary(max_size=300) | structured,
    st.sampled_from(["", "gzip", "zstd"]),
    st.builds(
        ReadingOptions,
        field=st.sampled_from([None, "text", "a.b", "a+b", "."]),
        roles=st.sampled_from(["all", "assistant"]),
        newlines=st.sampled_from(["keep", "lf"]),
        encoding=st.sampled_from([None, "utf-8", "utf-16", "cp1252", "shift_jis", "gb18030", "utf-7", "utf-32"]),
        token_dtype=st.sampled_from([None, "uint16", "uint32"]),
    ),
)
def test_any_bytes_give_documents_or_a_corpus_error(
    name: str, data: bytes, compression: str, options: ReadingOptions
) -> None:
    """Bug: some input escapes the checks and surfaces as another exception, or as a document without content."""
    try:
        documents, _ = read(name, compressed(data, compression), options)
    except CorpusError:
        return
    assert documents
    for document in documents:
        assert [document.text, document.messages, document.ids].count(None) == 2 if document.ids is None else True
        assert document.text or document.messages or len(document.ids)
        if document.text is not None:
            document.text.encode("utf-8")
            assert "\r" not in document.text or options.newlines == "keep"
