"""What corpora are read into: documents, and records that could not be used; and how they are to be read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from vocabtrim_core.corpora.messages import Message, Note


@dataclass(frozen=True)
class CorpusFile:
    """An upload, or a file read whole; the suffix of `name` says how it is read."""

    name: str
    data: bytes

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the content."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class HubDataset:
    """A split of a Hugging Face data set, by hub name (or of a local folder that `datasets` can load), streamed."""

    name: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None


@dataclass(frozen=True)
class ReadingOptions:
    """How records become documents.

    `field` is the field with the text or the chat ("text"; "request.messages" for a field inside a field;
    "question+answer" for a user's and an assistant's turn), None to detect it. `roles` says whose turns of a chat are
    to be counted; text that is no chat is counted whole. `newlines` "lf" turns CRLF and CR into LF in every document.
    `encoding` is a codec's name, None to detect it; `token_dtype` is that of already tokenized `.bin` files, likewise.
    """

    field: str | None = None
    roles: Literal["all", "assistant"] = "all"
    newlines: Literal["keep", "lf"] = "lf"
    encoding: str | None = None
    token_dtype: Literal["uint16", "uint32"] | None = None


# A tuple, as it takes a third of the time of a frozen dataclass to make, and there are millions.
class Document(NamedTuple):
    """A text, a chat or token ids: exactly one of `text`, `messages` and `ids` is set.

    `messages` are those of `corpora.messages`, `tools` the definitions of tools that come with them, `notes` what of
    the record neither has. `ids` is an integer array [n], not yet compared
    with any vocabulary. `line` is the line (or row) of its shard where it starts, from 1: `Shard.bad_record` turns it
    into that of the file. A shard that is a whole file counts as the file does.
    """

    text: str | None
    messages: tuple[Message, ...] | None
    line: int = 1
    ids: np.ndarray | None = None
    tools: tuple[dict, ...] | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, order=True)
class BadRecord:
    """A line (or row) of a file that was skipped, and why; line 0 stands for the whole file."""

    file: str
    line: int
    reason: str

    @property
    def where(self) -> str:
        """The file and the line, for people."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, order=True)
class LeftOut:
    """A file that was not counted, or not to its end, and why (`reason` is a sentence that names it).

    `documents` of it were counted all the same. `serious` is what a user counted on: a source that was named by itself,
    or a file that was there and could not be read, or not to its end. The rest is what folders hold beside the text.
    """

    file: str
    reason: str
    documents: int = 0
    serious: bool = False

    @property
    def sentence(self) -> str:
        """All of it, for people."""
        counted = f"{self.documents:,} of its documents were counted" if self.documents else "it was left out"
        return f"{self.reason} In the counts: {counted}."


OnLeftOut = Callable[[LeftOut], None]
OnBad = Callable[[BadRecord], None]
# Takes a line (or row) of the shard that is being read, and what is wrong with it.
Report = Callable[[int, str], None]
