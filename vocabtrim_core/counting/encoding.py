"""Documents to token ids: texts, chats in the template's words, and what is token ids already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from vocabtrim_core.corpora import Document
from vocabtrim_core.errors import TokenizerError
from vocabtrim_core.fast_tokenization import Encoders, FlatIds

Refuse = Callable[[Document, str], None]


class DocumentEncoder:
    """Encodes documents; of a chat either all turns or the assistant's only (`roles`).

    All turns: the whole chat as the chat template renders it, turn marks included. The assistant's: what a model wrote
    in the chat, which is each assistant's content, encoded apart since a model's first token never merges with the
    prompt, and the control token that the template puts after it to end the turn. In both, control-token text inside a
    message is text.
    """

    def __init__(self, encoders: Encoders, roles: Literal["all", "assistant"]) -> None:
        self._encoders = encoders
        self._tokenizer = encoders.tokenizer
        self._encode_chats = self._whole_chats if roles == "all" else self._answers
        # Most chats of a corpus have one of a few sequences of roles.
        self._turn_ends = lru_cache(maxsize=4096)(self._tokenizer.turn_ends)

    def encode(self, documents: Sequence[Document], refuse: Refuse) -> tuple[list[Document], FlatIds]:
        """The documents, in some order, and their token ids. What cannot be encoded goes to `refuse`, with the reason.

        Where there is no chat template, those are all chats.
        """
        texts = [document for document in documents if document.text is not None]
        chats = [document for document in documents if document.messages is not None]
        ready = [document for document in documents if document.ids is not None]
        kept: list[Document] = []
        parts: list[FlatIds] = []
        if texts:
            kept += texts
            parts.append(self._encoders.plain.encode([document.text or "" for document in texts]))
        for group, encode in ((chats, self._encode_chats), (ready, self._checked_ids)):
            if group:
                more, flat = encode(group, refuse)
                kept += more
                parts.append(flat)
        return kept, parts[0] if len(parts) == 1 else FlatIds.joined(parts)

    def _whole_chats(self, chats: Sequence[Document], refuse: Refuse) -> tuple[list[Document], FlatIds]:
        tokenizer = self._tokenizer
        whole: list[Document] = []
        rendered: list[str] = []
        apart: list[Document] = []
        apart_ids: list[list[int]] = []
        for chat in chats:
            messages = chat.messages or ()
            try:
                if any(tokenizer.holds_control_text(message["content"]) for message in messages):
                    apart_ids.append(tokenizer.encode_chat(messages))
                    apart.append(chat)
                else:
                    rendered.append(tokenizer.render_chat(messages))
                    whole.append(chat)
            except TokenizerError as error:
                refuse(chat, str(error))
        flat = self._encoders.control.encode(rendered)
        return [*whole, *apart], FlatIds.joined([flat, FlatIds.of(apart_ids)]) if apart else flat

    def _answers(self, chats: Sequence[Document], refuse: Refuse) -> tuple[list[Document], FlatIds]:
        kept: list[Document] = []
        contents: list[str] = []
        ends: list[int] = []
        turns = [0]
        for chat in chats:
            messages = chat.messages or ()
            if not any(message["role"] == "assistant" for message in messages):
                refuse(chat, "no message is the assistant's")
                continue
            try:
                turn_ends = self._turn_ends(tuple(message["role"] for message in messages))
            except TokenizerError as error:
                refuse(chat, str(error))
                continue
            for message, end in zip(messages, turn_ends, strict=True):
                if message["role"] == "assistant":
                    contents.append(message["content"])
                    ends.append(-1 if end is None else end)
            turns.append(len(contents))
            kept.append(chat)
        ended = _with_ends(self._encoders.plain.encode(contents), np.array(ends, dtype=np.int64))
        return kept, FlatIds(ended.ids, ended.offsets[turns])

    def _checked_ids(self, documents: Sequence[Document], refuse: Refuse) -> tuple[list[Document], FlatIds]:
        kept = []
        for document in documents:
            assert document.ids is not None
            highest = int(document.ids.max(initial=0))
            if highest >= self._tokenizer.vocab_size or document.ids.min(initial=0) < 0:
                refuse(document, f"token {highest:,} is not in the vocabulary of {self._tokenizer.name}")
            else:
                kept.append(document)
        return kept, FlatIds.of([document.ids for document in kept if document.ids is not None])


def _with_ends(flat: FlatIds, ends: np.ndarray) -> FlatIds:
    """`flat` with one more id at the end of each text, where `ends` (int64[texts]) is not negative."""
    has_end = ends >= 0
    offsets = flat.offsets + np.concatenate([[0], np.cumsum(has_end)])
    at_end = np.zeros(offsets[-1], dtype=bool)
    at_end[offsets[1:][has_end] - 1] = True
    ids = np.empty(offsets[-1], dtype=np.int64)
    ids[at_end] = ends[has_end]
    ids[~at_end] = flat.ids
    return FlatIds(ids, offsets)
