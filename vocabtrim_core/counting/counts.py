"""Token counts of a corpus: a histogram over the vocabulary that can be merged, saved and traced to its files."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from vocabtrim_core.corpora import BadRecord, LeftOut
from vocabtrim_core.counting.ledger import Entry
from vocabtrim_core.counting.split import HELD_OUT_GROUPS
from vocabtrim_core.counting.tally import SparseHistogram, Tally
from vocabtrim_core.errors import CorpusError, SettingError, TokenizerError
from vocabtrim_core.files import write_atomically
from vocabtrim_core.paths import read_bounded, reason
from vocabtrim_core.tokenization import Tokenizer
from vocabtrim_core.tokenizer_definition import MAX_VOCAB_SIZE

FORMAT = "vocabtrim token counts 2"
MAX_BAD_RECORDS = 20
MAX_TOKENS = 10**18  # so that sums stay in int64
MAX_LEFT_OUT = 200
MAX_COUNTS_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, order=True)
class CountedFile:
    """A file that was counted, and what was found in it.

    `sha256` is that of its content, where it was in memory whole (an upload). Files on disk are not read once more for
    it: theirs is a sha256 of their documents' content hashes, whatever the format, compression and order.
    """

    name: str
    sha256: str
    documents: int
    tokens: int


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """How often each token id occurs, apart for calibration and held-out documents, with provenance.

    `calibration` is int64[V] with V = `vocab_size`, the tokenizer's; `held_out_groups` is int64[32, V], the held-out
    documents in groups by a hash of their content, and `held_out` the sum of the groups. `holdout` is the share of
    documents that was asked to be held out. `bad_records` are the first `MAX_BAD_RECORDS` of `bad_record_count`
    skipped lines, and `left_out` the first `MAX_LEFT_OUT` of `left_out_count` files that are missing from the counts,
    whole or in part, the serious ones first. `ledger` are entries (see `counting.ledger`) with their numbers; counts
    that were saved before there were ledgers have none. All are in sorted order, so that merging does not depend on it.
    """

    calibration: np.ndarray
    held_out_groups: np.ndarray
    calibration_documents: int
    held_out_documents: int
    files: tuple[CountedFile, ...]
    tokenizer_name: str
    tokenizer_fingerprint: str
    vocab_size: int
    holdout: float
    bad_records: tuple[BadRecord, ...] = ()
    bad_record_count: int = 0
    ledger: tuple[tuple[Entry, int], ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    left_out_count: int = 0

    @classmethod
    def of(
        cls,
        tally: Tally,
        tokenizer: Tokenizer,
        files: Iterable[CountedFile],
    ) -> TokenCounts:
        """A finished tally with its provenance."""
        groups = np.zeros((HELD_OUT_GROUPS, tally.vocab_size), dtype=np.int64)
        tally.held_out.add_to(groups)
        return cls(
            calibration=tally.total - groups.sum(axis=0),
            held_out_groups=groups,
            calibration_documents=tally.documents[0],
            held_out_documents=tally.documents[1],
            files=tuple(sorted(files)),
            tokenizer_name=tokenizer.name,
            tokenizer_fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            holdout=tally.holdout,
        )

    @cached_property
    def held_out(self) -> np.ndarray:
        """int64[V]: the held-out side, all groups together."""
        return self.held_out_groups.sum(axis=0)

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
        held_out = SparseHistogram.of(self.held_out_groups)
        digest.update(held_out.cells.tobytes())
        digest.update(held_out.counts.tobytes())
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
            held_out_groups=self.held_out_groups + other.held_out_groups,
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
            ledger=sorted_ledger(Counter(dict(self.ledger)) + Counter(dict(other.ledger))),
            left_out=first_left_out([*self.left_out, *other.left_out]),
            left_out_count=self.left_out_count + other.left_out_count,
        )

    def to_bytes(self) -> bytes:
        """A compressed npz file without pickle; equal counts give equal bytes."""
        buffer = io.BytesIO()
        held_out = SparseHistogram.of(self.held_out_groups)
        np.savez_compressed(
            buffer,
            calibration=self.calibration,
            held_out_cells=held_out.cells,
            held_out_counts=held_out.counts,
            provenance=np.frombuffer(self._provenance(), dtype=np.uint8),
        )
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the file") -> TokenCounts:
        """What `to_bytes` wrote. CorpusError, which calls it `name`, where it is anything else."""
        try:
            return _restored(read_npz(data, MAX_COUNTS_BYTES))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CorpusError(
                f"{name} is not a counts file of this program, or is damaged; count the corpus again."
            ) from error

    def save(self, path: str | Path) -> None:
        """Write to `path`; a failure leaves nothing half-written there. CorpusError where it cannot be written."""
        try:
            write_atomically(Path(path), self.to_bytes())
        except (OSError, ValueError) as error:
            raise CorpusError(f"{path} cannot be written: {reason(error)}.") from None

    @classmethod
    def load(cls, path: str | Path) -> TokenCounts:
        """What `save` wrote. CorpusError where there is no such file or it is anything else."""
        return cls.from_bytes(read_bounded(path, MAX_COUNTS_BYTES), str(path))

    def _provenance(self) -> bytes:
        """All fields but the histograms, as JSON."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.type != "np.ndarray"}
        return json.dumps({"format": FORMAT, **plain}, sort_keys=True, default=asdict).encode()


Record = TypeVar("Record", CountedFile, BadRecord, LeftOut, TokenCounts)


def first_left_out(left_out: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Those that counts keep: the serious ones first, then by name."""
    return tuple(sorted(left_out, key=lambda each: (not each.serious, each))[:MAX_LEFT_OUT])


def read_npz(data: bytes, max_bytes: int) -> dict[str, np.ndarray]:
    """The arrays of an npz file without pickle; ValueError for anything else, and for what unpacks to more."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > max_bytes:
                raise ValueError("too large")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays)
    # zipfile, zlib and numpy raise a dozen kinds of error on bytes that are not such a file.
    except Exception as error:
        raise ValueError("not an npz file") from error


def restored_histogram(cells: np.ndarray, counts: np.ndarray, size: int) -> SparseHistogram:
    """A sparse histogram over `size` cells from two arrays of a file; ValueError where they are none."""
    right = (
        cells.dtype == counts.dtype == np.int64
        and cells.shape == counts.shape == (len(cells),)
        and (not len(cells) or (cells[0] >= 0 and cells[-1] < size))
        and (np.diff(cells) > 0).all()
        and (counts > 0).all()
    )
    if not right:
        raise ValueError("not a histogram")
    return SparseHistogram(cells, counts)


def _restored(arrays: dict[str, np.ndarray]) -> TokenCounts:
    """TokenCounts from the arrays of a counts file; ValueError, TypeError or KeyError where they do not fit."""
    record = json.loads(arrays["provenance"].tobytes())
    if not isinstance(record, dict) or record.pop("format") != FORMAT:
        raise ValueError("another format")
    calibration, size = arrays["calibration"], record["vocab_size"]
    if (
        calibration.dtype != np.int64
        or calibration.shape != (size,)
        or (calibration < 0).any()
        or size > MAX_VOCAB_SIZE
        or calibration.sum(dtype=np.float64) + arrays["held_out_counts"].sum(dtype=np.float64) > MAX_TOKENS
    ):
        raise ValueError("not a histogram")
    groups = np.zeros((HELD_OUT_GROUPS, size), dtype=np.int64)
    restored_histogram(arrays["held_out_cells"], arrays["held_out_counts"], groups.size).add_to(groups)
    record["files"] = tuple(_typed(CountedFile(**file)) for file in record["files"])
    record["bad_records"] = tuple(_typed(BadRecord(**bad)) for bad in record["bad_records"])
    record["ledger"] = tuple(
        (Entry(str(file), str(item), str(outcome)), _number(number))
        for (file, item, outcome), number in record.get("ledger", ())
    )
    record["left_out"] = tuple(_typed(LeftOut(**each)) for each in record.get("left_out", ()))
    return _typed(TokenCounts(calibration=calibration, held_out_groups=groups, **record))


def sorted_ledger(ledger: Counter[Entry]) -> tuple[tuple[Entry, int], ...]:
    """The entries with a number, in sorted order."""
    return tuple((entry, number) for entry, number in sorted(ledger.items()) if number)


def _number(number: object) -> int:
    if type(number) is not int or number < 1:
        raise ValueError("a number of a ledger is not positive")
    return number


def _typed(record: Record) -> Record:
    """`record`, a dataclass, after a check of its plain fields' types; ValueError where one is of another."""
    for field in fields(record):
        if field.type in ("str", "int", "float", "bool") and type(getattr(record, field.name)).__name__ != field.type:
            raise ValueError(f"{field.name} is not of type {field.type}")
    return record
