"""JSON: a record a line, or a file that is an array of records or an object with such an array."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from json import JSONDecodeError

import orjson

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.documents import Document, ReadingOptions, Report
from vocabtrim_core.corpora.encodings import MARK_INVALID
from vocabtrim_core.corpora.fields import is_record, parse_record
from vocabtrim_core.corpora.shards import Reader, Shard, open_shard

_WHITE_SPACE = re.compile(r"[ \t\r\n]+")


def jsonl_documents(shard: Shard, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """The document of each line; blank lines are none."""
    with open_shard(shard) as reader:
        for number, line in enumerate(lines(reader), start=1):
            try:
                document = parse_record(orjson.loads(line or b""), number, options)
            except ValueError:
                yield from _second_look(line if line is None else bytes(line), number, options, report)
            else:
                yield document


def json_documents(shard: Shard, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """The documents in an array of records, in the arrays of objects of an object, or in values one after another.

    Records are decoded one at a time. After a place that is not JSON the rest cannot be told apart, so it is skipped.
    """
    with open_shard(shard) as reader:
        values = _Values(reader)
        try:
            for line, record in _records(values, options, report):
                try:
                    yield parse_record(record, line, options, check_unicode=True)
                except ValueError as error:
                    report(line, str(error))
        except JSONDecodeError as error:
            report(values.line, f"not valid JSON ({error.msg}), so the rest of the file was skipped")
        except (_NotJsonError, RecursionError) as error:
            reason = "brackets too deep" if isinstance(error, RecursionError) else str(error)
            report(values.line, f"not valid JSON ({reason}), so the rest of the file was skipped")


def lines(reader: Reader) -> Iterator[bytes | memoryview | None]:
    """The lines, without their LF, not copied where that can be; None for one longer than `MAX_RECORD_BYTES`."""
    chunks: list[bytes | memoryview] = []  # Of the line that has not ended.
    size = 0
    while chunk := reader.read(limits.CHUNK_BYTES):
        view = memoryview(chunk)
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            size += end - start
            if size > limits.MAX_RECORD_BYTES:
                yield None
            elif chunks:
                yield b"".join([*chunks, view[start:end]])
            else:
                yield view[start:end]
            chunks, size = [], 0
            start = end + 1
        size += len(chunk) - start
        if size <= limits.MAX_RECORD_BYTES:
            chunks.append(view[start:])
    if size:
        yield b"".join(chunks) if size <= limits.MAX_RECORD_BYTES else None


def _second_look(line: bytes | None, number: int, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """The documents of a line that the fast way refused: most often one that is blank or bad."""
    if line is None:
        report(number, f"longer than {limits.MAX_RECORD_BYTES:,} bytes")
    elif line.isspace() or not line:
        return
    elif b"\r" in line.rstrip(b"\r") and not _is_json(line):
        # On old Macs CR ends a line, and no string in JSON holds one as it is.
        for part in line.split(b"\r"):
            yield from _second_look(part, number, options, report)
    else:
        try:
            # The json library also takes NaN, numbers of any size and, in fields that are not used, any string.
            document = parse_record(_load(line), number, options, check_unicode=True)
        except ValueError as error:
            report(number, str(error))
        else:
            yield document


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except JSONDecodeError:
        return False
    return True


def _load(line: bytes) -> object:
    try:
        return json.loads(line.decode("utf-8", MARK_INVALID))
    except JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON (a number too long or brackets too deep)") from None


def _records(values: _Values, options: ReadingOptions, report: Report) -> Iterator[tuple[int, object]]:
    """Each record with its line, of every value of the file."""
    while (start := values.peek()) != "":
        if start == "[":
            yield from _elements(values)
        elif start == "{":
            line = values.line
            whole = values.try_value()
            if whole is not None and (is_record(whole, options) or not _has_array(whole)):
                values.skip_value()
                yield line, whole
            else:
                yield from _arrays_of_object(values, report)
        else:
            yield values.line, values.value()


def _has_array(value: dict) -> bool:
    return any(isinstance(item, list) and item and isinstance(item[0], dict) for item in value.values())


def _elements(values: _Values) -> Iterator[tuple[int, object]]:
    """The elements of the array that comes next."""
    values.expect("[")
    if values.peek() == "]":
        values.expect("]")
        return
    while True:
        values.peek()
        line = values.line
        yield line, values.value()
        if values.peek() == "]":
            values.expect("]")
            return
        values.expect(",")


def _arrays_of_object(values: _Values, report: Report) -> Iterator[tuple[int, object]]:
    """The elements of every array of objects in the object that comes next; other arrays in it are reported."""
    values.expect("{")
    while values.peek() != "}":
        key, line = values.value(), values.line
        if not isinstance(key, str):
            raise _NotJsonError("a key is not a string")
        values.expect(":")
        if values.peek() == "[":
            taken: bool | None = None
            for element_line, element in _elements(values):
                if taken is None:
                    taken = isinstance(element, dict)
                if taken:
                    yield element_line, element
            if taken is False:
                report(line, f"the array `{key[:40]}` holds no records, so it was left out")
        else:
            value = values.value()
            if isinstance(value, dict) and _has_array(value):
                report(
                    line, f"the records within `{key[:40]}` were left out; only arrays of the object itself are read"
                )
        if values.peek() == "}":
            break
        values.expect(",")
    values.expect("}")


class _NotJsonError(Exception):
    """The stream is not JSON, or has a value that is too large."""


class _Values:
    """A cursor in a stream of JSON. It holds the value that comes next, not more than one record and a chunk."""

    def __init__(self, reader: Reader) -> None:
        self.line = 1
        self._reader = reader
        self._text = ""
        self._at = 0
        self._ended = False
        self._next: tuple[object, int] | None = None  # The value that comes next and where it ends, once decoded.
        self._decode_text = codecs.getincrementaldecoder("utf-8")(MARK_INVALID).decode
        self._decode_value = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            if space := _WHITE_SPACE.match(self._text, self._at):
                self._move(space.end())
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._fill()

    def expect(self, character: str) -> None:
        if (found := self.peek()) != character:
            raise _NotJsonError(f"“{found}” where “{character}” was expected" if found else "it ends too early")
        self._move(self._at + 1)

    def value(self) -> object:
        """The next value. JSONDecodeError or _NotJsonError where there is none that can be read."""
        self.peek()
        value, end = self._decoded()
        self._move(end)
        return value

    def try_value(self) -> dict | None:
        """The object that comes next, without passing it; None where it is too large, or no JSON so far."""
        self.peek()
        try:
            value, _ = self._decoded()
        except (JSONDecodeError, _NotJsonError):
            return None
        return value if isinstance(value, dict) else None

    def skip_value(self) -> None:
        """Pass the value that `try_value` gave."""
        _, end = self._decoded()
        self._move(end)

    def _decoded(self) -> tuple[object, int]:
        while self._next is None:
            try:
                value, end = self._decode_value(self._text, self._at)
            except JSONDecodeError:
                if self._ended:
                    raise
            except ValueError:
                raise _NotJsonError("a number is too long") from None
            else:
                # A number may go on in what was not read yet.
                if self._ended or end < len(self._text):
                    self._next = value, end
                    break
            if len(self._text) - self._at > limits.MAX_RECORD_BYTES:
                raise _NotJsonError(f"a value is longer than {limits.MAX_RECORD_BYTES:,} characters, or is cut short")
            # Twice as much each time, so that a long value is not decoded from its start too often.
            pending = len(self._text) - self._at
            self._fill(min(pending, limits.MAX_RECORD_BYTES + 1 - pending))
        return self._next

    def _move(self, end: int) -> None:
        if end > self._at:
            self.line += self._text.count("\n", self._at, end)
            self._at = end
            self._next = None

    def _fill(self, size: int = 0) -> None:
        parts = [self._text[self._at :]]
        self._at = 0
        size = max(size, limits.CHUNK_BYTES)
        while size > 0 and not self._ended:
            data = self._reader.read(size)
            self._ended = not data
            parts.append(self._decode_text(data, not data))
            size -= len(data)
        self._text = "".join(parts)
