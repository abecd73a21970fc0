"""Token counts of a corpus: a histogram over the vocabulary that can be merged, saved and traced to its files.

Each document is counted on one of two sides, calibration or held-out. The side depends on the document's content alone,
so that it is the same in every file, order and run, and text that occurs twice never sits on both sides.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, reduce
from pathlib import Path
from typing import TypeVar

import numpy as np

from vocabtrim_core.corpora import BadRecord, CorpusFile, Document, read_documents
from vocabtrim_core.errors import CorpusError, SettingError, TokenizerError
from vocabtrim_core.tokenization import Tokenizer

FORMAT = "vocabtrim token counts 1"
CHUNK_BYTES = 500_000
MAX_BAD_RECORDS = 20
MAX_COUNTS_BYTES = 256 * 1024 * 1024

Progress = Callable[[float, str], None]


@dataclass(frozen=True, order=True)
class CountedFile:
    """A file that was counted: its name, the sha256 of its content, and what was found in it."""

    name: str
    sha256: str
    documents: int
    tokens: int


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """How often each token id occurs, apart for calibration and held-out documents, with provenance.

    `calibration` and `held_out` are int64[V] with V = `vocab_size`, the tokenizer's. `holdout` is the share of
    documents that was asked to be held out. `bad_records` are the first `MAX_BAD_RECORDS` of `bad_record_count`
    skipped lines. `files` and `bad_records` are in sorted order, so that merging does not depend on order.
    """

    calibration: np.ndarray
    held_out: np.ndarray
    calibration_documents: int
    held_out_documents: int
    files: tuple[CountedFile, ...]
    tokenizer_name: str
    tokenizer_fingerprint: str
    vocab_size: int
    holdout: float
    bad_records: tuple[BadRecord, ...] = ()
    bad_record_count: int = 0

    @cached_property
    def total(self) -> np.ndarray:
        """int64[V]: both sides together."""
        return self.calibration + self.held_out

    @cached_property
    def tokens(self) -> int:
        """Tokens counted on both sides."""
        return int(self.total.sum())

    @property
    def documents(self) -> int:
        """Documents counted on both sides."""
        return self.calibration_documents + self.held_out_documents

    @cached_property
    def distinct(self) -> int:
        """Token ids that occur at least once on either side."""
        return int(np.count_nonzero(self.total))

    @cached_property
    def digest(self) -> str:
        """sha256 hex digest of the counts and their provenance: the key to keep derived results under."""
        digest = hashlib.sha256(self._provenance())
        digest.update(self.calibration.tobytes())
        digest.update(self.held_out.tobytes())
        return digest.hexdigest()

    def merge(self, other: TokenCounts) -> TokenCounts:
        """The counts of both together.

        Raises TokenizerError where the tokenizers differ and SettingError where the held-out shares do (a document
        could then be held out in one and not in the other).
        """
        if self.tokenizer_fingerprint != other.tokenizer_fingerprint or self.vocab_size != other.vocab_size:
            raise TokenizerError(
                f"Counts of two different tokenizers ({self.tokenizer_name} and {other.tokenizer_name}) cannot be "
                "merged; count both corpora with the same one."
            )
        if self.holdout != other.holdout:
            raise SettingError(
                f"Counts with different held-out shares ({self.holdout:g} and {other.holdout:g}) cannot be merged; "
                "count both corpora with the same share."
            )
        return TokenCounts(
            calibration=self.calibration + other.calibration,
            held_out=self.held_out + other.held_out,
            calibration_documents=self.calibration_documents + other.calibration_documents,
            held_out_documents=self.held_out_documents + other.held_out_documents,
            files=tuple(sorted(self.files + other.files)),
            # Of two names for one tokenizer, the choice must not depend on which side was merged into which.
            tokenizer_name=min(self.tokenizer_name, other.tokenizer_name),
            tokenizer_fingerprint=self.tokenizer_fingerprint,
            vocab_size=self.vocab_size,
            holdout=self.holdout,
            bad_records=tuple(sorted(self.bad_records + other.bad_records)[:MAX_BAD_RECORDS]),
            bad_record_count=self.bad_record_count + other.bad_record_count,
        )

    def to_bytes(self) -> bytes:
        """A compressed npz file without pickle; equal counts give equal bytes."""
        buffer = io.BytesIO()
        provenance = np.frombuffer(self._provenance(), dtype=np.uint8)
        np.savez_compressed(buffer, calibration=self.calibration, held_out=self.held_out, provenance=provenance)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the file") -> TokenCounts:
        """What `to_bytes` wrote. CorpusError, which calls it `name`, where it is anything else."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if sum(member.file_size for member in archive.infolist()) > MAX_COUNTS_BYTES:
                    raise ValueError("too large")
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                content = {key: arrays[key] for key in ("calibration", "held_out", "provenance")}
        # zipfile, zlib and numpy raise a dozen kinds of error on bytes that are not such a file.
        except Exception as error:
            raise CorpusError(_not_counts(name)) from error
        try:
            return _restored(content["calibration"], content["held_out"], content["provenance"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CorpusError(_not_counts(name)) from error

    def save(self, path: str | Path) -> None:
        """Write to `path`; a failure leaves nothing half-written there. CorpusError where it cannot be written."""
        path = Path(path)
        try:
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(self.to_bytes())
                os.chmod(temporary, 0o644)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise CorpusError(f"{path} cannot be written: {error.strerror}.") from None

    @classmethod
    def load(cls, path: str | Path) -> TokenCounts:
        """What `save` wrote. CorpusError where there is no such file or it is anything else."""
        path = Path(path)
        try:
            if path.stat().st_size > MAX_COUNTS_BYTES:
                raise CorpusError(f"{path} is too large to be a counts file.")
            data = path.read_bytes()
        except OSError as error:
            raise CorpusError(f"The counts file {path} cannot be read: {error.strerror}.") from None
        return cls.from_bytes(data, str(path))

    def _provenance(self) -> bytes:
        """All fields but the two histograms, as JSON."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.type != "np.ndarray"}
        return json.dumps({"format": FORMAT, **plain}, sort_keys=True, default=asdict).encode()


Record = TypeVar("Record", CountedFile, BadRecord, TokenCounts)


def count_files(
    files: Sequence[CorpusFile], tokenizer: Tokenizer, holdout: float = 0.1, on_progress: Progress | None = None
) -> TokenCounts:
    """Count the tokens of `files`, holding out about `holdout` of the documents.

    Chats are rendered with the tokenizer's chat template; control-token text in a corpus is counted as plain text.
    `on_progress(share, message)` is called after each chunk, with the share done in 0..1; what it raises cancels.
    Raises CorpusError for no files or a file that cannot be used (see `read_documents`), TokenizerError for chats where
    there is no chat template, SettingError for a `holdout` outside 0 <= holdout < 1.
    """
    if not 0 <= holdout < 1:
        raise SettingError(f"The held-out share is {holdout:g}; it must be at least 0 and less than 1.")
    if not files:
        raise CorpusError("There is nothing to count; choose at least one file.")
    total = sum(len(file.data) for file in files)
    before = 0

    def report(done: int, message: str) -> None:
        if on_progress is not None:
            on_progress((before + done) / total, message)

    counted = []
    for file in files:
        counted.append(_count_file(file, tokenizer, float(holdout), report))
        before += len(file.data)
    return reduce(TokenCounts.merge, counted)


def is_held_out(content: bytes, holdout: float) -> bool:
    """Whether a document with this content is held out: a hash of it, as a fraction, below `holdout`."""
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest) < holdout * 2**64


def _count_file(
    file: CorpusFile, tokenizer: Tokenizer, holdout: float, report: Callable[[int, str], None]
) -> TokenCounts:
    counts = np.zeros((2, tokenizer.vocab_size), dtype=np.int64)  # [calibration or held-out, V]
    documents = [0, 0]
    bad = _BadRecords()
    done = 0
    for chunk in _chunks(read_documents(file, bad.add)):
        encoded = _encode(file.name, [document for document, _ in chunk], tokenizer, bad.add)
        sides = [is_held_out(content, holdout) for _, content in chunk]
        for side in (False, True):
            rows = [ids for ids, row_side in zip(encoded, sides, strict=True) if ids is not None and row_side == side]
            flat = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64, count=sum(map(len, rows)))
            counts[int(side)] += np.bincount(flat, minlength=tokenizer.vocab_size)
            documents[side] += len(rows)
        done += sum(len(content) for _, content in chunk)
        # Content in memory may be larger than the file, which may be UTF-16; the end is reported below.
        report(min(done, len(file.data)), f"{file.name}: {counts.sum():,} tokens")
    report(len(file.data), f"{file.name}: {counts.sum():,} tokens")
    if not sum(documents):
        raise CorpusError(f"{file.name} has no usable chat; line {bad.records[0].line}: {bad.records[0].reason}")
    return TokenCounts(
        calibration=counts[0],
        held_out=counts[1],
        calibration_documents=documents[0],
        held_out_documents=documents[1],
        files=(CountedFile(file.name, file.sha256, sum(documents), int(counts.sum())),),
        tokenizer_name=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        holdout=holdout,
        bad_records=tuple(sorted(bad.records)[:MAX_BAD_RECORDS]),
        bad_record_count=bad.count,
    )


def _chunks(documents: Iterable[Document]) -> Iterator[list[tuple[Document, bytes]]]:
    """Runs of documents, each with its content as bytes, of about `CHUNK_BYTES` together."""
    chunk: list[tuple[Document, bytes]] = []
    size = 0
    for document in documents:
        content = (json.dumps(document.messages) if document.text is None else document.text).encode()
        chunk.append((document, content))
        size += len(content)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _encode(
    name: str, documents: list[Document], tokenizer: Tokenizer, on_bad: Callable[[BadRecord], None]
) -> list[list[int] | None]:
    """Token ids of each document; None, reported to `on_bad`, for a chat that the chat template refuses."""
    texts = iter(tokenizer.encode_texts([document.text for document in documents if document.text is not None]))
    encoded: list[list[int] | None] = []
    for document in documents:
        if document.messages is None:
            encoded.append(next(texts))
            continue
        if not tokenizer.has_chat_template:
            raise TokenizerError(
                f"{name} holds chats, but the tokenizer {tokenizer.name} has no chat template to render them with; "
                "use the tokenizer of a chat model, or text."
            )
        try:
            encoded.append(tokenizer.encode_chat(document.messages))
        except TokenizerError as error:
            on_bad(BadRecord(name, document.line, str(error)))
            encoded.append(None)
    return encoded


class _BadRecords:
    """How many records were bad, and the first of them (a file may have millions)."""

    def __init__(self) -> None:
        self.count = 0
        self.records: list[BadRecord] = []

    def add(self, bad: BadRecord) -> None:
        self.count += 1
        self.records = sorted([*self.records, bad])[:MAX_BAD_RECORDS]


def _restored(calibration: np.ndarray, held_out: np.ndarray, provenance: np.ndarray) -> TokenCounts:
    """TokenCounts from the parts of a counts file; ValueError, TypeError or KeyError where they do not fit."""
    record = json.loads(provenance.tobytes())
    if not isinstance(record, dict) or record.pop("format") != FORMAT:
        raise ValueError("another format")
    for array in (calibration, held_out):
        if array.dtype != np.int64 or array.shape != (record["vocab_size"],) or (array < 0).any():
            raise ValueError("not a histogram")
    record["files"] = tuple(_typed(CountedFile(**file)) for file in record["files"])
    record["bad_records"] = tuple(_typed(BadRecord(**bad)) for bad in record["bad_records"])
    return _typed(TokenCounts(calibration=calibration, held_out=held_out, **record))


def _typed(record: Record) -> Record:
    """`record`, a dataclass, after a check of its plain fields' types; ValueError where one is of another."""
    for field in fields(record):
        if field.type in ("str", "int", "float") and type(getattr(record, field.name)).__name__ != field.type:
            raise ValueError(f"{field.name} is not of type {field.type}")
    return record


def _not_counts(name: str) -> str:
    return f"{name} is not a counts file of this program, or is damaged; count the corpus again."
