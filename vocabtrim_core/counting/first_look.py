"""What can be checked before a count of hours: that each file that was named has something that can be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vocabtrim_core.corpora import BadRecord, Document, HubDataset, Shard, nothing_usable, read_shard
from vocabtrim_core.counting.shard_counts import Job
from vocabtrim_core.errors import TokenizerError

MAX_BAD_RECORDS = 1_000  # after which a file may have its good ones further on
# Some formats are read whole before they give their first row.
MAX_WHOLE_BYTES = 64 * 2**20


def check_named_files(shards: Sequence[Shard], job: Job) -> None:
    """Look for the first usable record of each named file that starts among `shards`.

    Raises CorpusError for a file that cannot be read or has none, TokenizerError where it is a chat and the tokenizer
    has no chat template.
    """
    parts = Counter(shard.file for shard in shards)
    for shard in shards:
        starts = shard.first_line == 1 and shard.named and not isinstance(shard.source, HubDataset)
        read_whole = shard.format == "arrow" or (shard.format == "parquet" and shard.compression)
        if starts and not (read_whole and shard.bytes > MAX_WHOLE_BYTES):
            _look_into(shard, job, whole=parts[shard.file] == 1)


def _look_into(shard: Shard, job: Job, whole: bool) -> None:
    bad: list[BadRecord] = []

    def on_bad(record: BadRecord) -> None:
        bad.append(record)
        if len(bad) == MAX_BAD_RECORDS:
            raise _EnoughError

    def refuse(document: Document, reason: str) -> None:
        on_bad(shard.bad_record(document.line, reason))

    try:
        for document in read_shard(shard, job.options, on_bad):
            if document.text is not None:
                return
            tokenizer = job.encoders.tokenizer
            if document.messages is not None and not tokenizer.has_chat_template:
                raise TokenizerError(
                    f"There are chats to count in {shard.file}, but the tokenizer {tokenizer.name} has no chat "
                    "template to render them with. Use the tokenizer of a chat model, or text."
                )
            if job.document_encoder.encode([document], refuse, Counter())[0]:
                return
    except _EnoughError:
        return
    if whole:
        raise nothing_usable(shard.file, bad[0] if bad else None)


class _EnoughError(Exception):
    """A file was looked into as far as a first look goes."""
