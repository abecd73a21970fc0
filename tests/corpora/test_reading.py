"""Reading files into documents: nothing lost, nothing invented, every bad input a clear sentence."""

import codecs
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabtrim_core.corpora import (
    BadRecord,
    CorpusFile,
    Document,
    ReadingOptions,
    limits,
    read_documents,
    read_file,
    text_blocks,
)
from vocabtrim_core.errors import CorpusError


def read(name: str, data: bytes, options: ReadingOptions | None = None) -> tuple[list[Document], list[BadRecord]]:
    bad: list[BadRecord] = []
    return list(read_documents(CorpusFile(name, data), bad.append, options)), bad


def read_text(name: str, data: bytes) -> str:
    return "".join(document.text or "" for document in read(name, data)[0])


def error_of(name: str, data: bytes) -> str:
    with pytest.raises(CorpusError) as caught:
        read(name, data)
    return str(caught.value)


@given(st.text(alphabet="ab \n", max_size=400), st.integers(1, 30))
def test_blocks_join_to_the_text(text: str, size: int) -> None:
    """Bug: a separator dropped or doubled at a cut, an endless loop on an unbroken run, an oversized block."""
    blocks = list(text_blocks(text, size))
    assert "".join(blocks) == text
    assert all(1 <= len(block) <= size for block in blocks)


@given(st.text(max_size=5_000), st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]), st.sampled_from([".txt", ".md"]))
def test_text_files_lose_no_character(text: str, encoding: str, suffix: str) -> None:
    """Bug: a byte order mark kept as text, a character lost or mangled by one of the encodings."""
    text = "x" + text.replace("\0", "").replace("\r", "")
    assert read_text("file" + suffix, text.encode(encoding)) == text


def test_blocks_end_at_paragraphs() -> None:
    """Bug: paragraphs cut in the middle although a blank line is near, so that tokens at cuts are split."""
    paragraph = "word " * 99 + "end."
    blocks = list(text_blocks("\n\n".join([paragraph] * 40)))
    assert len(blocks) > 5
    assert all(block.endswith("end.\n\n") for block in blocks[:-1])
    assert all(1_000 <= len(block) <= 2_000 for block in blocks[:-1])


def test_document_lines_are_line_numbers() -> None:
    """Bug: a problem reported at the wrong line of a file."""
    text = "".join(f"{i}\n" for i in range(1, 3_000))
    for document in read("a.txt", text.encode())[0]:
        assert document.text is not None and document.text.startswith(f"{document.line}\n")


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_are_normalised(end: str) -> None:
    """Bug: Windows files count a carriage return token at each line, and paragraphs are not found in them."""
    assert read_text("a.txt", f"one{end}{end}two{end}".encode()) == "one\n\ntwo\n"
    documents, bad = read("a.jsonl", f'{{"text": "one"}}{end}{{"text": "two"}}{end}'.encode())
    assert [document.text for document in documents] == ["one", "two"] and not bad


@pytest.mark.parametrize("bom, encoding", [(codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")])
def test_utf16_of_either_byte_order(bom: bytes, encoding: str) -> None:
    """Bug: text saved as "Unicode" on Windows is refused as binary because of its NUL bytes."""
    assert read_text("a.txt", bom + "Grüße, 世界 😀".encode(encoding)) == "Grüße, 世界 😀"
    assert read("a.jsonl", bom + '{"text": "né"}'.encode(encoding))[0] == [Document("né", None, 1)]


@pytest.mark.parametrize(
    "name, data, words",
    [
        ("a.txt", b"", ["a.txt", "empty"]),
        ("a.jsonl", b"", ["a.jsonl", "empty"]),
        ("a.md", b" \r\n\t\n", ["empty"]),
        ("a.txt", codecs.BOM_UTF8, ["empty"]),
        ("a.txt", b"\x7fELF\x02\x01\x00\x00\xff\xfe", ["binary"]),
        ("a.txt", b"plain\0text", ["binary"]),
        ("a.txt", codecs.BOM_UTF16_LE + b"a\0\0\0", ["binary"]),
        ("a.txt", codecs.BOM_UTF16_LE + b"a\0b", ["UTF-16"]),
        ("a.txt", "no mark".encode("utf-16-le"), ["byte order mark"]),
        ("a.pdf", b"text", ["a.pdf", ".jsonl"]),
        ("noext", b"text", ["noext"]),
    ],
)
def test_unusable_files(name: str, data: bytes, words: list[str]) -> None:
    """Bug: a traceback, or a message that does not say which file and what is wrong with it."""
    message = error_of(name, data)
    assert all(word in message for word in words), message


def test_too_large(tmp_path, monkeypatch) -> None:
    """Bug: an upload or file of any size is taken into memory."""
    monkeypatch.setattr(limits, "MAX_FILE_BYTES", 10)
    path = tmp_path / "a.txt"
    path.write_text("more than ten bytes")
    with pytest.raises(CorpusError, match=r"a\.txt is too large"):
        read_file(path)
    assert "split it" in error_of("a.txt", b"more than ten bytes")


def test_read_file(tmp_path) -> None:
    """Bug: a missing file or a folder ends in a traceback."""
    (tmp_path / "a.txt").write_bytes(b"text\r\n")
    assert read_file(tmp_path / "a.txt") == CorpusFile("a.txt", b"text\r\n")
    with pytest.raises(CorpusError, match="does not exist"):
        read_file(tmp_path / "none.txt")
    with pytest.raises(CorpusError, match="is a folder"):
        read_file(tmp_path)
    with pytest.raises(CorpusError, match="cannot be read"):
        read_file("a\0b.txt")


CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    "line, reason",
    [
        ('{"text": "cut', "not valid JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"title": "x"}', "no text or chat in a field that is known to hold one; it has `title`"),
        ('{"text": 5}', "`text` is not a string"),
        ('{"text": " "}', "`text` is empty"),
        (r'{"text": "\ud83d"}', "half a surrogate pair"),
        ('{"text": ' + "[" * 100_000, "not valid JSON"),
        ('{"text": ' + "9" * 5_000 + "}", "not valid JSON"),
        ('{"messages": []}', "`messages` is not a list of messages"),
        ('{"messages": "Hi"}', "`messages` is not a list of messages"),
        ('{"messages": ["Hi", 5]}', "message 1 is not an object"),
        ('{"messages": [{"name": "user"}]}', "message 1 is not an object"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": true}]}', "content of message 2"),
        ('{"messages": [{"role": "", "content": "a"}]}', "message 1 is from an unknown speaker"),
        ('{"messages": [{"role": "user", "content": ""}]}', "no message has any text"),
    ],
)
def test_bad_lines_are_skipped_and_reported(line: str, reason: str) -> None:
    """Bug: one bad line loses a whole file, or is skipped without a word; a file of bad lines alone passes as empty."""
    good = json.dumps({"messages": CHAT})
    documents, bad = read("a.jsonl", f"{good}\n\n{line}\n{good}\n".encode())
    assert documents == [Document(None, tuple(CHAT), 1), Document(None, tuple(CHAT), 4)]
    assert [(record.file, record.line) for record in bad] == [("a.jsonl", 3)]
    assert reason in bad[0].reason
    message = error_of("a.jsonl", f"{line}\n{line}\n".encode())
    assert "no usable record" in message and "line 1" in message and reason in message


def test_long_records_are_refused(monkeypatch) -> None:
    """Bug: a record of hundreds of megabytes is tokenized in one go and exhausts the memory."""
    monkeypatch.setattr(limits, "MAX_RECORD_BYTES", 30)
    documents, bad = read("a.jsonl", b'{"text": "short"}\n{"text": "' + b"x" * 30 + b'"}')
    assert len(documents) == 1 and "longer than" in bad[0].reason


def test_messages_win_over_text() -> None:
    """Bug: a data set with both fields is counted without its chat markup, or twice."""
    assert read("a.jsonl", json.dumps({"text": "x", "messages": CHAT}).encode())[0] == [Document(None, tuple(CHAT), 1)]


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1), st.booleans())
def test_jsonl_texts_come_back_unchanged(texts: list[str], ascii_only: bool) -> None:
    """Bug: a line separator inside a JSON string (U+2028, U+0085) ends the record."""
    data = "\n".join(json.dumps({"text": text}, ensure_ascii=ascii_only) for text in texts).encode()
    documents, bad = read("a.jsonl", data, ReadingOptions(newlines="keep"))
    assert [document.text for document in documents] == texts and not bad
