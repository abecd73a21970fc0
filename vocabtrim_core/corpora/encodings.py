"""Which encoding a text file is in, and reading any of them as UTF-8."""

from __future__ import annotations

import codecs

from charset_normalizer import from_bytes

from vocabtrim_core.corpora import limits
from vocabtrim_core.corpora.documents import CorpusFile
from vocabtrim_core.errors import CorpusError, SettingError

SAMPLE_BYTES = 2**20
# The name of an error handler that decodes what is not valid to `INVALID`, half a surrogate pair, which no valid input
# gives and no UTF-8 can hold: so it marks the place until the line or record that it is in is reported.
MARK_INVALID = "vocabtrim.mark_invalid"
INVALID = "\udfff"

_GUESS_BYTES = 2**16
_MOSTLY = 0.9
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    # Before UTF-16, whose little-endian mark starts it.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _mark_invalid(error: UnicodeError) -> tuple[str, int]:
    if isinstance(error, UnicodeDecodeError):
        return INVALID, error.end
    raise error


codecs.register_error(MARK_INVALID, _mark_invalid)


def check_encoding(name: str) -> str:
    """The usual name of the encoding that a user chose. SettingError where there is none of that name."""
    try:
        codec = codecs.lookup(name)
        "".encode(name)
        codec.incrementaldecoder(MARK_INVALID)
    except (LookupError, UnicodeError, ValueError, TypeError):
        raise SettingError(
            f"There is no text encoding “{name}”. Choose one such as utf-8, utf-16, cp1252 or gb18030, or leave it to "
            "be detected."
        ) from None
    return codec.name


def detect_encoding(name: str, sample: bytes, whole: bool) -> tuple[str, str]:
    """The encoding of the file `name`, and a warning where that is a guess (else empty), from its first bytes.

    A byte order mark decides; else UTF-8 where the sample is (nearly all) valid, single bad lines being reported when
    they are read; else what charset-normalizer thinks best. `whole` says that the sample is all there is.
    Raises CorpusError for a binary file, for one without visible text, and where there is no good guess.
    """
    if whole and (not sample.strip() or any(sample == mark for mark, _ in _MARKS)):
        raise CorpusError(_empty(name))
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            return encoding, ""
    if b"\0" in sample:
        raise CorpusError(_binary(name))
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=whole)
        return "utf-8", ""
    except UnicodeDecodeError as error:
        first_bad = error.start
    lines = [line for line in sample.split(b"\n") if not line.isascii()]
    valid = sum(INVALID not in line.decode("utf-8", MARK_INVALID) for line in lines)
    if valid >= _MOSTLY * len(lines):
        return "utf-8", ""
    start = max(0, first_bad - _GUESS_BYTES // 2)
    best = from_bytes(sample[start : start + _GUESS_BYTES]).best()
    if best is None:
        raise CorpusError(
            f"{name} is not valid UTF-8 (byte {first_bad:,}), and its encoding cannot be told. Choose the encoding, or "
            "save the file as UTF-8."
        )
    warning = (
        f"{name} is not valid UTF-8 (byte {first_bad:,}); it was read as {best.encoding}, which is a guess. Choose the "
        "encoding if the text looks wrong."
    )
    return best.encoding, warning


def decode_text(file: CorpusFile) -> str:
    """The content as text with `\\n` line ends: UTF-8 (with or without a byte order mark) or UTF-16 with one.

    Raises CorpusError for anything else, and for a file without visible text: nothing is guessed here.
    """
    if len(file.data) > limits.MAX_FILE_BYTES:
        raise CorpusError(too_large(file.name, len(file.data)))
    encoding = "utf-16" if file.data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = file.data.decode(encoding)
    except UnicodeDecodeError as error:
        if b"\0" in file.data and encoding != "utf-16":
            raise CorpusError(_binary(file.name)) from None
        label = "UTF-16" if encoding == "utf-16" else "UTF-8"
        raise CorpusError(
            f"{file.name} is not valid {label} (byte {error.start:,}); save it as UTF-8 and try again."
        ) from None
    if "\0" in text:
        raise CorpusError(_binary(file.name))
    if not text or text.isspace():
        raise CorpusError(_empty(file.name))
    return normalise_newlines(text)


def normalise_newlines(text: str) -> str:
    """CRLF and CR as LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def too_large(name: str, size: int) -> str:
    """The sentence for a file that is more than what is read at once."""
    limit = limits.MAX_FILE_BYTES // 2**20
    return f"{name} has {size / 2**20:,.0f} MiB, more than the {limit} MiB read at once; split it."


def _binary(name: str) -> str:
    return (
        f"{name} looks like a binary file (it has NUL bytes); choose a text file in UTF-8, or in UTF-16 with a byte "
        "order mark."
    )


def _empty(name: str) -> str:
    return f"{name} is empty; choose a file with text in it."
