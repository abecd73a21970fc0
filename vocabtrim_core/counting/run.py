"""Counting a corpus: its shards by an engine, their histograms summed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from vocabtrim_core.chat_templates import FIXED_DATE
from vocabtrim_core.corpora import BadRecord, CorpusFile, LeftOut, ReadingOptions, Shard, nothing_usable, plan_shards
from vocabtrim_core.counting.cluster import count_on_ray
from vocabtrim_core.counting.counts import MAX_BAD_RECORDS, CountedFile, TokenCounts, first_left_out, sorted_ledger
from vocabtrim_core.counting.first_look import check_named_files
from vocabtrim_core.counting.ledger import TURNS, Entry
from vocabtrim_core.counting.local import Batch, Event, count_locally
from vocabtrim_core.counting.shard_counts import Job, ShardCounts
from vocabtrim_core.counting.split import HELD_OUT_GROUPS, check_holdout
from vocabtrim_core.counting.state import open_state
from vocabtrim_core.errors import CorpusError
from vocabtrim_core.fast_tokenization import Encoders
from vocabtrim_core.progress import Progress
from vocabtrim_core.tokenization import Tokenizer

# Loading the fast encoder takes longer than counting less than this with the other, in sizes of the tokenizer itself.
FAST_FROM_SIZES = 2

Engine = Literal["local", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "ray")


@dataclass(frozen=True)
class CountRun:
    """Finished counts and how they came about: `counted_tokens` in this run, the rest being resumed.

    `notes` are sentences on how chats were rendered.
    """

    counts: TokenCounts
    counted_tokens: int
    shards: int
    resumed_shards: int
    encoder: str
    notes: tuple[str, ...] = ()


def count_files(
    files: Sequence[CorpusFile],
    tokenizer: Tokenizer,
    holdout: float = 0.1,
    on_progress: Progress | None = None,
    options: ReadingOptions | None = None,
) -> TokenCounts:
    """Count the tokens of `files`, holding out about `holdout` of the documents; see `run_count`."""
    if not files:
        raise CorpusError("There is nothing to count; choose at least one file.")
    options = options or ReadingOptions()
    return count_shards(plan_shards(files, options), tokenizer, options, holdout, on_progress=on_progress)


def count_shards(
    shards: Sequence[Shard],
    tokenizer: Tokenizer,
    options: ReadingOptions | None = None,
    holdout: float = 0.1,
    engine: Engine = "local",
    state_folder: Path | None = None,
    on_progress: Progress | None = None,
) -> TokenCounts:
    """The counts of `run_count`."""
    return run_count(shards, tokenizer, options, holdout, engine, state_folder, on_progress).counts


def run_count(
    shards: Sequence[Shard],
    tokenizer: Tokenizer,
    options: ReadingOptions | None = None,
    holdout: float = 0.1,
    engine: Engine = "local",
    state_folder: Path | None = None,
    on_progress: Progress | None = None,
    ray_address: str | None = None,
    left_out: Sequence[LeftOut] = (),
) -> CountRun:
    """Count the tokens of `shards`, holding out about `holdout` of the documents.

    The same histograms whatever the engine, the order in which shards are finished, and how often the count was ended
    and resumed. With a `state_folder`, finished shards are kept there, and those that are there already (of the same
    content, tokenizer, options and held-out share) are not counted again. Control-token text in a corpus is counted as
    text; chats as `DocumentEncoder` says.
    Named files are looked into first. Once the count has begun, a file that cannot be read to its end does not end it:
    what came before is counted, and `TokenCounts.left_out` says so, as of a file without a usable record and of what
    planning has `left_out`. Such a part is not kept in the `state_folder`.
    `on_progress(share, message)` is called as it goes, with the share done in 0..1; what it raises cancels.
    Raises CorpusError for no shards, no usable record at all, or a named file in which a first look finds none,
    TokenizerError for chats in one where there is no chat template, SettingError for a `holdout` outside
    0 <= holdout < 1 or an engine that cannot be used.
    """
    holdout = check_holdout(holdout)
    if not shards:
        raise CorpusError("There is nothing to count; choose at least one file.")
    size = sum(shard.bytes for shard in shards)
    fast = not all(shard.bytes for shard in shards) or size >= FAST_FROM_SIZES * len(tokenizer.definition.plain)
    job = Job(Encoders(tokenizer, fast), options or ReadingOptions(), holdout)
    total = _Total(shards, job)
    report = _Report(shards, on_progress)
    resumed, todo = 0, []
    with ExitStack() as stack:
        stack.callback(job.encoders.wait)
        state = stack.enter_context(open_state(state_folder, job)) if state_folder else None
        for shard in shards:
            if state and (counts := state.load(shard)):
                total.add(shard, counts)
                report(shard, counts.tokens, finished=True)
                resumed += 1
            else:
                todo.append(shard)
        resumed_tokens = total.tokens
        check_named_files(todo, job)
        for event in stack.enter_context(closing(_events(todo, job, engine, ray_address))):
            if isinstance(event, Batch):
                report(event.shard, event.tokens, event.characters)
                continue
            if state and not event.counts.failure:
                state.save(event.shard, event.counts)
            total.add(event.shard, event.counts)
            report(event.shard, event.counts.tokens, finished=True)
    finished = total.token_counts(left_out)
    return CountRun(
        counts=finished,
        counted_tokens=total.tokens - resumed_tokens,
        shards=len(shards),
        resumed_shards=resumed,
        encoder=", ".join(sorted(total.encoders)),
        notes=_notes(finished, tokenizer),
    )


def _notes(counts: TokenCounts, tokenizer: Tokenizer) -> tuple[str, ...]:
    if tokenizer.template.prints_date and any(entry.item == TURNS for entry, _ in counts.ledger):
        return (
            f"The chat template of {tokenizer.name} prints today's date. Counts always take {FIXED_DATE:%d %B %Y}, so "
            "that they are the same on every day.",
        )
    return ()


def _events(shards: Sequence[Shard], job: Job, engine: Engine, ray_address: str | None) -> Generator[Event, None, None]:
    if not shards:
        return
    if engine == "ray":
        yield from count_on_ray(shards, job, ray_address)
    else:
        yield from count_locally(shards, job)


@dataclass
class _File:
    """What was found in the shards of a file so far."""

    documents: int = 0
    tokens: int = 0
    content_sum: int = 0
    first_bad: BadRecord | None = None
    named: bool = False
    failures: dict[int, str] = field(default_factory=dict)  # by where their shards start

    def left_out(self, name: str) -> LeftOut | None:
        """What is missing of it, after its last shard."""
        if self.failures:
            return LeftOut(name, self.failures[min(self.failures)], self.documents, serious=True)
        if not self.documents:
            return LeftOut(name, str(nothing_usable(name, self.first_bad)), serious=self.named)
        return None


class _Total:
    """The sum of shards, which may come in any order."""

    def __init__(self, shards: Sequence[Shard], job: Job) -> None:
        self._tokenizer = job.encoders.tokenizer
        self._holdout = job.holdout
        self._calibration = np.zeros(self._tokenizer.vocab_size, dtype=np.int64)
        self._groups = np.zeros((HELD_OUT_GROUPS, self._tokenizer.vocab_size), dtype=np.int64)
        self._documents = [0, 0]
        self._files: dict[str, _File] = {}
        self._uploads: dict[str, str] = {}
        self._bad: list[BadRecord] = []
        self._bad_count = 0
        self._ledger: Counter[Entry] = Counter()
        self.tokens = 0
        self.encoders: set[str] = set()
        for shard in shards:
            self._files.setdefault(shard.file, _File(named=shard.named))
            if isinstance(shard.source, CorpusFile):
                self._uploads[shard.file] = shard.source.sha256

    def add(self, shard: Shard, counts: ShardCounts) -> None:
        counts.total.add_to(self._calibration)
        counts.held_out.add_to(self._groups)
        np.subtract.at(self._calibration, counts.held_out.cells % self._tokenizer.vocab_size, counts.held_out.counts)
        for side, documents in enumerate(counts.documents):
            self._documents[side] += documents
        self._bad = sorted([*self._bad, *counts.bad_records])[:MAX_BAD_RECORDS]
        self._bad_count += counts.bad_record_count
        self._ledger.update({Entry(shard.file, item, outcome): n for item, outcome, n in counts.ledger})
        self.tokens += counts.tokens
        file = self._files[shard.file]
        file.documents += sum(counts.documents)
        file.tokens += counts.tokens
        file.content_sum = (file.content_sum + counts.content_sum) % 2**64
        file.first_bad = min([bad for bad in (file.first_bad, *counts.bad_records) if bad], default=None)
        if counts.failure:
            file.failures[shard.start] = counts.failure
        self.encoders |= {counts.encoder} - {""}

    def token_counts(self, planned: Sequence[LeftOut]) -> TokenCounts:
        """All together, with what planning left out. CorpusError where there is no document."""
        missing = [each for name, file in self._files.items() if (each := file.left_out(name))]
        left_out = first_left_out([*planned, *missing])
        if not sum(self._documents):
            first = left_out[0].reason
            raise CorpusError(
                first
                if len(self._files) == 1 and left_out[0].serious
                else f"None of the files has a usable record. The first problem: {first}"
            )
        files = [
            CountedFile(name, self._uploads.get(name) or _digest(file), file.documents, file.tokens)
            for name, file in self._files.items()
            if file.documents
        ]
        return TokenCounts(
            calibration=self._calibration,
            held_out_groups=self._groups,
            calibration_documents=self._documents[0],
            held_out_documents=self._documents[1],
            files=tuple(sorted(files)),
            tokenizer_name=self._tokenizer.name,
            tokenizer_fingerprint=self._tokenizer.fingerprint,
            vocab_size=self._tokenizer.vocab_size,
            holdout=self._holdout,
            bad_records=tuple(self._bad),
            bad_record_count=self._bad_count,
            left_out=left_out,
            left_out_count=len(planned) + len(missing),
            ledger=sorted_ledger(self._ledger),
        )


def _digest(file: _File) -> str:
    return hashlib.sha256(f"{file.content_sum} {file.documents}".encode()).hexdigest()


class _Report:
    """Turns what was counted into the share done (of stored bytes; of shards, where those are not known)."""

    def __init__(self, shards: Sequence[Shard], on_progress: Progress | None) -> None:
        self._on_progress = on_progress
        self._by_bytes = all(shard.bytes for shard in shards)
        self._weight = sum(shard.bytes for shard in shards) if self._by_bytes else len(shards)
        self._done = 0
        self._tokens = 0
        self._at_work: dict[str, tuple[int, int]] = {}  # bytes and tokens of unfinished shards, by name

    def __call__(self, shard: Shard, tokens: int, characters: int = 0, finished: bool = False) -> None:
        if finished:
            self._at_work.pop(shard.name, None)
            self._done += shard.bytes if self._by_bytes else 1
            self._tokens += tokens
        else:
            part, before = self._at_work.get(shard.name, (0, 0))
            # A compressed shard has more characters than bytes; it is not done before it is finished.
            self._at_work[shard.name] = (min(part + characters, shard.bytes), before + tokens)
        if self._on_progress is not None:
            parts, tokens_at_work = map(sum, zip((0, 0), *self._at_work.values(), strict=True))
            share = (self._done + (parts if self._by_bytes else 0)) / self._weight
            self._on_progress(share, f"{shard.file}: {self._tokens + tokens_at_work:,} tokens in all")
