"""Finished shards on disk, so that a count that was ended at any moment goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import filelock
import tokenizers

from vocabtrim_core.corpora import Shard
from vocabtrim_core.counting.counts import FORMAT
from vocabtrim_core.counting.shard_counts import Job, ShardCounts
from vocabtrim_core.errors import CorpusError, SettingError
from vocabtrim_core.fast_tokenization import fast_version
from vocabtrim_core.files import write_atomically

# Of files that a kill left half-written; what else is in the folder is not ours to delete.
_PART_PREFIX = ".vocabtrim-part-"

# Raised whenever the same shard gives other counts than before.
RULES = 3


class StateFolder:
    """A folder with one file for each finished shard, named by everything that its counts depend on.

    So no count is ever reused for another text, tokenizer, option or held-out share; what is not used stays.
    """

    def __init__(self, path: Path, job: Job) -> None:
        self._path = path
        self._job = job

    def load(self, shard: Shard) -> ShardCounts | None:
        """The counts of a finished shard; None where it is still to be counted, or its file is damaged."""
        key = shard_key(shard, self._job)
        try:
            return ShardCounts.from_bytes(self._file(key).read_bytes(), key, self._job.encoders.tokenizer.vocab_size)
        except FileNotFoundError:
            return None
        except ValueError:
            return None
        except OSError as error:
            raise CorpusError(f"{self._file(key)} cannot be read: {error.strerror}.") from None

    def save(self, shard: Shard, counts: ShardCounts) -> None:
        key = shard_key(shard, self._job)
        try:
            write_atomically(self._file(key), counts.to_bytes(key), _PART_PREFIX)
        except OSError as error:
            raise CorpusError(f"{self._file(key)} cannot be written: {error.strerror}.") from None

    def _file(self, key: str) -> Path:
        return self._path / f"{key}.npz"


@contextmanager
def open_state(path: Path, job: Job) -> Iterator[StateFolder]:
    """The state folder at `path`, made where it is missing, for one count at a time.

    Raises SettingError where another count uses it, CorpusError where it cannot be used.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path / ".lock")
        with lock.acquire(timeout=0):
            for left in path.glob(f"{_PART_PREFIX}*"):
                left.unlink()
            yield StateFolder(path, job)
    except filelock.Timeout:
        raise SettingError(f"Another count uses {path}. Wait until it has ended, or choose another folder.") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be used to resume from: {error.strerror or error}.") from None


def shard_key(shard: Shard, job: Job) -> str:
    """sha256 hex digest of all that the counts of `shard` depend on."""
    tokenizer = job.encoders.tokenizer
    parts = {
        "format": [FORMAT, RULES],
        "content": shard.key,
        "name": [shard.name, shard.named],  # in the bad records; and whether damage is one
        "tokenizer": [tokenizer.fingerprint, tokenizer.vocab_size, tokenizer.template_digest],
        "options": asdict(job.options),
        "holdout": job.holdout,
        "libraries": [tokenizers.__version__, fast_version() if job.encoders.fast else ""],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
