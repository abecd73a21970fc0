"""Encodings: told by their mark, by validity, by a guess that is owned up to, or by the user."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabtrim_core.corpora import BadRecord, CorpusFile, ReadingOptions, limits, plan_shards, read_documents
from vocabtrim_core.errors import CorpusError, SettingError

GERMAN = "Die größte Schüssel steht über den Äpfeln, und für die Gäste wäre schönes Geschirr nötig.\n" * 20
RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему.\n" * 20


def read(data: bytes, name: str = "a.txt", encoding: str | None = None) -> tuple[str, str, list[BadRecord]]:
    """The text of a file, the warning about it, and what was reported."""
    bad: list[BadRecord] = []
    options, file = ReadingOptions(encoding=encoding), CorpusFile(name, data)
    text = "".join(document.text or "" for document in read_documents(file, bad.append, options))
    return text, plan_shards([file], options)[0].warning, bad


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_needs_no_guess(encoding: str) -> None:
    """Bug: a byte order mark is counted as text, or a Unicode file is guessed at."""
    assert read(RUSSIAN.encode(encoding)) == (RUSSIAN, "", [])


@pytest.mark.parametrize("text, encoding", [(GERMAN, "cp1252"), (RUSSIAN, "cp1251"), (RUSSIAN, "koi8-r")])
def test_guesses_are_said(text: str, encoding: str) -> None:
    """Bug: text in an old encoding is refused, or read as garbage without a word."""
    read_text, warning, bad = read(text.encode(encoding))
    assert read_text == text and not bad
    assert warning.startswith("a.txt is not valid UTF-8 (byte ") and "guess" in warning


@given(st.sampled_from(["cp1252", "latin-1", "utf-16-le", "utf-16-be", "gb18030", "utf-8", "UTF8"]))
def test_the_users_choice(encoding: str) -> None:
    """Bug: the choice is overruled by a guess, or needs the very spelling that Python uses."""
    assert read(GERMAN.encode(encoding), encoding=encoding) == (GERMAN, "", [])


@pytest.mark.parametrize("name", ["nonsense", "base64", "rot13", "", "utf-8\0"])
def test_unknown_encodings(name: str) -> None:
    """Bug: a codec that is none of text ends in a traceback."""
    if name:
        with pytest.raises(SettingError, match="no text encoding"):
            read(b"text", encoding=name)
    else:
        assert read(b"text", encoding=name)[0] == "text"


@pytest.mark.parametrize("chunk", [1, 3, 1_000])
@pytest.mark.parametrize("encoding", ["utf-16", "shift_jis", "utf-8-sig"])
def test_characters_cut_by_a_chunk(monkeypatch, chunk: int, encoding: str) -> None:
    """Bug: a character, or the byte order mark, that two chunks share is lost."""
    monkeypatch.setattr(limits, "CHUNK_BYTES", chunk)
    text = '{"text": "日本語の文章"}\n' * 5
    options = ReadingOptions(encoding=encoding)
    documents = list(read_documents(CorpusFile("a.jsonl", text.encode(encoding)), print, options))
    assert [document.text for document in documents] == ["日本語の文章"] * 5


def test_single_bad_lines_of_utf8() -> None:
    """Bug: one damaged line in a UTF-8 file makes it be read as another encoding, as garbage."""
    lines = [f"größer {number}\n".encode() for number in range(50)]
    lines[20] = "größer\n".encode("latin-1")
    text, warning, bad = read(b"".join(lines))
    assert text == b"".join(lines[:20] + lines[21:]).decode() and not warning
    assert bad == [BadRecord("a.txt", 21, "bytes that are not valid UTF-8")]


def test_bad_bytes_of_other_encodings() -> None:
    """Bug: a damaged UTF-16 file raises a Unicode error, or swaps characters without a word."""
    data = codecs.BOM_UTF16_LE + "one\ntwo\n".encode("utf-16-le") + b"\x00\xd8" + "x\nlast\n".encode("utf-16-le")
    text, _, bad = read(data)
    assert text == "one\ntwo\nlast\n"
    assert bad == [BadRecord("a.txt", 3, "bytes that are not valid UTF-16")]


@pytest.mark.parametrize(
    "name, data", [("a.jsonl", b'{"text": "\xe9"}'), ("a.json", b'["\xe9"]'), ("a.csv", b"text\n\xe9")]
)
def test_bad_bytes_in_records(name: str, data: bytes) -> None:
    """Bug: replacement characters are counted as if they were the text's."""
    with pytest.raises(CorpusError, match="not valid UTF-8"):
        read(data, name, "utf-8")


def test_late_binary_lines() -> None:
    """Bug: NUL bytes far into a text file are counted, as only the start was looked at."""
    text, _, bad = read(b"good\n" * 400_000 + b"bad\0\ngood\n")
    assert text == "good\n" * 400_001
    assert [record.line for record in bad] == [400_001] and "NUL" in bad[0].reason
