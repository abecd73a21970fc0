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
        '{"version": 1, "tags": ["x"], "train": [{"text": "a"}], "none": [], "test": [{"text": "b"}]}',
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
@pytest.mark.parametrize("compression", ["gzip", "zstd", "bz2", "xz"])
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


@pytest.mark.parametrize("compression", ["gzip", "zstd", "bz2", "xz"])
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
    st.sampled_from(list(COMPRESSIONS)),
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


# What other programs write


def test_a_zstd_window_that_is_too_large() -> None:
    """Bug: a file made with `zstd --long=31` is said to be damaged, and its owner fetches it again."""
    content = b'{"text": "a"}\n'
    window, block = bytes([(31 - 10) << 3]), (len(content) << 3 | 1).to_bytes(3, "little")
    frame = b"\x28\xb5\x2f\xfd\x00" + window + block + content
    message = error_of("a.jsonl.zst", frame)
    assert "window larger than the 128 MiB" in message and "without --long" in message and "damaged" not in message


@pytest.mark.parametrize("compression", ["gzip", "bz2", "xz"])
def test_zero_bytes_after_compressed_data(compression: str) -> None:
    """Bug: a file that was padded to whole blocks, as tapes and some disks do, is said to be damaged."""
    data = compressed(b'{"text": "a"}\n', compression)
    for padded in (data + bytes(512), data + bytes(4) + data + bytes(300_000)):
        documents, bad = read("a.jsonl" + COMPRESSIONS[compression], padded)
        assert set(texts_of(documents)) == {"a"} and not bad
    assert "damaged" in error_of("a.jsonl" + COMPRESSIONS[compression], data + bytes(512) + b"junk")


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "SEP=;"])
def test_the_separator_that_excel_writes(first: str) -> None:
    """Bug: `sep=;` is taken for the names of the columns."""
    data = f"{first}\r\nprompt;response\r\nOne, two?;Uno.\r\nTwo?\r\nThree?;Tres.".encode()
    documents, bad = read("a.csv", data)
    assert [document.messages[0]["content"] for document in documents if document.messages] == ["One, two?", "Three?"]
    assert [record.line for record in bad] == [4]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow", ".feather"])
def test_two_columns_of_one_name(suffix: str) -> None:
    """Bug: pyarrow's own error, or one of two `text` columns counted without a word."""
    table = pa.Table.from_arrays([pa.array(["one"]), pa.array([1]), pa.array(["two"])], ["text", "id", "text"])
    sink = io.BytesIO()
    if suffix == ".csv":
        sink.write(b"text,id,text\none,1,two\n")
    elif suffix == ".parquet":
        pq.write_table(table, sink)
    else:
        new = pa.ipc.new_stream if suffix == ".arrow" else pa.ipc.new_file
        with new(sink, table.schema) as writer:
            writer.write_table(table)
    assert "2 columns are called `text`" in error_of("a" + suffix, sink.getvalue())


def test_arrays_that_are_not_read_are_said() -> None:
    """Bug: of `{"train": [...], "more": {"test": [...]}, "extra": ["..."]}` only the first is counted, in silence."""
    data = {
        "train": [{"text": "a"}],
        "test": [{"text": "b"}],
        "more": {"dev": [{"text": "c"}]},
        "extra": ["d"],
        "n": {},
    }
    documents, bad = read("a.json", json.dumps(data).encode())
    assert texts_of(documents) == ["a", "b"]
    assert ["`more`" in bad[0].reason, "`extra`" in bad[1].reason, len(bad)] == [True, True, 2]


# Work and memory are bounded before they are spent


@pytest.mark.parametrize("row", ['"\n",' * 20_000, f'"{"x" * 600}\n",' * 200, "\n".join(['"a', *["b"] * 50_000])])
def test_csv_rows_without_an_end(monkeypatch, row: str) -> None:
    """Bug: a row of 80 million fields, or of 700 long ones, takes minutes and gigabytes: each line of it is short."""
    monkeypatch.setattr(limits, "MAX_RECORD_BYTES", 2**16)
    data = f'text,id\nfirst,1\n{row}"\nlast,2\n'.encode()
    documents, bad = read("a.csv", data)
    assert texts_of(documents) == ["first", "last"] and any("longer than" in record.reason for record in bad)


def test_csv_of_rows_without_an_end_is_given_up(monkeypatch) -> None:
    """Bug: a file whose quotes never end is read for minutes, a row at a time."""
    monkeypatch.setattr(limits, "MAX_RECORD_BYTES", 2**16)
    row = "\n".join(['"a', *["b"] * 50_000]) + "\n"
    with pytest.raises(CorpusError, match="rows without an end"):
        read("a.csv", f"text,id\nfirst,1\n{row * 4}".encode())


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_value_that_is_stored_once_for_many_rows(monkeypatch, suffix: str, nested: bool) -> None:
    """Bug: a parquet file of 42 kB with a dictionary of three large texts takes gigabytes, 1,024 rows at a time."""
    monkeypatch.setattr(limits, "FREE_BYTES", 2**25)
    texts = pa.array(["a" * 1_500_000, "b" * 1_500_000])
    column: pa.Array = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 512, pa.int32()), texts)
    if nested:
        roles = pa.DictionaryArray.from_arrays(pa.array([0] * 1024, pa.int32()), pa.array(["user"]))
        messages = pa.StructArray.from_arrays([roles, column], ["role", "content"])
        column = pa.ListArray.from_arrays(pa.array(range(0, 1025, 2), pa.int32()), messages)
    table = pa.table({"messages" if nested else "text": column})
    sink = io.BytesIO()
    if suffix == ".parquet":
        pq.write_table(table, sink, compression="zstd")
    else:
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
    assert len(sink.getvalue()) < 100_000
    lines: list[int] = []
    before = pa.total_allocated_bytes()
    documents = read_documents(CorpusFile("a" + suffix, sink.getvalue()), print)
    with peak_memory_below(2**27), pytest.raises(CorpusError, match="decompresses to far more"):
        lines.extend(document.line for document in documents)
    assert 0 < len(lines) < 30 and pa.total_allocated_bytes() - before < 2**25


def test_long_rows_among_others(monkeypatch) -> None:
    """Bug: a row beyond the limit takes its neighbours with it, or is counted where other formats refuse it."""
    monkeypatch.setattr(limits, "MAX_RECORD_BYTES", 1_000)
    for suffix in (".parquet", ".arrow"):
        data = records_file([{"text": text} for text in ("one", "x" * 2_000, "three")], suffix)
        documents, bad = read("a" + suffix, data)
        assert texts_of(documents) == ["one", "three"] and [record.line for record in bad] == [2]
        assert "longer than" in bad[0].reason


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".txt"])
def test_too_many_records_for_the_size(monkeypatch, suffix: str) -> None:
    """Bug: millions of records that compress to nothing take minutes each of which no bound on bytes ends."""
    monkeypatch.setattr(limits, "FREE_RECORDS", 1_000)
    content = {".json": "[" + "0," * 99_999 + "0]", ".csv": "text\n" + "a\n" * 99_999}.get(suffix, "0\n" * 99_999)
    message = error_of(f"a{suffix}.gz", compressed(content.encode(), "gzip"))
    assert "decompresses to far more" in message


def test_a_file_of_bad_records_is_given_up(monkeypatch) -> None:
    """Bug: a file of another kind is read to its end, a report for each of its millions of lines."""
    monkeypatch.setattr(limits, "MAX_BAD_RECORDS", 100)
    assert "nearly all it has" in error_of("a.jsonl", b"{}\n" * 1_000)
    documents, bad = read("a.jsonl", b'{}\n{"text": "a"}\n' * 1_000)
    assert len(documents) == len(bad) == 1_000
