"""Hugging Face data sets, streamed: nothing is kept on disk but what the library itself caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vocabtrim_core.corpora.documents import Document, HubDataset, ReadingOptions, Report
from vocabtrim_core.corpora.fields import parse_record, usable_columns
from vocabtrim_core.corpora.shards import Shard
from vocabtrim_core.defaults import HUB_SECONDS
from vocabtrim_core.errors import CorpusError, SettingError
from vocabtrim_core.paths import is_folder

if TYPE_CHECKING:
    from datasets import IterableDataset

PREFIX = "hf:"


def parse_hub_dataset(text: str) -> HubDataset:
    """The data set that "hf:NAME", "hf:NAME:SPLIT" or "hf:NAME:CONFIG:SPLIT" names. SettingError for anything else."""
    name, *others = text.removeprefix(PREFIX).split(":")
    if not name or len(others) > 2 or not all(others):
        raise SettingError(f"{text} names no data set. Write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT.")
    if not others:
        return HubDataset(name)
    return HubDataset(name, others[0] if len(others) == 2 else None, others[-1])


def dataset_documents(shard: Shard, options: ReadingOptions, report: Report) -> Iterator[Document]:
    """The document of each row of one part of a data set."""
    assert isinstance(shard.source, HubDataset) and shard.stop is not None
    rows = open_dataset(shard.source)
    if shard.stop > 1:
        rows = rows.shard(num_shards=shard.stop, index=shard.start)
    if rows.column_names is not None:
        try:
            # Pictures and sounds in other columns are then neither fetched nor decoded.
            rows = rows.select_columns(usable_columns(rows.column_names, options))
        except ValueError as error:
            report(0, str(error))
            return
    for number, record in enumerate(_guarded(shard.source, rows), start=1):
        try:
            document = parse_record(record, number, options, check_unicode=True)
        except ValueError as error:
            report(number, str(error))
        else:
            yield document


def open_dataset(dataset: HubDataset) -> IterableDataset:
    """The split as a stream. CorpusError, with what the library says, where it cannot be opened."""
    # Takes a second to import, and most corpora are files.
    from datasets import load_dataset

    try:
        return load_dataset(
            dataset.name, dataset.config, split=dataset.split, revision=dataset.revision, streaming=True
        )
    # The library raises its own kinds, those of the hub, of fsspec and of every file format.
    except Exception as error:
        raise CorpusError(_not_opened(dataset, error)) from error


def pinned(dataset: HubDataset) -> HubDataset:
    """The data set at the commit that its revision names now, so that every part, worker and rerun reads the same."""
    if is_folder(dataset.name):
        return dataset
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(dataset.name, revision=dataset.revision, timeout=HUB_SECONDS).sha
    except Exception as error:
        raise CorpusError(_not_opened(dataset, error)) from error
    return HubDataset(dataset.name, dataset.config, dataset.split, commit)


def _guarded(dataset: HubDataset, rows: IterableDataset) -> Iterator[dict]:
    iterator = iter(rows)
    while True:
        try:
            record = next(iterator, None)
        except Exception as error:
            raise CorpusError(_not_opened(dataset, error)) from error
        if record is None:
            return
        yield record


def _not_opened(dataset: HubDataset, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
    return (
        f"The data set {dataset.name} ({dataset.split}) cannot be read: {reason}. Check its name and the connection "
        f"(the hub gets {HUB_SECONDS} seconds to answer), or give files on this machine."
    )
