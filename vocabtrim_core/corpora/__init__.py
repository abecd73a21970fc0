"""Corpora: files, folders, uploads and data sets, read as a stream of documents."""

from vocabtrim_core.corpora.documents import (
    BadRecord,
    CorpusFile,
    Document,
    HubDataset,
    OnBad,
    ReadingOptions,
)
from vocabtrim_core.corpora.legacy import decode_text, read_documents, read_file, text_blocks
from vocabtrim_core.corpora.shards import Shard, nothing_usable, plan_shards, read_shard

__all__ = [
    "BadRecord",
    "CorpusFile",
    "Document",
    "HubDataset",
    "OnBad",
    "ReadingOptions",
    "Shard",
    "decode_text",
    "nothing_usable",
    "plan_shards",
    "read_documents",
    "read_file",
    "read_shard",
    "text_blocks",
]
