"""Files of text and of chats, read whole and cut into documents.

`.txt` and `.md` hold plain text; `.jsonl` holds one JSON object a line with a `text` string or a `messages` list of
`{"role": ..., "content": ...}`. A bad JSONL line is reported and skipped; a file with nothing usable is an error.
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from vocabtrim_core.corpora.documents import BadRecord, CorpusFile, Document
from vocabtrim_core.errors import CorpusError

SUFFIXES = (".txt", ".md", ".jsonl")
MAX_FILE_BYTES = 200 * 1024 * 1024
MAX_RECORD_CHARACTERS = 10_000_000
BLOCK_CHARACTERS = 2_000


def read_file(path: str | Path) -> CorpusFile:
    """The file at `path`, whole. CorpusError where it is missing, not a file, unreadable or too large."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise CorpusError(_too_large(path.name, size))
        return CorpusFile(path.name, path.read_bytes())
    except FileNotFoundError:
        raise CorpusError(f"{path} does not exist.") from None
    except IsADirectoryError:
        raise CorpusError(f"{path} is a folder; name the files in it.") from None
    except (OSError, ValueError) as error:
        raise CorpusError(f"{path} cannot be read: {error}.") from None


def read_documents(file: CorpusFile, on_bad: Callable[[BadRecord], None]) -> Iterator[Document]:
    """The documents of `file`, in order.

    Plain text is cut into blocks (see `text_blocks`), so that a share of it can be held out; a chat or a `text` field
    is one document. `on_bad` is called for each JSONL line that is skipped.
    Raises CorpusError for a file that is empty, too large, binary, in an unknown encoding, of an unknown kind, or
    without one usable record.
    """
    suffix = Path(file.name).suffix.lower()
    if suffix not in SUFFIXES:
        raise CorpusError(f"{file.name} is not a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file.")
    text = decode_text(file)
    if suffix == ".jsonl":
        yield from _jsonl_documents(file.name, text, on_bad)
    else:
        line = 1
        for block in text_blocks(text):
            yield Document(block, None, line)
            line += block.count("\n")


def decode_text(file: CorpusFile) -> str:
    """The content as text with `\\n` line ends: UTF-8 (with or without a byte order mark) or UTF-16 with one.

    Raises CorpusError for anything else, and for a file without visible text.
    """
    if len(file.data) > MAX_FILE_BYTES:
        raise CorpusError(_too_large(file.name, len(file.data)))
    encoding = "utf-16" if file.data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = file.data.decode(encoding)
    except UnicodeDecodeError as error:
        if b"\0" in file.data and encoding != "utf-16":
            raise CorpusError(_binary(file.name)) from None
        name = "UTF-16" if encoding == "utf-16" else "UTF-8"
        raise CorpusError(
            f"{file.name} is not valid {name} (byte {error.start:,}); save it as UTF-8 and try again."
        ) from None
    if "\0" in text:
        raise CorpusError(_binary(file.name))
    if not text or text.isspace():
        raise CorpusError(f"{file.name} is empty; choose a file with text in it.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def text_blocks(text: str, size: int = BLOCK_CHARACTERS) -> Iterator[str]:
    """`text` cut into blocks of at most `size` characters that, joined, are `text` again.

    A cut is made after the last blank line in the second half of the window, else after the last line end there,
    else before the last space there, else at `size`.
    """
    start = 0
    while len(text) - start > size:
        middle, end = start + size // 2, start + size
        for separator, offset in (("\n\n", 2), ("\n", 1), (" ", 0)):
            found = text.rfind(separator, middle, end)
            if found > start:
                end = found + offset
                break
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _jsonl_documents(name: str, text: str, on_bad: Callable[[BadRecord], None]) -> Iterator[Document]:
    first_bad: BadRecord | None = None
    found = False
    # Not splitlines(): U+2028 and its like may stand inside a JSON string.
    for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
        if not line.strip():
            continue
        try:
            document = _parse_record(line, number)
        except ValueError as error:
            bad = BadRecord(name, number, str(error))
            first_bad = first_bad or bad
            on_bad(bad)
        else:
            found = True
            yield document
    if not found and first_bad is not None:
        raise CorpusError(
            f"{name} has no usable line; the first problem is in line {first_bad.line}: {first_bad.reason}."
        )


def _parse_record(line: str, number: int) -> Document:
    """The document in one JSONL line; ValueError, with the reason as its text, where there is none."""
    if len(line) > MAX_RECORD_CHARACTERS:
        raise ValueError(f"longer than {MAX_RECORD_CHARACTERS:,} characters")
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON (a number too long or brackets too deep)") from None
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if "messages" in record:
        return Document(None, _parse_messages(record["messages"]), number)
    if "text" in record:
        return Document(_checked_text(record["text"], "`text`"), None, number)
    raise ValueError("neither a `text` nor a `messages` field")


def _parse_messages(messages: object) -> tuple[dict[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` is not a list of messages")
    parsed = []
    for position, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise ValueError(f"message {position} is not an object with `role` and `content`")
        parsed.append(
            {
                "role": _checked_text(message["role"], f"the role of message {position}"),
                "content": _checked_text(message["content"], f"the content of message {position}", may_be_blank=True),
            }
        )
    if not any(message["content"].strip() for message in parsed):
        raise ValueError("no message has any text")
    return tuple(parsed)


def _checked_text(value: object, what: str, may_be_blank: bool = False) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is not a string")
    if not may_be_blank and not value.strip():
        raise ValueError(f"{what} is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        # JSON can spell half a surrogate pair as \ud83d; no tokenizer can encode it.
        raise ValueError(f"{what} has half a surrogate pair, which is not text") from None
    return value


def _binary(name: str) -> str:
    return (
        f"{name} looks like a binary file (it has NUL bytes); choose a text file in UTF-8, or in UTF-16 with a byte "
        "order mark."
    )


def _too_large(name: str, size: int) -> str:
    return f"{name} has {size / 2**20:,.0f} MiB, more than the {MAX_FILE_BYTES // 2**20} MiB read at once; split it."
