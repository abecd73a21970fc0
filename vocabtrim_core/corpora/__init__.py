"""Corpora: files, folders, uploads and data sets, read as a stream of documents."""

from vocabtrim_core.corpora.documents import (
    BadRecord,
    CorpusFile,
    Document,
    HubDataset,
    LeftOut,
    OnBad,
    OnLeftOut,
    ReadingOptions,
)
from vocabtrim_core.corpora.encodings import decode_text
from vocabtrim_core.corpora.formats import KINDS, SUFFIXES
from vocabtrim_core.corpora.limits import MAX_FILE_BYTES
from vocabtrim_core.corpora.planning import SHARD_BYTES, Source, plan_shards
from vocabtrim_core.corpora.reading import nothing_usable, read_documents, read_file, read_shard
from vocabtrim_core.corpora.shards import Shard
from vocabtrim_core.corpora.text import text_blocks

__all__ = [
    "KINDS",
    "MAX_FILE_BYTES",
    "SHARD_BYTES",
    "SUFFIXES",
    "BadRecord",
    "CorpusFile",
    "Document",
    "HubDataset",
    "LeftOut",
    "OnBad",
    "OnLeftOut",
    "ReadingOptions",
    "Shard",
    "Source",
    "decode_text",
    "nothing_usable",
    "plan_shards",
    "read_documents",
    "read_file",
    "read_shard",
    "text_blocks",
]
